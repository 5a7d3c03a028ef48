"""fp8 checkpoints as DeepSeek and Qwen publish them: weights f8 and a scale for each block of 128 x 128.

`weight_scale_inv` [ceil(N / rows), ceil(K / columns)] multiplies, whatever its name says. FBGEMM's have
`weight_scale`, one for each row. Scales of activations are not used.
"""

from __future__ import annotations

from msgspec import Struct

from pyc.compiler.codes import Float8Codes
from pyc.compiler.sources import Source
from pyc.models.quantized.parts import SCALES, Parts, Size
from pyc.runtime.host.rounding import ceil_div

_INVERSE, _SCALE = "weight_scale_inv", "weight_scale"
_FLOAT8 = ("f8_e4m3", "f8_e5m2")


class Fp8Settings(Struct, frozen=True):
    """quantization_config of fp8 and fbgemm_fp8."""

    weight_block_size: tuple[Size, Size] | None = None


def read_fp8(raw: object, parts: Parts) -> None:
    """Take every module whose weight is fp8. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, Fp8Settings)
    usual = _INVERSE if given.weight_block_size is not None or parts.modules(_INVERSE) else _SCALE
    coded = [name for name, source in parts.left.items() if source.dtype in _FLOAT8 and name.endswith(".weight")]
    for name in coded:
        module = name.removesuffix(".weight")
        codes = parts.take(name, _FLOAT8)
        kind = next((kind for kind in (_INVERSE, _SCALE) if f"{module}.{kind}" in parts.left), usual)
        scales = parts.take(f"{module}.{kind}", SCALES)
        parts.add(name, float8(codes, scales, given.weight_block_size, parts))
    parts.drop_activations()


def float8(codes: Source, scales: Source, block: tuple[int, int] | None, parts: Parts) -> Float8Codes:
    """Return fp8 codes with a scale for each block of `block` rows and columns; where that is None, for each row or the
    matrix."""
    if len(codes.shape) != 2:
        raise parts.wrong(codes, f"has shape {list(codes.shape)}, expected two dimensions")
    outputs, inputs = codes.shape
    if block is not None and min(block) > 0:
        blocks = (ceil_div(outputs, block[0]), ceil_div(inputs, block[1]))
        if scales.shape == blocks:
            return Float8Codes(codes, scales, block, (outputs, inputs))
        what = f"has shape {list(scales.shape)}, expected {list(blocks)} blocks of {list(block)}"
        raise parts.wrong(scales, what)
    if scales.shape in ((), (1,), (1, 1)):
        return Float8Codes(codes, scales, (outputs, inputs), (outputs, inputs))
    if scales.shape in ((outputs,), (outputs, 1)):
        return Float8Codes(codes, scales, (1, inputs), (outputs, inputs))
    what = f"has shape {list(scales.shape)}, expected one scale, one for each of {outputs} rows, or a weight_block_size"
    raise parts.wrong(scales, f"{what} in config.json")
