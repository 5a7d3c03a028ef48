"""zig's clang as compiler and linker of every CPU library, so that a build needs no system compiler.

Bytes depend on the sources, the target and zig's version only: sources are compiled in a fresh folder under
fixed names, nothing records a path, a date or a build id, and zig sees no variable of the user's environment.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from pyc.backends.cpu.isa import Isa
from pyc.backends.cpu.toolchain.zig_cache import ZigCache
from pyc.compiler.files.work_folder import sweep, work_folder
from pyc.compiler.processes import Processes
from pyc.runtime.errors import LowerError
from pyc.runtime.host.cache_folder import ZIG_FOLDER
from pyc.runtime.host.extras import install_line
from pyc.runtime.host.made_once import made_once

logger = logging.getLogger(__name__)

# No fast-math and no contraction: kernels say where they fuse, and round alike in every register tile. They say which
# loops are unrolled, too: looking for others takes a sixth of the time.
# No sanitizers: `zig cc` turns on UBSan where nothing else is asked for.
COMPILE_FLAGS = (
    "-std=gnu17",
    "-O3",
    "-g0",
    "-fPIC",
    "-fno-math-errno",
    "-fno-unroll-loops",
    "-ffp-contract=off",
    "-fno-sanitize=all",
    "-fno-stack-protector",
    "-fno-ident",
    "-Wall",
    "-Werror",
)
# The C library's stubs (0.2 s to make, once), and not the compiler's runtime (6 s): templates/cpu/include/pyc_half.h
# has the functions of it that are called.
LINK_FLAGS = (
    "-shared",
    "-s",
    "-g0",
    "-nostdlib",
    "-lc",
    "-lm",
    "-lpthread",
    "-Wl,--build-id=none,--gc-sections,--no-undefined",
)

ENVIRONMENT = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "TMPDIR")
"""The only environment variables that zig gets, all of them folders. It needs no others (it is linked statically), and
those of a user would change what it compiles: CPATH adds headers, CCC_OVERRIDE_OPTIONS flags, ZIG_LIB_DIR takes another
C library. Keys of objects in the cache include it."""

FULL_BYTES = 1 << 20
"""A disk with less is full: a compiler that failed there is not to blame."""
MORE_FILES = "raise the limit (ulimit -n)"
MORE_PROCESSES = "raise the limit (ulimit -u), or end some"
ERROR_LINES = 12
"""Lines of a failed compiler's output that an error message quotes."""


@dataclass(frozen=True)
class Toolchain:
    """The C compiler and linker of a build. zig's own cache lives in `cache`/zig-2 (2 MB), or without `cache` as long
    as the toolchain; `close` removes it, and `stop` ends the compilers that run."""

    cache: Path | None
    processes: Processes = field(default_factory=Processes, compare=False)

    @made_once
    def _package(self) -> metadata.Distribution:
        """The ziglang package, which pins clang, lld and the C library's stubs."""
        try:
            return metadata.distribution("ziglang")
        except metadata.PackageNotFoundError:
            raise LowerError(f"the C compiler is missing; to install it, {install_line('compiler')}") from None

    @property
    def version(self) -> str:
        """Version of the ziglang package."""
        return self._package.version

    @made_once
    def _zig(self) -> str:
        """Its program. `python -m ziglang` starts an interpreter first, 30 ms for each of a build's 16 calls."""
        return str(self._package.locate_file("ziglang/zig"))

    @made_once
    def _zig_cache(self) -> ZigCache:
        sweep()
        return ZigCache(self.cache.absolute() / ZIG_FOLDER if self.cache else None)

    @property
    def zig_cache(self) -> Path:
        """Where zig keeps the runtime support it compiles for each target."""
        return self._zig_cache.folder()

    def stop(self) -> None:
        """Kill the compilers that run; whoever waits for one, or starts another, gets KeyboardInterrupt."""
        self.processes.stop()

    def close(self) -> None:
        """Remove what only this toolchain uses."""
        self._zig_cache.close()

    def compile_object(
        self, source: str, isa: Isa, headers: Mapping[str, str], flags: tuple[str, ...] = ()
    ) -> bytes:
        """Return the ELF object of C `source`, which may include `headers` by name; `flags` come after COMPILE_FLAGS.

        Raises LowerError with the compiler's first lines.
        """
        with work_folder("cc") as folder:
            (folder / "kernels.c").write_text(source, "utf-8")
            for header, text in headers.items():
                (folder / header).write_text(text, "utf-8")
            target = ("-target", isa.zig_target, f"-mcpu={isa.zig_cpu}")
            self._run((*target, *COMPILE_FLAGS, *flags, "-I.", "-c", "kernels.c", "-o", "kernels.o"), folder)
            return (folder / "kernels.o").read_bytes()

    def link_shared(self, objects: Sequence[bytes], isa: Isa, soname: str) -> bytes:
        """Return the shared library of `objects`, in order, which needs no other than the C library.

        Raises LowerError with the linker's first lines.
        """
        with work_folder("ld") as folder:
            names = [f"{index}.o" for index in range(len(objects))]
            for file, data in zip(names, objects, strict=True):
                (folder / file).write_bytes(data)
            self.link_files(names, "library.so", isa, soname, folder)
            return (folder / "library.so").read_bytes()

    def link_files(self, objects: Sequence[str], output: str, isa: Isa, soname: str, folder: Path) -> None:
        """Link the files `objects` into the shared library `output`; relative names are of `folder`."""
        target = ("-target", isa.zig_target)
        self._run((*target, *objects, *LINK_FLAGS, f"-Wl,-soname,{soname}", "-o", output), folder)

    def _run(self, arguments: Sequence[str], folder: Path) -> None:
        """Run `zig cc` in `folder`; once more with an empty cache if it fails, since zig does not notice damage."""
        used = self.zig_cache
        failure = self._failure(arguments, folder, used)
        if failure is None:
            return
        is_full = _is_full(used) or "NoSpaceLeft" in failure  # it may have a little, once what was begun is removed
        with work_folder("zig") as empty:
            if self._failure(arguments, folder, empty) is not None:
                raise LowerError(failure)
        if is_full:
            self._zig_cache.leave(used)
        else:
            self._zig_cache.drop(used)

    def _failure(self, arguments: Sequence[str], folder: Path, zig_cache: Path) -> str | None:
        """Run `zig cc` in `folder`; returns what to say if it fails."""
        environment = dict(zip(ENVIRONMENT, map(str, (zig_cache, folder / ".zig", folder)), strict=True))
        started = time.perf_counter()
        try:
            result = self.processes.run([self._zig, "cc", *arguments], folder, environment)
        except OSError as error:
            remedies = {errno.EMFILE: MORE_FILES, errno.ENFILE: MORE_FILES, errno.EAGAIN: MORE_PROCESSES}
            remedy = remedies.get(error.errno or 0, "install the compiler extra again")
            return f"the C compiler {self._zig} does not start: {error.strerror}; {remedy}"
        logger.debug("zig cc: elapsed_s=%.3f", time.perf_counter() - started)
        if result.returncode == 0:
            return None
        for place, setting in ((folder, "TMPDIR"), (zig_cache, "PYC_CACHE_DIR")):
            if _is_full(place):
                return f"the C compiler failed: no space left in {place}; free some, or set {setting} to another folder"
        output = result.stderr or result.stdout
        if "FdQuotaExceeded" in output:
            return f"the C compiler failed: too many open files; {MORE_FILES}"
        if "SystemResources" in output or "Resource temporarily unavailable" in output:
            return f"the C compiler failed: no more processes or threads may be started; {MORE_PROCESSES}"
        if result.returncode == -signal.SIGXFSZ:
            return "the C compiler failed: a file grew beyond the limit of this process; raise it (ulimit -f)"
        lines = output.strip().splitlines()
        shown = " | ".join(map(str.strip, lines[:ERROR_LINES])) or f"no message, exit status {result.returncode}"
        return f"the C compiler failed (zig {self.version}): {shown}"


def has_compiler() -> bool:
    """Return whether the ziglang package is installed."""
    try:
        metadata.distribution("ziglang")
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_full(folder: Path) -> bool:
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < FULL_BYTES or (space.f_files > 0 and space.f_favail == 0)
