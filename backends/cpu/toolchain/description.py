"""What a library was compiled for, as a part of it (runtime/executors/cpu/description.py)."""

from __future__ import annotations

from pyc.backends.cpu.isa import Isa, oldest_isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.executors.cpu.description import SYMBOL

COLUMNS = 100


def compile_description(description: bytes, isa: Isa, toolchain: Toolchain) -> bytes:
    """Return the ELF object that exports `description` as a string; raises LowerError when the compiler does."""
    return toolchain.compile_object(description_source(description), oldest_isa(isa.arch), {})


def description_source(description: bytes) -> str:
    """Return the C source of a string of those bytes."""
    pieces = [description[start : start + COLUMNS] for start in range(0, len(description), COLUMNS)]
    lines = "\n".join(f'    "{"".join(map(_escaped, piece))}"' for piece in pieces)
    return f"const char {SYMBOL}[] =\n{lines};\n"


def _escaped(byte: int) -> str:
    letter = chr(byte)
    return letter if letter.isascii() and (letter.isalnum() or letter in " .,:;_-+/[]{}") else f"\\{byte:03o}"
