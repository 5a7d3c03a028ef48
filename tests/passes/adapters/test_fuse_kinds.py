"""passes/adapters/fuse_*.py and compiler/evaluate_fused.py: fused weights are what PEFT merges in float64.

Weights are evaluated in float64 and rounded to f32 once: the bound is half a unit in the last place of f32, and beside
it 1e-9 for sums in another order and for scales that PEFT keeps in f32.
"""

import shutil

import numpy as np
import pytest
from adapter_cases import FEED_FORWARD, KINDS, butterflies
from safetensors.numpy import load_file, save_file

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.adapters.check_adapters import require_same_base, warn_of_losses
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.pipeline import FUSE
from pyc.runtime.errors import AdapterError

HALF_UNIT = 2.0**-24
OTHER_ORDER = 1e-9


def merged_by_peft(checkpoint, adapters):
    """Names and float64 values of parameters before and after PEFT merged adapters, one after the other."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    for adapter in adapters:
        with butterflies():
            adapted = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
            model = adapted.merge_and_unload()
    return before, {name: value.numpy() for name, value in model.state_dict().items()}


def fused(checkpoint, adapters, weights=(1.0, 1.0)):
    """The module with adapters fused, in order."""
    module = load_model(ModelSource(str(checkpoint), checkpoint))
    for path, weight in zip(adapters, weights, strict=False):
        adapter = read_adapter(str(path), checkpoint)
        module = FUSE[adapter.kind](adapter, weight).run(module)
    return module


def values(module):
    """All weights of a module in f32."""
    with SourceFiles() as files:
        return {name: evaluate_rows(weight, 0, weight.shape[0], files) for name, weight in module.weights.items()}


def check(got, before, expected):
    """Fused weights are PEFT's, and some of them changed."""
    changed = 0
    for name in expected:
        value = got[name]
        difference = np.abs(value - expected[name])
        assert (difference <= HALF_UNIT * np.abs(expected[name]) + OTHER_ORDER).all(), (name, difference.max())
        changed += bool(np.abs(expected[name] - before[name]).max() > 1e-3)
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("case", KINDS)
def test_a_fused_adapter_is_what_peft_merges(case, tiny_checkpoint, tiny_adapter):
    kind, config = KINDS[case]
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, kind, **config)
    before, expected = merged_by_peft(checkpoint, [adapter])
    assert check(values(fused(checkpoint, [adapter])), before, expected)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["lora", "dora", "loha", "lokr", "vera", "oft", "boft", "ia3"])
@pytest.mark.parametrize("second", ["dora", "oft"])
def test_two_kinds_in_order(first, second, tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("llama")
    low_rank = {"r": 4, "target_modules": ["q_proj", "down_proj"]}
    plain = {"lora": ("lora", low_rank), "dora": ("lora", low_rank | {"use_dora": True}), "ia3": ("ia3", FEED_FORWARD)}
    every = KINDS | plain
    adapters = [tiny_adapter(checkpoint, kind, **config) for kind, config in (every[first], every[second])]
    before, expected = merged_by_peft(checkpoint, adapters)
    assert check(values(fused(checkpoint, adapters)), before, expected)


ADAPTS = {"r": 2, "target_modules": ["q_proj", "down_proj"]}
SAVES = {"r": 2, "target_modules": ["v_proj"], "modules_to_save": ["q_proj"]}
IN_TURN = {"adapts, then saves": (ADAPTS, SAVES), "saves, then adapts": (SAVES, ADAPTS), "both save": (SAVES, SAVES)}


@pytest.mark.parametrize("case", IN_TURN)
def test_of_two_adapters_one_saves_what_the_other_changes(case, tiny_checkpoint, tiny_adapter, caplog):
    """PEFT loads no two such adapters together, and merges them in turn; what is lost then is said."""
    checkpoint = tiny_checkpoint("llama", attention_bias=True)
    adapters = [tiny_adapter(checkpoint, seed=seed, **config) for seed, config in enumerate(IN_TURN[case], 1)]
    before, expected = merged_by_peft(checkpoint, adapters)
    assert check(values(fused(checkpoint, adapters)), before, expected)
    with SourceFiles() as files:
        warn_of_losses([read_adapter(str(path), checkpoint, files) for path in adapters], files)
    said = [record.getMessage() for record in caplog.records]
    if case == "saves, then adapts":
        assert not said
        return
    (line,) = said
    assert line.startswith(f"adapter {adapters[1]}: it has model.layers.0.self_attn.q_proj.")
    assert line.endswith(f"{adapters[0]} did to it is lost; if both are meant, put {adapters[1]} first")


TIED = {
    "embedding": ("lora", {"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens"),
    "head": ("lora", {"target_modules": ["lm_head", "q_proj"]}, "lm_head"),
    "head, by another kind": ("ia3", {"target_modules": ["lm_head"], "feedforward_modules": []}, "lm_head"),
    "both": ("lora", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, "embed_tokens and lm_head"),
    "neither": ("lora", {"target_modules": ["q_proj"]}, ""),
    "a saved head": ("lora", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, ""),
}


@pytest.mark.parametrize("case", TIED)
def test_where_embedding_and_head_are_one_matrix_it_is_said_that_pefts_merge_is_another(
    case, tiny_checkpoint, tiny_adapter, caplog
):
    kind, config, changed = TIED[case]
    checkpoint = tiny_checkpoint("llama", tie_word_embeddings=True)
    adapter = tiny_adapter(checkpoint, kind, **config)
    before, expected = merged_by_peft(checkpoint, [adapter])
    found = values(fused(checkpoint, [adapter]))
    pairs = [(found.get(name, found["model.embed_tokens.weight"]), expected[name]) for name in before]
    assert all(np.allclose(one, other, atol=1e-6) for one, other in pairs) == (not changed)
    recipe = recipe_from({"model": str(checkpoint), "adapters": [{"path": str(adapter)}]})
    with SourceFiles() as files:
        for _ in range(2):
            ingest_recipe(recipe, files, None, {})
    said = [text for text in (record.getMessage() for record in caplog.records) if "head is its embedding" in text]
    assert len(said) == bool(changed)
    assert all(text.startswith(f"adapter {adapter}: it changes {changed} of a model whose head") for text in said)


def test_of_an_embedding_that_is_not_the_head_nothing_is_said(tiny_checkpoint, tiny_adapter, caplog):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, "lora", target_modules=["embed_tokens", "lm_head"])
    with SourceFiles() as files:
        ingest_recipe(recipe_from({"model": str(checkpoint), "adapters": [{"path": str(adapter)}]}), files, None, {})
    assert "head is its embedding" not in caplog.text


@pytest.mark.parametrize("case", KINDS)
def test_ranges_of_rows_join(case, tiny_checkpoint, tiny_adapter):
    kind, config = KINDS[case]
    checkpoint = tiny_checkpoint("llama")
    module = fused(checkpoint, [tiny_adapter(checkpoint, kind, **config)])
    whole = values(module)
    with SourceFiles() as files:
        for name, weight in module.weights.items():
            rows = weight.shape[0]
            parts = [evaluate_rows(weight, at, min(at + 13, rows), files) for at in range(0, rows, 13)]
            assert np.abs(np.concatenate(parts) - whole[name]).max() <= HALF_UNIT * np.abs(whole[name]).max(), name


def test_a_copy_of_a_base_that_holds_an_earlier_update_is_refused(tiny_checkpoint, tiny_adapter, tmp_path):
    """Fused in turn, the first adapter's update would be in the embedding twice."""
    checkpoint = tiny_checkpoint("llama")
    config = {"target_modules": ["embed_tokens", "q_proj"]}
    first = tiny_adapter(checkpoint, seed=1, **config)
    adapters = [first, tiny_adapter(checkpoint, seed=2, **config)]
    module = load_model(ModelSource(str(checkpoint), checkpoint))
    read = [read_adapter(str(path), checkpoint) for path in adapters]
    assert all(adapter.of_base for adapter in read)
    with SourceFiles() as files:
        require_same_base(read, module, files)  # both were trained over the model
        merged = FUSE["lora"](read[0], 1.0).run(module)
        embedding = merged.weights["model.embed_tokens.weight"]
        rows = evaluate_rows(embedding, 0, embedding.shape[0], files)
    second = tmp_path / "second"
    shutil.copytree(adapters[1], second)
    stored = load_file(second / "adapter_model.safetensors")
    (name,) = (name for name in stored if name.endswith("base_layer.weight"))
    save_file({**stored, name: rows.astype(np.float32)}, second / "adapter_model.safetensors", {"format": "pt"})
    over_merged = read_adapter(str(second), checkpoint)
    with SourceFiles() as files:
        require_same_base([over_merged], module, files)  # alone it brings its base
        with pytest.raises(AdapterError, match=r"trained over another .* than the model's"):
            require_same_base([read[0], over_merged], module, files)
