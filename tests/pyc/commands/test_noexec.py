"""A file system that is mounted noexec, and files that have lost their modes: bundles and pyc say what to do."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bundles import environment

from pyc import cli
from pyc.runtime.host.native_modules import unloadable_remedy

UNMAPPED = "failed to map segment from shared object"


def in_noexec(folder: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command where `folder` is an empty file system that is mounted noexec, and list what it left in there."""
    alone = shutil.which("unshare")
    if alone is None or subprocess.run([alone, "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file systems may be mounted here")
    folder.mkdir()
    script = 'mount -t tmpfs -o noexec none "$0" || exit 99; code=0; "$@" || code=$?; ls -A "$0"; exit $code'
    return subprocess.run(
        [alone, "-rm", "sh", "-c", script, folder, *map(str, command)],
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def bundle(pyc, make_local_artifact, wheels, tmp_path):
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options = ("-o", tmp_path / "made", "--wheels", wheels, "--python", version)
    assert pyc("bundle", make_local_artifact(), *options)[0] == 0
    return tmp_path / "made"


def test_an_install_where_nothing_can_be_loaded_from(bundle, tmp_path):
    place = tmp_path / "mounted"
    done = in_noexec(place, "sh", bundle / "install.sh", PYTHON=sys.executable, PYC_VENV=str(place / "venv"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (74, "", 1), done.stderr
    assert done.stderr.startswith(f"install.sh: {place}/venv: no native module is loaded from its file system")
    assert "it is mounted noexec; name a place on another with PYC_VENV=..." in done.stderr


def test_an_install_that_is_on_noexec_and_installs_elsewhere(bundle, tmp_path):
    """The scripts start each other by sh."""
    place = tmp_path / "mounted"
    venv = tmp_path / "venv"
    script = f"cp -r '{bundle}' '{place}/bundle' && sh '{place}/bundle/run.sh' -p x && rm -r '{place}/bundle'"
    done = in_noexec(place, "sh", "-c", script, PYTHON=sys.executable, PYC_VENV=str(venv))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert (venv / ".pyc-bundle").exists()


def test_scripts_that_have_lost_their_modes(pyc, decoder_artifact, wheels, tmp_path):
    """As layers of a registry have none."""
    assert pyc("bundle", decoder_artifact, "-o", tmp_path / "made", "--wheels", wheels)[0] == 0
    for script in (tmp_path / "made").glob("*.sh"):
        script.chmod(0o644)
    health = tmp_path / "made" / "health.sh"
    done = subprocess.run(["sh", health], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert pyc("bundle", decoder_artifact, "-o", tmp_path / "bare", "--no-wheels")[0] == 0
    for script in (tmp_path / "bare").glob("*.sh"):
        script.chmod(0o644)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pyc").write_text('#!/bin/sh\necho "pyc $1"\n')
    (tools / "pyc").chmod(0o755)
    for name, says in (("run.sh", "pyc run\n"), ("health.sh", "")):
        variables = {**environment(tmp_path / "none"), "PATH": f"{tools}:/usr/bin:/bin"}
        done = subprocess.run(
            ["sh", tmp_path / "bare" / name], env=variables, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, says, "")


def test_an_environment_whose_native_modules_do_not_load_is_not_left(pyc, make_local_artifact, wheels, tmp_path):
    """`pyc --version` needs none of them."""
    shutil.copytree(wheels, tmp_path / "wheels")
    with zipfile.ZipFile(next((tmp_path / "wheels").glob("msgspec-*")), "a") as wheel:
        wheel.writestr("msgspec/_core.abi3.so", b"")
        wheel.writestr("msgspec/__init__.py", "raise ImportError('_core.abi3.so: for another machine')")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options = ("-o", tmp_path / "made", "--wheels", tmp_path / "wheels", "--python", version)
    assert pyc("bundle", make_local_artifact(), *options)[0] == 0
    done = subprocess.run(
        ["sh", tmp_path / "made" / "install.sh"],
        env={**environment(tmp_path / "venv"), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (9, 1), done.stderr
    assert "pyc does not start in it: ImportError: _core.abi3.so: for another machine" in done.stderr
    assert not list(tmp_path.glob("venv*"))


def test_a_native_module_on_noexec_is_named_as_such(tmp_path):
    """The real dynamic linker's words, of a real module."""
    import msgspec._core

    place = tmp_path / "mounted"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pyc.cli import describe\n"
        "try:\n    import _core\n"
        "except ImportError as error:\n    print(describe(error))\n"
    )
    script = f"cp '{msgspec._core.__file__}' '{place}' && '{sys.executable}' -c \"$0\" '{place}'; rm -f '{place}'/*"
    done = in_noexec(place, "sh", "-c", script, code)
    assert done.returncode == 0 and UNMAPPED in done.stdout, done.stderr
    assert "its file system is mounted noexec, so that no native module is loaded" in done.stdout
    assert "PYC_VENV=..." in done.stdout and "74)" in done.stdout


def test_which_modules_are_said_to_be_on_noexec(monkeypatch, tmp_path):
    """Also one behind another's error, and a library that no module names; and none that fails for another reason."""
    flags = {str(tmp_path / "a.so"): os.ST_NOEXEC, str(tmp_path / "b.so"): 0}

    class Status:
        def __init__(self, path: str) -> None:
            self.f_flag = flags[path] if path in flags else os.stat(path) and 0

    monkeypatch.setattr(os, "statvfs", Status)
    inner = ImportError(f"libx.so: {UNMAPPED}", name="a", path=str(tmp_path / "a.so"))
    outer = ImportError("numpy cannot be imported")
    outer.__cause__ = inner
    for error in (inner, outer, OSError(f"{tmp_path}/a.so: {UNMAPPED}")):
        assert unloadable_remedy(error).startswith("its file system is mounted noexec")
    gone = ImportError(f"libx.so: {UNMAPPED}")
    other = ImportError(f"{tmp_path}/a.so: undefined symbol: x", path=str(tmp_path / "a.so"))
    for error in (OSError(f"{tmp_path}/b.so: {UNMAPPED}"), gone, other):
        assert unloadable_remedy(error) == "there is too little memory, or its installation is broken"
    assert "noexec" in cli.describe(outer)[0] and cli.describe(outer)[1] == 74
