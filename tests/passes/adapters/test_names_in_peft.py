"""A build says which adapters PEFT would leave out for the names of their tensors; the oracle is what PEFT loads."""

import pytest
from adapter_cases import KINDS, butterflies
from safetensors.numpy import load_file, save_file

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.ingest_recipe import ingest_recipe

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
PREFIXES = {  # what becomes of names that begin with base_model.model.
    "as PEFT writes them": "base_model.model.",
    "none": "",
    "twice": "base_model.model.base_model.model.",
    "another part of a model": "base_model.model.language_model.",
    "model twice": "base_model.model.model.",
}
SAVED = {
    "whole matrices": {**LORA, "modules_to_save": ["lm_head", "input_layernorm"]},
    "embedding and head": {"r": 4, "target_modules": ["embed_tokens", "lm_head"]},
    "biases": {**LORA, "bias": "all"},
    "trained tokens": {**LORA, "trainable_token_indices": {"embed_tokens": [1, 2]}},
}


def rename(adapter, change):
    file = adapter / "adapter_model.safetensors"
    save_file({change(name): value for name, value in load_file(file).items()}, file, metadata={"format": "pt"})


def left_out_by_peft(checkpoint, adapter, auto="AutoModelForCausalLM"):
    """Whether PEFT finds no value of an adapter, by the keys that it calls missing."""
    import peft
    import transformers

    model = getattr(transformers, auto).from_pretrained(checkpoint)
    with butterflies():
        adapted = peft.PeftModel.from_pretrained(model, adapter)
        result = adapted.load_adapter(adapter, "again")
    stored = load_file(adapter / "adapter_model.safetensors")
    return len(result.unexpected_keys) == len(stored)


def said_of(checkpoint, adapter, caplog):
    with SourceFiles() as files:
        recipe = recipe_from({"model": str(checkpoint), "adapters": [{"path": str(adapter)}]})
        ingest_recipe(recipe, files, None, {})
    return [text for text in (record.getMessage() for record in caplog.records) if "PEFT does not load" in text]


@pytest.mark.parametrize("case", PREFIXES)
def test_tensors_that_peft_leaves_out_are_said(case, tiny_checkpoint, tiny_adapter, caplog):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, **LORA)
    right = sorted(load_file(adapter / "adapter_model.safetensors"))
    rename(adapter, lambda name: PREFIXES[case] + name.removeprefix("base_model.model."))
    said = said_of(checkpoint, adapter, caplog)
    assert bool(said) == left_out_by_peft(checkpoint, adapter) == (case != "as PEFT writes them")
    for text in said:
        assert text.startswith(f"adapter {adapter}: PEFT does not load 8 of its 8 tensors, such as '{PREFIXES[case]}")
        assert any(f"which PEFT calls {name!r}; they are fused" in text for name in right)


def test_tensors_among_others_are_said(tiny_checkpoint, tiny_adapter, caplog):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, **LORA)
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"
    rename(adapter, lambda each: f"x.{each}" if ".1.self_attn.v_proj" in each else each)
    (text,) = said_of(checkpoint, adapter, caplog)
    assert f"does not load 2 of its 8 tensors, such as 'x.{name}', which PEFT calls '{name}'; they" in text


@pytest.mark.parametrize("case", [*KINDS, *SAVED])
def test_of_what_peft_saves_nothing_is_said(case, tiny_checkpoint, tiny_adapter, caplog):
    kind, config = KINDS[case] if case in KINDS else ("lora", SAVED[case])
    checkpoint = tiny_checkpoint("llama")
    assert not said_of(checkpoint, tiny_adapter(checkpoint, kind, **config), caplog)


MODELS = {
    "LlamaModel": ("llama", "AutoModel", "", "q_proj"),
    "BertModel": ("bert", "AutoModel", "", "query"),
    "BertForMaskedLM": ("bert", "AutoModelForMaskedLM", "bert.", "query"),
}


@pytest.mark.parametrize("case", MODELS)
def test_names_of_models_with_and_without_a_head_are_right(case, tiny_checkpoint, tiny_adapter, caplog):
    architecture, auto, prefix, target = MODELS[case]
    checkpoint = tiny_checkpoint(architecture)
    adapter = tiny_adapter(checkpoint, r=4, target_modules=[target])
    start = "base_model.model."
    rename(adapter, lambda name: start + prefix + name.removeprefix(start).removeprefix("model."))
    assert not left_out_by_peft(checkpoint, adapter, auto)
    assert not said_of(checkpoint, adapter, caplog)
