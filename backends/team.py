"""The threads that a CPU library runs its loops on: templates/c/team.c, compiled. It exports `pyc_start(threads)`."""

from importlib import resources

from pyc.backends.isa import ISAS
from pyc.backends.toolchain import Toolchain

SOURCE = "team.c"


def compile_team(arch: str, toolchain: Toolchain) -> bytes:
    """Return the ELF object of the team for every CPU of `arch`; raises LowerError when the compiler does."""
    source = (resources.files("pyc.templates.c") / SOURCE).read_text("utf-8")
    oldest = min((isa for isa in ISAS.values() if isa.arch == arch), key=lambda isa: isa.rank)
    return toolchain.compile_object(source, oldest, {})
