"""What a command reads, no file that it writes takes the place of, be it with --force."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from range_server import RangeServer, range_server
from remote_artifacts import folder, write_artifact

from pyc.commands.chat_commands import COMMANDS as CHAT_COMMANDS
from pyc.runtime.artifact import partial_file
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.artifact.trust.signature_file import add_signature
from pyc.runtime.errors import RunError
from pyc.runtime.host.files_read import files_read, note_file

__all__ = ["folder", "range_server"]


def files_in(*folders: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for each in folders for path in sorted(each.rglob("*")) if path.is_file()}


@pytest.fixture
def sources(tiny_copy, tiny_adapter, tmp_path) -> Path:
    """A recipe of a checkpoint and an adapter with a gate, all in `tmp_path`/sources."""
    checkpoint = tiny_copy("llama")
    place = tmp_path / "sources"
    place.mkdir()
    shutil.copytree(tiny_adapter(checkpoint), place / "lora")
    shutil.move(checkpoint, place / "base")
    (place / "heldout.txt").write_text("".join(f"line {number} of a text\n" for number in range(400)))
    recipe = {
        "model": "base",
        "adapters": [{"path": "lora"}],
        "quantize": {"scheme": "int8"},
        "targets": [{"backend": "cpu", "isa": ["x86-64-v3"]}],
        "quality": {"text": "heldout.txt", "max_kl": 100.0, "tokens": 64},
    }
    (place / "model.yaml").write_text(yaml.safe_dump(recipe))
    return place


def test_a_page_replaces_no_file_of_the_report(sources, tmp_path, pyc):
    artifact, recipe = tmp_path / "m.pyca", sources / "model.yaml"
    assert pyc("build", recipe, "-o", artifact)[0] == 0
    before = files_in(sources)
    names = {path.name for path in before}
    assert {"config.json", "tokenizer.json", "adapter_config.json", "adapter_model.safetensors"} <= names
    for path in before:
        if path.name != "README.md":
            code, _, err = pyc("report", artifact, recipe, "--html", path, "--force")
            assert (code, "which is read here" in err) == (8, True), path
    assert files_in(sources) == before
    for page in (sources / "base" / "report.html", sources / "lora" / "report.html"):  # nothing reads a page
        for _ in range(2):
            assert pyc("report", artifact, recipe, "--html", page)[0] == 0


def test_a_recipe_replaces_no_file_of_an_adapter(sources, pyc):
    before = files_in(sources)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        code, _, err = pyc(
            "init", sources / "base", "--adapter", sources / "lora", "-o", sources / "lora" / name, "--force"
        )
        assert (code, "which is read here" in err) == (3, True), err
    assert files_in(sources) == before


@pytest.mark.parametrize("place", [".", "link/.."])
@pytest.mark.parametrize("kind", ["key", "policy"])
def test_whom_to_trust_is_not_replaced(
    kind, place, range_server: RangeServer, folder, encoder_artifact, pyc, monkeypatch
):
    """By --trust, or by the variable that names this machine's policy, however it is written."""
    (folder / "real" / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "real" / "sub")
    trust = (folder if place == "." else folder / "real") / f"trust.{kind}"
    named = f"{place}/{trust.name}"
    with open_artifact(encoder_artifact) as opened:
        line = PublicKey(opened.signature.public_key).text()
    trust.write_text(f"{line}\n" if kind == "key" else f"keys = [{json.dumps(line)}]\n")
    trust.chmod(0o600)
    range_server.files["/e.pyca"] = encoder_artifact.read_bytes()
    before = trust.read_text()
    commands = [
        ("pull", f"{range_server.url}/e.pyca", "-o", trust, "--force"),
        ("embed", encoder_artifact, "a", "--npy", trust, "--force"),
    ]
    for command in commands:
        code, _, err = pyc(*command, "--trust", named)
        assert (code, "which is read here" in err) == (8, True), err
    if kind == "policy":
        monkeypatch.setenv("PYC_TRUST_POLICY", named)
        recipe = {"model": "nowhere", "quantize": {"scheme": "int8"}}
        (folder / "model.yaml").write_text(yaml.safe_dump(recipe))
        for command in (*commands, ("build", folder / "model.yaml", "-o", trust, "--force")):
            code, _, err = pyc(*command)
            assert (code, "is this machine's policy, which is read here" in err) == (8, True), err
    assert trust.read_text() == before


def test_a_document_does_not_replace_signatures(make_artifact, pyc):
    artifact = make_artifact()
    with open_artifact(artifact) as opened:
        beside = add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    before = beside.read_bytes()
    code, _, err = pyc("attest", artifact, "--format", "spdx", "-o", beside, "--force")
    assert (code, "is its further signatures, which is read here" in err) == (8, True)
    assert beside.read_bytes() == before


@pytest.mark.parametrize("content", [b"-----BEGIN PGP SIGNATURE-----\n", b"\x89\x02\xff\xde", b"hello\n", b"# of us\n"])
def test_a_signature_of_another_tool_is_not_replaced(content, range_server: RangeServer, folder, make_artifact, pyc):
    artifact = make_artifact()
    with open_artifact(artifact) as opened:
        beside = add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    range_server.files["/m.pyca"], range_server.files["/m.pyca.sig"] = artifact.read_bytes(), beside.read_bytes()
    for is_there in (False, True):
        if is_there:
            (folder / "m.pyca").write_bytes(artifact.read_bytes())
        (folder / "m.pyca.sig").write_bytes(content)
        code, out, err = pyc("pull", f"{range_server.url}/m.pyca")
        assert (code, out) == (8, "") and "m.pyca.sig: is there already" in err and "--force" in err
        assert (folder / "m.pyca.sig").read_bytes() == content
        assert (folder / "m.pyca").exists() is is_there
    assert pyc("pull", f"{range_server.url}/m.pyca", "--force")[0] == 0
    assert (folder / "m.pyca.sig").read_bytes() == beside.read_bytes()


def test_whom_to_trust_is_no_place_for_signatures(range_server: RangeServer, folder, make_artifact, pyc):
    artifact = make_artifact()
    with open_artifact(artifact) as opened:
        beside = add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
        line = PublicKey(opened.signature.public_key).text()
    range_server.files["/m.pyca"], range_server.files["/m.pyca.sig"] = artifact.read_bytes(), beside.read_bytes()
    (folder / "m.pyca.sig").write_text(line)
    for force in ((), ("--force",)):
        code, _, err = pyc("pull", f"{range_server.url}/m.pyca", "--trust", folder / "m.pyca.sig", *force)
        assert (code, "which is read here" in err) == (8, True), err
    assert (folder / "m.pyca.sig").read_text() == line and not (folder / "m.pyca").exists()


def test_a_signature_of_another_tool_that_comes_meanwhile_is_not_replaced(
    range_server: RangeServer, folder, make_artifact, pyc, monkeypatch
):
    artifact = make_artifact()
    with open_artifact(artifact) as opened:
        beside = add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    range_server.files["/m.pyca"], range_server.files["/m.pyca.sig"] = artifact.read_bytes(), beside.read_bytes()
    fetch = partial_file.pull_into

    def fetch_and_sign(*arguments):
        (folder / "m.pyca.sig").write_bytes(b"of another tool")
        return fetch(*arguments)

    monkeypatch.setattr(partial_file, "pull_into", fetch_and_sign)
    code, _, err = pyc("pull", f"{range_server.url}/m.pyca")
    assert code == 8 and "m.pyca.sig: is there already" in err
    assert (folder / "m.pyca.sig").read_bytes() == b"of another tool" and not (folder / "m.pyca").exists()


def test_a_bundle_replaces_no_wheel_that_it_packs(make_local_artifact, folder, pyc):
    artifact, wheel = make_local_artifact(), folder / "numpy-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    arguments = ("--format", "tar", "--wheels", folder, "--force")
    code, _, err = pyc("bundle", artifact, "-o", wheel, *arguments)
    assert (code, "is a wheel, which is read here" in err) == (8, True), err
    assert wheel.read_bytes() == b"wheel"


def test_a_signature_of_another_tool_stays_where_none_come(range_server: RangeServer, folder, make_artifact, pyc):
    range_server.files["/m.pyca"] = make_artifact().read_bytes()
    (folder / "m.pyca.sig").write_bytes(b"\x89\x02\xff\xde")
    assert pyc("pull", f"{range_server.url}/m.pyca")[0] == 0
    assert (folder / "m.pyca.sig").read_bytes() == b"\x89\x02\xff\xde"


def test_an_artifact_is_pulled_over_the_one_that_runs(range_server: RangeServer, folder, pyc, tmp_path):
    """What a command has not read it may replace: no command line knows of another's."""
    range_server.files["/m.pyca"] = write_artifact(tmp_path / "m.pyca")
    for _ in range(2):
        assert pyc("pull", f"{range_server.url}/m.pyca", "--allow-unsigned")[0] == 0


@pytest.mark.parametrize("name", ["save", "save!"])
def test_a_conversation_is_not_saved_over_what_is_read(name, folder):
    """Nor over a file that appears as it is written, but by /save!."""
    artifact, late = folder / "m.pyca", folder / "late.json"
    artifact.write_bytes(b"artifact")

    def as_json():
        late.write_text("of somebody else")
        return "{}"

    chat = SimpleNamespace(conversation=SimpleNamespace(as_json=as_json, turns=[]))
    with files_read():
        note_file("m.pyca", "the artifact")
        with pytest.raises(RunError, match="is the artifact, which is read here"):
            CHAT_COMMANDS[name].run(chat, "m.pyca")
        if name == "save":
            with pytest.raises(RunError, match=r"late\.json exists"):
                CHAT_COMMANDS[name].run(chat, "late.json")
        else:
            CHAT_COMMANDS[name].run(chat, "late.json")
    assert artifact.read_bytes() == b"artifact"
    assert late.read_text() == ("of somebody else" if name == "save" else "{}")
