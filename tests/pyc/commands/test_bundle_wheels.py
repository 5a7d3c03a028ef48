"""Wheels in a bundle: those that fit the Python and machine asked for."""

import os
import re
import subprocess
import zipfile

import pytest
from bundles import HERE, OTHER

from pyc.passes.bundle.wheels import Target, _pip, fetch_wheels
from pyc.runtime.errors import ArtifactError


def test_wheels_for_another_place_are_refused(pyc, make_local_artifact, wheels, tmp_path):
    """A folder that was filled for this machine has nothing that installs on another, or with another Python."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in wheels.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    numpy = next(folder.glob("numpy-*"))
    stem = numpy.name.removesuffix("-py3-none-any.whl")
    here = numpy.rename(folder / f"{stem}-cp313-cp313-manylinux_2_27_{HERE}.manylinux_2_28_{HERE}.whl")
    out = tmp_path / "made"
    for machine, python in ((HERE, "3.14"), (OTHER, "3.13")):
        options = ("-o", out, "--wheels", folder, "--machine", machine, "--python", python)
        code, text, err = pyc("bundle", make_local_artifact(arch=machine), *options)
        assert (code, text, err.count("\n")) == (8, "", 1)
        expected = f"got {here.name}, expected wheels for Python {python} and glibc on {machine}; add them"
        assert expected in err
        assert not out.exists()
    # With wheels for both there are those of the bundle's machine in it, and no others.
    there = folder / f"{stem}-cp313-cp313-manylinux_2_28_{OTHER}.whl"
    there.write_bytes(here.read_bytes())
    options = ("-o", out, "--wheels", folder, "--machine", OTHER, "--python", "3.13")
    assert pyc("bundle", make_local_artifact(arch=OTHER), *options)[0] == 0
    assert [path.name for path in (out / "wheels").glob("numpy-*")] == [there.name]
    (required,) = (line for line in (out / "requirements.txt").read_text().splitlines() if line.startswith("numpy=="))
    assert required.count("--hash") == 1


def test_of_many_wheels_that_do_not_fit_the_first_are_named(pyc, make_local_artifact, wheels, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in wheels.iterdir():
        (folder / path.name.replace("py3-none", "py2-none")).write_bytes(path.read_bytes())
    code, _, err = pyc("bundle", make_local_artifact(), "-o", tmp_path / "made", "--wheels", folder)
    assert code == 8 and f"{folder}: got pyc_compiler-" in err
    assert f"-py2-none-any.whl and {len(list(folder.iterdir())) - 3} more, expected wheels for Python" in err


def test_a_machine_that_the_artifact_has_no_program_for(pyc, make_local_artifact, wheels, tmp_path, monkeypatch):
    monkeypatch.setattr("pyc.passes.bundle.make.fetch_wheels", lambda *arguments: pytest.fail("fetched"))
    out = tmp_path / "made"
    message = f"has programs for {HERE}, and none for {OTHER}, where the bundle is to run"
    for options in ((), ("--wheels", wheels), ("--no-wheels",)):
        code, text, err = pyc("bundle", make_local_artifact(), "-o", out, "--machine", OTHER, *options)
        assert (code, text, err.count("\n")) == (8, "", 1)
        assert message in err
        assert not out.exists()
    artifact = make_local_artifact(arch=OTHER)
    code, _, err = pyc("bundle", artifact, "-o", out, "--wheels", wheels)
    assert code == 8 and f"none for {HERE}" in err and "--machine" in err
    assert pyc("bundle", artifact, "-o", out, "--no-wheels")[0] == 0  # it says nothing of where it runs


@pytest.mark.parametrize("kind", ["slip", "zlib", "encrypted", "pipe"])
def test_a_wheel_that_is_none(kind, pyc, make_local_artifact, wheels, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in wheels.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    wheel = next(folder.glob("click-*"))
    name = "click.dist-info/licenses/LICENSE"
    if kind == "pipe":
        wheel.unlink()
        os.mkfifo(wheel)
    elif kind == "slip":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("click.dist-info/licenses/../../../../../LICENSE-evil", "x")
    else:
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, b"a text that is long enough to be compressed " * 20)
        data = bytearray(wheel.read_bytes())
        if kind == "encrypted":
            data[6] |= 1
            data[data.rindex(b"PK\1\2") + 8] |= 1
        else:
            data[30 + len(name) + 2] ^= 0xFF
        wheel.write_bytes(data)
    code, _, err = pyc("bundle", make_local_artifact(), "-o", tmp_path / "made", "--wheels", folder)
    assert code == 8, err
    assert {"slip": "which no wheel has", "pipe": "has no wheel of click"}.get(kind, "is no whole wheel") in err
    assert not (tmp_path / "made").exists()


def test_two_licences_of_one_name_are_two_files(pyc, make_local_artifact, wheels, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in wheels.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with zipfile.ZipFile(next(folder.glob("click-*")), "a") as archive:
        archive.writestr("click.dist-info/LICENSE", "another")
    assert pyc("bundle", make_local_artifact(), "-o", tmp_path / "made", "--wheels", folder)[0] == 0
    sums = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "made", check=False)
    assert sums.returncode == 0


PIP_WITHOUT_SPACE = """\
  error: subprocess-exited-with-error

  × Building wheel for pyc-compiler (pyproject.toml) did not run successfully.
  │ exit code: 1
  ╰─> [3 lines of output]
      Traceback (most recent call last):
        File "setup.py", line 1, in <module>
      OSError: [Errno 28] No space left on device
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
  ERROR: Failed building wheel for pyc-compiler
ERROR: Failed to build one or more wheels
"""


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (PIP_WITHOUT_SPACE, "OSError: [Errno 28] No space left on device"),
        (PIP_WITHOUT_SPACE.replace("OSError", "shutil.Error"), "Failed building wheel"),
        ("ERROR: No matching distribution found for click==9\nnote: see the docs\n", "No matching distribution found"),
        ("something\nnote: that is all\n", "something"),
        ("", "exit code 1"),
    ],
)
def test_what_stopped_pip_is_said(stderr, reason, monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess((), 1, "", stderr)
    monkeypatch.setattr("pyc.passes.bundle.wheels.subprocess.run", lambda *arguments, **options: failed)
    with pytest.raises(ArtifactError, match=re.escape(reason)) as caught:
        fetch_wheels(tmp_path, Target("x86_64", "3.11"), {})
    assert "\n" not in str(caught.value)


def test_pip_is_not_one_of_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # so that pip itself fails at once
    with pytest.raises(ArtifactError, match="none-such==1"):
        _pip("download", "--dest", str(tmp_path), "none-such==1")
    assert not (tmp_path / "run").exists()
