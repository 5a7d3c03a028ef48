"""zig's clang as compiler and linker of every CPU library, so that a build needs no system compiler.

Bytes depend on the sources, the target and zig's version only: sources are compiled in a fresh folder under
fixed names, and nothing records a path, a date or a build id.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from pyc.backends.isa import Isa
from pyc.runtime.errors import LowerError

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
# The C library's stubs (0.2 s to make, once), and not the compiler's runtime (6 s): templates/include/pyc_half.h
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

ERROR_LINES = 12
"""Lines of a failed compiler's output that an error message quotes."""


@dataclass(frozen=True)
class Toolchain:
    """The C compiler and linker; zig's own cache lives in `cache`/zig (2 MB)."""

    cache: Path

    @cached_property
    def _package(self) -> metadata.Distribution:
        """The ziglang package, which pins clang, lld and the C library's stubs."""
        try:
            return metadata.distribution("ziglang")
        except metadata.PackageNotFoundError:
            raise LowerError(
                "the C compiler is missing: install the compiler extra (pip install 'pyc-compiler[compiler]')"
            ) from None

    @property
    def version(self) -> str:
        """Version of the ziglang package."""
        return self._package.version

    @cached_property
    def _zig(self) -> str:
        """Its program. `python -m ziglang` starts an interpreter first, 30 ms for each of a build's 16 calls."""
        return str(self._package.locate_file("ziglang/zig"))

    @property
    def zig_cache(self) -> Path:
        """Where zig keeps the runtime support it compiles for each target."""
        return self.cache.resolve() / "zig"

    def compile_object(
        self, source: str, isa: Isa, headers: Mapping[str, str], flags: tuple[str, ...] = ()
    ) -> bytes:
        """Return the ELF object of C `source`, which may include `headers` by name; `flags` come after COMPILE_FLAGS.

        Raises LowerError with the compiler's first lines.
        """
        with tempfile.TemporaryDirectory(prefix="pyc-cc-") as name:
            folder = Path(name)
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
        with tempfile.TemporaryDirectory(prefix="pyc-ld-") as name:
            folder = Path(name)
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
        """Run `zig cc` in `folder`."""
        self.zig_cache.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "ZIG_GLOBAL_CACHE_DIR": str(self.zig_cache),
            "ZIG_LOCAL_CACHE_DIR": str(folder / ".zig"),
        }
        command = [self._zig, "cc", *arguments]
        started = time.perf_counter()
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        logger.debug("zig cc: elapsed_s=%.3f", time.perf_counter() - started)
        if result.returncode != 0:
            lines = (result.stderr or result.stdout).strip().splitlines()
            shown = "\n".join(lines[:ERROR_LINES]) or f"no message, exit status {result.returncode}"
            raise LowerError(f"the C compiler failed (zig {self.version}): {shown}")
