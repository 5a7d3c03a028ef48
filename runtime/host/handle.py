"""What belongs to the process that made it: it holds memory, files or threads, so that no copy could do its work."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex


class Handle:
    """A base of what pickle, copy.copy and copy.deepcopy refuse with a TypeError, which says what to do."""

    _instead: ClassVar[str] = "load the artifact in each process, and share the model between threads"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise TypeError: pickle and both kinds of copies ask here."""
        name = type(self).__name__
        article = "an" if name[0] in "AEIOU" else "a"
        raise TypeError(f"{article} {name} cannot be pickled or copied; {self._instead}")
