"""templates/cpu/thread_pool.c, compiled: the threads of a CPU library, and what guards mapped weights."""

from pyc.backends.cpu.constants import HEADER as CONSTANTS
from pyc.backends.cpu.constants import constants_header
from pyc.backends.cpu.isa import oldest_isa
from pyc.backends.cpu.toolchain.objects import ObjectCompiler
from pyc.templates.rendering import source_text

SOURCE = "cpu/thread_pool.c"
HEADER = "pyc_prefetch_distances.h"
GUARD = "pyc_guard.h"


def compile_thread_pool(arch: str, compiler: ObjectCompiler) -> bytes:
    """Return the ELF object of the thread pool for every CPU of `arch`; raises LowerError when the compiler does."""
    headers = {CONSTANTS: constants_header(), **{name: source_text(f"cpu/include/{name}") for name in (HEADER, GUARD)}}
    return compiler.compile_object(source_text(SOURCE), oldest_isa(arch), headers)
