"""Puts weights in the place of their parts, in a checkpoint that says that it is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
from msgspec import Struct

from pyc.models.checkpoint import Checkpoint
from pyc.models.messages import quoted
from pyc.models.quantized.bitnet import read_bitnet
from pyc.models.quantized.bitsandbytes import read_bitsandbytes
from pyc.models.quantized.compressed_tensors import read_compressed
from pyc.models.quantized.fp8 import read_fp8
from pyc.models.quantized.gptq import read_awq, read_gptq
from pyc.models.quantized.parts import Parts
from pyc.models.quantized.settings_file import settings_from_file
from pyc.runtime.errors import IngestError

METHODS: Mapping[str, Callable[[object, Parts], None]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fp8,
    "bitsandbytes": read_bitsandbytes,
    "bitnet": read_bitnet,
}
"""Readers by `quant_method`."""


class _Method(Struct, frozen=True):
    quant_method: str = ""


def with_weights(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a weight for each group of tensors that stand for one.

    Raises IngestError for a method that is not read, and for parts that are missing or do not fit together.
    """
    parts = Parts(checkpoint.label, checkpoint.directory.files, checkpoint.stored)
    raw = checkpoint.config.quantization_config
    _refuse_mlx(checkpoint, parts)
    if raw is None:
        found = settings_from_file(checkpoint)
        if found is None:
            return checkpoint
        name, raw = found
        parts.place = f"{name}: "
        checkpoint = replace(checkpoint, weight_files=(*checkpoint.weight_files, name))
    method = parts.settings(raw, _Method).quant_method
    reader = METHODS.get(method)
    if reader is None:
        remedy = "give a checkpoint that is quantized by one of these, or unquantized"
        if not method:
            remedy = "if the weights are not quantized, as beside a leftover of a trainer, remove quantization_config"
        raise IngestError(
            f"{checkpoint.label}: {parts.place}quant_method is {quoted(method)}, expected one of "
            f"{', '.join(METHODS)}; {remedy}"
        )
    reader(raw, parts)
    return replace(checkpoint, tensors={**parts.left, **parts.made})


def _refuse_mlx(checkpoint: Checkpoint, parts: Parts) -> None:
    """Raise IngestError for a checkpoint that MLX quantized: codes are u32 under the weight's own name, with scales
    beside them, and config.json has no quant_method."""
    for name, source in checkpoint.stored.items():
        if name.endswith(".weight") and source.dtype == "u32":
            scales = f"{name.removesuffix('.weight')}.scales"
            if scales in checkpoint.tensors:
                raise IngestError(
                    f"{checkpoint.label}: {parts.place}tensor {quoted(name)} has codes of MLX, with {quoted(scales)}, "
                    "which are not read; give the model that MLX's was made of, unquantized or quantized by one of "
                    f"{', '.join(METHODS)}"
                )


def without_method(config: bytes) -> bytes:
    """Return config.json as exports need it, whose weights are numbers: without quantization_config."""
    document = msgspec.json.decode(config)
    if "quantization_config" not in document:
        return config
    del document["quantization_config"]
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
