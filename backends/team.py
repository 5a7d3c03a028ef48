"""The threads that a CPU library runs its loops on: templates/c/team.c, compiled. It exports `pyc_start(threads)`."""

from pyc.backends.isa import oldest_isa
from pyc.backends.toolchain import Toolchain
from pyc.templates.rendering import source_text

SOURCE = "c/team.c"
HEADER = "pyc_distances.h"


def compile_team(arch: str, toolchain: Toolchain) -> bytes:
    """Return the ELF object of the team for every CPU of `arch`; raises LowerError when the compiler does."""
    headers = {HEADER: source_text(f"include/{HEADER}")}
    return toolchain.compile_object(source_text(SOURCE), oldest_isa(arch), headers)
