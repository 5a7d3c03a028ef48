"""What is wrong with a quantized checkpoint is said by name, before anything is built."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from quantized_checkpoints import CASES, quantized_copy

from pyc.compiler.codes import TernaryCodes
from pyc.compiler.evaluate import evaluate_rows, evaluate_stored
from pyc.compiler.evaluate_codes import kept_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import Int4Group
from pyc.compiler.weights import Stored
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.models.quantized.bitnet import _is_kept
from pyc.models.quantized.parts import Parts
from pyc.passes.driver.default_recipe import propose
from pyc.runtime.errors import IngestError, QuantizeError

SHAPE = {"tokenizer": False, "hidden_size": 64, "intermediate_size": 96}
Q = "model.layers.0.self_attn.q_proj"
STATE = f"{Q}.weight.quant_state.bitsandbytes__nf4"


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
        module = load_model(ModelSource(str(tmp_path / "coded"), tmp_path), files=files)
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


def stated(state, **values):
    """The JSON that bitsandbytes keeps of a weight, as bytes, with other values."""
    import torch

    text = json.dumps(json.loads(bytes(state.numpy())) | values)
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def rotated(location):
    place = {"targets": ["Linear"], "location": location, "inverse": False, "ignore": ["lm_head"]}
    return {"config_groups": {"u": {"type": "hadamard", "apply": [place], "randomize": False}}}


def _weights(config):
    return config["config_groups"]["group_0"]["weights"]


def as_mlx(tensors, config):
    """The matrix as mlx_lm writes it, whose settings name no method."""
    import torch

    for name in [name for name in tensors if name.startswith(f"{Q}.")]:
        del tensors[name]
    tensors[f"{Q}.weight"] = torch.zeros((64, 8), dtype=torch.uint32)
    tensors.update({f"{Q}.{name}": torch.ones((64, 1)).half() for name in ("scales", "biases")})
    config.clear()
    config.update({"group_size": 64, "bits": 4})


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
    ("gptq", setting(quant_method="mxfp4"), "quant_method is 'mxfp4', expected one of gptq, awq"),
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
    ("w4a16-asym", remove(f"{Q}.weight_zero_point"), "weight_zero_point' is missing"),
    ("w4a16", put(f"{Q}.weight_scale", lambda t: t[:, :1]), r"for \[64, 64\] values .* say \[64, 2\]"),
    ("w4a16", lambda t, c: _weights(c).update(group_size=16), r"has shape \[64, 3\], .* say \[64, 6\]"),
    ("w4a16", lambda t, c: _weights(c).update(group_size=64), r"say groups of 64, of which a row has no whole number"),
    ("w4a16", lambda t, c: _weights(c).update(strategy="channel"), r"has shape \[64, 3\], .* say \[64\]"),
    ("w4a16", lambda t, c: _weights(c).update(strategy="rows"), "Invalid enum value 'rows'"),
    ("w8a8", lambda t, c: _weights(c).update(symmetric=False), "weight_zero_point' is missing"),
    ("w4a16-asym", lambda t, c: _weights(c).update(symmetric=True), "has zero points, and config.json says `symmetric"),
    ("w8a8", lambda t, c: _weights(c).update(strategy="group", group_size=32), r"has shape \[64, 1\], .* \[64, 3\]"),
    ("fp8-dynamic", put(f"{Q}.weight_scale", lambda t: t[:1].reshape(1)), r"has shape \[1\], .* say \[64\]"),
    ("fp8-tensor", lambda t, c: _weights(c).update(strategy="channel"), r"has shape \[1\], .* say \[64\]"),
    ("fp8-block", put(f"{Q}.weight_scale_inv", lambda t: t[:1, :1]), r"expected \[2, 3\] blocks of \[40, 24\]"),
    ("fp8-block", put(f"{Q}.weight_scale_inv", lambda t: t[0, 0]), r"expected \[2, 3\] blocks of \[40, 24\]"),
    ("nvfp4", lambda t, c: _weights(c).update(group_size=32), r"has shape \[64, 6\], .* say \[64, 3\]"),
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
    ("bitnet", remove(f"{Q}.weight_scale"), f"tensor '{Q}.weight_scale' is missing"),
    ("bitnet-auto", remove(f"{Q}.weight_scale"), f"tensor '{Q}.weight_scale' is missing"),
    ("bitnet-online", setting(linear_class="bitlinear"), r"_proj.weight' is stored as bf16 .*class is bitlinear"),
    ("bitnet", setting(modules_to_not_convert=["norm"]), r"'lm_head.weight' is stored as f32 .* is bitlinear"),
    ("nf4", remove(f"{Q}.weight.absmax"), "absmax' is missing"),
    ("nf4", put(f"{Q}.weight.absmax", lambda t: t[:-1]), r"has shape \[63\], expected \[64\]"),
    ("nf4", put(f"{Q}.weight", lambda t: t[:-1]), "has 2047 bytes, expected 2048"),
    ("nf4", put(f"{Q}.weight.quant_state.bitsandbytes__nf4", lambda t: t[:9]), "is not what bitsandbytes writes"),
    ("nf4-nested", remove(f"{Q}.weight.nested_absmax"), "nested_absmax' is missing"),
    ("llm-int8", put(f"{Q}.SCB", lambda t: t[:-1]), r"has shape \[63\], the codes \[64, 64\]"),
    ("gptq-act-order", remove(f"{Q}.g_idx"), "g_idx' is missing"),
    ("gptq-v2", setting(format="gptq"), "format is 'gptq', but checkpoint_format is 'gptq_v2'"),
    ("gptq", setting(format="marlin"), "quantization_config.format is 'marlin'"),
    ("awq", setting(format="gemv"), "quantization_config.format is 'gemv'"),
    ("awq", setting(w_bit=8), "quantization_config.bits is '4', but w_bit is '8'; expected the same of both"),
    ("awq", setting(q_group_size=64), "group_size is '32', but q_group_size is '64'; expected the same of both"),
    ("awq", setting(q_group_size="32"), "Expected `int`, got `str`"),
    ("w4a16", lambda t, c: _weights(c).update(actorder="group"), "g_idx' is missing"),
    ("w4a16", setting(transform_config=rotated("input")), "is applied at 'input' while the model runs"),
    ("fp8-block", setting(weight_block_size=[1 << 31, 24]), "weight_block_size"),
    ("nf4", put(STATE, lambda t: t[0]), "is not what bitsandbytes writes"),
    ("nf4", put(STATE, lambda t: stated(t, blocksize=10**30)), "is not what bitsandbytes writes"),
    ("nf4-nested", put(STATE, lambda t: stated(t, nested_blocksize=1 << 31)), "is not what bitsandbytes writes"),
    ("llm-int8", put(f"{Q}.weight_format", lambda t: t + 2), r"weight_format' is \[2\], expected 0"),
]


@pytest.mark.parametrize(("case", "change", "words"), BROKEN)
def test_what_does_not_fit_is_refused_by_name(case, change, words, coded, tmp_path):
    with pytest.raises(IngestError, match=words):
        load_model(ModelSource(str(coded(case, change)), tmp_path))


@pytest.mark.parametrize("keys", [("quantization",), ("quantization", "quantization_config")], ids=len)
def test_a_checkpoint_of_mlx_is_called_by_its_name(keys, coded, tmp_path):
    """Older ones have their settings under a name of MLX's alone."""
    path = coded("gptq", as_mlx)
    document = json.loads((path / "config.json").read_text())
    settings = document.pop("quantization_config")
    (path / "config.json").write_text(json.dumps(document | dict.fromkeys(keys, settings)))
    words = rf"'{Q}.weight' has codes of MLX, with '{Q}.scales', which are not read; give the model that MLX's was made"
    with pytest.raises(IngestError, match=words):
        load_model(ModelSource(str(path), tmp_path))


NOT_NEEDED = {"g_idx", "input_scale", "weight_format"}


@pytest.mark.parametrize("case", CASES)
def test_a_part_that_is_missing_is_called_by_its_name(case, coded, tmp_path):
    """And not by the name of what would be made of it, or of what is left beside it."""
    names = []
    coded(case, lambda tensors, config: names.extend(name for name in tensors if name.startswith(Q)))
    for name in names:
        if name.rpartition(".")[2] not in NOT_NEEDED or (case, name) == ("gptq-act-order", f"{Q}.g_idx"):
            shutil.rmtree(tmp_path / "coded")
            with pytest.raises(IngestError, match=rf"tensor '{name}' (of shape \[64, 64\] )?is missing"):
                load_model(ModelSource(str(coded(case, remove(name))), tmp_path))


def test_the_state_of_fp4_is_called_by_its_name(coded, tmp_path):
    path = coded("nf4", lambda t, c: (t.pop(STATE), c.update(bnb_4bit_quant_type="fp4")))
    with pytest.raises(IngestError, match=rf"'{Q}.weight.quant_state.bitsandbytes__fp4' is missing"):
        load_model(ModelSource(str(path), tmp_path))


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
        evaluate_rows(load_model(ModelSource(str(path), tmp_path), files=files).weights[f"{Q}.weight"], 0, 4, files)


def test_fp8_that_is_no_number_is_found(coded, tmp_path):
    import torch

    path = coded("fp8-dynamic", put(f"{Q}.weight", lambda t: torch.full_like(t.float(), float("nan")).to(t.dtype)))
    with SourceFiles() as files, pytest.raises(IngestError, match="contains NaN or infinity"):
        evaluate_rows(load_model(ModelSource(str(path), tmp_path), files=files).weights[f"{Q}.weight"], 0, 4, files)


def q_proj(path, tmp_path):
    with SourceFiles() as files:
        weight = load_model(ModelSource(str(path), tmp_path), files=files).weights[f"{Q}.weight"]
        tracemalloc.start()
        try:
            return evaluate_rows(weight, 0, 64, files), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


ATTENTION = "model.layers.0.self_attn"
BESIDE = [
    *("k_scale", "v_scale", "q_scale", "kv_scale", "k_zero_point", "k_proj.output_scale", "q_proj.input_zero_point"),
    *("v_proj.activation_scale", "v_proj.input_scale_ub", "o_proj.input_global_scale"),
]


@pytest.mark.parametrize("case", ["fp8-b128", "w8a8", "fp8-dynamic", "w4a16"])
def test_scales_of_activations_and_of_the_cache_are_left_out(case, coded, tmp_path):
    import torch

    def change(tensors, config):
        tensors.update({f"{ATTENTION}.{name}": torch.ones(1) for name in BESIDE})

    np.testing.assert_array_equal(q_proj(coded(case, change), tmp_path)[0], q_proj(coded(case), tmp_path)[0])


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in ("w8a8", "w4a16") for d in ("int8", "int64")])
def test_zeros_as_zero_points_of_a_symmetric_matrix_are_none(case, dtype, coded, tmp_path):
    import torch

    def change(tensors, config):
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            shape = tensors[name].shape
            tensors[name.replace("_scale", "_zero_point")] = torch.zeros(shape, dtype=getattr(torch, dtype))

    with SourceFiles() as files:
        weight = load_model(ModelSource(str(coded(case, change)), tmp_path), files=files).weights[f"{Q}.weight"]
        assert (kept := kept_scheme(weight)) is not None and kept.name == {"w8a8": "int8"}.get(case, "int4-g32-asym")
        found = evaluate_rows(weight, 0, 64, files)
    np.testing.assert_array_equal(found, q_proj(coded(case), tmp_path)[0])


def test_packed_middles_as_zero_points_of_a_symmetric_matrix_are_what_it_has(coded, tmp_path):
    import torch

    def change(tensors, config):
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            rows, groups = tensors[name].shape
            words = torch.full((-(-rows // 8), groups), 0x88888888 - (1 << 32), dtype=torch.int32)
            tensors[name.replace("_scale", "_zero_point")] = words

    np.testing.assert_array_equal(q_proj(coded("w4a16", change), tmp_path)[0], q_proj(coded("w4a16"), tmp_path)[0])


def test_a_scale_of_a_matrix_beside_groups_of_blocks(coded, tmp_path):
    """Where a matrix is no larger than a block, its one scale fits both."""

    def change(tensors, config):
        blocks = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
        groups = config["config_groups"]
        groups.update(group_1=groups["group_0"], group_0={"targets": ["Linear"], "weights": blocks})

    found = q_proj(coded("fp8-tensor", change), tmp_path)[0]
    np.testing.assert_array_equal(found, q_proj(coded("fp8-tensor"), tmp_path)[0])


def test_a_block_is_also_a_text(coded, tmp_path):
    def change(as_text):
        def changed(tensors, config):
            _weights(config).update(strategy="block", block_structure="128x128" if as_text else [128, 128])
            for name in [name for name in tensors if name.endswith(".weight_scale")]:
                tensors[name] = tensors[name][:1].reshape(1, 1).clone()

        return changed

    found = [q_proj(coded("fp8-dynamic", change(as_text)), tmp_path)[0] for as_text in (True, False)]
    np.testing.assert_array_equal(*found)
    path = coded("fp8-dynamic", lambda t, c: _weights(c).update(block_structure="128"))
    with pytest.raises(IngestError, match="block_structure"):
        load_model(ModelSource(str(path), tmp_path))


def _blocks_of(rows):
    def change(tensors, config):
        config["weight_block_size"] = [rows, 24]
        for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
            tensors[name] = tensors[name][:1].contiguous()

    return change


def _one_block(size):
    def change(tensors, config):
        tensors[STATE] = stated(tensors[STATE], blocksize=size)
        tensors[f"{Q}.weight.absmax"] = tensors[f"{Q}.weight.absmax"][:1].clone()

    return change


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("fp8-block", _blocks_of),
        ("nf4", _one_block),
        ("nf4-nested", lambda size: put(STATE, lambda state: stated(state, nested_blocksize=size))),
    ],
)
def test_blocks_of_any_size_take_no_more_than_the_matrix(case, change, coded, tmp_path):
    """What lies behind a matrix' end is not made: a block of 64 rows or 4,096 codes is the whole of this one."""
    wanted, _ = q_proj(coded(case, change(4096)), tmp_path)
    found, peak_bytes = q_proj(coded(case, change(10**9)), tmp_path)
    np.testing.assert_array_equal(found, wanted)
    assert peak_bytes < 1 << 20


def test_the_newer_name_of_a_checkpoint_format_counts(coded, tmp_path):
    def rename(tensors, config):
        config["format"] = config.pop("checkpoint_format")

    np.testing.assert_array_equal(
        q_proj(coded("gptq-v2", rename), tmp_path)[0], q_proj(coded("gptq-v2"), tmp_path)[0]
    )


def test_transforms_that_are_in_the_weights_are_no_matter(coded, tmp_path):
    path = coded("w4a16", setting(transform_config=rotated("weight_output")))
    np.testing.assert_array_equal(q_proj(path, tmp_path)[0], q_proj(coded("w4a16"), tmp_path)[0])


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "float32", "int8"])
def test_codes_under_another_type_are_the_same_bytes(storage, coded, tmp_path):
    """bnb_4bit_quant_storage, which FSDP needs."""
    import torch

    path = coded("nf4", put(f"{Q}.weight", lambda t: t.reshape(-1).view(getattr(torch, storage))[:, None]))
    np.testing.assert_array_equal(q_proj(path, tmp_path)[0], q_proj(coded("nf4"), tmp_path)[0])


def _groups_of_32(factor):
    def change(tensors, config):
        _weights(config).update(strategy="group", group_size=32)
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            groups = tensors[name.removesuffix("_scale")].shape[1] // 32
            tensors[name] = (tensors[name] * (factor if name.startswith(Q) else 1)).repeat(1, groups)

    return change


@pytest.mark.parametrize(("factor", "is_kept"), [(1e-2, True), (2.0**-14, False), (1e-9, False), (1e-30, False)])
@pytest.mark.parametrize("case", ["w4a16", "w8-g32"])
def test_scales_that_f16_would_round_too_far_are_refused(case, factor, is_kept, coded, tmp_path):
    path = coded("w4a16", put(f"{Q}.weight_scale", lambda t: t * factor))
    if case == "w8-g32":
        path = coded("w8a8", _groups_of_32(factor))
    with SourceFiles() as files:
        weight = load_model(ModelSource(str(path), tmp_path), files=files).weights[f"{Q}.weight"]
        scheme = kept_scheme(weight)
        assert scheme is not None
        assert scheme.name in ("int4-g32-asym", "int8-g32")
        if not is_kept:
            with pytest.raises(QuantizeError, match=r"weight_scale: its largest .* expected at least 6.1e-05"):
                evaluate_stored(Stored(weight, scheme), 0, 64, files)
            return
        stored = evaluate_stored(Stored(weight, scheme), 0, 64, files)
        zero = 128 if stored.zero is None else stored.zero.astype(np.float32).repeat(32, 1)
        found = (stored.codes.astype(np.float32) - zero) * stored.scale.astype(np.float32).repeat(32, 1)
        np.testing.assert_allclose(found, evaluate_rows(weight, 0, 64, files), rtol=2.0**-11)


def test_a_small_scale_beside_larger_ones_is_kept(coded, tmp_path):
    """Rows that hardly count, as unused ones, are no reason to refuse a matrix."""

    def shrink(tensors, config):
        tensors[f"{Q}.weight_scale"][3:5] *= 1e-9

    with SourceFiles() as files:
        module = load_model(ModelSource(str(coded("w4a16", shrink)), tmp_path), files=files)
        stored = Stored(module.weights[f"{Q}.weight"], Int4Group(32, symmetric=False))
        for start, stop in ((0, 64), (3, 5)):
            assert evaluate_stored(stored, start, stop, files).scale.shape == (stop - start, 2)


def _filled(value):
    def fill(tensor):
        import torch

        return torch.full(tensor.shape, value, dtype=torch.uint8).view(tensor.dtype)

    return fill


@pytest.mark.parametrize(
    ("case", "name", "make", "words"),
    [
        ("nvfp4", "weight_scale", _filled(0x7F), "contains NaN, expected finite scales"),
        ("mxfp4", "weight_scale", _filled(0xFF), "contains NaN, expected finite scales"),
        ("nvfp4", "weight_global_scale", lambda t: t * 0, "is 0, expected a scale"),
        ("nvfp4", "weight_global_scale", lambda t: t * float("inf"), "contains NaN or infinity"),
        ("bitnet", "weight", _filled(0xC0), "contains the code 3, expected 0, 1 and 2"),
        ("bitnet", "weight_scale", lambda t: t * float("nan"), "contains NaN or infinity"),
        ("bitnet", "weight_scale", lambda t: t * 0, "is 0, expected a scale"),
        ("bitnet", "weight_scale", lambda t: t * 0 + 1e-40, "beyond f32|NaN or infinity"),
        ("nvfp4", "weight_global_scale", lambda t: t * 0 + 1e-39, "beyond f32|NaN or infinity"),
        ("mxfp4", "weight_scale", _filled(254), "beyond f32|NaN or infinity"),
        ("bitnet-online", "weight", lambda t: t * float("nan"), "contains NaN or infinity"),
    ],
)
def test_codes_and_scales_that_stand_for_nothing_are_found(case, name, make, words, coded, tmp_path):
    path = coded(case, put(f"{Q}.{name}", make))
    with SourceFiles() as files:
        weight = load_model(ModelSource(str(path), tmp_path), files=files).weights[f"{Q}.weight"]
        with pytest.raises(IngestError, match=words):
            evaluate_rows(weight, 44, 60, files)
        with pytest.raises(IngestError, match=words):
            evaluate_stored(Stored(weight, kept_scheme(weight)), 44, 60, files)


def test_modules_that_are_named_stay_numbers(coded, tmp_path):
    path = coded("bitnet-online", setting(modules_to_not_convert=["down_proj", "model.layers.0.self_attn"]))
    weights = load_model(ModelSource(str(path), tmp_path)).weights
    kept = {name for name, weight in weights.items() if isinstance(weight, TernaryCodes)}
    assert not any("down_proj" in name or "layers.0.self_attn" in name for name in kept)
    assert {"model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"} <= kept


def test_a_module_of_numbers_beside_packed_ones_has_to_be_named(coded, tmp_path):
    """transformers has no packed weights of it, and refuses the folder unless the module is kept."""
    import torch

    def unpack(kept):
        def change(tensors, config):
            del tensors[f"{Q}.weight_scale"]
            tensors[f"{Q}.weight"] = torch.ones(64, 64)
            config["modules_to_not_convert"] = kept

        return change

    with pytest.raises(IngestError, match=rf"'{Q}.weight' is stored as f32 \[64, 64\], expected packed weights"):
        load_model(ModelSource(str(coded("bitnet", unpack(None))), tmp_path))
    path = coded("bitnet", unpack(["lm_head", "layers.0.self_attn.q_proj"]))
    weights = load_model(ModelSource(str(path), tmp_path)).weights
    assert not isinstance(weights[f"{Q}.weight"], TernaryCodes)
    assert isinstance(weights[Q.replace("q_proj", "k_proj") + ".weight"], TernaryCodes)


PATTERNS = [
    "q_proj", "proj", "head", "", "model", "model.", "mod", "model.layers.1", "model.layers.*", "model.layers.*.mlp",
    "layers", "model\\.layers\\.[0]\\..*",
    "model.layers.*.mlp.gate", "k_proj|v_proj", "(.*)k_proj|.*v_proj", "x?",
    ".*attn", ".*s.", "m.*0",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_module_is_kept_where_transformers_keeps_it(pattern):
    """As its `should_convert_module` says."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    parts = Parts("checkpoint", None, {})
    modules = ["lm_head", "model.embed_tokens"]
    for layer in (0, 1, 10):
        modules += [f"model.layers.{layer}.self_attn.{name}_proj" for name in "qkvo"]
        modules += [f"model.layers.{layer}.mlp.{name}_proj" for name in ("gate", "up", "down")]
    for module in modules:
        assert _is_kept(module, (pattern,), parts) is not should_convert_module(module, [pattern]), module
        assert _is_kept(module, ("nothing", pattern), parts) is not should_convert_module(module, ["nothing", pattern])
    assert [module for module in modules if _is_kept(module, None, parts)] == ["lm_head"]


@pytest.mark.parametrize(
    ("kept", "config", "words"),
    [
        (["lm_head", "*"], {}, r"modules_to_not_convert\[1\] is '\*': nothing to repeat.*expected a name or a regular"),
        ([], {"tie_word_embeddings": True}, "modules_to_not_convert has not lm_head, so that its weights are rounded"),
    ],
)
def test_lists_of_kept_modules_that_are_refused(kept, config, words, tiny_checkpoint, tmp_path):
    quantized_copy(tiny_checkpoint("bitnet", **config), "bitnet-online", tmp_path / "coded")
    document = json.loads((tmp_path / "coded" / "config.json").read_text())
    document["quantization_config"]["modules_to_not_convert"] = kept
    (tmp_path / "coded" / "config.json").write_text(json.dumps(document))
    with pytest.raises(IngestError, match=words):
        load_model(ModelSource(str(tmp_path / "coded"), tmp_path))


def test_inputs_that_blocks_do_not_divide_become_numbers(tiny_checkpoint, tmp_path):
    """No kernel takes 48 inputs: what the codes stand for is rounded anew, or stored as bf16."""
    values = quantized_copy(tiny_checkpoint("llama", tokenizer=False, hidden_size=48), "nvfp4", tmp_path / "coded")
    with SourceFiles() as files:
        weight = load_model(ModelSource(str(tmp_path / "coded"), tmp_path), files=files).weights[f"{Q}.weight"]
        assert kept_scheme(weight) is None
        np.testing.assert_allclose(evaluate_rows(weight, 0, 48, files), values[f"{Q}.weight"], rtol=2e-7)


def test_order_of_activations_is_not_kept(coded, tmp_path):
    """Groups that are not in order have no kernel: the codes are rounded anew."""
    module = load_model(ModelSource(str(coded("gptq-act-order")), tmp_path))
    assert kept_scheme(module.weights[f"{Q}.weight"]) is None


def test_a_quantized_checkpoint_is_proposed_as_it_is(coded, tmp_path):
    proposal = propose(str(coded("awq")), tmp_path)
    assert proposal.scheme == "none"
    assert "quantized" in proposal.reason
