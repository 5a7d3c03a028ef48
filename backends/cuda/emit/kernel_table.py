"""The kernels of a program: each once, however many launches of however many functions it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyc.backends.cuda.kernels.kernel import Kernel
from pyc.runtime.executors.cuda import program
from pyc.runtime.host.rounding import ceil_div

KERNELS_A_UNIT = 12
"""Kernels that are compiled together: each unit reads the headers again, and units are compiled at once."""


@dataclass
class KernelTable:
    """Numbers kernels in the order in which they come."""

    _numbers: dict[str, int] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)

    def number(self, kernel: Kernel) -> int:
        """Return the number of a kernel, which is new or was seen before."""
        number = self._numbers.setdefault(kernel.symbol, len(self.kernels))
        if number == len(self.kernels):
            self.kernels.append(kernel)
        assert self.kernels[number].source == kernel.source, f"two kernels are called {kernel.symbol}"
        return number

    def units(self) -> tuple[tuple[Kernel, ...], ...]:
        """Return the kernels in groups that are compiled together."""
        count = ceil_div(len(self.kernels), KERNELS_A_UNIT)
        return tuple(tuple(self.kernels[index::count]) for index in range(count))

    def records(self, parameters: Sequence[int]) -> tuple[program.Kernel, ...]:
        """Return what a program says of the kernels, of which number i takes `parameters[i]` buffers."""
        count = max(ceil_div(len(self.kernels), KERNELS_A_UNIT), 1)
        return tuple(
            program.Kernel(kernel.symbol, index % count, kernel.threads, kernel.shared_bytes, parameters[index])
            for index, kernel in enumerate(self.kernels)
        )
