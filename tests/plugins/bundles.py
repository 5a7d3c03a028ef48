"""Bundles for tests: wheels of nothing, which pip installs, and scripts that are run with no more than they need."""

import functools
import importlib.metadata
import os
import subprocess
import sys
import zipfile

import pytest

from pyc.passes.bundle.wheels import DISTRIBUTION, Target, pins

HERE, OTHER = ("x86_64", "aarch64") if os.uname().machine == "x86_64" else ("aarch64", "x86_64")


@pytest.fixture
def make_local_artifact(make_artifact):
    """Writes a small artifact for this machine, or for another."""
    return functools.partial(make_artifact, arch=os.uname().machine)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """A folder with a wheel of each package that the runtime needs; pyc's says its version, and does no more."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in {DISTRIBUTION: importlib.metadata.version(DISTRIBUTION), **pins(Target.here())}.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/licenses/", "")
            files = {
                "licenses/LICENSE": f"of {name}",
                "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            }
            files = {f"{stem}.dist-info/{file}": text for file, text in files.items()}
            if name == DISTRIBUTION:
                files["pyc/__main__.py"] = f"print({version!r})\n"
            files[f"{stem}.dist-info/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{stem}.dist-info/RECORD"))
            for file, text in files.items():
                wheel.writestr(file, text)
    return folder


def environment(venv=sys.prefix):
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYC_VENV": str(venv)}


def run(script, *arguments, **variables):
    command = [str(script), *arguments]
    return subprocess.run(command, env={**environment(), **variables}, capture_output=True, text=True, check=False)


STUB = """#!/bin/sh
# Stands for a Python whose pip takes a while, or until $GATE is there, and fails with what $SAYS has.
option=$1
shift
case "$1" in
-c) case "$2" in
    *ensurepip*) [ -z "${{LACKS_ENSUREPIP:-}}" ] || {{ echo "No module named 'ensurepip'" >&2; exit 1; }} ;;
    *) exec "{real}" "$option" "$@" ;;
    esac ;;
-m) if [ "$2" = venv ]; then
        mkdir -p "$3/bin" && ${{COPY:-cp}} "$0" "$3/bin/python"
        printf '#!%s/bin/python\\nimport pyc\\n' "$3" >"$3/bin/pyc" && chmod 755 "$3/bin/pyc"
        echo "command = python -m venv $3" >"$3/pyvenv.cfg"
    else
        [ "$2" != pip ] || {{ env >"${{VARIABLES:-/dev/null}}"; echo unpacked >"$TMPDIR/pip-unpack-1"; }}
        sleep 0.2
        while [ -n "${{GATE:-}}" ] && [ ! -e "$GATE" ]; do sleep 0.02; done
    fi
    [ -z "${{SAYS:-}}" ] || [ "$2" != "${{FAILS:-pip}}" ] || {{ printf "$SAYS" >&2; exit 1; }} ;;
*) exec "{real}" "$option" "$@" ;;
esac
"""


@pytest.fixture
def installable(pyc, make_local_artifact, wheels, tmp_path):
    """A bundle whose install.sh has a Python that installs nothing."""
    assert pyc("bundle", make_local_artifact(), "-o", tmp_path / "made", "--wheels", wheels)[0] == 0
    stub = tmp_path / "python"
    stub.write_text(STUB.format(real=sys.executable))
    stub.chmod(0o755)
    return tmp_path / "made" / "install.sh"


def start(script, venv, user=None, **variables):
    variables = {**environment(venv), "PYTHON": str(script.parents[1] / "python"), **variables}
    options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    if user is not None:
        options |= {"user": user, "group": user, "extra_groups": ()}
    return subprocess.Popen([str(script)], env=variables, **options)
