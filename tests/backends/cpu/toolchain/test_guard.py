"""templates/cpu/include/pyc_guard.h: what is lost of a guarded mapping is zeros; other signals are others'."""

import platform
import subprocess
import sys

import pytest

from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.toolchain.thread_pool import GUARD
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.host.cache_folder import cache_directory
from pyc.templates.rendering import source_text

HARNESS = """
#define _GNU_SOURCE
#include <setjmp.h>
#include "pyc_guard.h"

static sigjmp_buf back;
static uintptr_t met;
static void own(int number, siginfo_t *info, void *context) {
    met = (uintptr_t)info->si_addr;
    siglongjmp(back, 1);
}
void install(void) {
    const struct sigaction action = {.sa_sigaction = own, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
}
int is_own(void) {
    struct sigaction now;
    sigaction(SIGBUS, NULL, &now);
    return now.sa_sigaction == own;
}
int touch(const volatile uint8_t *address) { return sigsetjmp(back, 1) ? -1 : *address; }
uintptr_t last_met(void) { return met; }
"""

CHILD = """
import ctypes, faulthandler, mmap, os, signal, sys, tempfile
import numpy as np

library, case = ctypes.CDLL(sys.argv[1]), sys.argv[2]
library.pyc_guard.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
library.pyc_guard.restype = ctypes.POINTER(ctypes.c_int32)
library.last_met.restype = ctypes.c_size_t
library.touch.argtypes = [ctypes.c_void_p]
PAGE = mmap.PAGESIZE

class Mapped:
    def __init__(self, pages=8):
        self.file = tempfile.TemporaryFile()
        self.file.write(b"x" * (PAGE * pages - 10))
        self.file.flush()
        self.bytes = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
        self.start = np.frombuffer(self.bytes, np.uint8).ctypes.data

    def guard(self):
        self.lost = library.pyc_guard(self.start, len(self.bytes), self.file.fileno())
        return self

    def cut(self, size=PAGE):
        os.ftruncate(self.file.fileno(), size)
        return self

    def touch(self, page):
        return library.touch(self.start + page * PAGE)

def ends_by(code):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

X = ord("x")
if case == "lost":
    a, b = Mapped().guard(), Mapped().guard()
    a.cut()
    assert (a.touch(0), a.touch(3), a.touch(1), a.touch(7), a.touch(0)) == (X, 0, 0, 0, X)
    assert (a.lost[0], b.lost[0], b.touch(7)) == (1, 0, X)
    b.cut(0)
    assert (b.touch(7), b.touch(0), b.lost[0]) == (0, 0, 1)
elif case == "foreign":
    library.install()
    a, other = Mapped().guard(), Mapped().cut()
    assert not library.is_own()
    for page in (1, 5, 5):
        assert (other.touch(page), library.last_met()) == (-1, other.start + page * PAGE)
    assert (a.lost[0], a.cut().touch(2), a.lost[0]) == (0, 0, 1)
    second = Mapped().guard()
    library.pyc_unguard(a.lost)
    assert not library.is_own()
    library.pyc_unguard(second.lost)
    assert library.is_own()
    assert second.cut().touch(2) == -1
    again = Mapped().guard().cut()
    assert (again.touch(2), again.lost[0]) == (0, 1)
elif case in ("default", "ignored"):
    if case == "ignored":
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
    a, other = Mapped().guard(), Mapped().cut()
    assert ends_by(lambda: other.touch(2)) == -signal.SIGBUS
    assert ends_by(lambda: os.kill(os.getpid(), signal.SIGBUS)) == (0 if case == "ignored" else -signal.SIGBUS)
elif case == "before":
    faulthandler.enable(open(os.devnull, "w"))
    a, other = Mapped().guard().cut(), Mapped().cut()
    assert (a.touch(2), a.lost[0]) == (0, 1)
    assert ends_by(lambda: other.touch(2)) == -signal.SIGBUS
elif case == "after":
    a, other = Mapped().guard(), Mapped().cut()
    faulthandler.enable(open(os.devnull, "w"))
    assert ends_by(lambda: other.touch(2)) == -signal.SIGBUS
    a.cut(PAGE + 1)
    assert (a.touch(1), a.touch(2), a.lost[0]) == (X, 0, 1)
elif case == "python":
    seen = []
    signal.signal(signal.SIGBUS, lambda number, frame: seen.append(number))
    a = Mapped().guard()
    os.kill(os.getpid(), signal.SIGBUS)
    assert seen == [signal.SIGBUS]
    assert (a.cut().touch(2), seen) == (0, [signal.SIGBUS])
print("done")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    toolchain = Toolchain(cache_directory())
    isa = next(isa for isa in ISAS.values() if isa.arch == platform.machine())
    harness = toolchain.compile_object(HARNESS, isa, {GUARD: source_text(f"cpu/include/{GUARD}")})
    path = tmp_path_factory.mktemp("guard") / "guard.so"
    path.write_bytes(toolchain.link_shared([harness], isa, path.name))
    return path


@pytest.mark.parametrize("case", ["lost", "foreign", "default", "ignored", "before", "after", "python"])
def test_signals_of_pages_that_cannot_be_had(library, case):
    command = [sys.executable, "-c", CHILD, library, case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
