"""Stop strings, wherever token borders fall.

The text ends before the stop string that is complete first; of several complete at the same character, before
the longest. Text that may be the beginning of a stop string is held back until it is known not to be.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pyc.runtime.errors import RunError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096


class StopResult(NamedTuple):  # one a token: a tuple is made in a third of the time of a frozen dataclass
    """Text that may be shown, and whether a stop string ended it."""

    text: str
    stopped: bool


class StopStrings:
    """Watches a stream of text pieces for stop strings. Raises RunError for an empty or excessive one."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str):
            stops = (stops,)
        if len(stops) > MAX_STOP_STRINGS:
            raise RunError(f"stop: got {len(stops)} strings, expected at most {MAX_STOP_STRINGS}")
        for stop in stops:
            if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARACTERS:
                raise RunError(f"stop: got {stop!r:.40}, expected text of 1 to {MAX_STOP_CHARACTERS} characters")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""

    def add(self, piece: str) -> StopResult:
        """The text that `piece` sets free; nothing may be added after one that stopped."""
        if not self._stops:
            return StopResult(piece, False)
        text = self._held + piece
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return StopResult(text[: min(found)[1]], True)
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return StopResult(text[: len(text) - held], False)

    def finish(self) -> str:
        """The text held back, when no more will come."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest proper prefix of `stop` that `text` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
