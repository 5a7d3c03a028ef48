"""`pyc bundle`: what it writes is whole, says where each byte is from, and its scripts run the model.

The wheels here are empty ones with the right names; `.ci/run` installs a bundle with real ones where no network is.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

from pyc.passes.attest.facts import facts_of
from pyc.passes.bundle.wheels import DISTRIBUTION, Target, _pip, fetch_wheels, pins
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.signature_file import add_signature
from pyc.runtime.errors import ArtifactError

HERE, OTHER = ("x86_64", "aarch64") if os.uname().machine == "x86_64" else ("aarch64", "x86_64")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with a wheel of each package that the runtime needs."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in {DISTRIBUTION: importlib.metadata.version(DISTRIBUTION), **pins()}.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/licenses/", "")
            wheel.writestr(f"{stem}.dist-info/licenses/LICENSE", f"of {name}")
    return folder


@pytest.fixture
def make_artifact(make_artifact):
    """Writes a small artifact for this machine, or for another."""
    return functools.partial(make_artifact, arch=os.uname().machine)


def environment(venv=sys.prefix):
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYC_VENV": str(venv)}


def run(script, *arguments, **variables):
    command = [str(script), *arguments]
    return subprocess.run(command, env={**environment(), **variables}, capture_output=True, text=True, check=False)


def test_a_folder_runs_where_it_is_put(pyc, decoder_artifact, wheels, tmp_path):
    code, _, err = pyc("bundle", decoder_artifact, "-o", tmp_path / "made", "--wheels", wheels)
    assert (code, err) == (0, "")
    bundle = (tmp_path / "made").rename(tmp_path / "put elsewhere")
    done = run(bundle / "run.sh", "-p", "a", "--max-tokens", "2", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])
    assert run(bundle / "health.sh").returncode == 0
    sums = dict(reversed(line.split("  ", 1)) for line in (bundle / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(bundle)): path for path in bundle.rglob("*") if path.is_file()}
    assert set(sums) == set(files) - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest, name
    required = (bundle / "requirements.txt").read_text()
    for path in wheels.iterdir():
        assert f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in required
    assert (bundle / "licences" / f"numpy-{pins()['numpy']}" / "LICENSE").read_text() == "of numpy"
    # A byte of the model changes.
    data = bytearray((bundle / "model.pyca").read_bytes())
    data[-20] ^= 1
    (bundle / "model.pyca").write_bytes(data)
    assert run(bundle / "health.sh").returncode == 8


def test_a_folder_may_be_moved_with_its_environment(pyc, decoder_artifact, wheels, tmp_path):
    """Scripts of a virtual environment name the place where it was made, which is there no more."""
    assert pyc("bundle", decoder_artifact, "-o", tmp_path / "put here", "--wheels", wheels)[0] == 0
    bundle = tmp_path / "put here"
    (bundle / "venv" / "bin").mkdir(parents=True)
    python = bundle / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script = bundle / "venv" / "bin" / "pyc"
    script.write_text(f"#!{python}\nfrom pyc.process import entry\nentry()\n")
    for path in (python, script):
        path.chmod(0o755)
    moved = bundle.rename(tmp_path / "und dort ü")
    (tmp_path / "pyc.py").write_text("raise SystemExit('a module of the working directory')")
    for name, arguments in (("run.sh", ("-p", "a", "--max-tokens", "2")), ("health.sh", ())):
        done = subprocess.run(
            [str(moved / name), *arguments],
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_what_is_there_is_refused_before_wheels_are_fetched(pyc, make_artifact, tmp_path, monkeypatch):
    monkeypatch.setattr("pyc.passes.bundle.make.fetch_wheels", lambda *arguments: pytest.fail("fetched"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    code, _, err = pyc("bundle", make_artifact(), "-o", tmp_path / "full", "--format", "oci")
    assert (code, "is not an empty folder" in err) == (8, True), err


def test_it_asks_for_the_signers_that_it_was_made_with(pyc, make_artifact, wheels, tmp_path, key_home):
    artifact = make_artifact()
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    arguments = ("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")
    code, _, err = pyc(*arguments)
    assert code == 12 and "1 of the 2 signatures" in err
    assert not (tmp_path / "made").exists()
    from pyc.runtime.artifact.reader import open_artifact

    with open_artifact(artifact) as opened:
        add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    assert pyc(*arguments)[0] == 0
    bundle = tmp_path / "made"
    assert pyc("verify", bundle / "model.pyca", "--trust", bundle / "trust.toml")[0] == 0
    (bundle / "model.pyca.sig").unlink()
    assert pyc("verify", bundle / "model.pyca", "--trust", bundle / "trust.toml")[0] == 12


def test_scripts_are_plain_shell(pyc, make_artifact, wheels, tmp_path):
    pyc("bundle", make_artifact(), "-o", tmp_path / "made", "--wheels", wheels)
    for script in (tmp_path / "made").glob("*.sh"):
        assert script.stat().st_mode & 0o777 == 0o755
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PYTHON": "python9.9"}, "no python9.9 here"),
        ({"PYTHON": sys.executable, "machine": "other"}, "the wheels here are for"),
    ],
)
def test_an_install_where_it_does_not_fit(variables, message, pyc, make_artifact, wheels, tmp_path):
    pyc("bundle", make_artifact(arch=OTHER), "-o", tmp_path / "made", "--wheels", wheels, "--machine", OTHER)
    done = run(tmp_path / "made" / "install.sh", PYC_VENV=str(tmp_path / "venv"), **variables)
    assert (done.returncode, done.stdout) == (69, "")
    assert message in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_tar_depends_on_its_files_alone(pyc, make_artifact, wheels, tmp_path):
    artifact = make_artifact()
    found = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        target = tmp_path / folder / "release.tar"
        assert pyc("bundle", artifact, "-o", target, "--format", "tar", "--wheels", wheels)[0] == 0
        found.append(target.read_bytes())
    assert found[0] == found[1]
    with tarfile.open(target) as archive:
        entries = archive.getmembers()
    assert all(entry.name.startswith("release/") and entry.uid == 0 and entry.mtime == 0 for entry in entries)
    assert pyc("bundle", artifact, "-o", target, "--format", "tar", "--no-wheels")[0] == 8  # it is there
    assert pyc("bundle", artifact, "-o", target, "--format", "tar", "--no-wheels", "--force")[0] == 0
    assert not list((tmp_path / "two").glob(".*"))


def test_an_image_layout(pyc, make_artifact, wheels, tmp_path):
    """Every digest and size is right, and a layer of the model is the artifact as it is."""
    artifact = make_artifact()
    layout = tmp_path / "layout"
    arguments = ("bundle", artifact, "-o", layout, "--format", "oci", "--tag", "v1", "--wheels", wheels)
    assert pyc(*arguments)[0] == 0
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}

    def blob(descriptor):
        kind, digest = descriptor["digest"].split(":")
        data = (layout / "blobs" / kind / digest).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, descriptor["size"])
        return data

    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "v1"
    manifest = json.loads(blob(entry))
    assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    config = json.loads(blob(manifest["config"]))
    assert config["modelfs"] == {"type": "layers", "diffIds": [layer["digest"] for layer in manifest["layers"]]}
    contents = {layer["annotations"]["org.cncf.model.filepath"]: blob(layer) for layer in manifest["layers"]}
    assert contents["model.pyca"] == artifact.read_bytes()
    assert {"run.sh", "install.sh", "trust.toml", "README.md", "SHA256SUMS"} < set(contents)
    assert {path.name for path in (layout / "blobs" / "sha256").iterdir()} == {
        each["digest"].split(":")[1] for each in (entry, manifest["config"], *manifest["layers"])
    }


STUB = """#!/bin/sh
# Stands for a Python whose pip takes a while, and fails with what $SAYS has.
option=$1
shift
case "$1" in
-c) case "$2" in
    *ensurepip*) [ -z "${{LACKS_ENSUREPIP:-}}" ] || {{ echo "No module named 'ensurepip'" >&2; exit 1; }} ;;
    *) echo "{version} {machine}" ;;
    esac ;;
-m) if [ "$2" = venv ]; then
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
        printf '#!%s/bin/python\\nimport pyc\\n' "$3" >"$3/bin/pyc" && chmod 755 "$3/bin/pyc"
        echo "command = python -m venv $3" >"$3/pyvenv.cfg"
    else
        sleep 0.4
    fi
    [ -z "${{SAYS:-}}" ] || [ "$2" != "${{FAILS:-pip}}" ] || {{ printf "$SAYS" >&2; exit 1; }} ;;
*) exec "{real}" "$option" "$@" ;;
esac
"""


@pytest.fixture
def installable(pyc, make_artifact, wheels, tmp_path):
    """A bundle whose install.sh has a Python that installs nothing."""
    assert pyc("bundle", make_artifact(), "-o", tmp_path / "made", "--wheels", wheels)[0] == 0
    stub, version = tmp_path / "python", f"{sys.version_info[0]}.{sys.version_info[1]}"
    stub.write_text(STUB.format(version=version, machine=os.uname().machine, real=sys.executable))
    stub.chmod(0o755)
    return tmp_path / "made" / "install.sh"


def start(script, venv, **variables):
    variables = {**environment(venv), "PYTHON": str(script.parents[1] / "python"), **variables}
    return subprocess.Popen([str(script)], env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_installs_at_once_leave_one_environment(installable, tmp_path):
    venv = tmp_path / "venv"
    running = [start(installable, venv) for _ in range(4)]
    assert [process.communicate()[1] for process in running] == [""] * 4
    assert [process.returncode for process in running] == [0] * 4
    assert (venv / "bin" / "python").exists() and (venv / ".pyc-bundle").exists()
    first = venv.stat().st_ino
    assert start(installable, venv).wait() == 0  # asked for again: made again
    assert venv.stat().st_ino != first
    assert not list(tmp_path.glob("venv.*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_install_that_is_ended_leaves_no_half_environment(number, installable, tmp_path):
    process = start(installable, tmp_path / "venv")
    time.sleep(0.2)
    os.killpg(process.pid, number)
    assert process.wait() != 0
    process.stderr.close()
    assert not (tmp_path / "venv").exists()
    assert number == signal.SIGKILL or not list(tmp_path.glob("venv.*"))


def test_programs_of_an_environment_name_the_place_where_it_is(installable, tmp_path):
    """It is made under another name, which pip writes into them."""
    venv = tmp_path / "venv"
    assert start(installable, venv).wait() == 0
    program = venv / "bin" / "pyc"
    assert program.read_text() == f"#!{venv}/bin/python\nimport pyc\n"
    assert program.stat().st_mode & 0o777 == 0o755
    assert (venv / "pyvenv.cfg").read_text() == f"command = python -m venv {venv}\n"


@pytest.mark.parametrize("kind", ["damaged", "wheel gone", "wheels gone", "requirements", "sums gone"])
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
    }[kind]
    if code == 8:
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


def test_a_file_too_large_for_an_environment_is_no_missing_ensurepip(pyc, make_artifact, wheels, tmp_path):
    """The real venv, whose words for it are those of VENV_FAILED."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options = ("-o", tmp_path / "made", "--wheels", wheels, "--python", version)
    assert pyc("bundle", make_artifact(), *options)[0] == 0
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


def test_every_python_of_the_scripts_is_safe_from_the_working_directory(pyc, make_artifact, wheels, tmp_path):
    for name, options in (("with", ("--wheels", wheels)), ("without", ("--no-wheels",))):
        assert pyc("bundle", make_artifact(), "-o", tmp_path / name, *options)[0] == 0
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


def test_a_bundle_is_for_everybody_to_read_whatever_the_umask(pyc, make_artifact, wheels, tmp_path):
    for number, mask in enumerate((0o077, 0)):
        bundle = tmp_path / str(number)
        former = os.umask(mask)
        try:
            assert pyc("bundle", make_artifact(), "-o", bundle, "--wheels", wheels)[0] == 0
        finally:
            os.umask(former)
        for path in (bundle, *bundle.rglob("*")):
            is_open = path.is_dir() or path.suffix == ".sh"
            assert path.stat().st_mode & 0o777 == (0o755 if is_open else 0o644), path


def test_an_install_deletes_nothing_that_it_did_not_make(installable, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").write_text("mine")
    process = start(installable, tmp_path / "precious")
    assert "this script did not make it" in process.communicate()[1]
    assert process.returncode == 73
    assert (tmp_path / "precious" / "thesis").read_text() == "mine"


def test_an_install_removes_what_killed_ones_left_and_takes_a_slash(installable, tmp_path):
    day_s = 86_400
    for name, age_s in {"venv.pyc-new.1": 2 * day_s, "venv.pyc-old.2": 2 * day_s, "venv.pyc-new.3": 60}.items():
        (tmp_path / name / "bin").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    (tmp_path / "venv.new.mine").mkdir()
    os.utime(tmp_path / "venv.new.mine", (0, 0))
    process = start(installable, f"{tmp_path}/venv/")
    assert (process.communicate()[1], process.returncode) == ("", 0)
    assert (tmp_path / "venv" / ".pyc-bundle").exists() and not list((tmp_path / "venv").glob(".pyc-new*"))
    assert {path.name for path in tmp_path.glob("venv.*")} == {"venv.pyc-new.3", "venv.new.mine"}


def test_the_artifact_that_was_verified_is_packed_whatever_its_name_means_by_then(
    pyc, make_artifact, tmp_path, monkeypatch
):
    artifact = make_artifact()
    before = artifact.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))

    def replaced(opened, path):
        other.replace(artifact)
        return facts_of(opened, path)

    monkeypatch.setattr("pyc.passes.bundle.make.facts_of", replaced)
    for form, output in (("dir", tmp_path / "made"), ("tar", tmp_path / "made.tar")):
        assert pyc("bundle", artifact, "-o", output, "--format", form, "--no-wheels")[0] == 0
        artifact.write_bytes(before)
        other.write_bytes(b"garbage")
    assert (tmp_path / "made" / "model.pyca").read_bytes() == before
    with tarfile.open(tmp_path / "made.tar") as archive:
        assert archive.extractfile("made/model.pyca").read() == before
    assert json.loads((tmp_path / "made" / "sbom.cdx.json").read_text())


@pytest.mark.parametrize("comment", ['Bob "the builder"', "build\\u machine", 'x", "pyc-ed25519 AAAA= evil'])
def test_a_comment_of_a_key_is_text_in_the_policy(comment, pyc, make_artifact, tmp_path, key_home):
    artifact = make_artifact()
    (public,) = (key_home / "trusted").iterdir()
    public.write_text(" ".join(public.read_text().split()[:2]) + f" {comment}\n")
    assert pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")[0] == 0
    policy = tomllib.loads((tmp_path / "made" / "trust.toml").read_text())
    assert [key.split(" ", 2)[2] for key in policy["keys"]] == [comment]
    assert pyc("verify", tmp_path / "made" / "model.pyca", "--trust", tmp_path / "made" / "trust.toml")[0] == 0


def test_signatures_that_are_none_are_not_packed(pyc, make_artifact, tmp_path):
    artifact = make_artifact()
    beside = artifact.with_name(artifact.name + ".sig")
    beside.write_text("pyc-signature\n")
    code, _, err = pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")
    assert code == 8 and "expected 'pyc-signature <base64" in err
    beside.unlink()
    os.mkfifo(beside)
    assert pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")[0] == 8
    assert not (tmp_path / "made").exists()


def test_wheels_for_another_place_are_refused(pyc, make_artifact, wheels, tmp_path):
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
        code, text, err = pyc("bundle", make_artifact(arch=machine), *options)
        assert (code, text, err.count("\n")) == (8, "", 1)
        expected = f"got {here.name}, expected wheels for Python {python} and glibc on {machine}; add them"
        assert expected in err
        assert not out.exists()
    # With wheels for both there are those of the bundle's machine in it, and no others.
    there = folder / f"{stem}-cp313-cp313-manylinux_2_28_{OTHER}.whl"
    there.write_bytes(here.read_bytes())
    options = ("-o", out, "--wheels", folder, "--machine", OTHER, "--python", "3.13")
    assert pyc("bundle", make_artifact(arch=OTHER), *options)[0] == 0
    assert [path.name for path in (out / "wheels").glob("numpy-*")] == [there.name]
    (required,) = (line for line in (out / "requirements.txt").read_text().splitlines() if line.startswith("numpy=="))
    assert required.count("--hash") == 1


def test_of_many_wheels_that_do_not_fit_the_first_are_named(pyc, make_artifact, wheels, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in wheels.iterdir():
        (folder / path.name.replace("py3-none", "py2-none")).write_bytes(path.read_bytes())
    code, _, err = pyc("bundle", make_artifact(), "-o", tmp_path / "made", "--wheels", folder)
    assert code == 8 and f"{folder}: got pyc_compiler-" in err
    assert f"-py2-none-any.whl and {len(list(folder.iterdir())) - 3} more, expected wheels for Python" in err


def test_a_machine_that_the_artifact_has_no_program_for(pyc, make_artifact, wheels, tmp_path, monkeypatch):
    monkeypatch.setattr("pyc.passes.bundle.make.fetch_wheels", lambda *arguments: pytest.fail("fetched"))
    out = tmp_path / "made"
    message = f"has programs for {HERE}, and none for {OTHER}, where the bundle is to run"
    for options in ((), ("--wheels", wheels), ("--no-wheels",)):
        code, text, err = pyc("bundle", make_artifact(), "-o", out, "--machine", OTHER, *options)
        assert (code, text, err.count("\n")) == (8, "", 1)
        assert message in err
        assert not out.exists()
    artifact = make_artifact(arch=OTHER)
    code, _, err = pyc("bundle", artifact, "-o", out, "--wheels", wheels)
    assert code == 8 and f"none for {HERE}" in err and "--machine" in err
    assert pyc("bundle", artifact, "-o", out, "--no-wheels")[0] == 0  # it says nothing of where it runs


@pytest.mark.parametrize("kind", ["slip", "zlib", "encrypted", "pipe"])
def test_a_wheel_that_is_none(kind, pyc, make_artifact, wheels, tmp_path):
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
    code, _, err = pyc("bundle", make_artifact(), "-o", tmp_path / "made", "--wheels", folder)
    assert code == 8, err
    assert {"slip": "which no wheel has", "pipe": "has no wheel of click"}.get(kind, "is no whole wheel") in err
    assert not (tmp_path / "made").exists()


def test_two_licences_of_one_name_are_two_files(pyc, make_artifact, wheels, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in wheels.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with zipfile.ZipFile(next(folder.glob("click-*")), "a") as archive:
        archive.writestr("click.dist-info/LICENSE", "another")
    assert pyc("bundle", make_artifact(), "-o", tmp_path / "made", "--wheels", folder)[0] == 0
    sums = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "made", check=False)
    assert sums.returncode == 0


def test_what_is_wrong(pyc, make_artifact, wheels, tmp_path, monkeypatch):
    artifact = make_artifact()
    (tmp_path / "few").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in wheels.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes()[:-9])
    out = tmp_path / "out"
    for arguments, code, message in (
        (("-o", out, "--wheels", tmp_path / "few"), 8, f"has no wheel of {DISTRIBUTION}"),
        (("-o", out, "--wheels", damaged), 8, "is no whole wheel"),
        (("-o", tmp_path / "full", "--no-wheels"), 8, "is not an empty folder"),
        (("-o", artifact, "--format", "tar", "--no-wheels", "--force"), 8, "is the artifact, which is read here"),
        (("-o", out, "--no-wheels", "--wheels", wheels), 2, "not both"),
        (("-o", out, "--python", "4"), 2, "expected a version such as 3.11"),
        (("-o", out, "--python", "3.9"), 2, "got 3.9, but pyc runs with 3.11 or later"),
        (("-o", out, "--tag", "a/b"), 2, "expected letters"),
    ):
        found, text, err = pyc("bundle", artifact, *arguments)
        assert (found, text) == (code, ""), err
        assert message in err
    assert not out.exists()
    monkeypatch.setattr("pyc.passes.bundle.wheels.sys.executable", "/nonexistent/python")
    found, text, err = pyc("bundle", artifact, "-o", out)
    assert (found, text) == (8, "") and "pip cannot be run" in err
    assert pyc("bundle", tmp_path / "none.pyca", "-o", out)[0] == 10
    assert Path(artifact).exists()


def test_scripts_through_links_and_before_an_install(pyc, decoder_artifact, wheels, tmp_path):
    """A link in a folder of programs finds the bundle; what is not installed is 69, not the shell's 127."""
    (tmp_path / "bin").mkdir()
    tools = tmp_path / "tools"  # a shell's own, without a pyc
    tools.mkdir()
    for tool in ("sh", "dirname", "readlink", "env"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    for name, options in (("with", ("--wheels", wheels)), ("without", ("--no-wheels",))):
        bundle = tmp_path / name
        assert pyc("bundle", decoder_artifact, "-o", bundle, *options)[0] == 0
        for script in ("run.sh", "health.sh", "install.sh"):
            (tmp_path / "bin" / f"{name}-{script}").symlink_to(os.path.relpath(bundle / script, tmp_path / "bin"))
        done = run(tmp_path / "bin" / f"{name}-run.sh", "-p", "a", "--max-tokens", "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert run(tmp_path / "bin" / f"{name}-health.sh").returncode == 0
        done = run(tmp_path / "bin" / f"{name}-health.sh", PYC_VENV=str(tmp_path / "none"), PATH=str(tools))
        assert done.returncode == 69 and ("nothing is installed yet" in done.stderr or "no pyc here" in done.stderr)
    done = run(tmp_path / "bin" / "without-run.sh", "-p", "a", PYC_VENV=str(tmp_path / "none"), PATH=str(tools))
    assert (done.returncode, done.stdout) == (69, "") and "no pyc here" in done.stderr


def test_names_of_folders_and_of_tars(pyc, make_artifact, tmp_path):
    artifact = make_artifact()
    for form in ("dir", "oci"):
        assert pyc("bundle", artifact, "-o", f"{tmp_path / form}/", "--no-wheels", "--format", form)[0] == 0
        assert (tmp_path / form).is_dir()
    assert pyc("bundle", artifact, "-o", f"{tmp_path / 'a.tar'}/", "--no-wheels", "--format", "tar")[0] == 8
    for name, root in ((".tar", "bundle"), ("..tar", "bundle"), ("...tar", "bundle"), ("a.tar", "a")):
        assert pyc("bundle", artifact, "-o", tmp_path / name, "--no-wheels", "--format", "tar")[0] == 0
        with tarfile.open(tmp_path / name) as archive:
            assert {member.partition("/")[0] for member in archive.getnames()} == {root}


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
