"""What a session has in the place of an executor once it is closed."""

from collections.abc import Mapping

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import FloatArray, InputArray, IntArray


class ClosedExecutor:
    """Stands in for the executor of a session that was closed."""

    isa, threads, is_arriving, sampler = "", 0, False, None

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def functions(self, name: str) -> tuple[int, ...]:
        raise RunError(self._reason)

    def check_file(self) -> None:
        raise RunError(self._reason)

    def wait(self) -> None:
        raise RunError(self._reason)

    def stop_arriving(self) -> None:
        """Nothing arrives."""

    def write_prefix(self, sequence: int, blocks: IntArray) -> None:
        raise RunError(self._reason)

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        raise RunError(self._reason)
