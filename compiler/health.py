"""What of this machine matters to a build, checked: the compilers, the cache and the folder for temporary files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pyc.compiler.files.work_folder import leftovers
from pyc.runtime.host.cache_folder import cache_directory, limit_bytes, measure
from pyc.runtime.host.extras import install_line
from pyc.runtime.host.home import nearest_existing
from pyc.runtime.measure.health import Finding, Verdict, check_space, version_of

COMPILER_PACKAGES = ("apache-tvm", "ziglang", "pyyaml", "rich")


def check_compilers() -> Iterator[Finding]:
    """Yield the versions of the compilers; without the extra this machine runs artifacts and builds none."""
    versions = {name: version_of(name) for name in COMPILER_PACKAGES}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        remedy = f"this machine runs artifacts but builds none; to build, {install_line('compiler')}"
        yield Finding("compilers", "warn", f"not installed: {', '.join(missing)}", remedy)
    for name, version in versions.items():
        if version is not None:
            yield Finding(name, "ok", version)
    if versions["ziglang"] is not None:
        zig = Path(str(metadata.distribution("ziglang").locate_file("ziglang/zig")))
        if not os.access(zig, os.X_OK):
            remedy = f"run: pip install --force-reinstall ziglang=={versions['ziglang']}, where programs may run"
            yield Finding("zig", "fail", f"{zig} cannot be run", remedy)


def check_cache() -> Iterator[Finding]:
    """Yield how the build cache is: where, how large, whether it can be written, and the space there."""
    folder = cache_directory()
    if folder is None:
        yield Finding("cache", "warn", "no home directory: builds have no cache", "set PYC_CACHE_DIR to a folder")
        return
    existing, problem = nearest_existing(folder)
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        remedy = "set PYC_CACHE_DIR to a folder that can be used"
        yield Finding("cache", "warn", f"{folder}: {error.strerror}: builds have no cache", remedy)
        return
    if problem:
        yield Finding("cache", "warn", f"{existing} {problem}", "set PYC_CACHE_DIR to a folder")
        return
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        remedy = "set PYC_CACHE_DIR to a folder that can be used"
        yield Finding("cache", "warn", f"{folder} may not be read: builds have no cache", remedy)
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding("cache", "warn", f"{folder} cannot be written", "set PYC_CACHE_DIR to a folder that can be")
    size, limit = measure(folder), limit_bytes()
    used_bytes = size.entry_bytes + size.chunk_bytes
    entries = size.entries + size.chunks
    found = f"{folder}: {entries} entries, {used_bytes / 1e9:.2f} GB of at most {limit / 1e9:.2f} GB"
    yield Finding("cache", "ok" if used_bytes <= limit else "warn", found, "run: pyc cache prune")
    if size.unreadable:
        remedy = "let their owner run: chmod -R a+rX on that folder, or set PYC_CACHE_DIR to a folder of your own"
        found = f"{size.unreadable} of {entries} entries are another user's, and may not be read"
        yield Finding("cache entries", "warn", found, remedy)
    yield check_space("cache space", folder, "PYC_CACHE_DIR")


def check_temporary() -> Iterator[Finding]:
    """Yield whether compilers have a folder for their files, the space there, and what killed builds left."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        # Nothing but a build needs one: a container that runs artifacts may be read-only altogether.
        verdict: Verdict = "warn" if version_of("ziglang") is None else "fail"
        yield Finding("temporary files", verdict, str(error), "to build, set TMPDIR to a folder that can be written")
        return
    wanted = os.environ.get("TMPDIR")
    if wanted and Path(wanted).absolute() != folder.absolute():
        remedy = "set TMPDIR to a folder that exists and can be written"
        yield Finding("temporary files", "warn", f"TMPDIR is {wanted}, which cannot be used; {folder} is", remedy)
    yield check_space("temporary files", folder, "TMPDIR")
    if left := leftovers():
        remedy = "the next build removes them, or: pyc cache prune"
        yield Finding("leftovers", "warn", f"{len(left)} folders of builds that were killed", remedy)
