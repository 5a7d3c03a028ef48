"""`pyc bundle`: what it writes is whole, says where each byte is from, and its scripts run the model.

The wheels here are empty ones with the right names; `.ci/run` installs a bundle with real ones where no network is.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from bundles import run

from pyc.passes.attest.facts import facts_of
from pyc.passes.bundle.wheels import DISTRIBUTION, Target, pins
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.signature_file import add_signature, write_signatures


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
    assert (bundle / "licences" / f"numpy-{pins(Target.here())['numpy']}" / "LICENSE").read_text() == "of numpy"
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


def test_packages_of_others_do_not_stand_for_those_of_the_environment(pyc, decoder_artifact, wheels, tmp_path):
    """As modules of a cluster name them: for a process of the environment, whatever they are, they are wrong."""
    for name in ("numpy", "click", "msgspec"):
        (tmp_path / "modules" / name).mkdir(parents=True)
        (tmp_path / "modules" / name / "__init__.py").write_text(f"raise ImportError('{name} of others')\n")
    others = {"PYTHONPATH": str(tmp_path / "modules"), "PYTHONHOME": "/nonexistent", "PYTHONPLATLIBDIR": "none"}
    others["PYTHONEXECUTABLE"] = "/usr/bin/python3"
    for name, options in (("with", ("--wheels", wheels)), ("without", ("--no-wheels",))):
        bundle = tmp_path / name
        assert pyc("bundle", decoder_artifact, "-o", bundle, *options)[0] == 0
        for script, arguments in (("run.sh", ("-p", "a", "--max-tokens", "1")), ("health.sh", ())):
            done = run(bundle / script, *arguments, **others)
            assert (done.returncode, done.stderr) == (0, ""), (script, done.stderr)


def test_a_machine_with_a_policy_of_its_own_believes_no_bundle(pyc, decoder_artifact, wheels, tmp_path):
    """Its operator sets PYC_TRUST_POLICY; the sender's file says nothing then."""
    bundle = tmp_path / "made"
    assert pyc("bundle", decoder_artifact, "-o", bundle, "--wheels", wheels)[0] == 0
    key = signing_key("another")
    policy = tmp_path / "policy.toml"
    policy.write_text(f'keys = ["{key.public.text()}"]\n')
    for script, arguments in (("run.sh", ("-p", "a", "--max-tokens", "1")), ("health.sh", ())):
        done = run(bundle / script, *arguments, PYC_TRUST_POLICY=str(policy))
        assert done.returncode == 12 and str(policy) in done.stderr, (script, done.stderr)
        done = run(bundle / script, *arguments, PYC_TRUST_POLICY="")
        assert done.returncode == 15 and "$PYC_TRUST_POLICY: is set, but empty" in done.stderr, "its value was lost"


def test_what_is_there_is_refused_before_wheels_are_fetched(pyc, make_local_artifact, tmp_path, monkeypatch):
    monkeypatch.setattr("pyc.passes.bundle.make.fetch_wheels", lambda *arguments: pytest.fail("fetched"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    code, _, err = pyc("bundle", make_local_artifact(), "-o", tmp_path / "full", "--format", "oci")
    assert (code, "is not an empty folder" in err) == (8, True), err


def test_it_asks_for_the_signers_that_it_was_made_with(pyc, make_local_artifact, wheels, tmp_path, key_home):
    artifact = make_local_artifact()
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    arguments = ("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")
    code, _, err = pyc(*arguments)
    assert code == 12 and "1 of the 2 signatures" in err
    assert not (tmp_path / "made").exists()
    with open_artifact(artifact) as opened:
        add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    assert pyc(*arguments)[0] == 0
    bundle = tmp_path / "made"
    assert pyc("verify", bundle / "model.pyca", "--trust", bundle / "trust.toml")[0] == 0
    (bundle / "model.pyca.sig").unlink()
    assert pyc("verify", bundle / "model.pyca", "--trust", bundle / "trust.toml")[0] == 12


def test_a_policy_that_was_cut_asks_for_no_less(pyc, make_local_artifact, tmp_path, key_home):
    """As a copy without room leaves it: of any length it is refused, or asks for both signatures, whom this machine
    trusts besides."""
    artifact = make_local_artifact()
    with open_artifact(artifact) as opened:
        message = opened.prelude.pack()
    add_signature(artifact, signing_key("qa").sign(message))
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    assert pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")[0] == 0
    (key_home / "policy.toml").unlink()
    model, policy = tmp_path / "made" / "model.pyca", tmp_path / "made" / "trust.toml"
    whole = policy.read_text()
    signatures = {
        "one": (),
        "and another's": (signing_key("other").sign(message),),
        "both": (signing_key("qa").sign(message),),
    }
    found = {}
    for size in range(len(whole) + 1):
        policy.write_text(whole[:size])
        try:
            said = tomllib.loads(whole[:size])
        except tomllib.TOMLDecodeError:
            said = {}
        if said:
            for who, records in signatures.items():
                write_signatures(model, records)
                found[size, who] = pyc("verify", model, "--trust", policy)[0]
        elif size < 200 or not size % 50:  # nothing can be made of it
            assert pyc("verify", model, "--trust", policy)[0] == 15
    assert {code for (_, who), code in found.items() if who != "both"} == {12}
    assert {code for (_, who), code in found.items() if who == "both"} == {0}
    assert {(len(whole), who) for who in signatures} < found.keys() and len(found) > 2 * len(signatures)


def test_scripts_are_plain_shell(pyc, make_local_artifact, wheels, tmp_path):
    pyc("bundle", make_local_artifact(), "-o", tmp_path / "made", "--wheels", wheels)
    for script in (tmp_path / "made").glob("*.sh"):
        assert script.stat().st_mode & 0o777 == 0o755
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


def documented_blocks() -> list[str]:
    """The unit of docs/deploy.md, and the lines that a service which stays has in place of some of it."""
    text = Path(__file__).parents[3].joinpath("docs/deploy.md").read_text()
    return re.findall(r"^```ini\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("kind", ["oneshot", "exec"])
def test_systemd_accepts_the_documented_units(kind, tmp_path):
    unit, lines = documented_blocks()
    if kind == "exec":
        left_out = {"ConditionPathExists", "StandardOutput", "PrivateNetwork"}
        left_out |= {line.partition("=")[0] for line in lines.split("\n")}
        unit = "\n".join(line for line in unit.split("\n") if line.partition("=")[0] not in left_out - {""}) + lines
    assert f"Type={kind}\n" in unit
    path = tmp_path / "pyc-documented.service"
    path.write_text(re.sub(r"/opt/pyc/bin/\w+", "/bin/true", unit))  # which is there
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and path.name not in done.stderr, done.stderr


def test_the_unit_does_not_try_again_what_stays_as_it_is(pyc, make_local_artifact, wheels, tmp_path):
    """systemd looks at the exit codes of ExecStart= alone. 69: nothing is installed; 73: something else is there."""
    assert pyc("bundle", make_local_artifact(), "-o", tmp_path / "made", "--wheels", wheels)[0] == 0
    for unit in ((tmp_path / "made" / "pyc.service").read_text(), documented_blocks()[0]):
        settings = re.findall("^(ExecStart.*|RestartPreventExitStatus)=(.*)$", unit, re.MULTILINE)
        assert [name for name, _ in settings if name.startswith("ExecStart")] == ["ExecStart"] * 2
        assert {"8", "9", "10", "11", "12", "15", "69"} <= set(dict(settings)["RestartPreventExitStatus"].split())


def test_a_tar_depends_on_its_files_alone(pyc, make_local_artifact, wheels, tmp_path):
    artifact = make_local_artifact()
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


def test_an_image_layout(pyc, make_local_artifact, wheels, tmp_path):
    """Every digest and size is right, and a layer of the model is the artifact as it is."""
    artifact = make_local_artifact()
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


def test_a_bundle_is_for_everybody_to_read_whatever_the_umask(pyc, make_local_artifact, wheels, tmp_path):
    for number, mask in enumerate((0o077, 0)):
        bundle = tmp_path / str(number)
        former = os.umask(mask)
        try:
            assert pyc("bundle", make_local_artifact(), "-o", bundle, "--wheels", wheels)[0] == 0
        finally:
            os.umask(former)
        for path in (bundle, *bundle.rglob("*")):
            is_open = path.is_dir() or path.suffix == ".sh"
            assert path.stat().st_mode & 0o777 == (0o755 if is_open else 0o644), path


def test_the_artifact_that_was_verified_is_packed_whatever_its_name_means_by_then(
    pyc, make_local_artifact, tmp_path, monkeypatch
):
    artifact = make_local_artifact()
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
def test_a_comment_of_a_key_is_text_in_the_policy(comment, pyc, make_local_artifact, tmp_path, key_home):
    artifact = make_local_artifact()
    (public,) = (key_home / "trusted").iterdir()
    public.write_text(" ".join(public.read_text().split()[:2]) + f" {comment}\n")
    assert pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")[0] == 0
    policy = tomllib.loads((tmp_path / "made" / "trust.toml").read_text())
    assert [key.split(" ", 2)[2] for key in policy["keys"]] == [comment]
    assert pyc("verify", tmp_path / "made" / "model.pyca", "--trust", tmp_path / "made" / "trust.toml")[0] == 0


def test_signatures_that_are_none_are_not_packed(pyc, make_local_artifact, tmp_path):
    artifact = make_local_artifact()
    beside = artifact.with_name(artifact.name + ".sig")
    beside.write_text("pyc-signature\n")
    code, _, err = pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")
    assert code == 8 and "expected 'pyc-signature <base64" in err
    beside.unlink()
    os.mkfifo(beside)
    assert pyc("bundle", artifact, "-o", tmp_path / "made", "--no-wheels")[0] == 8
    assert not (tmp_path / "made").exists()


def test_what_is_wrong(pyc, make_local_artifact, wheels, tmp_path, monkeypatch):
    artifact = make_local_artifact()
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


def test_names_of_folders_and_of_tars(pyc, make_local_artifact, tmp_path):
    artifact = make_local_artifact()
    for form in ("dir", "oci"):
        assert pyc("bundle", artifact, "-o", f"{tmp_path / form}/", "--no-wheels", "--format", form)[0] == 0
        assert (tmp_path / form).is_dir()
    assert pyc("bundle", artifact, "-o", f"{tmp_path / 'a.tar'}/", "--no-wheels", "--format", "tar")[0] == 8
    for name, root in ((".tar", "bundle"), ("..tar", "bundle"), ("...tar", "bundle"), ("a.tar", "a")):
        assert pyc("bundle", artifact, "-o", tmp_path / name, "--no-wheels", "--format", "tar")[0] == 0
        with tarfile.open(tmp_path / name) as archive:
            assert {member.partition("/")[0] for member in archive.getnames()} == {root}


@pytest.mark.parametrize("name", ["plain", "it's a model", 'two "words" $HOME', "a\\nb", "c\\tools", "x\\c y"])
def test_a_command_that_is_named_can_be_pasted(name, pyc, make_local_artifact, wheels, tmp_path):
    assert pyc("bundle", make_local_artifact(), "-o", tmp_path / name, "--wheels", wheels)[0] == 0
    done = run(tmp_path / name / "health.sh", PYC_VENV=str(tmp_path / "none"))
    assert done.returncode == 69
    words = shlex.split(done.stderr.partition("; run ")[2])
    assert words == ["sh", str(tmp_path / name / "install.sh")]
