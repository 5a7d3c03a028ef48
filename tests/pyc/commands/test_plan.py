"""pyc plan: what would be built, from headers alone."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyc.cli import main
from pyc.commands.plan import fold
from pyc.compiler.recipe.types import ISAS
from pyc.passes.driver.build import build
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.validate import tensor_bytes


def write_recipe(folder, checkpoint, text=""):
    path = folder / "model.yaml"
    path.write_text(f"model: {checkpoint}\n{text}")
    return str(path)


def plan_document(capsys, *arguments):
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_document(tiny_checkpoint, tmp_path, capsys):
    recipe = write_recipe(
        tmp_path, tiny_checkpoint("llama"), "quantize: {scheme: int8}\nshapes: {batch: [2]}\n"
    )
    document = plan_document(capsys, recipe, "--set", "shapes.context=32")
    assert document["output"] == str(tmp_path / "model.pyca")
    assert document["model"]["architecture"] == "llama"
    assert (document["model"]["context"], document["model_context"]) == (32, 64)
    assert document["weights_bytes"] == sum(tensor["stored_bytes"] for tensor in document["tensors"])
    assert document["weights_bytes"] == sum(document["scheme_bytes"].values())
    # 2 layers, keys and values, heads of 12 in whole vectors of 16, f16, 2 sequences of 32 tokens in a block of 64
    heads = document["model"]["kv_cache"]["heads"]
    assert document["kv_cache_bytes"] == 2 * 2 * heads * 16 * 2 * 2 * 64
    assert document["run_tokens"] == 32
    assert document["about_run_bytes"] > document["weights_bytes"]
    assert document["about_run_full_bytes"] > document["about_run_bytes"]
    assert [program["isa"] for program in document["programs"]] == list(ISAS["x86_64"])
    assert document["programs"][0]["functions"] == {
        "forward": [1, 2, 16, 128, 512],
        "prompt": [2, 16, 128, 512],
        "logits": [1, 2, 16],
    }
    assert {source["name"] for source in document["sources"]} >= {"config.json", "model.safetensors"}


def test_tensors_name_their_sources(tiny_checkpoint, tmp_path, capsys):
    checkpoint = tiny_checkpoint("qwen2")
    document = plan_document(capsys, write_recipe(tmp_path, checkpoint))
    stored = load_file(checkpoint / "model.safetensors")
    found = {name for tensor in document["tensors"] for name in tensor["source_names"]}
    assert found == set(stored)
    assert document["source_bytes"] == sum(array.nbytes for array in stored.values())
    stacked = next(
        tensor for tensor in document["tensors"] if "q_proj" in tensor["name"] and "weight" in tensor["name"]
    )
    assert stacked["shape"][1] == 48
    assert any("k_proj" in name for name in stacked["source_names"])


def test_kernels_are_counted_once_a_shape(tiny_checkpoint, tmp_path, capsys):
    recipe = write_recipe(tmp_path, tiny_checkpoint("llama"), "quantize: {scheme: int8, activations: f32}\n")
    kernels = plan_document(capsys, recipe)["kernels"]
    shapes = [(k["kind"], k["scheme"], k["rows"], k["columns"]) for k in kernels]
    assert len(shapes) == len(set(shapes))
    assert ("product", "int8", 48, 80) in shapes  # down_proj
    assert ("embedding", "int8", 263, 48) in shapes
    assert {k["activations"] for k in kernels} == {"f32"}
    down = next(k for k in kernels if (k["rows"], k["columns"]) == (48, 80))
    assert down["uses"] == 2  # layers


def test_text(tiny_checkpoint, tmp_path, capsys):
    recipe = write_recipe(tmp_path, tiny_checkpoint("llama", max_position_embeddings=9000))
    assert main(["plan", recipe]) == 0
    text = capsys.readouterr().out
    assert "context 4096 tokens (the model serves 9000)" in text
    assert " layers.*.mlp.down_proj " in text and "layers.1" not in text
    programs = f"kernels, compiled for each of {len(ISAS['x86_64'])}"
    for words in (programs, "forward 1, 4, 16, 128, 512", "artifact    about", "run  "):
        assert words in text
    assert main(["plan", recipe, "--tensors"]) == 0
    assert "model.layers.1.mlp.down_proj.weight" in capsys.readouterr().out


def test_what_differs_in_a_number_only_is_one_line():
    layers = [(f"model.layers.{layer}.mlp.down_proj.weight", 10) for layer in range(28)]
    names = [("model.norm.weight", 1), *layers, ("layers.3.only", 2)]
    assert fold(names) == [
        ("model.norm.weight", 1, [1]),
        ("model.layers.*.mlp.down_proj.weight", 28, [10] * 28),
        ("layers.3.only", 1, [2]),
    ]
    assert fold([("%2.gain", 1), ("%11.gain", 2)]) == [("%*.gain", 2, [1, 2])], "gains of scaled channels"
    shards = [(f"model-{number:05}-of-00030.safetensors", number) for number in (1, 2)]
    assert fold([("config.json", 5), *shards], shards=True) == [
        ("config.json", 1, [5]),
        ("model-*-of-00030.safetensors", 2, [1, 2]),
    ]


def test_many_layers_and_shards_fit_two_screens(tiny_checkpoint, tmp_path, capsys):
    checkpoint = tiny_checkpoint("qwen3", num_hidden_layers=28, sharded=True)
    assert len(list(checkpoint.glob("model-*.safetensors"))) > 1
    assert main(["plan", write_recipe(tmp_path, checkpoint)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 48
    assert [line for line in lines[1:] if len(line) > 80] == []


@pytest.mark.parametrize("algorithm", ["awq", "smoothquant", "gptq"])
def test_tensors_are_those_of_the_build(algorithm, tiny_checkpoint, tmp_path, capsys, key_home):
    """Gains that AWQ and SmoothQuant give to norms among them."""
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; the dog sat on the log\n" * 40)
    calibration = {"text": str(text), "window": 32, "tokens": 256}
    quantize = {"scheme": "int8", "algorithm": algorithm, "calibration": calibration}
    recipe = tmp_path / "tiny.yaml"
    targets = [{"backend": "onnx"}]
    recipe.write_text(json.dumps({"model": str(tiny_checkpoint("llama")), "quantize": quantize, "targets": targets}))
    planned = {each["name"]: each["stored_bytes"] for each in plan_document(capsys, str(recipe))["tensors"]}
    with open_artifact(build(recipe, output=tmp_path / "tiny.pyca").path) as opened:
        built = {each.name: tensor_bytes(each.dtype, each.shape) for each in opened.header.tensors}
    assert planned == built


def test_encoder(tiny_checkpoint, tmp_path, capsys):
    document = plan_document(capsys, write_recipe(tmp_path, tiny_checkpoint("bert")))
    assert document["kv_cache_bytes"] == 0
    assert document["programs"][0]["functions"] == {"embed": [1, 16, 128, 512]}
    assert document["text_cut"] is None


def test_where_texts_are_cut_is_said(tiny_checkpoint, tmp_path, capsys):
    recipe = write_recipe(tmp_path, tiny_checkpoint("bert"), "shapes: {context: 40, tokens: [40], text_tokens: 16}\n")
    assert plan_document(capsys, recipe)["text_cut"] == {"direction": "Right", "max_length": 16}
    assert main(["plan", recipe]) == 0
    assert "context 40 tokens (the model serves 64), the first 16 of a text, " in capsys.readouterr().out


def test_adapters(tiny_checkpoint, tiny_adapter, tmp_path, capsys):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, "lora", r=2, target_modules=["down_proj"])
    recipe = write_recipe(tmp_path, checkpoint, f"adapters: [{{path: {adapter}, weight: 0.5}}]\n")
    document = plan_document(capsys, recipe)
    assert document["adapters"] == [f"{adapter} x 0.5"]
    assert "fuse_lora" in document["passes"]
    down = next(t for t in document["tensors"] if t["name"] == "model.layers.0.mlp.down_proj.weight")
    assert len(down["source_names"]) == 3  # the base and both factors


def test_weights_are_not_read(tiny_copy, tmp_path, capsys):
    checkpoint = tiny_copy("llama")
    path = checkpoint / "model.safetensors"
    stored = load_file(path)
    save_file({name: np.full_like(array, np.nan) for name, array in stored.items()}, path)
    assert plan_document(capsys, write_recipe(tmp_path, checkpoint))["weights_bytes"] > 0


def test_nothing_is_written(tiny_checkpoint, tmp_path, own_home, monkeypatch, capsys):
    cache = tmp_path / "cache"
    monkeypatch.setenv("PYC_CACHE_DIR", str(cache))
    recipe = write_recipe(tmp_path, tiny_checkpoint("llama"))
    assert main(["plan", recipe]) == 0
    assert os.listdir(tmp_path) == ["model.yaml"]
    assert os.listdir(own_home) == []


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("quantize.schem=int8", 3, "--set quantize.schem=int8: unknown key 'schem'"),
        ("quantize.overrides=[{match: nothing, scheme: int8}]", 3, "'nothing' matches no weight"),
        ("quantize.scheme=int4-g32", 6, "not divisible"),
        ("quantize={scheme: int8, algorithm: gptq, calibration: {text: none.txt}}", 6, "none.txt: cannot be read"),
        ("shapes.context=65", 4, "the model serves 1 to 64"),
        ("model=./elsewhere", 4, "./elsewhere: no such directory"),
        ("adapters=[{path: ./elsewhere}]", 5, "./elsewhere"),
    ],
)
def test_refused(setting, code, words, tiny_checkpoint, tmp_path, capsys):
    recipe = write_recipe(tmp_path, tiny_checkpoint("llama"))
    assert main(["plan", recipe, "--set", setting]) == code
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""


def test_a_missing_shard(tiny_copy, tmp_path, capsys):
    checkpoint = tiny_copy("llama", sharded=True)
    shard = sorted(checkpoint.glob("model-*.safetensors"))[0]
    shard.unlink()
    assert main(["plan", write_recipe(tmp_path, checkpoint)]) == 4
    assert shard.name in capsys.readouterr().err


def test_virtual_tokens(tiny_checkpoint, tiny_adapter, tmp_path, capsys):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, "prefix_tuning", num_virtual_tokens=5, task_type="CAUSAL_LM")
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {checkpoint}\nadapters: [{{path: {adapter}}}]\n")
    assert main(["plan", str(recipe)]) == 0
    assert "context 59 tokens behind 5 virtual ones" in capsys.readouterr().out
