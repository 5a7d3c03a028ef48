"""Builds of quantized checkpoints against transformers in float64 over the numbers that the codes stand for.

What is left with f32 activations is f32 arithmetic, as in test_quantized.
"""

import json
from itertools import product

import numpy as np
import pytest
from built_models import difference, random_ids, recipe_for
from long_runs import sample
from quantized_checkpoints import CASES, quantized_copy

from pyc.backends.stored_weights import stored_weights
from pyc.runtime.artifact.reader import open_artifact

EXACT_KL = 1e-10
EXACT_LARGEST = 5e-4
SHAPE = {"tokenizer": False, "hidden_size": 64, "intermediate_size": 96}
ALTERNATELY = [(case, "qwen3" if index % 2 else "llama") for index, case in enumerate(CASES)]
"""A run has each case in one of both architectures."""
KEPT = {
    "gptq": "int4-g32-asym",
    "gptq-v2": "int4-g32-asym",
    "awq": "int4-g32-asym",
    "w4a16": "int4-g32-asym",
    "w4a16-asym": "int4-g32-asym",
    "w8a16": "int8",
    "w8a8": "int8",
    "llm-int8": "int8",
    "fp8-dynamic": "fp8",
    "fp8-tensor": "fp8-tensor",
    "fp8-b128": "fp8-b128",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bitnet": "ternary",
    "bitnet-auto": "ternary",
    "bitnet-online": "ternary",
}
"""Cases whose codes are taken as they are, and the scheme that they are then."""


def reference_logits(checkpoint, values, ids):
    """Logits of transformers in float64 with `values` in the place of weights."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float64, attn_implementation="eager"
    )
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(torch.from_numpy(np.asarray(value, np.float64)))
        return model.eval()(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize(("case", "architecture"), sample(product(CASES, ("llama", "qwen3")), *ALTERNATELY))
def test_logits_are_those_of_what_the_codes_stand_for(case, architecture, tiny_checkpoint, built, artifacts, tmp_path):
    plain = tiny_checkpoint(architecture, **SHAPE)
    values = quantized_copy(plain, case, tmp_path / "coded")
    quantize = {"activations": "f32", "kv_cache": "f32", "scheme": "none" if case in KEPT else "f32"}
    model = built(tmp_path / "coded", quantize=quantize)
    ids = random_ids(model, 40)
    found = difference(reference_logits(plain, values, ids), model.logits(ids))
    assert found.spread > 0.5
    assert found.mean_kl <= EXACT_KL, found
    assert found.largest <= EXACT_LARGEST, found
    if case in KEPT:
        with open_artifact(artifacts(tmp_path / "coded", quantize=quantize).path) as artifact:
            stored = stored_weights(artifact.header)
        assert {weight.scheme for weight in stored if "proj" in weight.name} == {KEPT[case]}


KEPT_MODULES = [
    None,
    [],
    ["lm_head"],
    ["model.layers.0"],
    ["lm_head", "q_proj"],
    ["lm_head", "model.layers.0.*"],
    ["lm_head", r"model\.layers\.[0]\..*"],
    ["lm_head", "model.layers.*.mlp"],
    ["lm_head", "proj"],
]


@pytest.mark.parametrize("kept", sample(KEPT_MODULES))
def test_modules_of_bitnet_that_are_rounded_while_they_run_are_those_of_transformers(
    kept, tiny_checkpoint, built, tmp_path, monkeypatch
):
    """Whose rounding of activations is off, as pyc has its own."""
    import torch
    import transformers

    with monkeypatch.context() as patched:  # what it decorates would import a compiler: ten seconds
        patched.setattr(torch, "compile", lambda function: function)
        from transformers.integrations import bitnet

    quantized_copy(tiny_checkpoint("bitnet", tie_word_embeddings=False, **SHAPE), "bitnet-online", tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    if kept is not None:
        document["quantization_config"]["modules_to_not_convert"] = kept
    (tmp_path / "config.json").write_text(json.dumps(document))
    monkeypatch.setattr(bitnet.ActQuant, "apply", staticmethod(lambda x: x))
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = built(tmp_path, quantize={"scheme": "none", "activations": "f32", "kv_cache": "f32"})
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = reference(torch.tensor([ids])).logits[0].numpy()
    found = difference(wanted, model.logits(ids))
    assert found.spread > 0.1
    assert found.mean_kl <= EXACT_KL, found


@pytest.mark.parametrize("case", ["nf4-nested", "gptq", "fp8-block"])
def test_an_adapter_is_fused_into_what_the_codes_stand_for(case, tiny_checkpoint, tiny_adapter, built, tmp_path):
    """As PEFT merges it into the dequantized matrix; QLoRA where the codes are nf4."""
    import peft
    import torch
    import transformers

    plain = tiny_checkpoint("llama", **SHAPE)
    adapter = tiny_adapter(plain, target_modules=["q_proj", "down_proj"])
    values = quantized_copy(plain, case, tmp_path / "coded")
    quantize = {"activations": "f32", "kv_cache": "f32", "scheme": "f32"}
    model = built(tmp_path / "coded", adapters=[{"path": str(adapter)}], quantize=quantize)
    ids = random_ids(model, 40)
    reference = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float64)
    with torch.no_grad():
        for name, value in values.items():
            reference.get_parameter(name).copy_(torch.from_numpy(np.asarray(value, np.float64)))
        merged = peft.PeftModel.from_pretrained(reference, adapter).double().merge_and_unload().eval()
        wanted = merged(torch.tensor([ids])).logits[0].numpy()
    found = difference(wanted, model.logits(ids))
    assert found.mean_kl <= EXACT_KL, found
    assert found.largest <= EXACT_LARGEST, found


def test_an_export_is_what_the_codes_stand_for(tiny_checkpoint, tmp_path):
    """And transformers loads it: its config.json names no quantization."""
    import torch
    import transformers

    from pyc.passes.export.checkpoint import export_checkpoint
    from pyc.passes.export.source import exportable

    plain = tiny_checkpoint("llama", **SHAPE)
    values = quantized_copy(plain, "awq", tmp_path / "coded")
    recipe = tmp_path / "model.yaml"
    recipe.write_text(json.dumps(recipe_for(tmp_path / "coded")))
    with exportable(recipe) as source:
        export_checkpoint(source, tmp_path / "exported")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float64)
    for name, value in values.items():
        np.testing.assert_array_equal(loaded.get_parameter(name).detach().numpy(), value)
