"""What belongs to the process that made it: it holds memory, files or threads, so that no copy could do its work."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import ClassVar, NoReturn, Self, SupportsIndex


class Handle:
    """A base of what pickle, copy.copy and copy.deepcopy refuse with a TypeError, which says what to do."""

    _instead: ClassVar[str] = "load the artifact in each process, and share the model between threads"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise TypeError: pickle and both kinds of copies ask here."""
        name = type(self).__name__
        article = "an" if name[0] in "AEIOU" else "a"
        raise TypeError(f"{article} {name} cannot be pickled or copied; {self._instead}")


class ClosingHandle(Handle):
    """One that the end of a `with` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
