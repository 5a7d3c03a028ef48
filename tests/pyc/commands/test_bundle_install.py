"""`install.sh` of a bundle: a whole environment or none, one line, and nothing of the working directory."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from bundles import OTHER, environment, run, start


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PYTHON": "python9.9"}, "no python9.9 here"),
        ({"PYTHON": sys.executable, "machine": "other"}, "the wheels here are for"),
    ],
)
def test_an_install_where_it_does_not_fit(variables, message, pyc, make_local_artifact, wheels, tmp_path):
    pyc("bundle", make_local_artifact(arch=OTHER), "-o", tmp_path / "made", "--wheels", wheels, "--machine", OTHER)
    done = run(tmp_path / "made" / "install.sh", PYC_VENV=str(tmp_path / "venv"), **variables)
    assert (done.returncode, done.stdout) == (69, "")
    assert message in done.stderr
    assert not (tmp_path / "venv").exists()


def test_programs_of_an_environment_name_the_place_where_it_is(installable, tmp_path):
    """It is made under another name, which pip writes into them."""
    venv = tmp_path / "venv"
    assert start(installable, venv).wait() == 0
    program = venv / "bin" / "pyc"
    assert program.read_text() == f"#!{venv}/bin/python\nimport pyc\n"
    assert program.stat().st_mode & 0o777 == 0o755
    assert (venv / "pyvenv.cfg").read_text() == f"command = python -m venv {venv}\n"


KINDS = ["damaged", "wheel gone", "wheels gone", "requirements", "sums gone"]
KINDS += ["installer", "installer gone", "check", "way", "sums cut", "sums pipe", "artifact gone", "artifact loop"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_install_of_a_damaged_bundle(kind, installable, tmp_path):
    bundle = installable.parent
    wheel = next((bundle / "wheels").glob("numpy-*"))
    required, sums = bundle / "requirements.txt", bundle / "SHA256SUMS"
    place, code = {
        "damaged": (wheel, 8),
        "wheel gone": (wheel, 10),
        "wheels gone": (bundle / "wheels" / "", 10),
        "requirements": (required, 8),
        "sums gone": (sums, 10),
        "installer": (bundle / "install.py", 8),
        "installer gone": (bundle / "install.py", 10),
        "check": (bundle / "check_modules.py", 8),
        "way": (bundle / "note_way.py", 8),
        "sums cut": (sums, 8),
        "sums pipe": (sums, 8),
        "artifact gone": (bundle / "model.pyca", 10),
        "artifact loop": (bundle / "model.pyca", 10),
    }[kind]
    if kind == "sums cut":
        place.write_bytes(place.read_bytes()[:100])
    elif kind == "sums pipe":
        place.unlink()
        os.mkfifo(place)
    elif kind == "artifact loop":
        place.unlink()
        place.symlink_to(place.name)
    elif code == 8:
        place.write_bytes(place.read_bytes() + b"\n")
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    process = start(installable, tmp_path / "venv")
    err = process.communicate()[1]
    assert (process.returncode, err.count("\n")) == (code, 1), err
    assert err.startswith(f"install.sh: {place}") and "unpack the bundle again" in err
    assert not list(tmp_path.glob("venv*"))


def test_an_installer_that_is_cut_anywhere_installs_nothing(installable, tmp_path):
    """Also where it is whole Python up to there."""
    text = installable.with_name("install.py").read_bytes()
    for size in (0, text.index(b"import contextlib"), text.rindex(b"\n\nif __name__")):
        installable.with_name("install.py").write_bytes(text[:size])
        for script in ("install.sh", "run.sh"):
            process = start(installable.with_name(script), tmp_path / "venv")
            err = process.communicate()[1]
            assert (process.returncode, err.count("\n")) == (8, 1), err
            assert "install.py: is damaged: its SHA-256 is another; unpack the bundle again" in err


def test_what_a_loader_says_is_no_damage(installable, tmp_path):
    """As where LD_PRELOAD names a library that is gone."""
    process = start(installable, tmp_path / "venv", LD_PRELOAD="/nonexistent/library.so")
    err = process.communicate()[1]
    assert process.returncode == 0 and "damaged" not in err, err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_installer_that_cannot_be_read(installable, tmp_path):
    installable.with_name("install.py").chmod(0)
    process = start(installable, tmp_path / "venv")
    assert "install.py: cannot be read: Permission denied; unpack the bundle again" in process.communicate()[1]
    assert process.returncode == 74


def test_arguments_that_are_no_command_are_refused(installable, tmp_path):
    done = run(installable, "--help", PYC_VENV=str(tmp_path / "venv"))
    assert (done.returncode, done.stdout) == (2, "") and "got --help, expected no arguments" in done.stderr
    assert not (tmp_path / "venv").exists()


# What venv prints whatever stops the program that it starts last: here a limit of the size of files.
VENV_FAILED = (
    "Error: Command '['/x/bin/python3.11', '-m', 'ensurepip', '--upgrade', '--default-pip']' "
    "returned non-zero exit status 1.\n"
)


@pytest.mark.parametrize(
    ("fails", "says", "code", "message"),
    [
        ("pip", "ERROR: Failed: [Errno 28] No space\n", 74, "[Errno 28] No space; make room"),
        ("pip", "note\nERROR: No match for a==1\nERROR: b\n", 9, "pip: No match for a==1; where"),
        ("pip", "Killed\n", 9, "pip: Killed;"),
        ("venv", "Error: a\nError: [Errno 28] No space\n", 74, "-m venv: Error: [Errno 28] No space; make room"),
        ("venv", VENV_FAILED, 74, "-m venv: Error: Command '["),
        ("pyc", "Traceback\nImportError: numpy\n", 9, "pyc does not start in it: ImportError: numpy; name"),
    ],
)
def test_an_install_that_fails_says_why_in_one_line(fails, says, code, message, installable, tmp_path):
    process = start(installable, tmp_path / "venv", SAYS=says, FAILS=fails)
    err = process.communicate()[1]
    assert (process.returncode, err.count("\n")) == (code, 1), err
    assert err.startswith("install.sh: ") and message in err
    assert not list(tmp_path.glob("venv*"))


def test_an_install_with_a_python_that_has_no_ensurepip(installable, tmp_path):
    process = start(installable, tmp_path / "venv", LACKS_ENSUREPIP="yes")
    err = process.communicate()[1]
    assert (process.returncode, err.count("\n")) == (69, 1), err
    assert "has no ensurepip" in err and "PYTHON=..." in err
    assert not list(tmp_path.glob("venv*"))


def test_a_file_too_large_for_an_environment_is_no_missing_ensurepip(pyc, make_local_artifact, wheels, tmp_path):
    """The real venv, whose words for it are those of VENV_FAILED."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options = ("-o", tmp_path / "made", "--wheels", wheels, "--python", version)
    assert pyc("bundle", make_local_artifact(), *options)[0] == 0
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 100; exec "$0"', tmp_path / "made" / "install.sh"],
        env={**environment(tmp_path / "venv"), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (74, 1), done.stderr
    assert "'ensurepip', '--upgrade'" in done.stderr and "make room" in done.stderr
    assert not list(tmp_path.glob("venv*"))


FOREIGN = {
    **{f"PIP_{name}": "/nonexistent" for name in ("TARGET", "PREFIX", "ROOT", "PYTHON", "CONSTRAINT", "LOG", "REPORT")},
    **{f"PIP_{name}": "1" for name in ("DRY_RUN", "USER", "REQUIRE_VIRTUALENV", "NO_BINARY", "IGNORE_INSTALLED")},
}


def test_no_setting_of_pip_reaches_an_install(installable, tmp_path):
    variables = {"VARIABLES": str(tmp_path / "seen"), "PYTHONPATH": "/other", "PYTHONPLATLIBDIR": "other", **FOREIGN}
    process = start(installable, tmp_path / "venv", PYTHONHOME="/other", PYTHONEXECUTABLE="/other", **variables)
    assert (process.communicate()[1], process.returncode) == ("", 0)
    seen = [line for line in (tmp_path / "seen").read_text().splitlines() if line.startswith(("PIP_", "PYTHON"))]
    assert sorted(seen) == ["PIP_CONFIG_FILE=/dev/null", f"PYTHON={tmp_path / 'python'}"]


def test_an_install_by_pip_itself_with_files_of_settings(pyc, make_local_artifact, wheels, tmp_path):
    """Of the system and of the user: the packages are in the environment, and nothing is elsewhere."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options = ("-o", tmp_path / "made", "--wheels", wheels, "--python", version)
    assert pyc("bundle", make_local_artifact(), *options)[0] == 0
    other = tmp_path / "other"
    for place in ("system/pip", "home/.config/pip"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "pip.conf").write_text(f"[global]\ntarget = {other}\n[install]\ndry-run = true\n")
    (tmp_path / "modules" / "pip").mkdir(parents=True)
    (tmp_path / "modules" / "pip" / "__main__.py").write_text("raise SystemExit(0)")
    variables = {"XDG_CONFIG_DIRS": str(tmp_path / "system"), "HOME": str(tmp_path / "home"), "PIP_TARGET": str(other)}
    venv = tmp_path / "venv"
    script, modules = tmp_path / "made" / "install.sh", str(tmp_path / "modules")
    done = run(script, PYC_VENV=str(venv), PYTHON=sys.executable, PYTHONPATH=modules, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(venv.glob("lib/python*/site-packages/pyc/__main__.py"))
    assert not other.exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_an_install_imports_nothing_of_the_working_directory(damaged, installable, tmp_path):
    """Neither what checks the wheels, nor what asks for the machine, nor what puts the environment to its place."""
    if damaged:
        wheel = next((installable.parent / "wheels").glob("numpy-*"))
        wheel.write_bytes(wheel.read_bytes() + b"x")
    there = tmp_path / "there"
    there.mkdir()
    for name in ("hashlib", "platform", "contextlib", "venv", "ensurepip", "pip"):
        (there / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'a').write('{name} ')\nraise SystemExit(0)")
    process = subprocess.run(
        [installable],
        env={**environment(tmp_path / "venv"), "PYTHON": str(tmp_path / "python")},
        cwd=there,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "run").exists()
    assert process.returncode == (8 if damaged else 0), process.stderr
    assert ("is damaged" in process.stderr) == damaged


def test_every_python_of_the_scripts_is_safe_from_the_working_directory(pyc, make_local_artifact, wheels, tmp_path):
    for name, options in (("with", ("--wheels", wheels)), ("without", ("--no-wheels",))):
        assert pyc("bundle", make_local_artifact(), "-o", tmp_path / name, *options)[0] == 0
        for script in (tmp_path / name).glob("*.sh"):
            calls = re.findall(r'python" (-.*)', script.read_text())
            assert all(call.startswith(("-I ", "-P ")) for call in calls), (script, calls)


def test_an_install_where_nothing_can_be_written(installable, tmp_path):
    (tmp_path / "file").touch()
    for script in (installable, installable.with_name("run.sh")):
        process = start(script, tmp_path / "file" / "venv")
        err = process.communicate()[1]
        assert (process.returncode, err.count("\n")) == (74, 1), err
        assert f"{tmp_path}/file/venv: cannot be made: Not a directory; name a place" in err and "PYC_VENV" in err


@pytest.mark.parametrize("mask", ["022", "027", "077"])
def test_what_root_installs_the_service_may_enter(mask, installable, tmp_path):
    command = ["/bin/sh", "-c", f"umask {mask}; exec sh {installable}"]
    variables = {**environment(tmp_path / "venv"), "PYTHON": str(installable.parents[1] / "python")}
    subprocess.run(command, env=variables, check=True, capture_output=True)
    folders = [tmp_path / "venv", *(path for path in (tmp_path / "venv").rglob("*") if path.is_dir())]
    assert len(folders) == 2 and all(folder.stat().st_mode & 0o055 == 0o055 for folder in folders)


@pytest.mark.skipif(os.geteuid() == 0, reason="root enters everything")
@pytest.mark.parametrize("script", ["run.sh", "health.sh"])
def test_an_environment_that_this_user_may_not_enter_is_told_as_such(script, installable, tmp_path):
    (tmp_path / "venv").mkdir(mode=0o000)
    process = start(installable.with_name(script), tmp_path / "venv")
    assert "this user may not enter it; as who made it: chmod -R go+rX" in process.communicate()[1]
    assert process.returncode == 74


@pytest.fixture
def for_all(installable):
    """A bundle in a folder that every user may enter, and its Python in a folder `private` beside it."""
    folder = Path(tempfile.mkdtemp(prefix="pyc-test-", dir="/tmp"))  # pytest's is its user's alone
    folder.chmod(0o755)
    (folder / "private").mkdir(mode=0o755)
    shutil.move(installable.parents[1] / "python", folder / "private" / "python")
    shutil.move(installable.parent, folder / "made")
    yield folder
    for place in folder.iterdir():
        place.chmod(0o755)
    shutil.rmtree(folder)


def started(script, folder, user=None, venv=None):
    """What a script, which has a Python that environments lead to by a link, ends with and says."""
    process = start(script, venv or folder / "venv", user, PYTHON=str(folder / "private" / "python"), COPY="ln -s")
    err = process.communicate()[1]
    return process.returncode, err


NOBODY = 65534 if os.geteuid() == 0 else None  # root enters everything


@pytest.mark.parametrize("script", ["run.sh", "health.sh"])
def test_an_interpreter_that_this_user_may_not_reach_is_told_as_such(script, for_all):
    """It is installed, so installing it anew in the same way is no remedy."""
    bundle, private = for_all / "made", for_all / "private"
    assert started(bundle / "install.sh", for_all)[0] == 0
    private.chmod(0o000)
    code, err = started(bundle / script, for_all, NOBODY)
    assert (code, err.count("\n")) == (74, 1), err
    assert err.startswith(f"{script}: {for_all}/venv: its interpreter needs {private}, which this user may not use")
    assert f"PYC_VENV={for_all}/venv PYTHON=/usr/bin/python3" in err and err.endswith(f" sh {bundle}/install.sh\n")
    private.chmod(0o755)
    (private / "python").chmod(0o600)
    code, err = started(bundle / script, for_all, NOBODY)
    assert code == 74 and f"its interpreter needs {private}/python, which" in err


def test_an_interpreter_that_is_gone_is_told_as_such_and_installed_anew(for_all):
    bundle, private = for_all / "made", for_all / "private"
    assert started(bundle / "install.sh", for_all)[0] == 0
    private.rename(for_all / "elsewhere")
    code, err = started(bundle / "health.sh", for_all)
    assert (code, err.count("\n")) == (69, 1)
    assert f"{for_all}/venv: its interpreter is gone: there is no {private}; run sh {bundle}/install.sh" in err
    (for_all / "elsewhere").rename(for_all / "private")
    (for_all / "venv" / "bin" / "python").unlink()
    code, err = started(bundle / "health.sh", for_all)
    assert code == 69 and "nothing is installed yet" in err
    assert started(bundle / "run.sh", for_all)[0] == 0


@pytest.mark.parametrize("script", ["run.sh", "health.sh"])
def test_a_place_with_backslashes_is_named_as_it_is_called(script, for_all):
    venv = for_all / "a\\nb" / "c\\tools"
    venv.parent.mkdir()
    assert started(for_all / "made" / "install.sh", for_all, venv=venv)[0] == 0
    (for_all / "private").chmod(0o000)
    code, err = started(for_all / "made" / script, for_all, NOBODY, venv=venv)
    assert (code, err.count("\n")) == (74, 1), err
    assert err.startswith(f"{script}: {venv}: its interpreter needs ") and f"PYC_VENV='{venv}' PYTHON=" in err


@pytest.mark.parametrize("script", ["run.sh", "health.sh"])
def test_an_environment_below_what_this_user_may_not_enter(script, for_all):
    (for_all / "private" / "venv").mkdir()
    (for_all / "private").chmod(0o000)
    code, err = started(for_all / "made" / script, for_all, NOBODY, venv=for_all / "private" / "venv")
    assert (code, err.count("\n")) == (74, 1)
    assert f"{for_all}/private/venv: this user may not enter {for_all}/private; name another place with PYC_VENV" in err


def test_an_install_warns_of_an_interpreter_for_its_user_alone(for_all):
    """Through links, and where others may read the bundle: elsewhere nobody else was meant to run it."""
    bundle, private = for_all / "made", for_all / "private"
    (private / "pythons").mkdir(mode=0o700)
    (private / "python").rename(private / "pythons" / "python")
    (private / "python").symlink_to("pythons/../pythons/python")
    code, err = started(bundle / "install.sh", for_all)
    assert (code, err.count("\n")) == (0, 1), err
    assert err.startswith(f"install.sh: warning: {private}/pythons, where the interpreter is, is closed to other users")
    assert f"PYTHON=/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]} sh {bundle}/install.sh" in err
    way = (for_all / "venv" / ".pyc-bundle").read_text().splitlines()
    assert [place for place in way if place.startswith(str(private))] == [
        str(private / place) for place in (".", "pythons", "pythons", "pythons/python")
    ]
    (private / "pythons").chmod(0o755)
    assert str(private) not in started(bundle / "install.sh", for_all)[1]
    (private / "pythons").chmod(0o700)
    bundle.chmod(0o750)
    assert started(bundle / "install.sh", for_all) == (0, "")


@pytest.mark.parametrize("name", ["precious", "a\\nb", "c\\tools", "x\\c y"])
def test_an_install_deletes_nothing_that_it_did_not_make(name, installable, tmp_path):
    """And names it as it is called: sh's own echo takes a backslash for more than one."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis").write_text("mine")
    process = start(installable, tmp_path / name)
    message = f"install.sh: {tmp_path}/{name} is there, and this script did not make it; remove it, or name another"
    assert process.communicate()[1] == f"{message} with PYC_VENV=...\n"
    assert process.returncode == 73
    assert (tmp_path / name / "thesis").read_text() == "mine"


def test_an_install_removes_what_killed_ones_left_and_takes_a_slash(installable, tmp_path):
    day_s = 86_400
    left = {"venv.pyc-new.bcdfghjk": 2 * day_s, "venv.pyc-old.kjhgfdcb": 2 * day_s, "venv.pyc-new.zzzzzzzz": 60}
    for name, age_s in left.items():
        (tmp_path / name / "bin").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    mine = {"venv.new.mine", "venv.pyc-old.20261128", "venv.pyc-old.deadbeef", "venv.pyc-new.1"}
    for name in mine:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    process = start(installable, f"{tmp_path}/venv/")
    assert (process.communicate()[1], process.returncode) == ("", 0)
    assert (tmp_path / "venv" / ".pyc-bundle").exists() and not list((tmp_path / "venv").glob(".pyc-new*"))
    assert {path.name for path in tmp_path.glob("venv.*")} == {"venv.pyc-new.zzzzzzzz", *mine}


def test_an_environment_with_a_native_module_that_does_not_load_is_not_whole(installable, tmp_path):
    """Also where its package loads it at first use alone."""
    site = tmp_path / "environment" / "lib" / "python3" / "site-packages"
    (site / "package" / "part").mkdir(parents=True)
    for name in ("package", "package/part"):
        (site / name / "__init__.py").write_text("")

    def check_it() -> subprocess.CompletedProcess[str]:
        command = (sys.executable, installable.with_name("check_modules.py"), tmp_path / "environment")
        return subprocess.run(command, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=60)

    (site / "package" / "libshared.so").write_bytes(b"no module")
    assert (check_it().returncode, check_it().stderr) == (0, "")
    (site / "package" / "part" / "_native.abi3.so").write_bytes(b"no library")
    done = check_it()
    assert done.returncode == 1 and "package/part/_native.abi3.so" in done.stderr
