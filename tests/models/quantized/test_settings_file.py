"""models/quantized/settings_file.py: checkpoints of old AutoGPTQ and AutoAWQ are what their codes stand for.

These have settings in a file beside config.json, and AutoGPTQ's a bias of zeros at each matrix.
"""

import json

import numpy as np
import pytest
from quantized_checkpoints import quantized_copy
from safetensors.torch import load_file, save_file

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import load_model
from pyc.models.hub_download import _SMALL
from pyc.models.model_source import ModelSource
from pyc.models.quantized.settings_file import FILES
from pyc.runtime.errors import IngestError

GPTQ, AWQ = FILES
SHAPE = {"tokenizer": False, "hidden_size": 64, "intermediate_size": 96}
Q = "model.layers.0.self_attn.q_proj"
AUTO_GPTQ = {
    "bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False, "static_groups": False, "sym": True,
    "true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model",
}  # fmt: skip
AUTO_AWQ = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
OLD = {
    "gptq": ("gptq", GPTQ, AUTO_GPTQ),
    "gptq ordered by activations": ("gptq-act-order", GPTQ, AUTO_GPTQ | {"desc_act": True, "sym": False}),
    "gptq of 8 bits": ("gptq-8", GPTQ, AUTO_GPTQ | {"bits": 8}),
    "gptq of a later AutoGPTQ": ("gptq", GPTQ, AUTO_GPTQ | {"quant_method": "GPTQ", "checkpoint_format": "GPTQ"}),
    "gptq_v2": ("gptq-v2", GPTQ, AUTO_GPTQ | {"checkpoint_format": "gptq_v2"}),
    "gptq in AutoAWQ's file": ("gptq", AWQ, AUTO_GPTQ),
    "awq": ("awq", AWQ, AUTO_AWQ),
    "awq in AutoGPTQ's file": ("awq", GPTQ, AUTO_AWQ),
}


def old_copy(checkpoint, folder, case, name, settings, bias=0.0):
    """A quantized copy with settings in the file `name`, and a bias at each matrix; returns what weights stand for."""
    values = quantized_copy(checkpoint, case, folder)
    document = json.loads((folder / "config.json").read_text())
    del document["quantization_config"]
    (folder / "config.json").write_text(json.dumps(document))
    (folder / name).write_text(json.dumps(settings))
    tensors = load_file(folder / "model.safetensors")
    for module in [key.removesuffix(".scales") for key in tensors if key.endswith(".scales")]:
        tensors[f"{module}.bias"] = tensors[f"{module}.scales"][0] * 0 + bias
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return values


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_an_old_checkpoint_is_what_its_codes_stand_for(old, zero, tiny_checkpoint, tmp_path):
    values = old_copy(tiny_checkpoint("llama", **SHAPE), tmp_path / "old", *OLD[old], bias=zero)
    with SourceFiles() as files:
        module = load_model(ModelSource(str(tmp_path / "old"), tmp_path), files=files)
        assert not any(name.endswith(".bias") for name in module.weights)
        assert OLD[old][1] in [source.name for source in module.sources]
        for name, value in values.items():
            found = evaluate_rows(module.weights[name], 0, len(value), files)
            np.testing.assert_allclose(found, value, rtol=2e-7, atol=1e-9)


def test_biases_that_the_architecture_has_are_used(tiny_checkpoint, tmp_path):
    """Qwen2's q, k and v have one: zeros there are kept, at the other matrices left out."""
    old_copy(tiny_checkpoint("qwen2", **SHAPE), tmp_path / "old", *OLD["gptq"])
    weights = load_model(ModelSource(str(tmp_path / "old"), tmp_path)).weights
    assert {name.split(".")[-2] for name in weights if name.endswith(".bias")} == {"q_proj", "k_proj", "v_proj"}


def test_a_group_of_a_whole_row_is_the_default(tiny_checkpoint, tmp_path):
    """AutoGPTQ's own, where the file has no group_size: of groups of 32, more scales are there than it says."""
    settings = {key: value for key, value in AUTO_GPTQ.items() if key != "group_size"}
    old_copy(tiny_checkpoint("llama", **SHAPE), tmp_path / "old", "gptq", GPTQ, settings)
    with pytest.raises(IngestError, match=r"scales' has shape \[3, 64\], expected \[1, 64\]"):
        load_model(ModelSource(str(tmp_path / "old"), tmp_path))


def test_a_bias_that_is_not_zero_is_refused(tiny_checkpoint, tmp_path):
    old_copy(tiny_checkpoint("llama", **SHAPE), tmp_path / "old", *OLD["gptq"], bias=2.0**-24)
    with pytest.raises(IngestError, match=r"bias' is not part of the architecture as config.json describes it"):
        load_model(ModelSource(str(tmp_path / "old"), tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "quantize_config.json: bits is '3', expected 4 or 8"),
        ({"bits": "4"}, "quantize_config.json: Expected `int`, got `str`"),
        ({"is_marlin_format": True}, "quantize_config.json: checkpoint_format is 'marlin', expected gptq or gptq_v2"),
        ({"quant_method": "marlin"}, "quantize_config.json: quant_method is 'marlin', expected one of gptq"),
        ({"version": "GEMV"}, "quantize_config.json: version is 'gemv', expected gemm"),
    ],
)
def test_settings_that_are_not_read_are_named_with_their_file(change, words, tiny_checkpoint, tmp_path):
    old_copy(tiny_checkpoint("llama", **SHAPE), tmp_path / "old", "gptq", GPTQ, AUTO_GPTQ | change)
    with pytest.raises(IngestError, match=words):
        load_model(ModelSource(str(tmp_path / "old"), tmp_path))


def test_auto_awqs_names_in_config_json_are_read(tiny_checkpoint, tmp_path):
    path = tmp_path / "coded"
    values = quantized_copy(tiny_checkpoint("llama", **SHAPE), "awq", path)
    document = json.loads((path / "config.json").read_text())
    document["quantization_config"] = {"quant_method": "awq", **AUTO_AWQ}
    (path / "config.json").write_text(json.dumps(document))
    with SourceFiles() as files:
        module = load_model(ModelSource(str(path), tmp_path), files=files)
        for name, value in values.items():
            found = evaluate_rows(module.weights[name], 0, len(value), files)
            np.testing.assert_allclose(found, value, rtol=2e-7, atol=1e-9)


def test_settings_in_config_json_are_the_ones_that_count(tiny_checkpoint, tmp_path):
    """As transformers has it, which looks nowhere else."""
    quantized_copy(tiny_checkpoint("llama", **SHAPE), "gptq", tmp_path / "coded")
    (tmp_path / "coded" / GPTQ).write_text("{}")
    assert load_model(ModelSource(str(tmp_path / "coded"), tmp_path)).weights[f"{Q}.weight"].bits == 4


def test_a_file_beside_weights_that_are_numbers_means_nothing(tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama", **SHAPE)
    (path / GPTQ).write_text(json.dumps(AUTO_GPTQ))
    assert GPTQ not in [source.name for source in load_model(ModelSource(str(path), tmp_path)).sources]


def test_the_files_are_downloaded():
    assert set(FILES) <= _SMALL
