"""Bad input through the command line: one message that helps, the exit code of its class, nothing left behind."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from built_models import recipe_for, runnable_isas
from safetensors.numpy import load_file, save_file

from pyc import cli
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.executors.cpu import features as cpu

RECIPE, INGEST, ADAPTER, QUANTIZE, ARTIFACT, RUN, UNSIGNED, UNTRUSTED = 3, 4, 5, 6, 8, 9, 11, 12
SMALL = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a command works in; its temporary files go below it too."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def listing(folder):
    """Every path below a folder, with the sizes of files."""
    return sorted(
        (str(path.relative_to(folder)), path.stat().st_size if path.is_file() else -1) for path in folder.rglob("*")
    )


@pytest.fixture
def refused(folder, capfd):
    """`refused(code, words, *arguments)`: the command fails so and leaves everything as it was."""

    def run(code, words, *arguments):
        before = listing(folder)
        capfd.readouterr()
        got = cli.main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        check_message(captured.err, words)
        assert got == code, captured.err
        assert captured.out == ""
        assert listing(folder) == before
        return captured.err

    return run


def check_message(text, words):
    errors = [line for line in text.splitlines() if line.startswith("pyc: error: ")]
    assert len(errors) == 1, text
    assert text.rstrip().endswith(errors[0]), f"the message is not the last word: {text}"
    assert "Traceback" not in text and "internal error" not in text
    for word in words:
        assert word in errors[0], f"{word!r} is not in {errors[0]!r}"


def write_recipe(folder, checkpoint, **recipe):
    path = folder / "model.yaml"
    path.write_text(json.dumps(recipe_for(checkpoint, **recipe), indent=1))
    return path


# --- what the build refuses


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: m\nquantize:\n  schem: int8\n", ["model.yaml:3:3", "unknown key 'schem'", "did you mean 'scheme'?"]),
        ("model: m\nmodel: n\n", ["model.yaml:2:1", "model"]),
        ("model: m\nquantize: {scheme: int5}\n", ["model.yaml:2:20", "int5"]),
        ("model: [m]\n", ["model.yaml:1:8"]),
        ("model: m\nshapes: {tokens: []}\n", ["model.yaml:2", "tokens"]),
        ("model: m\ntargets: [{isa: [avx9000]}]\n", ["model.yaml:2", "avx9000"]),
    ],
)
def test_a_recipe_that_is_wrong(text, words, folder, refused):
    (folder / "model.yaml").write_text(text)
    refused(RECIPE, words, "build", folder / "model.yaml")


def remove_shard(path):
    sorted(path.glob("model-*.safetensors"))[1].unlink()


def truncate(path):
    file = sorted(path.glob("model-*.safetensors"))[1]
    os.truncate(file, file.stat().st_size - 5)


def truncate_header(path):
    os.truncate(sorted(path.glob("model-*.safetensors"))[1], 100)


def lose_tensor(path):
    file = next(f for f in sorted(path.glob("*.safetensors")) if "model.layers.0.mlp.up_proj.weight" in load_file(f))
    save_file({k: v for k, v in load_file(file).items() if "up_proj" not in k}, file)


def edit_config(**changes):
    def edit(path):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **changes}))

    return edit


def break_config(path):
    (path / "config.json").write_text('{"model_type": "llama",')


SUPPORTED = ["llama", "mistral", "qwen2", "qwen3", "bert"]
DAMAGES = {
    "missing shard": (remove_shard, ["model-00002-of-"]),
    "truncated shard": (truncate, ["model-00002-of-"]),
    "truncated header": (truncate_header, ["model-00002-of-"]),
    "missing tensor": (lose_tensor, ["model.layers.0.mlp.up_proj.weight"]),
    "unsupported architecture": (
        edit_config(model_type="gpt2", architectures=["GPT2LMHeadModel"]),
        ["GPT2LMHeadModel", *SUPPORTED],
    ),
    "wrong shape": (edit_config(intermediate_size=128), ["mlp.", "128", "96"]),
    "unknown rope": (edit_config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}), ["spiral", "yarn"]),
    "broken config": (break_config, ["config.json"]),
    "no config": (lambda path: (path / "config.json").unlink(), ["config.json"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_damaged(damage, tiny_checkpoint, folder, refused):
    change, words = DAMAGES[damage]
    path = Path(shutil.copytree(tiny_checkpoint("llama", sharded=True, **SMALL), folder / "checkpoint"))
    change(path)
    refused(INGEST, words, "build", write_recipe(folder, path))


def test_a_checkpoint_that_is_not_there(folder, refused):
    refused(INGEST, ["nowhere"], "build", write_recipe(folder, folder / "nowhere"))


def test_an_adapter_of_another_model(tiny_checkpoint, tiny_adapter, folder, refused):
    other = tiny_checkpoint("llama", **{**SMALL, "hidden_size": 32})
    adapter = tiny_adapter(other, "lora", r=2, target_modules=["v_proj"])
    recipe = write_recipe(folder, tiny_checkpoint("llama", **SMALL), adapters=[{"path": str(adapter)}])
    refused(ADAPTER, ["model.layers.0.self_attn.v_proj", adapter.name, "another model"], "build", recipe)


def test_a_group_that_does_not_divide(tiny_checkpoint, folder, refused):
    recipe = write_recipe(folder, tiny_checkpoint("llama", **SMALL), quantize={"scheme": "int4-g64"})
    words = ["model.layers.0.mlp.down_proj.weight", "96", "group_size=64", "choose 32"]
    refused(QUANTIZE, words, "build", recipe)


def test_no_space(tiny_checkpoint, artifacts, folder):
    """A file may not grow beyond 64 KiB: the build fails while it writes, with its programs from the cache."""
    checkpoint = tiny_checkpoint("llama", **SMALL)
    artifacts(checkpoint)
    recipe = write_recipe(folder, checkpoint)
    before = listing(folder)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))

    result = subprocess.run(
        [sys.executable, "-m", "pyc", "build", str(recipe)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    check_message(result.stderr, ["model.pyca"])
    assert result.returncode == ARTIFACT, result.stderr
    assert listing(folder) == before


def test_an_old_artifact_outlives_a_failed_build(tiny_checkpoint, folder, capfd):
    checkpoint = Path(shutil.copytree(tiny_checkpoint("llama", **SMALL), folder / "checkpoint"))
    recipe = write_recipe(folder, checkpoint)
    assert cli.main(["build", str(recipe)]) == 0
    before, old = listing(folder), (folder / "model.pyca").read_bytes()
    recipe.write_text(recipe.read_text().replace('"shapes"', '"shape"'))
    assert cli.main(["build", str(recipe)]) == RECIPE
    assert (folder / "model.pyca").read_bytes() == old
    assert [name for name, _ in listing(folder)] == [name for name, _ in before]
    check_message(capfd.readouterr().err.split("writing weights")[-1].split("\n", 1)[-1], ["did you mean 'shapes'?"])


# --- what the runtime refuses


@pytest.fixture
def artifact(tiny_checkpoint, artifacts, folder):
    """A built artifact that a test may damage."""
    return Path(shutil.copy(artifacts(tiny_checkpoint("llama", **SMALL)).path, folder / "model.pyca"))


def generating(path):
    return ["run", path, "--prompt", "the cat", "--max-tokens", "2"]


def test_the_undamaged_artifact_runs(artifact, capfd):
    assert cli.main([str(argument) for argument in generating(artifact)]) == 0
    assert capfd.readouterr().out


def change_byte(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_an_unsigned_artifact(artifact, refused):
    with open(artifact, "r+b") as file:
        file.seek(64)
        file.write(bytes(96))
    refused(UNSIGNED, ["model.pyca", "not signed"], *generating(artifact))


def test_a_signature_that_does_not_fit(artifact, refused):
    change_byte(artifact, 64 + 40)
    refused(ARTIFACT, ["model.pyca", "signature"], *generating(artifact))


def test_an_altered_header(artifact, refused):
    change_byte(artifact, 64 + 96 + 30)
    refused(ARTIFACT, ["header"], *generating(artifact))


@pytest.mark.parametrize("kind", ["weight", "code"])
def test_altered_bytes(kind, artifact, refused):
    with open_artifact(artifact) as opened:
        header = opened.header
        if kind == "weight":
            name = "model.embed_tokens.weight"
            record = next(tensor for tensor in header.tensors if tensor.name == name)
        else:
            name = header.programs[0].library
            record = next(blob for blob in header.blobs if blob.name == name)
        chunk = header.chunks[record.span.first_chunk]
    change_byte(artifact, chunk.offset + chunk.stored_bytes // 2)
    refused(ARTIFACT, ["model.pyca", "digest"], *generating(artifact))
    refused(ARTIFACT, ["model.pyca", "digest"], "verify", artifact)


def test_an_artifact_cut_short(artifact, refused):
    os.truncate(artifact, artifact.stat().st_size - 1)
    refused(ARTIFACT, ["model.pyca"], *generating(artifact))


def test_no_artifact_at_all(folder, refused):
    (folder / "model.pyca").write_bytes(b"hello" * 100)
    refused(ARTIFACT, ["model.pyca"], *generating(folder / "model.pyca"))


def test_a_key_that_is_not_trusted(artifact, folder, refused, monkeypatch):
    (folder / "keys").mkdir(mode=0o700)
    monkeypatch.setenv("PYC_HOME", str(folder / "keys"))
    refused(UNTRUSTED, ["model.pyca", "trust"], *generating(artifact))


@pytest.mark.skipif(len(runnable_isas()) < 2, reason="this CPU runs only the variant that needs nothing")
def test_another_cpu(artifact, refused, monkeypatch):
    monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset({"sse2"}))
    isa = runnable_isas()[0]
    refused(RUN, ["cannot run the artifact", f"{isa} needs ", "build with another isa"], *generating(artifact))


def test_another_architecture(artifact, refused, monkeypatch):
    monkeypatch.setattr(cpu.platform, "machine", lambda: "riscv64")
    refused(RUN, ["riscv64", "cannot run the artifact"], *generating(artifact))


def test_a_variant_that_is_not_there(artifact, refused):
    refused(RUN, ["no program for 'avx10'", runnable_isas()[0]], *generating(artifact), "--isa", "avx10")
