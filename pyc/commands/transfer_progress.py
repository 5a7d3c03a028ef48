"""How far a transfer is, on standard error: in one line of a terminal, else now and then."""

import sys
from threading import Lock
from time import monotonic


class TransferProgress:
    """Says how much of `total_bytes` is there."""

    LINE_EVERY_S, STATUS_EVERY_S = 10.0, 0.2

    def __init__(self, total_bytes: int) -> None:
        self._total, self._done = total_bytes, 0
        self._lock = Lock()
        self._began_s = self._shown_s = monotonic()

    def __enter__(self) -> "TransferProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        from pyc.commands.status_line import show_status

        show_status("")

    def advance(self, size_bytes: int) -> None:
        """Note bytes that are there; for several threads."""
        from pyc.commands.screen import tell
        from pyc.commands.status_line import is_quiet, show_status
        from pyc.runtime.host.sizes import human_bytes, human_duration

        with self._lock:
            self._done += size_bytes
            if is_quiet():
                return
            now_s, is_terminal = monotonic(), sys.stderr is not None and sys.stderr.isatty()
            if now_s - self._shown_s < (self.STATUS_EVERY_S if is_terminal else self.LINE_EVERY_S):
                return
            self._shown_s = now_s
            rate = max(self._done, 1) / (now_s - self._began_s)
            left = human_duration(max(self._total - self._done, 0) / rate)
            share, size = self._done / self._total, human_bytes(self._total)
            text = f"{share:.0%} of {size}, {human_bytes(int(rate))}/s, {left} left"
        if is_terminal:
            show_status(text)
        else:
            tell(f"pyc: {text}")
