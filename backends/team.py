"""The threads that a CPU library runs its loops on, and what guards mapped weights: templates/c/team.c, compiled."""

from pyc.backends.isa import oldest_isa
from pyc.backends.toolchain import Toolchain
from pyc.templates.rendering import source_text

SOURCE = "c/team.c"
HEADER = "pyc_distances.h"
GUARD = "pyc_guard.h"


def compile_team(arch: str, toolchain: Toolchain) -> bytes:
    """Return the ELF object of the team for every CPU of `arch`; raises LowerError when the compiler does."""
    headers = {header: source_text(f"include/{header}") for header in (HEADER, GUARD)}
    return toolchain.compile_object(source_text(SOURCE), oldest_isa(arch), headers)
