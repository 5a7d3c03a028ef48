"""Days as options take them: the last one on which a key, or an announcement, counts."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from datetime import date


class Day(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """YYYY-MM-DD; anything else is wrong usage."""

    name = "date"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "date":
        """Return the day of a text."""
        from pyc.runtime.artifact.trust.keys import parse_date
        from pyc.runtime.errors import ArtifactError

        try:
            return parse_date(str(value), "")
        except ArtifactError as error:
            self.fail(str(error).removeprefix(": "), param, ctx)


DAY = Day()


def require_to_come(day: "date | None", option: str) -> None:
    """Raise click.BadParameter for a last day that is past already."""
    from pyc.runtime.artifact.trust.keys import today_utc

    if day is not None and day < today_utc():
        past = f"{day} is past; what has a last day counts to the end of that day, in UTC"
        raise click.BadParameter(past, param_hint=f"'{option}'")
