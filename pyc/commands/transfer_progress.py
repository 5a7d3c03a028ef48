"""How far a transfer is, on standard error: in one line of a terminal, else now and then."""

from threading import Lock

from pyc.commands.status_line import PacedLine, show_status


class TransferProgress(PacedLine):
    """Says how much of `total_bytes` is there."""

    def __init__(self, total_bytes: int) -> None:
        super().__init__()
        self._total, self._done = total_bytes, 0
        self._lock = Lock()

    def __enter__(self) -> "TransferProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        show_status("")

    def advance(self, size_bytes: int) -> None:
        """Note bytes that are there; for several threads."""
        from pyc.runtime.host.sizes import human_bytes, human_duration

        with self._lock:
            self._done += size_bytes
            if (elapsed_s := self.elapsed_s()) is None:
                return
            rate = max(self._done, 1) / elapsed_s
            left = human_duration(max(self._total - self._done, 0) / rate)
            share, size = self._done / self._total, human_bytes(self._total)
            text = f"{share:.0%} of {size}, {human_bytes(int(rate))}/s, {left} left"
        self.show(text)
