"""What this machine's CPU lacks for instruction sets, by their names: all that the common pipeline asks of them."""

from __future__ import annotations

from collections.abc import Iterable

from pyc.backends.cpu.isa import find_isa
from pyc.runtime.executors.cpu.features import lacking


def lacks_here(names: Iterable[str]) -> dict[str, str]:
    """Return, in words, what this CPU lacks for each instruction set of its architecture, the fastest first; nothing
    for one that it runs. Raises LowerError for an unknown name."""
    isas = sorted(map(find_isa, names), key=lambda isa: isa.rank, reverse=True)
    return {isa.name: lacking(isa.features) for isa in isas}
