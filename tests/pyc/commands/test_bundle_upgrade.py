"""A bundle that is unpacked over an older or a newer one runs with its own runtime, or says how it comes there."""

import hashlib
import os
import shlex
import shutil
import signal
import time

import pytest
from bundles import run, start


@pytest.fixture
def installed(installable):
    """A bundle with its environment beside it, which was made of the bundle's requirements."""
    return reached(installable, installable.parent / "venv")


def reached(script, venv, **variables):
    """The bundle of a script that was run with success."""
    process = start(script, venv, **variables)
    assert (process.communicate()[1], process.returncode) == ("", 0)
    return script.parent


def unpack_over(bundle, digit):
    """What another bundle leaves there: another runtime, and the digest by which install.sh knows it."""
    required = bundle / "requirements.txt"
    text = required.read_text()
    first = text.index("sha256:") + len("sha256:")
    required.write_text(text[:first] + digit * 64 + text[first + 64 :])
    others = [line for line in (bundle / "SHA256SUMS").read_text().splitlines() if "requirements.txt" not in line]
    digest = hashlib.sha256(required.read_bytes()).hexdigest()
    (bundle / "SHA256SUMS").write_text("\n".join([*others, f"{digest}  requirements.txt"]) + "\n")


def said(script, venv, **variables):
    process = start(script, venv, **variables)
    err = process.communicate()[1]
    return process.returncode, err


def installing(bundle, **variables):
    """run.sh of the bundle, which has read the requirements and waits in pip."""
    process = start(bundle / "run.sh", bundle / "venv", **variables)
    until, size_bytes = time.monotonic() + 60, (bundle / "requirements.txt").stat().st_size
    while not any(each.stat().st_size == size_bytes for each in bundle.glob("venv.pyc-new.*/.pyc-requirements")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    return process


def is_replaced(script, venv):
    """Whether a script that succeeds leaves another environment than was there."""
    before = venv.stat().st_ino
    reached(script, venv)
    return venv.stat().st_ino != before


def test_a_pipe_in_place_of_what_an_environment_was_made_of_is_not_waited_for(installed):
    run_sh, health, venv = installed / "run.sh", installed / "health.sh", installed / "venv"
    note = venv / ".pyc-requirements"
    note.unlink()
    os.mkfifo(note)
    process = start(health, venv)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 69 and "the runtime in it is another than this bundle's" in err
    assert is_replaced(run_sh, venv) and note.is_file()
    (installed / "requirements.txt").unlink()
    os.mkfifo(installed / "requirements.txt")
    process = start(health, venv)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0), "as where it was taken away"


def test_a_pipe_where_an_environment_says_what_it_is_for_is_not_waited_for(installed):
    """Scripts read it where the interpreter is gone, to say which one was there."""
    venv = installed / "venv"
    shutil.rmtree(venv)
    venv.mkdir()
    os.mkfifo(venv / ".pyc-bundle")
    process = start(installed / "health.sh", venv)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 69 and "nothing is installed yet" in err
    reached(installed / "run.sh", venv)
    assert (venv / ".pyc-bundle").is_file()


@pytest.mark.parametrize("digits", ["1", "12"])
def test_another_bundle_over_one_installs_its_own_runtime(digits, installed):
    """Forth, and with the second back: an older bundle is another, too."""
    run_sh, health, venv = installed / "run.sh", installed / "health.sh", installed / "venv"
    reached(health, venv)
    assert not is_replaced(run_sh, venv)
    kept = (installed / "requirements.txt").read_bytes(), (installed / "SHA256SUMS").read_bytes()
    for digit in digits:
        if digit == "2":
            (installed / "requirements.txt").write_bytes(kept[0])
            (installed / "SHA256SUMS").write_bytes(kept[1])
        else:
            unpack_over(installed, digit)
        code, err = said(health, venv)
        assert (code, err.count("\n")) == (69, 1), err
        assert err.startswith(f"health.sh: {venv}: the runtime in it is another than this bundle's; run ")
        assert shlex.split(err.partition("; run ")[2]) == [f"PYC_VENV={venv}", "sh", str(installed / "install.sh")]
        assert is_replaced(run_sh, venv)
        assert not is_replaced(run_sh, venv)
        reached(health, venv)


def test_an_environment_of_a_bundle_that_recorded_nothing_is_of_another(installed):
    """As install.sh of an earlier pyc made it, with the way to its interpreter alone."""
    venv = installed / "venv"
    (venv / ".pyc-requirements").unlink()
    assert said(installed / "health.sh", venv)[0] == 69
    assert is_replaced(installed / "run.sh", venv)
    reached(installed / "health.sh", venv)


def test_an_environment_that_another_made_is_let_alone(installed):
    """PYC_VENV may name one in which the user put pyc; and a bundle without its wheels has nothing to install."""
    venv = installed / "venv"
    shutil.copytree(venv, installed / "own")
    for record in (".pyc-bundle", ".pyc-requirements"):
        (installed / "own" / record).unlink()
    unpack_over(installed, "1")
    for script in ("run.sh", "health.sh"):
        assert not is_replaced(installed / script, installed / "own")
    (installed / "requirements.txt").unlink()
    shutil.rmtree(installed / "wheels")
    for script in ("run.sh", "health.sh"):
        assert not is_replaced(installed / script, venv)


def test_a_bundle_without_wheels_asks_for_no_record(pyc, make_local_artifact, installed, tmp_path):
    """Also where an environment is, that install.sh of another bundle made."""
    assert pyc("bundle", make_local_artifact(), "-o", tmp_path / "none", "--no-wheels")[0] == 0
    (installed / "venv" / ".pyc-requirements").unlink()
    for script in ("run.sh", "health.sh"):
        assert not is_replaced(tmp_path / "none" / script, installed / "venv")


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root writes everywhere")
def test_who_may_write_nothing_there_is_told_to_install(installed):
    """A service's user runs run.sh, and install.sh's words for a folder that is read-only are none for it."""
    unpack_over(installed, "1")
    command = ["sh", str(installed / "run.sh")]
    if os.geteuid() == 0:
        # Root, without the power that lets it write where it may not.
        command = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--", *command]
    installed.chmod(0o555)
    try:
        done = run(*command, PYC_VENV=str(installed / "venv"))
    finally:
        installed.chmod(0o755)
    assert (done.returncode, done.stderr.count("\n")) == (69, 1), done.stderr
    assert done.stderr.startswith(f"run.sh: {installed}/venv: the runtime in it is another than this bundle's; run ")


def test_of_scripts_that_install_at_once_each_keeps_what_it_runs_with(installed, tmp_path):
    """The first puts its environment in place of the old one and runs; the second must not take that from below it."""
    venv, gate = installed / "venv", tmp_path / "gate"
    unpack_over(installed, "1")
    late = installing(installed, GATE=str(gate))
    before = venv.stat().st_ino
    reached(installed / "run.sh", venv)
    first = venv.stat().st_ino
    assert first != before
    gate.touch()
    assert (late.communicate()[1], late.returncode) == ("", 0)
    assert venv.stat().st_ino == first
    assert not list(installed.glob("venv.*"))


def test_an_environment_of_another_bundle_that_came_meanwhile_goes(installed, tmp_path):
    """Of two bundles that are unpacked one after the other, the second's scripts do not run with the first's."""
    venv, gate = installed / "venv", tmp_path / "gate"
    shutil.rmtree(venv)
    late = installing(installed, GATE=str(gate))
    wanted = (installed / "requirements.txt").read_bytes()
    unpack_over(installed, "1")
    reached(installed / "run.sh", venv)
    assert (venv / ".pyc-requirements").read_bytes() != wanted
    gate.touch()
    assert (late.communicate()[1], late.returncode) == ("", 0)
    assert (venv / ".pyc-requirements").read_bytes() == wanted


def test_an_upgrade_that_is_ended_leaves_the_former_environment(installed):
    venv = installed / "venv"
    unpack_over(installed, "1")
    before = venv.stat().st_ino
    process = installing(installed, GATE="/nonexistent")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() != 0
    process.stderr.close()
    assert venv.stat().st_ino == before and said(installed / "health.sh", venv)[0] == 69
