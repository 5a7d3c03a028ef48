"""Wheels in a bundle: those that fit the Python and machine asked for."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from bundles import HERE, OTHER

from pyc.passes.bundle.pip_settings import pip_environment
from pyc.passes.bundle.wheels import DISTRIBUTION, Target, _pip, fetch_wheels, pins
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
        expected = f"got {here.name}, expected wheels for Python {python} and glibc on {machine}; add what `pip downl"
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


def test_a_program_of_another_pyc_is_refused_beside_this_runtime(pyc, make_local_artifact, wheels, tmp_path):
    artifact, out = make_local_artifact(step="1"), tmp_path / "made"
    code, text, err = pyc("bundle", artifact, "-o", out, "--wheels", wheels)
    assert (code, text, err.count("\n")) == (8, "", 1)
    assert f"{artifact}: its program cpu " in err and "is of another pyc (pyc-step 1)" in err
    assert "build the artifact again" in err
    assert not out.exists()
    assert pyc("bundle", artifact, "-o", out, "--no-wheels")[0] == 0  # for machines that have their own


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
    for options in ((), ("--wheels", wheels), ("--no-wheels",), ("--no-wheels", "--machine", HERE)):
        code, text, err = pyc("bundle", artifact, "-o", out, *options)  # as here is the default, whatever is left out
        assert (code, text, err.count("\n")) == (8, "", 1)
        assert f"has programs for {OTHER}, and none for {HERE}, where the bundle is to run; name another with " in err
        assert not out.exists()
    assert pyc("bundle", artifact, "-o", out, "--no-wheels", "--machine", OTHER)[0] == 0


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


def commands_of(message):
    return [shlex.split(part) for part in message.split("`")[1::2]]


def test_the_command_that_is_named_makes_a_folder_complete(pyc, make_local_artifact, wheels, tmp_path, monkeypatch):
    folder = tmp_path / "few wheels"
    folder.mkdir()
    own = next(wheels.glob("pyc_compiler-*"))
    (folder / own.name).write_bytes(own.read_bytes())
    options = ("-o", tmp_path / "made", "--wheels", folder)
    code, _, err = pyc("bundle", make_local_artifact(), *options)
    assert (code, err.count("\n")) == (8, 1)
    assert f"{folder}: has no wheel of " in err and f" and {len(pins(Target.here())) - 3} more; add what `" in err
    (command,) = commands_of(err)
    assert command[:2] == ["pip", "download"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    assert pyc("bundle", make_local_artifact(), *options)[0] == 0
    (folder / own.name).unlink()
    err = pyc("bundle", make_local_artifact(), "-o", tmp_path / "again", "--wheels", folder)[2]
    assert commands_of(err) == [["pip", "wheel", "--no-deps", "-w", str(folder), "."]]


@pytest.fixture
def installed_from(monkeypatch):
    """What pip notes of where pyc is installed from, and no index."""

    def note(path, digest, record=""):
        hashes = {"hashes": {"sha256": digest}} if digest else {}
        noted = {"direct_url.json": json.dumps({"url": path.as_uri(), "archive_info": hashes}), "RECORD": record}
        own = SimpleNamespace(read_text=noted.get, version=importlib.metadata.version(DISTRIBUTION))
        monkeypatch.setattr("pyc.passes.bundle.wheels.importlib.metadata.distribution", lambda name: own)

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return note


def test_pyc_of_a_wheel_takes_that_wheel(installed_from, wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    own = tmp_path / "its place" / next(wheels.glob("pyc_compiler-*")).name
    own.parent.mkdir()
    own.write_bytes(b"a wheel that is on no index")
    click = {"click": importlib.metadata.version("click")}
    installed_from(own, hashlib.sha256(own.read_bytes()).hexdigest())
    (tmp_path / "made").mkdir()
    fetch_wheels(tmp_path / "made", Target.here(), click)
    assert (tmp_path / "made" / own.name).read_bytes() == own.read_bytes()


@pytest.mark.parametrize("is_same", [True, False])
def test_a_wheel_whose_digest_nobody_noted_is_known_by_its_files(is_same, installed_from, tmp_path, monkeypatch):
    """As by installers that note none: uv."""
    own, listed = tmp_path / "its place" / "pyc_compiler-0-py3-none-any.whl", "pyc/a.py,sha256=abc,3\n"
    own.parent.mkdir()
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("pyc_compiler-0.dist-info/RECORD", f"{listed}pyc_compiler-0.dist-info/RECORD,,\n")
    installed_from(own, None, (listed if is_same else "pyc/a.py,sha256=xyz,3\n") + "../../bin/pyc,sha256=d,1\n")
    if is_same:
        monkeypatch.setattr("pyc.passes.bundle.wheels._pip", lambda *arguments, **environment: None)
        fetch_wheels(tmp_path, Target.here(), {})
        assert (tmp_path / own.name).read_bytes() == own.read_bytes()
    else:
        with pytest.raises(ArtifactError, match="pip download"):
            fetch_wheels(tmp_path, Target.here(), {})


@pytest.mark.parametrize("is_there", [True, False])
def test_a_wheel_that_is_another_now_is_not_taken(is_there, installed_from, tmp_path):
    """The error says how to gather them by hand, for the machine that was asked for."""
    own = tmp_path / "pyc_compiler-0-py3-none-any.whl"
    if is_there:
        own.write_bytes(b"another")
    installed_from(own, hashlib.sha256(b"that one").hexdigest())
    with pytest.raises(ArtifactError, match=f"pip download: .*{DISTRIBUTION}.*; give them with --wheels DIR") as caught:
        fetch_wheels(tmp_path, Target(OTHER, "3.13"), {"click": "1"})
    making, fetching = commands_of(str(caught.value))
    assert making == ["pip", "wheel", "--no-deps", "-w", "DIR", "."]
    assert fetching[-1] == "click==1" and "3.13" in fetching and f"--platform=manylinux_2_28_{OTHER}" in fetching


@pytest.fixture
def python_that(monkeypatch, tmp_path):
    """`python_that(commands)`: an interpreter that does these in place of pip, whose settings `settings` prints."""

    def make(commands, settings="echo '[]'"):
        place = tmp_path / "interpreter"
        place.write_text(f"#!/bin/sh\ncase $2 in -c) {settings}; exit;; esac\n{commands}\n")
        place.chmod(0o755)
        monkeypatch.setattr("pyc.passes.bundle.wheels.sys.executable", str(place))

    return make


@contextlib.contextmanager
def interrupted(error, *files):
    """Raise `error` once these files are there, and take it."""

    def interrupt(number, frame):
        raise error

    def strike():
        deadline = time.monotonic() + 30
        while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGALRM)

    former = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=strike)
    try:
        thread.start()
        with pytest.raises(error):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, former)


def has_ended(file):
    """Whether the process of this id has; it may be there until somebody asks how it ended."""
    stat = Path(f"/proc/{int(file.read_text())}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_ends_what_reads_the_settings(error, python_that, tmp_path):
    python_that("exit 1", f"sleep 60 & echo $! > '{tmp_path}/child'; echo $$ > '{tmp_path}/reader'; wait")
    with interrupted(error, tmp_path / "child", tmp_path / "reader"):
        fetch_wheels(tmp_path, Target("x86_64", "3.11"), {})
    assert has_ended(tmp_path / "child") and has_ended(tmp_path / "reader")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_ends_what_pip_started_and_removes_its_files(error, python_that, tmp_path, monkeypatch):
    """As a signal to pyc alone does. pip builds in processes of its own, and cannot clear up once it is ended."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    writing = "while true; do mkdir -p $TMPDIR/pip-build; echo x >> $TMPDIR/pip-build/file; done"
    python_that(f"({writing}) & echo $! > '{tmp_path}/child'; echo $TMPDIR > '{tmp_path}/place'; wait")
    with interrupted(error, tmp_path / "child", tmp_path / "place"):
        fetch_wheels(tmp_path, Target("x86_64", "3.11"), {})
    assert has_ended(tmp_path / "child")
    assert Path((tmp_path / "place").read_text().strip()).parent == tmp_path / "temporary"
    assert list((tmp_path / "temporary").iterdir()) == []


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
def test_what_stopped_pip_is_said(stderr, reason, python_that, tmp_path):
    (tmp_path / "stderr").write_text(stderr)
    python_that(f"cat '{tmp_path}/stderr' >&2; exit 1")
    with pytest.raises(ArtifactError, match=re.escape(reason)) as caught:
        fetch_wheels(tmp_path, Target("x86_64", "3.11"), {})
    assert "\n" not in str(caught.value)
    assert ("or set TMPDIR to another folder" in str(caught.value)) == ("No space left" in reason)


@pytest.fixture
def files_of_settings(monkeypatch, tmp_path):
    """pip.conf of the system and of the user, and no variables of pip's."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for place, variable in (("system", "XDG_CONFIG_DIRS"), ("user", "XDG_CONFIG_HOME")):
        monkeypatch.setenv(variable, str(tmp_path / place))
        (tmp_path / place / "pip").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "system" / "pip" / "pip.conf", tmp_path / "user" / "pip" / "pip.conf"


def test_pip_gets_the_settings_of_indexes_and_no_others(files_of_settings, monkeypatch):
    """The later ones count: the user's over the system's, a command's over all commands', variables over files."""
    system, user = files_of_settings
    system.write_text(
        "[global]\nindex-url = https://system/\ntrusted-host = a\n  b\ntimeout = 7\ntarget = /t\nroot =\n"
        "[install]\nprefix = /p\nproxy = install:1\n[download]\nretries = 3\nrequire-hashes = true\n"
    )
    user.write_text("[global]\nindex-url = https://user/\ncert = /c.pem\nretries = 2\ndry-run = true\nquiet = 2\n")
    for name, value in {"TIMEOUT": "9", "EXTRA_INDEX_URL": "https://more/", "TARGET": "/x", "PYTHON": "/y"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("HTTPS_PROXY", "proxy:1")
    kept = {"INDEX_URL": "https://user/", "TRUSTED_HOST": "a\nb", "TIMEOUT": "9", "RETRIES": "3", "CERT": "/c.pem"}
    kept |= {"EXTRA_INDEX_URL": "https://more/", "CONFIG_FILE": os.devnull}
    environment = pip_environment("download")
    # /etc/pip.conf, where this machine has one, adds what no file of these says.
    found = {name.removeprefix("PIP_"): value for name, value in environment.items() if name.startswith("PIP_")}
    assert {name: found.get(name) for name in kept} == kept
    assert not {"TARGET", "ROOT", "PREFIX", "REQUIRE_HASHES", "DRY_RUN", "QUIET", "PYTHON"} & set(found)
    assert environment["HTTPS_PROXY"] == "proxy:1"
    assert pip_environment("wheel")["PIP_RETRIES"] == "2"


def test_settings_that_cannot_be_read_are_left_to_pip(files_of_settings, tmp_path):
    files_of_settings[1].write_text("no section\n")
    with pytest.raises(ArtifactError, match="pip download: Configuration file") as caught:
        _pip("download", "--dest", str(tmp_path), "none-such==1")
    assert str(files_of_settings[1]) in str(caught.value)


def test_wheels_land_in_the_folder_whatever_the_settings_say(files_of_settings, monkeypatch, wheels, tmp_path):
    """From the place that they name."""
    files_of_settings[1].write_text(f"[global]\nno-index = true\nfind-links = {wheels}\nrequire-hashes = true\n")
    for name, value in {"TARGET": str(tmp_path / "t"), "USER": "1", "DRY_RUN": "1", "PYTHON": "/none"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    click = importlib.metadata.version("click")
    _pip("download", "--no-deps", "--dest", str(tmp_path / "made"), f"click=={click}")
    assert [path.name for path in (tmp_path / "made").iterdir()] == [f"click-{click}-py3-none-any.whl"]


def test_pip_is_not_one_of_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # so that pip itself fails at once
    with pytest.raises(ArtifactError, match="none-such==1"):
        _pip("download", "--dest", str(tmp_path), "none-such==1")
    assert not (tmp_path / "run").exists()
