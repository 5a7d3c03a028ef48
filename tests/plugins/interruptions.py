"""Ctrl-C at a chosen moment, for tests of what an interruption leaves behind."""

from collections.abc import Collection
from types import FrameType


class InterruptedAt:
    """A trace function: raises KeyboardInterrupt before the n-th byte code of `functions` in files below `folder`."""

    def __init__(self, countdown: int, functions: Collection[str], folder: str) -> None:
        self.countdown = countdown
        self._functions, self._folder = functions, folder

    def __call__(self, frame: FrameType, event: str, argument: object) -> "InterruptedAt | None":
        if frame.f_code.co_name not in self._functions or self._folder not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.countdown -= 1
            if self.countdown == 0:
                raise KeyboardInterrupt
        return self
