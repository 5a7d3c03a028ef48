"""The threads that a CPU library runs its loops on: templates/c/team.c, compiled. It exports `pyc_start(threads)`."""

from pyc.backends.c_sources import source_text
from pyc.backends.isa import oldest_isa
from pyc.backends.toolchain import Toolchain

SOURCE = "team.c"


def compile_team(arch: str, toolchain: Toolchain) -> bytes:
    """Return the ELF object of the team for every CPU of `arch`; raises LowerError when the compiler does."""
    return toolchain.compile_object(source_text(SOURCE), oldest_isa(arch), {})
