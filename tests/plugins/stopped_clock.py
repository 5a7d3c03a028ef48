"""A clock of keys that stands still: a suite that runs over midnight has one day."""

from datetime import UTC, datetime, tzinfo

import pytest

from pyc.runtime.artifact.trust import keys

NOW = datetime.now(UTC)
TODAY = NOW.date()


class StoppedClock(datetime):
    """A `datetime` for which it is always NOW."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return NOW.astimezone(tz)


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys expire, and are revoked, on TODAY."""
    monkeypatch.setattr(keys, "datetime", StoppedClock)
