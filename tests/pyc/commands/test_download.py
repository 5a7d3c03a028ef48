"""pyc init and build --download, against a hub on this machine: what is fetched, and every refusal in one line.

huggingface_hub reads its environment when it is imported, so commands run in a process of their own: one for a family.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, hub

from pyc.runtime.artifact.reader import open_artifact

__all__ = ["hub"]

# Runs command lines one after the other; prints [code, stdout, stderr] of each.
RUN = """
import contextlib, io, json, resource, sys
from pyc import cli
import time; time.sleep = lambda seconds: None  # between the tries of a transfer
results = []
for arguments in json.loads(sys.argv[1]):
    if arguments[0] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments[1], arguments[1]))
        continue
    if arguments[0] == "pieces":
        import huggingface_hub.constants
        huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = arguments[1]
        continue
    if arguments[0] == "hide":
        sys.modules["huggingface_hub"] = None
        continue
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@pytest.fixture
def commands(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs command lines in an empty working directory with an empty cache; returns (code, stdout, stderr) of each."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)

    def run(*lines: list[object], **environment: str) -> list[tuple[int, str, str]]:
        settings = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
        result = subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(lines)],
            env=os.environ | settings, cwd=work, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        return [tuple(row) for row in json.loads(result.stdout)]

    return run


@pytest.mark.slow
def test_init_and_build_fetch_what_is_needed(hub, commands, tiny_checkpoint, tmp_path):
    junk = {"pytorch_model.bin": b"pickle", "README.md": b"#", "consolidated.safetensors": b"x" * 99, "evil.py": b"x"}
    hub.add("org/tiny", tiny_checkpoint("llama"), **junk)
    small = ["--set", "targets=[{isa: [x86-64]}]", "--set", "shapes={tokens: [1], logits: [1]}"]
    (missing, _, no), (code, _, err), (again, _, _), (built, _, err2) = commands(
        ["init", "org/tiny"],
        ["init", "org/tiny", "--download"],
        ["init", "org/tiny", "-o", "offline.yaml"],
        ["build", "org/tiny", *small],
    )
    assert missing == 4 and "pyc init, build and attach fetch it with --download" in no
    assert (code, again, built) == (0, 0, 0), (err, err2)
    assert "pyc: downloading" in err
    assert hub.fetched() == set(os.listdir(tiny_checkpoint("llama")))
    assert "org/tiny: no recipe given, so the one of `pyc init`: scheme int8 (" in err2
    work = tmp_path / "work"
    assert sorted(os.listdir(work)) == ["model.yaml", "offline.yaml", "tiny.pyca"]
    assert "model: org/tiny\n" in (work / "model.yaml").read_text()
    count = len(hub.asked)
    assert commands(["build", "org/tiny", *small, "--download", "-o", "b.pyca"])[0][0] == 0
    assert all("/resolve/" not in path for _, path, _ in hub.asked[count:])  # nothing is fetched twice


@pytest.mark.slow
def test_a_broken_connection_is_taken_up_where_it_broke(hub, commands, tiny_checkpoint, tmp_path):
    hub.add("org/tiny", tiny_checkpoint("llama", sharded=True))
    files = hub.models["org/tiny"]
    shard = max((name for name in files if name.endswith(".safetensors")), key=lambda name: len(files[name]))
    hub.cut[shard] = [5000, 3000]
    assert [row[0] for row in commands(["pieces", 1000], ["init", "org/tiny@v1", "--download"])] == [0]
    ranges = [asked for _, path, asked in hub.asked if path.endswith(shard) and asked]
    assert ranges == ["bytes=5000-", "bytes=8000-"]
    folder = tmp_path / "hf" / "hub" / "models--org--tiny"
    assert (folder / "refs" / "v1").read_text() == COMMIT
    for name, data in hub.models["org/tiny"].items():
        found = (folder / "snapshots" / COMMIT / name).read_bytes()
        assert hashlib.sha256(found).digest() == hashlib.sha256(data).digest()
    assert not list(folder.rglob("*.incomplete"))


@pytest.mark.slow
def test_a_recipe_with_an_adapter_of_the_hub(hub, commands, tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("llama")
    hub.add("org/tiny", checkpoint)
    more = {"training_args.bin": b"pickle", "modules.json": b"[]", "added_tokens.json": b"{}"}
    hub.add("org/lora", tiny_adapter(checkpoint, target_modules=["q_proj"]), **more)
    (code, _, err), (planned, out, _) = commands(
        ["init", "org/tiny", "--adapter", "org/lora", "--download"], ["plan", "model.yaml"]
    )
    assert (code, planned) == (0, 0), err
    assert "adapter org/lora x 1" in out
    assert hub.fetched() & more.keys() == {"modules.json", "added_tokens.json"}  # what says how texts are read


@pytest.mark.slow
def test_a_recipe_with_a_tokenizer_of_the_hub(hub, commands, tiny_checkpoint, tmp_path):
    checkpoint, template = tiny_checkpoint("llama"), b"{{ messages }}"
    hub.add("org/tuned", checkpoint, **{"chat_template.jinja": template, "only-there.bin": b"x"})
    hub.models["org/bare"] = {"config.json": b"{}"}
    recipe = {"model": str(checkpoint), "tokenizer": "org/tuned", "targets": [{"isa": ["x86-64"]}]}
    (tmp_path / "work" / "model.yaml").write_text(json.dumps(recipe | {"shapes": {"tokens": [1], "logits": [1]}}))
    (missing, _, no), (code, _, err), (bare, _, said) = commands(
        ["build", "model.yaml"], ["build", "model.yaml", "--download"],
        ["build", "model.yaml", "--download", "--set", "tokenizer=org/bare"],
    )  # fmt: skip
    assert missing == 4 and "org/tuned: no such directory" in no
    assert code == 0, err
    assert hub.fetched() == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert bare == 4 and "org/bare: the hub has no tokenizer.json in it" in said
    with open_artifact(tmp_path / "work" / "model.pyca") as artifact:
        assert artifact.blob("chat_template.jinja") == template


@pytest.mark.slow
def test_every_refusal_is_one_line(hub, commands, tiny_checkpoint, tmp_path):
    tiny = tiny_checkpoint("llama")
    hub.add("org/tiny", tiny)
    hub.add("org/other", tiny, **{"config.json": b'{"model_type": "mamba", "architectures": ["Mamba"]}'})
    hub.models["org/pickle"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.models["org/nothing"] = {"README.md": b"#"}
    index = b'{"weight_map": {"w": "a.safetensors"}}'
    hub.models["org/torn"] = {**hub.models["org/tiny"], "model.safetensors.index.json": index}
    del hub.models["org/torn"]["model.safetensors"]
    escape = "../../x.safetensors"
    index = json.dumps({"weight_map": {"w": escape}}).encode()
    hub.models["org/escape"] = {**hub.models["org/torn"], escape: b"", "model.safetensors.index.json": index}
    hub.status = {"org/gated": (401, "GatedRepo"), "org/broken": (500, ""), "org/private": (401, "")}
    cases = [
        ("org/nowhere", 4, "has no model of this name, or not for you; check it, or run `hf auth login`"),
        ("org/private", 4, "has no model of this name, or not for you"),
        ("org/gated", 4, f"the model is gated; accept its terms at {hub.url}/org/gated"),
        ("org/tiny@v9", 4, "has the model, but not this revision"),
        ("org/broken", 4, "answered with status 500"),
        ("org/pickle", 4, "it has pytorch_model.bin; only safetensors are read"),
        ("org/nothing", 4, "neither model.safetensors nor"),
        ("org/other", 4, "architecture Mamba is not supported"),
        ("org/torn", 4, "lists 'a.safetensors', which the hub does not have"),
        ("org/escape", 4, "lists '../../x.safetensors', which is not the name of a shard"),
        ("not an id", 4, "is not a hub id"),
        ("../up", 4, "is not a hub id"),
    ]
    rows = commands(*[["init", name, "--download"] for name, _, _ in cases])
    for (name, code, words), (found, out, err) in zip(cases, rows, strict=True):
        assert (found, out) == (code, ""), (name, err)
        assert words in err
        assert len([line for line in err.splitlines() if line != "pyc: downloading"]) == 1, err
    assert not {name for name in hub.fetched() if name.endswith((".safetensors", ".bin"))}
    assert os.listdir(tmp_path / "work") == []


@pytest.mark.slow
def test_the_machine_refuses(hub, commands, tiny_checkpoint, tmp_path):
    """No network, offline by will, no huggingface_hub, a full disk."""
    hub.add("org/tiny", tiny_checkpoint("llama"))
    line = ["init", "org/tiny", "--download"]
    for settings, before, code, words in (
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, [], 4, "check the network, HF_ENDPOINT and HTTPS_PROXY"),
        ({"HF_HUB_OFFLINE": "1"}, [], 4, "HF_HUB_OFFLINE is set; unset it"),
        ({}, [["hide"]], 69, "pip install -c constraints.txt '.[hub]'"),
        ({}, [["limit", 20_000]], 74, "File too large"),
    ):
        ((found, out, err),) = commands(*before, line, **settings)
        assert (found, out) == (code, ""), err
        assert words in err
        assert len([text for text in err.splitlines() if text != "pyc: downloading"]) == 1, err
    assert not (tmp_path / "hf" / "hub" / "models--org--tiny" / "refs").exists()
    assert commands(line)[0][0] == 0


@pytest.mark.slow
def test_the_signed_address_of_a_file_is_in_no_line(hub, commands, tiny_checkpoint):
    """Whoever has it may read the file: of a store that does not answer, and of one that refuses."""
    hub.add("org/tiny", tiny_checkpoint("llama"))
    line = ["init", "org/tiny", "--download"]
    hub.store = "http://127.0.0.1:9"
    ((code, _, err),) = commands(["pieces", 1000], line)
    assert code == 4 and "not downloaded from" in err, err
    assert len([text for text in err.splitlines() if text != "pyc: downloading"]) == 1, err
    hub.store, hub.status = f"{hub.url}/store", {"store": (403, "")}
    ((code, _, refused),) = commands(line)
    assert code == 4 and "a file of it was refused with status 403; try again, or run `hf auth login`" in refused
    assert "Signature" not in err + refused and "secret" not in err + refused


@pytest.mark.slow
def test_a_file_of_the_cache_that_was_cut_is_fetched_again(hub, commands, tiny_checkpoint, tmp_path):
    hub.add("org/tiny", tiny_checkpoint("llama"))
    line = ["init", "org/tiny", "--download"]
    assert commands(line)[0][0] == 0
    (weights,) = (tmp_path / "hf").rglob("snapshots/*/model.safetensors")
    with open(weights.resolve(), "r+b") as file:
        file.truncate(1000)
    (tmp_path / "work" / "model.yaml").unlink()
    (cut, _, err), (code, _, _) = commands(line[:2], line)
    assert (cut, code) == (4, 0) and "truncated" in err
    assert weights.read_bytes() == hub.models["org/tiny"]["model.safetensors"]


@pytest.mark.slow
def test_hubs_that_answer_oddly(hub, commands, tiny_checkpoint, tmp_path):
    hub.add("org/tiny", tiny_checkpoint("llama"))
    line = ["init", "org/tiny", "--download"]
    (tmp_path / "file").touch()
    answers = [
        ({"listed": b"<html>no</html>"}, {}, "answered with what is no JSON, as a web page is; check HF_ENDPOINT"),
        ({"listed": b'{"id": "a", "sha": "%s", "siblings": [{"rfilename": "config.json", "size": "9"}]}'
          % COMMIT.encode()}, {}, "names '9' bytes for 'config.json'"),
        ({"commit": "b" * 40}, {}, f"names the commit {COMMIT} for the model and another one for 'config.json'"),
        ({}, {"HF_TOKEN": "hf_\u00e4"}, "holds letters that no token has"),
        ({}, {"HF_HOME": str(tmp_path / "file")}, f"{tmp_path / 'file'}"),
    ]  # fmt: skip
    for answer, settings, words in answers:
        hub.listed, hub.commit = answer.get("listed", b""), answer.get("commit", COMMIT)
        ((code, out, err),) = commands(line, **settings)
        assert (code in (4, 74), out) == (True, ""), err
        assert words in err and "check the network" not in err, err
        assert len([text for text in err.splitlines() if text != "pyc: downloading"]) == 1, err
        assert not list((tmp_path / "hf").rglob("refs/main"))


@pytest.mark.slow
def test_without_asking_nothing_is_fetched(hub, commands, tiny_checkpoint, tmp_path):
    hub.add("org/tiny", tiny_checkpoint("llama"))
    (tmp_path / "work" / "model.yaml").write_text("model: org/tiny\n")
    rows = commands(["init", "org/tiny"], ["build", "org/tiny"], ["build", "model.yaml"], ["plan", "model.yaml"])
    assert [code for code, _, _ in rows] == [3, 4, 4, 4]
    assert all("fetch it with --download" in err for _, _, err in rows[1:])
    assert hub.asked == []


def test_space_is_checked_before_a_byte_is_fetched(monkeypatch, tmp_path):
    from pyc.models import hub_download
    from pyc.runtime.errors import IngestError

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    repository = hub_download._Repository("org/big", "org/big", "main", COMMIT, {"model.safetensors": 1 << 60})
    with pytest.raises(IngestError, match=r"org/big: needs 1,152,921,504,606,846,976 bytes in the cache .* are free"):
        hub_download._check_space(repository, ["model.safetensors"], IngestError)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable", [{"HF_ENDPOINT": "http://[::1"}, {"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, {"HF_HUB_ETAG_TIMEOUT": "1e9"}]
)
def test_variables_that_huggingface_hub_does_not_take(commands, variable):
    ((code, _, err),) = commands(["init", "org/tiny", "--download"], **variable)
    assert code == 4, err
    assert err.startswith("pyc: error: org/tiny: huggingface_hub cannot be used: ")
    assert err.count("\n") == 1
    assert "check the environment variables that begin with HF_" in err
