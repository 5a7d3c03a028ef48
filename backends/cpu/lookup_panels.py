"""Codes of lookup tables in panels (`layouts`): their bits, and whether the entries of a group are shifted."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import Layout
from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.quantization import BLOCK
from pyc.compiler.scales import Bytes
from pyc.compiler.schemes import LookupGroup

_SHIFTED = 6
"""The bit of a group's scale that says whether its entries are shifted."""

_WORDS = BLOCK // 4
"""Words of four codes in a block."""


def pack_lookup(codes: NDArray[np.generic], layout: Layout, out: Bytes) -> None:
    """Write codes [panels, 16, K] (`Codebook.values`) to panels whose scales are there."""
    assert isinstance(layout.scheme, LookupGroup)
    bits, panels = CODEBOOKS[layout.scheme.codebook].bits, len(out)
    bytes_of_codes = codes.astype(np.uint8, copy=False)
    if layout.scheme.scales == "short":
        assert layout.scales is not None
        shifted = bytes_of_codes[:, :, :: layout.scheme.group_size] >> np.uint8(bits)
        scales = cast(Bytes, layout.scales.view(out))
        scales |= (shifted << np.uint8(_SHIFTED)).swapaxes(1, 2)
    entries = np.ascontiguousarray(bytes_of_codes & np.uint8((1 << bits) - 1))
    words = entries.view(np.uint32).reshape(panels, LANES, -1, _WORDS)
    packed = np.zeros((panels, LANES, words.shape[2], bits), np.uint32)
    for j in range(_WORDS):
        for step, first, shift in _places(bits, j):
            packed[..., step] |= (words[..., j] >> np.uint32(first) & _low_bits(bits, first)) << np.uint32(shift)
    data = packed.reshape(panels, LANES, -1).swapaxes(1, 2)
    layout.data.view(out)[...] = np.ascontiguousarray(data).view(np.uint8).reshape(panels, *layout.data.shape)


def lookup_values(panels: Bytes, layout: Layout) -> NDArray[np.float32]:
    """Return the entries [panels, 16, K] that codes of panels stand for."""
    assert isinstance(layout.scheme, LookupGroup)
    codebook, count = CODEBOOKS[layout.scheme.codebook], len(panels)
    data = np.ascontiguousarray(cast(Bytes, layout.data.view(panels))).view(np.uint32)
    steps = data.reshape(count, -1, codebook.bits, LANES)
    words = np.zeros((count, steps.shape[1], _WORDS, LANES), np.uint32)
    for j in range(_WORDS):
        for step, first, shift in _places(codebook.bits, j):
            run = steps[:, :, step] >> np.uint32(shift) & _low_bits(codebook.bits, first)
            words[:, :, j] |= run << np.uint32(first)
    by_row = np.ascontiguousarray(np.moveaxis(words, 3, 1))
    entries = by_row.view(np.uint8).reshape(count, LANES, -1)
    if layout.scheme.scales != "short":
        return codebook.values[entries]
    assert layout.scales is not None
    tables = cast(Bytes, layout.scales.view(panels)).swapaxes(1, 2) >> np.uint8(_SHIFTED) & np.uint8(1)
    wide = np.repeat(tables, layout.scheme.group_size, axis=2)
    return codebook.values[entries | wide << np.uint8(codebook.bits)]


def _places(bits: int, j: int) -> tuple[tuple[int, int, int], ...]:
    """Return where codes 4 j to 4 j + 3 lie: for runs of their bits the word, the run's first bit, its shift there."""
    if bits >= 4:
        nibble = (j % 4, 0, j // 4 * 4)
        return (nibble,) if bits == 4 else (nibble, (4, 4, j))
    low = (j % 2, 0, j // 2 * 2)
    return (low,) if bits == 2 else (low, (2, 2, j))


def _low_bits(bits: int, first: int) -> np.uint32:
    """Return a mask of each byte's lowest bits, as many as the run of bits from `first` on has."""
    length = 1 if first else {3: 2, 5: 4}.get(bits, bits)
    return np.uint32(((1 << length) - 1) * 0x01010101)
