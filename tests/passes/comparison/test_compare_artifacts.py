"""passes/comparison/compare_artifacts.py: distances are those of the weights that two exported checkpoints have.

PYC_CASES=all (`make test-long`) has all pairs of schemes.
"""

import json

import numpy as np
import pytest
from built_models import recipe_for
from long_runs import IS_LONG
from safetensors.numpy import load_file

from pyc.commands.diff_text import tensor_rows
from pyc.passes import assign_schemes
from pyc.passes.comparison.compare_artifacts import compare_artifacts
from pyc.passes.driver.build import build
from pyc.passes.export.checkpoint import export_checkpoint
from pyc.passes.export.source import exportable
from pyc.runtime.artifact.reader import open_artifact

DOWN = {"match": "re:.*down_proj", "scheme": "int8"}
ONE_TOKEN = {"tokens": [1], "logits": [1]}
WIDE = {"tokenizer": False, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """`made(checkpoint, name, quantize)`: an artifact for CPUs, and the numbers of the same recipe's export."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))

    def make(checkpoint, name, quantize, **fields):
        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(json.dumps({**recipe_for(checkpoint, quantize=quantize, shapes=ONE_TOKEN), **fields}))
        artifact = build(recipe, output=tmp_path / f"{name}.pyca").path
        with exportable(recipe) as source:
            folder = export_checkpoint(source, tmp_path / name)
        return artifact, load_file(folder / "model.safetensors")

    return make


def stacked(name, numbers):
    """The matrix of a checkpoint that a tensor of an artifact is stacked of."""
    stem, _, kind = name.partition("@")[0].rpartition(".")
    first, *others = stem.split("+")
    prefix = first.rpartition(".")[0]
    parts = [first, *(f"{prefix}.{other}" for other in others)]
    return np.concatenate([numbers[f"{part}.{kind}"].astype(np.float64) for part in parts])


PAIRS = [
    ({"scheme": "int4-g32-asym"}, {"scheme": "lut4-g32"}),
    ({"scheme": "bf16"}, {"scheme": "f16"}),
    ({"scheme": "fp8", "overrides": [DOWN]}, {"scheme": "int8", "overrides": [{**DOWN, "scheme": "fp8-e5m2"}]}),
    ({"scheme": "int8"}, {"scheme": "int4-g32"}),
    ({"scheme": "fp8"}, {"scheme": "f32"}),
    ({"scheme": "none"}, {"scheme": "bf16"}),
]


@pytest.mark.parametrize(("first", "second"), PAIRS if IS_LONG else PAIRS[:2])
def test_distances_are_those_of_the_numbers(first, second, tiny_checkpoint, made):
    path = tiny_checkpoint("qwen3", vocab_size=96, **WIDE)
    (before, a), (after, b) = made(path, "before", first), made(path, "after", second)
    with open_artifact(before) as one, open_artifact(after) as two:
        found = compare_artifacts(one, two)
    matrices = [tensor for tensor in found.tensors if tensor.name.endswith("_proj.weight")]
    assert len(matrices) >= 8
    for tensor in matrices:
        old, new = stacked(tensor.name, a), stacked(tensor.name, b)
        expected = np.sqrt(np.square(new - old).sum() / np.square(old).sum())
        assert tensor.distance == pytest.approx(expected, rel=1e-5), tensor.name
        assert tensor.distance > 1e-4 and tensor.why_no_distance is None
    recipe = {change.name: (change.before, change.after) for change in found.groups["recipe"]}
    assert recipe["quantize.scheme"] == (f'"{first["scheme"]}"', f'"{second["scheme"]}"')
    assert not found.is_same


def test_a_checkpoint_that_was_trained_further(tiny_checkpoint, made):
    """Of two equal recipes the sources and tensors differ, and no program."""
    (before, _) = made(tiny_checkpoint("qwen3", seed=1, **WIDE), "before", {"scheme": "int8"})
    (after, _) = made(tiny_checkpoint("qwen3", seed=2, **WIDE), "after", {"scheme": "int8"})
    with open_artifact(before) as one, open_artifact(after) as two:
        found, same = compare_artifacts(one, two), compare_artifacts(one, one)
        quick = compare_artifacts(one, two, measures=False)
    assert "programs" not in found.groups
    assert [change.name for change in found.groups["sources"]] == ["model.safetensors"]
    assert all(tensor.before == tensor.after for tensor in found.tensors)
    assert all(tensor.distance is None for tensor in quick.tensors)
    assert same.is_same and not same.groups and not same.tensors


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_adapter_of_a_checkpoint_of_16_bits(dtype, tiny_checkpoint, tiny_adapter, made):
    """Matrices that it is fused into become f32, the others are the same; of another checkpoint all have moved."""
    fields = {"dtype": dtype, **WIDE}
    path, other = tiny_checkpoint("qwen3", seed=1, **fields), tiny_checkpoint("qwen3", seed=2, **fields)
    adapter = tiny_adapter(path, "lora", r=2, target_modules=["q_proj", "down_proj"])
    (before, a), (after, b) = made(path, "before", {}), made(path, "after", {}, adapters=[{"path": str(adapter)}])
    last, c = made(other, "last", {})
    for second, numbers, least in ((after, b, 4), (last, c, 10)):
        with open_artifact(before) as one, open_artifact(second) as two:
            found = compare_artifacts(one, two)
        matrices = [tensor for tensor in found.tensors if tensor.name.endswith("_proj.weight")]
        paired = [tensor for tensor in matrices if tensor.before is not None and tensor.after is not None]
        assert len(paired) >= least - 2
        for tensor in paired:
            old, new = stacked(tensor.name, a), stacked(tensor.name, numbers)
            expected = np.sqrt(np.square(new - old).sum() / np.square(old).sum())
            assert tensor.distance == pytest.approx(expected, rel=1e-5), tensor.name


def test_it_says_why_there_is_no_distance(tiny_checkpoint, made, monkeypatch):
    """A build of an older pyc says of no type which of 16 bits it is."""
    monkeypatch.setattr(assign_schemes, "KEEP_TYPES", "something_else")
    made_of = {"dtype": "bfloat16", **WIDE}
    before, _ = made(tiny_checkpoint("qwen3", seed=1, **made_of), "before", {})
    after, _ = made(tiny_checkpoint("qwen3", seed=2, **made_of), "after", {})
    wide, _ = made(tiny_checkpoint("qwen3", seed=2, **{**made_of, "intermediate_size": 512}), "wide", {})
    with open_artifact(before) as one, open_artifact(after) as two, open_artifact(wide) as three:
        found, others = compare_artifacts(one, two), compare_artifacts(two, three)
        quick = compare_artifacts(one, two, measures=False)
    reasons = {tensor.why_no_distance for tensor in found.tensors if tensor.name.endswith("_proj.weight")}
    assert reasons == {"f16 or bf16 not known"}
    assert {tensor.why_no_distance for tensor in quick.tensors} == {None}
    rows = {row[0]: row for row in tensor_rows(found.tensors)}
    assert rows["model.layers.0.self_attn.o_proj.weight"][-1] == "f16 or bf16 not known"
    assert {tensor.why_no_distance for tensor in others.tensors if ".mlp." in tensor.name} == {"other shapes"}
