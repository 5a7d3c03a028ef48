"""passes/export/logical.py: what torch computes from an artifact is what it computes from the artifact's recipe."""

import pytest
import torch
from long_runs import sample
from scheme_mixes import mixes_of, quantize_of
from torch_programs import lowered

from pyc.backends.torch_tensorrt.export import load_program
from pyc.passes.driver.build import build
from pyc.passes.export.torch import export_torch


def inputs(interface):
    """Some of each, of sizes that buckets allow."""
    generator = torch.Generator().manual_seed(3)
    sizes = {"batch": 2, "tokens": 5, "past": 3, "total": 8}
    for given in interface.inputs:
        shape = [sizes[d] if isinstance(d, str) else d for d in given.dimensions]
        if given.name == "attention_mask":
            yield torch.ones(shape, dtype=torch.int64)
        elif given.dtype == "i64":
            yield torch.randint(3, 60, shape, generator=generator)
        else:
            yield torch.randn(shape, generator=generator)


QUANTIZED = {name: quantize_of(mix) for name, mix in mixes_of().items()}
WIDE = {"hidden_size": 128, "intermediate_size": 256}
ARTIFACTS = {
    **{name: ("qwen2", {**WIDE, "num_hidden_layers": 2}, quantize) for name, quantize in QUANTIZED.items()},
    "int8-short-rows": ("llama", {"hidden_size": 45, "num_attention_heads": 3, "head_dim": 10}, {"scheme": "int8"}),
    "tied-bf16": ("llama", {"tie_word_embeddings": True, "dtype": "bfloat16", "mlp_bias": True}, {}),
    **{
        name: ("qwen2", WIDE, {"scheme": "int4-g32", "algorithm": name, "calibration": {"tokens": 256, "window": 16}})
        for name in ("awq-gptq", "smoothquant")
    },
    "encoder-int8": ("bert", {"pooling": "mean", "normalize": True}, {"scheme": "int8"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", sample(ARTIFACTS, next(iter(QUANTIZED)), "awq-gptq", "encoder-int8"))
def test_an_artifact_gives_the_program_of_its_recipe(case, tiny_checkpoint, tmp_path):
    """The numbers are the same to the bit, whatever blocks the artifact has its codes in.

    A mix of schemes has its recipe run as its module of torch, which tracing takes seconds to make a program of; the
    other cases are programs in files on both sides.
    """
    model_type, config, quantize = ARTIFACTS[case]
    path = tiny_checkpoint(model_type, **{"num_hidden_layers": 1, "num_key_value_heads": 1, **config})
    shapes = {"tokens": [1, 64], "batch": [1, 2], "context": 64}
    recipe = {"model": str(path), "quantize": quantize, "shapes": shapes, "targets": [{"backend": "onnx"}]}
    artifact = build(recipe, output=tmp_path / "model.pyca").path
    theirs = export_torch(artifact, tmp_path / "b")
    program, interface = load_program(theirs / "model.pt2")
    if case in QUANTIZED:
        _, ours, again = lowered(path, quantize=quantize, shapes=shapes)
    else:
        folder = export_torch(recipe, tmp_path / "a")
        loaded, again = load_program(folder / "model.pt2")
        ours = loaded.module()
        assert names_in(folder) <= names_in(theirs)
    assert again == interface
    given = tuple(inputs(interface))
    with torch.no_grad():
        for one, other in zip(ours(*given), program.module()(*given), strict=True):
            assert one.std() > 0.1
            assert torch.equal(one, other)
    assert "tokenizer.json" in names_in(theirs)


def names_in(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
