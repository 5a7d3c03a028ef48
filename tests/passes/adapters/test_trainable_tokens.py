"""Trainable tokens of PEFT, alone and beside LoRA: embedding and head are those that PEFT computes with."""


import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.types import Merge
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.adapters.fuse_merged import FuseMerged
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.pipeline import FUSE
from pyc.runtime.errors import AdapterError

HEAD_DELTA = "base_model.model.lm_head.token_adapter.trainable_tokens_delta"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HALF_UNIT = 2.0**-24
TOKENS = [90, 3, 5]
Q = ["q_proj"]
CASES = {
    "alone": ("trainable_tokens", {"token_indices": TOKENS}),
    "alone, of both": ("trainable_tokens", {"token_indices": TOKENS, "target_modules": ["embed_tokens", "lm_head"]}),
    "alone, of the head": ("trainable_tokens", {"token_indices": TOKENS, "target_modules": ["lm_head"]}),
    "beside LoRA": ("lora", {"target_modules": Q, "trainable_token_indices": TOKENS}),
    "beside DoRA": ("lora", {"target_modules": Q, "use_dora": True, "trainable_token_indices": TOKENS}),
    "by path": ("lora", {"target_modules": Q, "trainable_token_indices": {"model.embed_tokens": TOKENS}}),
    "of both": ("lora", {"target_modules": Q, "trainable_token_indices": {"embed_tokens": TOKENS, "lm_head": TOKENS}}),
    "of each its own": (
        "lora",
        {"target_modules": Q, "trainable_token_indices": {"embed_tokens": TOKENS, "lm_head": [7, 1]}},
    ),
    "of the head": ("lora", {"target_modules": Q, "trainable_token_indices": {"lm_head": TOKENS}}),
    "beside LoRA of the head": ("lora", {"target_modules": [*Q, "lm_head"], "trainable_token_indices": TOKENS}),
    "beside a saved head": (
        "lora",
        {"target_modules": Q, "modules_to_save": ["lm_head"], "trainable_token_indices": TOKENS},
    ),
}
REFUSED_BY_PEFT = {("alone, of both", True), ("beside a saved head", True)}
"""Its forward raises a ValueError."""


def adapted_by_peft(checkpoint, adapters):
    """Embedding [vocabulary, hidden] and head of the model as PEFT computes with them, in float64; all but the last
    adapter are merged."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    for adapter in adapters[:-1]:
        model = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).merge_and_unload()
    model = peft.PeftModel.from_pretrained(model, adapters[-1], autocast_adapter_dtype=False)
    sizes = model.config
    with torch.no_grad():
        embedding = model.get_input_embeddings()(torch.arange(sizes.vocab_size))
        head = model.get_output_embeddings()(torch.eye(sizes.hidden_size, dtype=torch.float64)).T
    return embedding.numpy(), head.numpy()


def fused(checkpoint, adapters):
    """Embedding and head behind the passes that fuse, in f32."""
    module = load_model(ModelSource(str(checkpoint), checkpoint))
    for path in adapters:
        adapter = read_adapter(str(path), checkpoint)
        module = FUSE[adapter.kind](adapter, 1.0).run(module)
    with SourceFiles() as files:
        weights = [module.weights.get(name, module.weights[EMBEDDING]) for name in (EMBEDDING, HEAD)]
        return [evaluate_rows(weight, 0, weight.shape[0], files) for weight in weights], HEAD in module.weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "is_tied"),
    [(case, tied) for case in CASES for tied in (False, True) if (case, tied) not in REFUSED_BY_PEFT],
)
def test_trained_rows_are_those_that_peft_computes_with(case, is_tied, tiny_checkpoint, tiny_adapter):
    kind, config = CASES[case]
    checkpoint = tiny_checkpoint("llama", tie_word_embeddings=is_tied)
    adapter = tiny_adapter(checkpoint, kind, **config)
    expected = adapted_by_peft(checkpoint, [adapter])
    base = load_file(checkpoint / "model.safetensors")
    got, has_head = fused(checkpoint, [adapter])
    for value, wanted in zip(got, expected, strict=True):
        assert (np.abs(value - wanted) <= HALF_UNIT * np.abs(wanted) + 1e-12).all()
    assert any(np.abs(value - base[EMBEDDING]).max() > 1e-3 for value in got)
    if is_tied and np.array_equal(*expected):
        assert not has_head, "one matrix is stored where one is meant"


BESIDE_LORA = {"target_modules": Q, "trainable_token_indices": [5, 9]}
ALONE = {"token_indices": TOKENS}
FIRST = {
    "LoRA of the embedding": ("lora", {"target_modules": [*Q, "embed_tokens"]}),
    "trainable tokens": ("trainable_tokens", {"token_indices": [1, 3]}),
    "tokens beside LoRA": ("lora", BESIDE_LORA),
}


@pytest.mark.slow
@pytest.mark.parametrize("second", [("lora", BESIDE_LORA), ("trainable_tokens", ALONE)], ids=["beside LoRA", "alone"])
@pytest.mark.parametrize("first", FIRST)
def test_behind_another_adapter_rows_are_the_later_ones(first, second, tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("llama")
    pair = enumerate((FIRST[first], second), 1)
    adapters = [tiny_adapter(checkpoint, kind, seed=seed, **config) for seed, (kind, config) in pair]
    got, _ = fused(checkpoint, adapters)
    for value, wanted in zip(got, adapted_by_peft(checkpoint, adapters), strict=True):
        assert (np.abs(value - wanted) <= HALF_UNIT * np.abs(wanted) + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("indices", [{"embed_tokens": TOKENS}, {"model.embed_tokens": TOKENS}, TOKENS], ids=str)
def test_a_tied_head_whose_rows_are_stored_again(indices, tiny_checkpoint, tiny_adapter):
    """As PEFT does where it stores whole embeddings beside them: after their vocabulary grew, and when told to."""
    import peft
    import torch
    import transformers

    checkpoint = tiny_checkpoint("llama", tie_word_embeddings=True)
    adapter = tiny_adapter(checkpoint, target_modules=Q, trainable_token_indices=indices)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    peft.PeftModel.from_pretrained(model, adapter).save_pretrained(adapter, save_embedding_layers=True)
    assert HEAD_DELTA in load_file(adapter / "adapter_model.safetensors")
    expected = adapted_by_peft(checkpoint, [adapter])
    got, has_head = fused(checkpoint, [adapter])
    for value, wanted in zip(got, expected, strict=True):
        assert (np.abs(value - wanted) <= HALF_UNIT * np.abs(wanted) + 1e-12).all()
    assert not has_head
    if isinstance(indices, dict):
        with pytest.raises(AdapterError, match="the model's head is not its embedding"):
            fused(tiny_checkpoint("llama"), [adapter])


LOST = {
    "embedding": (False, ALONE, "embed_tokens", True),
    "tied embedding": (True, ALONE, "embed_tokens", True),
    "tied head": (True, ALONE, "lm_head", True),
    "another head": (False, ALONE, "lm_head", False),
}


@pytest.mark.parametrize("case", LOST)
def test_that_a_later_adapter_drops_trained_rows_is_said(case, tiny_checkpoint, tiny_adapter, caplog):
    is_tied, tokens, whole, is_said = LOST[case]
    checkpoint = tiny_checkpoint("llama", tie_word_embeddings=is_tied)
    first = tiny_adapter(checkpoint, "trainable_tokens", **tokens)
    second = tiny_adapter(checkpoint, target_modules=Q, modules_to_save=[whole])
    recipe = recipe_from({"model": str(checkpoint), "adapters": [{"path": str(first)}, {"path": str(second)}]})
    with SourceFiles() as files:
        ingest_recipe(recipe, files, None, {})
    said = [each for each in (record.getMessage() for record in caplog.records) if "is lost; if both are meant" in each]
    assert len(said) == is_said and all(f"what {first} did to it is lost" in each for each in said)


def test_that_rows_of_a_tied_head_are_another_model_when_peft_merges_is_said(tiny_checkpoint, tiny_adapter, caplog):
    checkpoint = tiny_checkpoint("llama", tie_word_embeddings=True)
    pairs = (({"lm_head": [7]}, "lm_head"), ({"embed_tokens": [5], "lm_head": [7]}, "embed_tokens and lm_head"))
    for indices, changed in pairs:
        adapter = tiny_adapter(checkpoint, target_modules=Q, trainable_token_indices=indices)
        recipe = recipe_from({"model": str(checkpoint), "adapters": [{"path": str(adapter)}]})
        caplog.clear()
        with SourceFiles() as files:
            ingest_recipe(recipe, files, None, {})
        assert f"it changes {changed}" in caplog.text and "a model whose head is its embedding" in caplog.text
    adapter = tiny_adapter(checkpoint, target_modules=Q, trainable_token_indices=[5])
    caplog.clear()
    with SourceFiles() as files:
        ingest_recipe(recipe_from({"model": str(checkpoint), "adapters": [{"path": str(adapter)}]}), files, None, {})
    assert "whose head is its embedding" not in caplog.text


def test_rows_beside_a_copy_of_the_embedding(tiny_checkpoint, tiny_adapter):
    """`save_embedding_layers=True` stores the base's matrices, too; the rows come on top of them."""
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, **BESIDE_LORA)
    base = load_file(checkpoint / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    tensors["base_model.model.model.embed_tokens.token_adapter.base_layer.weight"] = base[EMBEDDING] + 1
    save_file(tensors, adapter / "adapter_model.safetensors")
    (embedding, head), _ = fused(checkpoint, [adapter])
    wanted = base[EMBEDDING] + 1
    wanted[[5, 9]] = tensors["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"]
    assert np.array_equal(embedding, wanted)
    assert np.array_equal(head, base[HEAD])


@pytest.mark.slow
def test_rows_of_an_encoder(tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("bert")
    adapter = tiny_adapter(checkpoint, "trainable_tokens", token_indices=TOKENS)
    stored = load_file(adapter / "adapter_model.safetensors")
    (rows,) = stored.values()
    read = read_adapter(str(adapter), checkpoint)
    module = FUSE[read.kind](read, 1.0).run(load_model(ModelSource(str(checkpoint), checkpoint)))
    name = next(name for name in module.weights if name.endswith("word_embeddings.weight"))
    with SourceFiles() as files:
        assert np.array_equal(evaluate_rows(module.weights[name], 0, 100, files)[TOKENS], rows)


DELTA = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"


def fields(**changes):
    """A mutation: fields of adapter_config.json."""

    def change(adapter):
        path = adapter / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def stored(change):
    """A mutation: of the tensors by name."""

    def mutate(adapter):
        tensors = load_file(adapter / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, adapter / "adapter_model.safetensors")

    return mutate


BROKEN = {
    "twice": (fields(trainable_token_indices=[5, 5]), "5 is there twice"),
    "negative": (fields(trainable_token_indices=[5, -1]), "-1 is not the index of a token"),
    "true": (fields(trainable_token_indices=[5, True]), "adapter_config.json"),
    "another number": (fields(trainable_token_indices=[5]), "has shape [2, 48], expected [1, hidden]"),
    "beyond the vocabulary": (fields(trainable_token_indices=[5, 4000]), "trained token 4000, and the model has 263"),
    "of no module": (
        fields(trainable_token_indices={"lm_head": [5, 9]}),
        "which trainable_token_indices does not name",
    ),
    "no rows": (stored(lambda tensors: tensors.pop(DELTA)), "there is no trainable_tokens_delta tensor"),
    "rows of a head are missing": (
        fields(trainable_token_indices={"embed_tokens": [5, 9], "lm_head": [1]}),
        "'lm_head' has trainable tokens and no trainable_tokens_delta",
    ),
    "a tied head": (
        fields(trainable_token_indices={"embed_tokens": [5, 9], "lm_head": [5, 9]}),
        "the model's head is not its embedding",
    ),
    "another model": (
        stored(lambda tensors: tensors.update({DELTA: np.ones((2, 40), np.float32)})),
        "has shape [2, 40], expected [2, 48]",
    ),
    "no tokens": (fields(trainable_token_indices=None), "is neither part of lora"),
    "of a projection": (
        stored(lambda tensors: tensors.update({DELTA.replace("embed_tokens", "norm"): tensors.pop(DELTA)})),
        "expected an embedding or lm_head",
    ),
    "two": (
        stored(lambda tensors: tensors.update({DELTA.replace(".token_adapter", ""): tensors[DELTA]})),
        "two trainable_tokens_delta tensors",
    ),
    "LoRA of the same": (
        stored(
            lambda tensors: tensors.update(
                {
                    "base_model.model.model.embed_tokens.lora_embedding_A": np.ones((8, 263), np.float32),
                    "base_model.model.model.embed_tokens.lora_embedding_B": np.ones((48, 8), np.float32),
                }
            )
        ),
        "which target_modules does not name",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_adapter_is_refused(case, tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, **BESIDE_LORA)
    damage, message = BROKEN[case]
    damage(adapter)
    with pytest.raises(AdapterError) as caught:
        fused(checkpoint, [adapter])
    assert message in str(caught.value)


def test_rows_are_applied_whole_and_not_merged(tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("llama")
    module = load_model(ModelSource(str(checkpoint), checkpoint))
    alone = read_adapter(str(tiny_adapter(checkpoint, "trainable_tokens", **ALONE)), checkpoint)
    with pytest.raises(AdapterError, match="rows that take the place of others"):
        FUSE[alone.kind](alone, 0.5).run(module)
    beside = read_adapter(str(tiny_adapter(checkpoint, **BESIDE_LORA)), checkpoint)
    with pytest.raises(AdapterError, match="has trainable tokens, which PEFT's merge leaves out"):
        FuseMerged(((beside, 1.0), (beside, 1.0)), Merge(method="cat")).run(module)
