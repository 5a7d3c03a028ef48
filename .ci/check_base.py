"""Check an environment that holds the base install and nothing else; run with its own `python -I`.

Usage: check_base.py ARTIFACT. Fails when site-packages is too large, when a package of an extra is there,
when importing the runtime is slow, or when running the artifact imports something that a runtime must not.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

MAX_SITE_PACKAGES_MB = 170
MAX_IMPORT_MS = 150
IMPORT_RUNS = 10
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
ABSENT = ("torch", "transformers", "peft", "safetensors", "ml_dtypes", "tvm", "tvm_ffi", "onnx")
NOT_IMPORTED = (*ABSENT, "pyc.compiler", "pyc.passes", "pyc.models", "pyc.backends")


def site_packages_mb(folder: Path) -> float:
    """What the base install adds to an environment, in MB of 10**6 bytes; pip and setuptools not."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(TOOLS)]
    files = [path for entry in entries for path in (entry, *entry.rglob("*")) if path.is_file()]
    return sum(os.lstat(path).st_size for path in files) / 1e6


def import_ms(module: str) -> float:
    """Milliseconds that importing a module takes in a fresh process: the best of several; noise only adds."""
    probe = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    command = [sys.executable, "-I", "-c", probe]
    return min(float(subprocess.check_output(command, text=True)) for _ in range(IMPORT_RUNS))


def main() -> int:
    artifact = sys.argv[1]
    failures = [f"{name} is installed" for name in ABSENT if importlib.util.find_spec(name)]

    size_mb = site_packages_mb(Path(sysconfig.get_path("purelib")))
    print(f"site-packages of the base install: {size_mb:.1f} MB (at most {MAX_SITE_PACKAGES_MB})")
    if size_mb > MAX_SITE_PACKAGES_MB:
        failures.append(f"site-packages is {size_mb:.1f} MB, more than {MAX_SITE_PACKAGES_MB}")

    elapsed_ms = import_ms("pyc.runtime")
    print(f"import pyc.runtime: {elapsed_ms:.0f} ms (at most {MAX_IMPORT_MS}; best of {IMPORT_RUNS})")
    print(f"import pyc.runtime.model: {import_ms('pyc.runtime.model'):.0f} ms, most of it numpy")
    if elapsed_ms > MAX_IMPORT_MS:
        failures.append(f"importing pyc.runtime takes {elapsed_ms:.0f} ms, more than {MAX_IMPORT_MS}")

    from pyc.cli import main as pyc_main

    code = pyc_main(["run", artifact, "--prompt", "def ", "--max-tokens", "32"])
    if code != 0:
        failures.append(f"pyc run {artifact} exits with {code}")
    failures += [f"running an artifact imports {name}" for name in NOT_IMPORTED if name in sys.modules]

    for name in ("inspect", "bench"):
        if code := pyc_main([name, artifact]):
            failures.append(f"pyc {name} {artifact} exits with {code}")

    for failure in failures:
        print(f"base install: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
