"""What a reader asks of whatever has an artifact's bytes.

`Source` is random access; `RemoteSource` is one where each read is a round trip, so that whoever reads does so ahead,
in large pieces and on several threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

from pyc.runtime.errors import FetchError

if TYPE_CHECKING:
    from pyc.runtime.sources.local import HeldFile

Mode = Literal["mmap", "pread"]
LINK_REMEDY = "take the link that downloads the file (of a hub: /resolve/ in place of /blob/)"
"""What to do about an address that answers with a web page."""


Came = Callable[[int], None]
"""Told, on the thread that reads, how many bytes from the first on are there for good."""


class EmptyFileError(FetchError):
    """Another machine has the file, and there is no byte in it."""


class RefusedError(FetchError):
    """Another machine does not say whether it has the file: access was refused."""


class Source(Protocol):
    """Random access to bytes that do not change."""

    @property
    def size_bytes(self) -> int | None:
        """The size; None where nobody knows it before the header says it."""
        ...

    def expect(self, size_bytes: int) -> None:
        """Be told the size that the header says, where it was not known, and that the header has been read."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`. Raises ArtifactError when the bytes end early."""

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """The bytes without a copy, read-only; None when this source has no mapping."""

    def hold(self) -> HeldFile | None:
        """The mapped file, open for as long as its mapping is used; None when this source has no mapping."""

    def close(self) -> None:
        """Give back what the source holds. A read that is under way ends with an error. Safe to call again."""


class RemoteSource(Source, Protocol):
    """A source behind a network."""

    def read_parts(self, offset: int, parts: Sequence[memoryview], came: Came | None = None) -> None:
        """Fill `parts`, which lie one behind the other from `offset` on, in one request. For several threads at once.

        `came` is told on the way, where the source knows that, and may raise ArtifactError. Raises ArtifactError when
        the bytes cannot be had, which ends the tries of other threads too.
        """


def as_remote(source: Source) -> RemoteSource | None:
    """The source, if it is behind a network."""
    return cast(RemoteSource, source) if hasattr(source, "read_parts") else None


@dataclass(frozen=True, slots=True)
class Retries:
    """How long a remote source is patient: times in seconds.

    A request is tried `tries` times, unless it moved `progress_bytes`, which counts as none; between two tries it waits
    `first_wait_s`, twice as long each time up to `most_wait_s`, less a random half. Who sends fewer than `least_bytes`
    in `stall_s` has stalled. Of a try that took `told_s`, or is to be followed by such a wait, a warning is logged.
    """

    tries: int = 5
    first_wait_s: float = 0.25
    most_wait_s: float = 8.0
    connect_s: float = 10.0
    stall_s: float = 20.0
    least_bytes: int = 4096
    progress_bytes: int = 32 << 10
    told_s: float = 5.0

    def wait_s(self, failures: int, chance: float) -> float:
        """How long to wait after so many failures in a row; `chance` is drawn from 0 to 1."""
        longest: float = min(self.most_wait_s, self.first_wait_s * 2 ** (failures - 1))
        return longest * (1 - chance / 2)

    def level(self, lasted_s: float) -> int:
        """The level of a log's line about a try that failed."""
        return logging.WARNING if lasted_s >= self.told_s else logging.INFO


PATIENT = Retries()
