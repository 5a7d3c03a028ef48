"""What is wrong with a quantized checkpoint is said by name, before anything is built."""

import json

import numpy as np
import pytest
from quantized_checkpoints import CASES, quantized_copy

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.evaluate_codes import kept_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import load_model
from pyc.passes.default_recipe import propose
from pyc.runtime.errors import IngestError

SHAPE = {"tokenizer": False, "hidden_size": 64, "intermediate_size": 96}
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def coded(tiny_checkpoint, tmp_path):
    """`coded(case, change)`: the folder of a quantized checkpoint after `change(tensors, quantization_config)`."""

    def make(case, change=None):
        from safetensors.torch import load_file, save_file

        path = tmp_path / "coded"
        quantized_copy(tiny_checkpoint("llama", **SHAPE), case, path)
        if change is not None:
            tensors, document = load_file(path / "model.safetensors"), json.loads((path / "config.json").read_text())
            change(tensors, document["quantization_config"])
            save_file(tensors, path / "model.safetensors", {"format": "pt"})
            (path / "config.json").write_text(json.dumps(document))
        return path

    return make


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("start", "stop"), [(0, 64), (5, 6), (3, 41), (63, 64)])
def test_any_range_of_rows_is_that_of_the_whole(case, start, stop, tiny_checkpoint, tmp_path):
    values = quantized_copy(tiny_checkpoint("llama", **SHAPE), case, tmp_path / "coded")
    with SourceFiles() as files:
        module = load_model(str(tmp_path / "coded"), base_dir=tmp_path, files=files)
        for name in (f"{Q}.weight", "model.layers.1.mlp.down_proj.weight"):
            found = evaluate_rows(module.weights[name], start, stop, files)
            np.testing.assert_allclose(found, values[name][start:stop], rtol=2e-7, atol=1e-9)


def remove(*names):
    return lambda tensors, config: [tensors.pop(name) for name in names]


def put(name, make):
    def change(tensors, config):
        tensors[name] = make(tensors.get(name)).contiguous()

    return change


def setting(**values):
    return lambda tensors, config: config.update(values)


def _weights(config):
    return config["config_groups"]["group_0"]["weights"]


BROKEN = [
    ("gptq", remove(f"{Q}.scales"), f"tensor '{Q}.scales' is missing"),
    ("gptq", remove(f"{Q}.qzeros"), f"tensor '{Q}.qzeros' is missing"),
    ("gptq", put(f"{Q}.scales", lambda t: t[:1]), r"has shape \[1, 64\], expected \[2, 64\]"),
    ("gptq", put(f"{Q}.scales", lambda t: t.int()), "is stored as i32, expected f32 or f16 or bf16"),
    ("gptq", put(f"{Q}.qweight", lambda t: t[:-1]), "not divisible by 32"),
    ("gptq", put(f"{Q}.qweight", lambda t: t[:-4]), r"has shape \[2, 64\], expected \[1, 64\]"),
    ("gptq", put(f"{Q}.qweight", lambda t: t.reshape(-1)), "expected two dimensions"),
    ("gptq", put(f"{Q}.g_idx", lambda t: t + 1), "has group 2 of 2"),
    ("gptq", put(f"{Q}.g_idx", lambda t: t - 1), "has group -1 of 2"),
    ("gptq", put(f"{Q}.g_idx", lambda t: t[:-1]), r"has shape \[63\], expected \[64\]"),
    ("gptq", lambda t, c: t.update({f"{Q}.weight": t["model.norm.weight"].clone()}), "both as codes and as numbers"),
    ("gptq", setting(bits=3), "quantization_config.bits is '3', expected 4 or 8"),
    ("gptq", setting(bits="4"), "Expected `int`, got `str`"),
    ("gptq", setting(group_size=0), "not divisible by 0"),
    ("gptq", setting(group_size=64), "not divisible by 64"),
    ("gptq", setting(checkpoint_format="marlin"), "expected gptq or gptq_v2"),
    ("gptq", setting(dynamic={"+:.*": {"bits": 8}}), "settings of their own"),
    ("gptq", setting(quant_method="aqlm"), "quant_method is 'aqlm', expected one of gptq, awq"),
    ("gptq", setting(quant_method=7), "Expected `str`, got `int`"),
    ("awq", setting(version="gemv"), "version is 'gemv', expected gemm"),
    ("awq", setting(bits=8), "expected 4"),
    ("w4a16", remove(f"{Q}.weight_shape"), "weight_shape' is missing"),
    ("w4a16", put(f"{Q}.weight_shape", lambda t: t * 2), "do not make"),
    ("w4a16", put(f"{Q}.weight_shape", lambda t: -t), "expected matrices"),
    ("w4a16", put(f"{Q}.weight_scale", lambda t: t[:-1]), "expected 64 rows"),
    ("w4a16", lambda t, c: _weights(c).update(num_bits=3), "3 bits of"),
    ("w4a16", setting(format="marlin-24"), "format is 'marlin-24'"),
    ("w4a16", setting(config_groups=7), "Expected `object`, got `int`"),
    ("w4a16", setting(sparsity_config={"format": "sparse-24-bitmask"}), "sparse weights are not read"),
    ("w8a8", put(f"{Q}.weight_scale", lambda t: t[:1].reshape(1)), "is one scale for a whole matrix"),
    ("w8a8", remove(f"{Q}.weight"), "weight' is missing"),
    ("fp8-block", remove(f"{Q}.weight_scale_inv"), "weight_scale' is missing"),
    ("fp8-block", put(f"{Q}.weight_scale_inv", lambda t: t[:, :-1]), r"expected \[2, 3\] blocks of \[40, 24\]"),
    ("fp8-block", setting(weight_block_size=None), "a weight_block_size in config.json"),
    ("nvfp4", remove(f"{Q}.weight_global_scale"), "weight_global_scale' is missing"),
    ("nvfp4", put(f"{Q}.weight_scale", lambda t: t[:, :-1]), r"has shape \[64, 3\], expected \[64, 4\]"),
    ("nvfp4", put(f"{Q}.weight_packed", lambda t: t[:, :-1]), "62 is not divisible by 16"),
    ("nvfp4", put(f"{Q}.weight_scale", lambda t: t[:-1]), "expected matrices of as many rows"),
    ("mxfp4", put(f"{Q}.weight_scale", lambda t: t.float()), "is stored as f32, expected f8_e4m3 or u8"),
    ("mxfp4", put(f"{Q}.weight_packed", lambda t: t.reshape(-1)), "expected matrices of as many rows"),
    ("bitnet", remove(f"{Q}.weight"), "weight' is missing"),
    ("bitnet", put(f"{Q}.weight_scale", lambda t: t.repeat(2)), "expected one scale"),
    ("bitnet", put(f"{Q}.weight", lambda t: t.short()), "is stored as i16, expected u8"),
    ("bitnet", put(f"{Q}.weight", lambda t: t.reshape(-1)), "expected two dimensions"),
    ("bitnet", put(f"{Q}.weight", lambda t: t[:-1]), "q_proj"),
    ("bitnet", setting(use_rms_norm=True), "puts a norm before each linear layer"),
    ("bitnet", setting(linear_class="other"), "Invalid enum value"),
    ("nf4", remove(f"{Q}.weight.absmax"), "absmax' is missing"),
    ("nf4", put(f"{Q}.weight.absmax", lambda t: t[:-1]), r"has shape \[63\], expected \[64\]"),
    ("nf4", put(f"{Q}.weight", lambda t: t[:-1]), "has 2047 bytes, expected 2048"),
    ("nf4", put(f"{Q}.weight.quant_state.bitsandbytes__nf4", lambda t: t[:9]), "is not what bitsandbytes writes"),
    ("nf4-nested", remove(f"{Q}.weight.nested_absmax"), "nested_absmax' is missing"),
    ("llm-int8", put(f"{Q}.SCB", lambda t: t[:-1]), r"has shape \[63\], the codes \[64, 64\]"),
]


@pytest.mark.parametrize(("case", "change", "words"), BROKEN)
def test_what_does_not_fit_is_refused_by_name(case, change, words, coded, tmp_path):
    with pytest.raises(IngestError, match=words):
        load_model(str(coded(case, change)), base_dir=tmp_path)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("gptq", f"{Q}.scales"),
        ("w4a16", f"{Q}.weight_scale"),
        ("fp8-block", f"{Q}.weight_scale_inv"),
        ("nf4", f"{Q}.weight.absmax"),
        ("llm-int8", f"{Q}.SCB"),
    ],
)
def test_scales_that_are_no_numbers_are_found(case, name, coded, tmp_path):
    path = coded(case, put(name, lambda t: t * float("nan")))
    with SourceFiles() as files, pytest.raises(IngestError, match="contains NaN or infinity"):
        evaluate_rows(load_model(str(path), base_dir=tmp_path, files=files).weights[f"{Q}.weight"], 0, 4, files)


def test_fp8_that_is_no_number_is_found(coded, tmp_path):
    import torch

    path = coded("fp8-dynamic", put(f"{Q}.weight", lambda t: torch.full_like(t.float(), float("nan")).to(t.dtype)))
    with SourceFiles() as files, pytest.raises(IngestError, match="contains NaN or infinity"):
        evaluate_rows(load_model(str(path), base_dir=tmp_path, files=files).weights[f"{Q}.weight"], 0, 4, files)


def test_order_of_activations_is_not_kept(coded, tmp_path):
    """Groups that are not in order have no kernel: the codes are rounded anew."""
    module = load_model(str(coded("gptq-act-order")), base_dir=tmp_path)
    assert kept_scheme(module.weights[f"{Q}.weight"]) is None


def test_a_quantized_checkpoint_is_proposed_as_it_is(coded, tmp_path):
    proposal = propose(str(coded("awq")), tmp_path)
    assert proposal.scheme == "none"
    assert "quantized" in proposal.reason
