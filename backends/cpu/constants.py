"""The numbers that kernels in C and Python agree on. C has them from a header that is made here, and nowhere else."""

from __future__ import annotations

from pyc.compiler.quantization import BLOCK

HEADER = "pyc_constants.h"

LANES = 16
"""Rows in a panel of weights."""

CACHE_BLOCK_TOKENS = 64
"""Positions of a block of the key-value cache."""

FOLDED_TOKENS = 96
"""The least batch of matmuls with folded scales: for fewer, folding the weights costs more than it saves."""

INTERLEAVED_TOKENS = 8
"""Rows that are interleaved then."""

TILE_TOKENS = 32
"""The least batch of matmuls by AMX: for fewer, preparing the weights costs more than it saves."""

PARTS = 64
"""Parts of a kernel's work: a loop's tasks, so that every task is one part."""

_IN_C = {
    "PYC_PANEL": LANES,
    "PYC_BLOCK": BLOCK,
    "PYC_POSITIONS": CACHE_BLOCK_TOKENS,
    "PYC_INTERLEAVED_LEAST": FOLDED_TOKENS,
    "PYC_INTERLEAVED_TOKENS": INTERLEAVED_TOKENS,
    "PYC_PAIRED_TOKENS": TILE_TOKENS,
    "PYC_TASKS": PARTS,
}


def constants_header() -> str:
    """Return the text of HEADER."""
    lines = "\n".join(f"#define {name} {value}" for name, value in _IN_C.items())
    guard = "#ifndef PYC_CONSTANTS_H\n#define PYC_CONSTANTS_H"
    return f"/* Made by backends/cpu/constants.py. */\n{guard}\n\n{lines}\n\n#endif\n"
