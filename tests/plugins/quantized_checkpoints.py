"""Small checkpoints as quantizers write them, packed here by the formats' own definitions, and what they stand for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

Tensors = dict[str, "object"]
GROUP = 32


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [rows, n] as i32 [rows, ceil(n bits / 32)], the first in the lowest bits."""
    per = 32 // bits
    padded = np.zeros((len(codes), -(-codes.shape[1] // per) * per), np.uint64)
    padded[:, : codes.shape[1]] = codes
    found = np.zeros((len(codes), padded.shape[1] // per), np.uint64)
    for place in range(per):
        found |= padded[:, place::per] << np.uint64(bits * place)
    return found.astype(np.uint32).view(np.int32)


def asymmetric(w: np.ndarray, bits: int, group: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [N, K], scales [N, groups] (numbers of `dtype`) and zero points of a matrix."""
    import torch

    grouped = w.reshape(len(w), -1, group)
    low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
    top = (1 << bits) - 1
    scale = torch.from_numpy((high - low) / top).to(getattr(torch, dtype)).double().numpy()
    zero = np.clip(np.rint(-low / scale), 1, top)
    codes = np.clip(np.rint(grouped / scale[..., None]) + zero[..., None], 0, top)
    return codes.reshape(w.shape).astype(np.int64), scale, zero.astype(np.int64)


def symmetric(w: np.ndarray, bits: int, group: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, K] with signs and scales [N, groups] (numbers of `dtype`)."""
    import torch

    grouped = w.reshape(len(w), -1, group)
    half = 1 << bits - 1
    scale = torch.from_numpy(np.abs(grouped).max(2) / (half - 0.5)).to(getattr(torch, dtype)).double().numpy()
    codes = np.clip(np.rint(grouped / scale[..., None]), -half, half - 1)
    return codes.reshape(w.shape).astype(np.int64), scale


def _tensor(values: np.ndarray, dtype: str) -> object:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype)).contiguous()


def gptq(
    name: str, w: np.ndarray, *, bits: int = 4, act_order: bool = False, v2: bool = False
) -> tuple[Tensors, np.ndarray]:
    order = np.random.default_rng(1).permutation(w.shape[1]) if act_order else np.arange(w.shape[1])
    codes, scale, zero = asymmetric(w[:, order], bits, GROUP, "float16")
    groups = np.empty(w.shape[1], np.int64)
    groups[order] = np.arange(w.shape[1]) // GROUP
    placed = np.empty_like(codes)
    placed[:, order] = codes
    tensors = {
        f"{name}.qweight": _tensor(words(placed, bits).T, "int32"),
        f"{name}.qzeros": _tensor(words(zero.T - (0 if v2 else 1), bits), "int32"),
        f"{name}.scales": _tensor(scale.T, "float16"),
        f"{name}.g_idx": _tensor(groups, "int32"),
    }
    return tensors, (placed - zero[:, groups]) * scale[:, groups]


def awq(name: str, w: np.ndarray) -> tuple[Tensors, np.ndarray]:
    codes, scale, zero = asymmetric(w, 4, GROUP, "float16")

    def packed(values: np.ndarray) -> object:
        by_word = values.reshape(len(values), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return _tensor(words(by_word.reshape(len(values), -1), 4), "int32")

    tensors = {
        f"{name}.qweight": packed(codes.T),
        f"{name}.qzeros": packed(zero.T),
        f"{name}.scales": _tensor(scale.T, "float16"),
    }
    return tensors, (codes - zero.repeat(GROUP, 1)) * scale.repeat(GROUP, 1)


def packed(
    name: str, w: np.ndarray, *, bits: int = 4, group: int = GROUP, zeros: bool = False, dtype: str = "bfloat16"
) -> tuple[Tensors, np.ndarray]:
    group = group or w.shape[1]
    half = 1 << bits - 1
    shape = _tensor(np.array(w.shape), "int64")
    if zeros:
        codes, scale, zero = asymmetric(w, bits, group, dtype)
        more = {f"{name}.weight_zero_point": _tensor(words(zero.T, bits).T, "int32")}
    else:
        codes, scale = symmetric(w, bits, group, dtype)
        codes, zero, more = codes + half, np.full(scale.shape, half), {}
    tensors = {
        f"{name}.weight_packed": _tensor(words(codes, bits), "int32"),
        f"{name}.weight_scale": _tensor(scale, dtype),
        f"{name}.weight_shape": shape,
        **more,
    }
    return tensors, (codes - zero.repeat(group, 1)) * scale.repeat(group, 1)


def int8(name: str, w: np.ndarray) -> tuple[Tensors, np.ndarray]:
    codes, scale = symmetric(w, 8, w.shape[1], "bfloat16")
    tensors = {f"{name}.weight": _tensor(codes, "int8"), f"{name}.weight_scale": _tensor(scale, "bfloat16")}
    return tensors | {f"{name}.input_scale": _tensor(np.ones(1), "float32")}, codes * scale


def fp8(
    name: str, w: np.ndarray, *, block: tuple[int, int] | None = None, whole: bool = False
) -> tuple[Tensors, np.ndarray]:
    import torch

    height, width = block or ((w.shape[0] if whole else 1), w.shape[1])
    rows, columns = -(-w.shape[0] // height), -(-w.shape[1] // width)
    scale = np.empty((rows, columns), np.float32)
    for i in range(rows):
        for j in range(columns):
            part = w[i * height : (i + 1) * height, j * width : (j + 1) * width]
            scale[i, j] = np.abs(part).max() / 448
    spread = scale.repeat(height, 0)[: w.shape[0]].repeat(width, 1)[:, : w.shape[1]]
    codes = torch.from_numpy(w / spread).to(torch.float8_e4m3fn)
    stored = scale.reshape(1) if whole else scale
    tensors = {f"{name}.weight": codes, f"{name}.weight_scale{'_inv' if block else ''}": _tensor(stored, "float32")}
    return tensors, codes.double().numpy() * spread


NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip
"""The table of QLoRA (arXiv:2305.14314, appendix E)."""


def nf4(name: str, w: np.ndarray, *, nested: bool = False) -> tuple[Tensors, np.ndarray]:
    flat = w.reshape(-1)
    blocks = -(-len(flat) // 64)
    padded = np.zeros(blocks * 64)
    padded[: len(flat)] = flat
    absmax = np.abs(padded.reshape(-1, 64)).max(1).astype(np.float32)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(w.shape)}
    tensors: Tensors = {}
    if nested:
        offset = float(absmax.mean())
        outer = np.abs(np.pad(absmax - offset, (0, -blocks % 256)).reshape(-1, 256)).max(1).astype(np.float32)
        table = np.linspace(-1, 1, 256).astype(np.float32)
        codes = np.abs((absmax - offset)[:, None] / outer.repeat(256)[:blocks, None] - table).argmin(1)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors[f"{name}.weight.nested_absmax"] = _tensor(outer, "float32")
        tensors[f"{name}.weight.nested_quant_map"] = _tensor(table, "float32")
        tensors[f"{name}.weight.absmax"] = _tensor(codes, "uint8")
        absmax = (table[codes] * outer.repeat(256)[:blocks] + np.float32(offset)).astype(np.float32)
    else:
        tensors[f"{name}.weight.absmax"] = _tensor(absmax, "float32")
    codes = np.abs(flat[:, None] / absmax.repeat(64)[: len(flat), None] - NF4).argmin(1)
    even = np.pad(codes, (0, len(codes) % 2))
    tensors[f"{name}.weight"] = _tensor((even[0::2] << 4 | even[1::2])[:, None], "uint8")
    tensors[f"{name}.weight.quant_map"] = _tensor(NF4, "float32")
    text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
    tensors[f"{name}.weight.quant_state.bitsandbytes__nf4"] = _tensor(text, "uint8")
    return tensors, (NF4.astype(np.float32)[codes] * absmax.repeat(64)[: len(flat)]).reshape(w.shape)


def llm_int8(name: str, w: np.ndarray) -> tuple[Tensors, np.ndarray]:
    scb = np.abs(w).max(1).astype(np.float32)
    codes = np.rint(w / scb[:, None] * 127)
    tensors = {f"{name}.weight": _tensor(codes, "int8"), f"{name}.SCB": _tensor(scb, "float32")}
    tensors[f"{name}.weight_format"] = _tensor(np.zeros(()), "uint8")
    return tensors, codes * scb[:, None].astype(np.float64) / 127


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fp4(name: str, w: np.ndarray, *, group: int) -> tuple[Tensors, np.ndarray]:
    """nvfp4 (group 16: e4m3 scales and a divisor of them for the matrix) or mxfp4 (32: powers of two)."""
    import torch

    grouped = w.reshape(len(w), -1, group)
    largest = np.maximum(np.abs(grouped).max(2), 1e-30)
    tensors: Tensors = {}
    if group == 16:
        divisor = np.float32(448 * 6 / np.abs(w).max())
        stored = torch.from_numpy(largest / 6 * divisor).to(torch.float8_e4m3fn)
        scale = (stored.float().numpy() / divisor).astype(np.float64)
        tensors[f"{name}.weight_global_scale"] = _tensor(np.array([divisor]), "float32")
    else:
        exponents = np.floor(np.log2(largest)) - 2
        stored, scale = _tensor(exponents + 127, "uint8"), np.exp2(exponents)
    magnitude = np.abs(np.abs(grouped)[..., None] / scale[..., None, None] - E2M1).argmin(3)
    codes = (magnitude | (grouped < 0) * 8).reshape(w.shape)
    tensors[f"{name}.weight_packed"] = _tensor(codes[:, ::2] | codes[:, 1::2] << 4, "uint8")
    tensors[f"{name}.weight_scale"] = stored
    signed = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    return tensors, signed * scale.repeat(group, 1)


def bitnet(name: str, w: np.ndarray, *, multiplies: bool = False, online: bool = False) -> tuple[Tensors, np.ndarray]:
    import torch
    from transformers.integrations.bitnet import pack_weights

    if online:
        stored = torch.from_numpy(w).to(torch.bfloat16)
        inverse = 1.0 / stored.float().abs().mean()
        codes = (stored.float() * inverse).round().clamp(-1, 1)
        return {f"{name}.weight": stored}, codes.double().numpy() * float(1 / inverse)
    scale = torch.tensor([np.abs(w).mean()]).to(torch.bfloat16)
    if not multiplies:
        scale = (1 / scale.float()).to(torch.bfloat16)
    mean = scale.double().item() if multiplies else 1 / scale.double().item()
    codes = np.clip(np.rint(w / mean), -1, 1)
    packed = pack_weights(torch.from_numpy(codes.copy()))
    return {f"{name}.weight": packed, f"{name}.weight_scale": scale}, codes * mean


def _compressed(form: str, **weights: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed", "kv_cache_scheme": None,
    }  # fmt: skip


_BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
Writer = Callable[[str, np.ndarray], tuple[Tensors, np.ndarray]]
CASES: dict[str, tuple[dict[str, object], Writer]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, gptq),
    "gptq-act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        lambda name, w: gptq(name, w, act_order=True),
    ),
    "gptq-v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
        lambda name, w: gptq(name, w, v2=True),
    ),
    "gptq-8": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, lambda name, w: gptq(name, w, bits=8)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq),
    "w4a16": (_compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32), packed),
    "w4a16-asym": (
        _compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
        lambda name, w: packed(name, w, zeros=True, dtype="float16"),
    ),
    "w4a16-channel": (
        _compressed("pack-quantized", num_bits=4, type="int", strategy="channel"),
        lambda name, w: packed(name, w, group=0),
    ),
    "w8a16": (
        _compressed("pack-quantized", num_bits=8, type="int", strategy="channel"),
        lambda name, w: packed(name, w, bits=8, group=0),
    ),
    "w8a8": (_compressed("int-quantized", num_bits=8, type="int", strategy="channel"), int8),
    "fp8-dynamic": (_compressed("float-quantized", num_bits=8, type="float", strategy="channel"), fp8),
    "fp8-tensor": (
        _compressed("naive-quantized", num_bits=8, type="float", strategy="tensor"),
        lambda name, w: fp8(name, w, whole=True),
    ),
    "fp8-block": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [40, 24]},
        lambda name, w: fp8(name, w, block=(40, 24)),
    ),
    "fp8-b128": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        lambda name, w: fp8(name, w, block=(128, 128)),
    ),
    "nvfp4": (
        _compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        lambda name, w: fp4(name, w, group=16),
    ),
    "mxfp4": (
        _compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        lambda name, w: fp4(name, w, group=32),
    ),
    "bitnet": ({"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline"}, bitnet),
    "bitnet-auto": (
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
        lambda name, w: bitnet(name, w, multiplies=True),
    ),
    "bitnet-online": (
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
        lambda name, w: bitnet(name, w, online=True),
    ),
    "nf4": (_BITSANDBYTES, nf4),
    "nf4-nested": (_BITSANDBYTES | {"bnb_4bit_use_double_quant": True}, lambda name, w: nf4(name, w, nested=True)),
    "llm-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8),
}
"""quantization_config and how a matrix is stored, by a name for each way."""


def quantized_copy(checkpoint: Path, case: str, path: Path) -> dict[str, np.ndarray]:
    """Write `checkpoint` quantized into `path`; return what its linear layers stand for, float64 by name."""
    from safetensors.torch import load_file, save_file

    config, write = CASES[case]
    shutil.copytree(checkpoint, path, dirs_exist_ok=True)
    document = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**document, "quantization_config": config}))
    stored, values = {}, {}
    for name, tensor in load_file(path / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            parts, values[name] = write(name.removesuffix(".weight"), tensor.double().numpy())
            stored.update(parts)
        else:
            stored[name] = tensor
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    return values
