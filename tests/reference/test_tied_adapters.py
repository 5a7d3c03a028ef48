"""LoRA adapters that PEFT saved with `ensure_weight_tying` against PEFT's forward, in float32, as `test_adapters` does.

PEFT's merge is no reference here: it adds both products to the one matrix.
"""

import json

import pytest
from adapter_cases import with_adapter
from built_models import difference, random_ids
from safetensors.torch import load_file, save_file

from pyc.compiler.recipe.types import Merge
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.adapters.fuse_lora import FuseLora
from pyc.passes.adapters.fuse_merged import FuseMerged
from pyc.runtime.errors import AdapterError

KL_BOUND = 1e-10
"""As in `test_adapters`: rounding of f32."""
F32_CACHE = {"kv_cache": "f32"}
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
HEAD, EMBEDDING = "base_model.model.lm_head", "base_model.model.model.embed_tokens"

FACTORS = {"r": 2, "lora_alpha": 5}
TIED = {
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "both, by an expression": {"target_modules": r".*(embed_tokens|lm_head)"},
    "scaled apart": {"target_modules": ["embed_tokens"], "alpha_pattern": {"lm_head": 3}},
    "a rank of the embedding": {"target_modules": ["embed_tokens"], "rank_pattern": {"embed_tokens": 3}},
    "a rank of the head": {"target_modules": ["embed_tokens", "q_proj"], "rank_pattern": {"lm_head": 3}},
    "a rank of each": {"target_modules": ["lm_head"], "rank_pattern": {"lm_head": 3, "embed_tokens": 4}},
    "a saved embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "a saved head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


def edited(adapter, change):
    """The folder after `change(tensors)`."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    return adapter


def without_head(tensors):
    for name in [name for name in tensors if name.startswith(HEAD)]:
        del tensors[name]


def of_another_head(tensors):
    for name in [name for name in tensors if name.startswith((f"{HEAD}.lora_A", f"{HEAD}.weight"))]:
        tensors[name] = 0.3 * tensors[name].flip(0)


CHANGED = {"as saved": lambda tensors: None, "no head": without_head, "another head": of_another_head}
LEFT_OUT = {("a saved embedding", "no head"), ("a saved head", "no head"), *[
    (case, change) for case in TIED if "rank" in case for change in ("no head", "another head")
]}  # fmt: skip
EVERY = [(case, change) for case in TIED for change in CHANGED if (case, change) not in LEFT_OUT]


@pytest.mark.parametrize(("case", "change"), EVERY)
def test_a_tied_adapter_is_pefts_forward(case, change, tiny_checkpoint, tiny_adapter, built, reference):
    import torch

    path = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)
    adapter = edited(tiny_adapter(path, "lora", **FACTORS, ensure_weight_tying=True, **TIED[case]), CHANGED[change])
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = with_adapter(reference(path), adapter)(torch.tensor([ids])).logits[0].numpy()
        unchanged = reference(path)(torch.tensor([ids])).logits[0].numpy()
    assert difference(unchanged, wanted).mean_kl > 1e-3
    found = difference(wanted, model.logits(ids))
    assert found.mean_kl <= KL_BOUND, found


@pytest.mark.parametrize(
    ("case", "missing", "words"),
    [
        ("a saved head", HEAD, "the file has no whole weight of lm_head"),
        ("head", EMBEDDING, "the file has no lora_embedding tensors of embed_tokens, with which lm_head shares"),
    ],
)
def test_what_is_missing_is_named(case, missing, words, tiny_checkpoint, tiny_adapter):
    """PEFT ends with a KeyError, or takes the head's factors for the embedding with a warning."""
    path = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)

    def remove(tensors):
        for name in [name for name in tensors if name.startswith(missing)]:
            del tensors[name]

    folder = edited(tiny_adapter(path, "lora", **FACTORS, ensure_weight_tying=True, **TIED[case]), remove)
    adapter = read_adapter(str(folder), path)
    with pytest.raises(AdapterError, match=words):
        FuseLora(adapter, 1.0).run(load_model(ModelSource(str(path), path)))


def test_shared_factors_have_the_rank_of_one_of_both(tiny_checkpoint, tiny_adapter):
    path = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)
    folder = tiny_adapter(path, "lora", **FACTORS, ensure_weight_tying=True, **TIED["a rank of each"])
    config = json.loads((folder / "adapter_config.json").read_text())
    config["rank_pattern"] = {"lm_head": 5, "embed_tokens": 6}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(AdapterError, match=r"has shape \[.*\], expected \[.*\] with rank [56] as adapter_config"):
        read_adapter(str(folder), path)


def test_factors_of_a_tied_head_do_not_fit_a_model_that_ties_nothing(tiny_checkpoint, tiny_adapter):
    """PEFT leaves them out there: what the adapter was trained to, only half is left."""
    tied = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)
    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = read_adapter(str(tiny_adapter(tied, **FACTORS, ensure_weight_tying=True, **TIED["head"])), path)
    with pytest.raises(AdapterError, match=r"lm_head.lora_A.weight' belongs to a head .* the model's head is not its"):
        FuseLora(adapter, 1.0).run(load_model(ModelSource(str(path), path)))


def test_merged_adapters_are_tied_each(tiny_checkpoint, tiny_adapter):
    """The sum of two is what they are one after the other."""
    path = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)
    options = {**FACTORS, "ensure_weight_tying": True}
    folders = [tiny_adapter(path, seed=seed, **options, **TIED[case]) for seed, case in ((1, "head"), (2, "embedding"))]
    adapters = tuple((read_adapter(str(folder), path), 0.5) for folder in folders)
    module = load_model(ModelSource(str(path), path))
    merged = FuseMerged(adapters, Merge(method="cat")).run(module)
    for adapter, weight in adapters:
        module = FuseLora(adapter, weight).run(module)
    assert merged.weights == module.weights


def test_over_a_model_that_ties_nothing_the_field_means_nothing(tiny_checkpoint, tiny_adapter, built, reference):
    import torch

    path = tiny_checkpoint("llama", **CONTEXT)
    options = {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}
    adapter = tiny_adapter(path, "lora", **FACTORS, **options)
    assert json.loads((adapter / "adapter_config.json").read_text())["ensure_weight_tying"]
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = with_adapter(reference(path), adapter)(torch.tensor([ids])).logits[0].numpy()
    found = difference(wanted, model.logits(ids))
    assert found.mean_kl <= KL_BOUND, found
