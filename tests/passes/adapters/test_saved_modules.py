"""modules_to_save of adapters: what PEFT stores of embedding and head after `resize_token_embeddings`, read as it does.

It stores the trained weight under two names and the one that was there before under a third.
"""

import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.pipeline import FUSE
from pyc.runtime.errors import AdapterError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PREFIX = "base_model.model."
MORE = 7
SAVED = {
    "both": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "both, tied": {"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
    "embedding": {"modules_to_save": ["embed_tokens"]},
    "head": {"modules_to_save": ["lm_head"]},
}


def resized(checkpoint, path):
    """Write a checkpoint with more tokens."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    model.resize_token_embeddings(model.config.vocab_size + MORE, mean_resizing=False)
    shutil.copytree(checkpoint, path)
    model.save_pretrained(path)
    return path


def trained(checkpoint, path, options):
    """Write an adapter that was trained over the checkpoint resized in memory, as who adds tokens does."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    model.resize_token_embeddings(model.config.vocab_size + MORE, mean_resizing=False)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], **options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path)
    return path


def by_peft(checkpoint, adapter):
    """Embedding and head [vocabulary, hidden] that PEFT computes with."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    model = peft.PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        embedding = model.get_input_embeddings()(torch.arange(model.config.vocab_size))
        head = model.get_output_embeddings()(torch.eye(model.config.hidden_size)).T
    return embedding.numpy(), head.numpy()


def by_us(checkpoint, path):
    adapter = read_adapter(str(path), path)
    module = FUSE[adapter.kind](adapter, 1.0).run(load_model(ModelSource(str(checkpoint), checkpoint)))
    with SourceFiles() as files:
        weights = (module.weights[EMBEDDING], module.weights.get(HEAD, module.weights[EMBEDDING]))
        return tuple(evaluate_rows(weight, 0, weight.shape[0], files) for weight in weights)


def change(adapter, changed):
    """Write `changed(name, value)` for each tensor of an adapter; None leaves it out."""
    tensors = load_file(adapter / WEIGHTS)
    values = {name: changed(name.removeprefix(PREFIX), value) for name, value in tensors.items()}
    save_file({name: value for name, value in values.items() if value is not None}, adapter / WEIGHTS)


def set_saved(adapter, names):
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps({**config, "modules_to_save": names}))


def is_second(name):
    return ".modules_to_save." in name or ".original_module." in name


@pytest.mark.slow
@pytest.mark.parametrize("differ", [False, True], ids=["as saved", "copies differ"])
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("case", SAVED)
def test_saved_modules_of_a_resized_model_are_those_of_peft(case, is_tied, differ, tiny_checkpoint, tmp_path):
    """Where the copies differ PEFT computes with the plain name's."""
    base = tiny_checkpoint("llama", tie_word_embeddings=is_tied)
    checkpoint = resized(base, tmp_path / "resized")
    adapter = trained(base, tmp_path / "adapter", SAVED[case])
    second = [name for name in load_file(adapter / WEIGHTS) if is_second(name)]
    assert len(second) >= 2
    if differ:
        shared = ".original_module." if is_tied and case in ("embedding", "head") else " "  # it is the other's memory
        change(adapter, lambda name, value: value + 1 if is_second(name) and shared not in name else value)
    for wanted, got in zip(by_peft(checkpoint, adapter), by_us(checkpoint, adapter), strict=True):
        assert np.array_equal(wanted, got)


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("case", SAVED)
def test_over_the_model_that_was_not_resized_the_remedy_is_named(case, is_tied, tiny_checkpoint, tmp_path):
    base = tiny_checkpoint("llama", tie_word_embeddings=is_tied)
    adapter = trained(base, tmp_path / "adapter", SAVED[case])
    with pytest.raises(AdapterError, match=rf"call resize_token_embeddings\({263 + MORE}\) on the model"):
        by_us(base, adapter)


@pytest.mark.slow
def test_copies_without_the_modules_plain_name(tiny_checkpoint, tmp_path):
    """The trained weight is taken; what was there before the training alone is no weight of the module."""
    base = tiny_checkpoint("llama")
    checkpoint = resized(base, tmp_path / "resized")
    adapter = trained(base, tmp_path / "adapter", SAVED["both"])
    wanted = by_peft(checkpoint, adapter)
    change(adapter, lambda name, value: None if name == HEAD else value)
    assert all(map(np.array_equal, by_us(checkpoint, adapter), wanted))
    change(adapter, lambda name, value: None if name == "lm_head.modules_to_save.weight" else value)
    with pytest.raises(AdapterError, match=r"modules_to_save names 'lm_head', but .* has no such tensor"):
        by_us(checkpoint, adapter)


@pytest.mark.slow
def test_a_saved_module_that_the_model_lacks(tiny_checkpoint, tiny_adapter):
    """PEFT leaves the name alone; the file cannot say whether the model lacks the module, the message what to do."""
    base = tiny_checkpoint("llama")
    adapter = tiny_adapter(base, r=2, target_modules=["q_proj"], modules_to_save=["q_norm", "lm_head"])
    wanted = by_peft(base, adapter)
    with pytest.raises(AdapterError) as caught:
        by_us(base, adapter)
    assert re.search(
        r"modules_to_save names 'q_norm', but adapter_model.safetensors has no such tensor; if the model has no such "
        "module, take the name out of modules_to_save in adapter_config.json", str(caught.value)
    )  # fmt: skip
    set_saved(adapter, ["lm_head"])
    assert all(map(np.array_equal, by_us(base, adapter), wanted))
