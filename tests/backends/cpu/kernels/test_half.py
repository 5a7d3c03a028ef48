"""f16 conversions on an x86 without F16C: every half, and floats around every rounding boundary."""

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest

from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.translation_units import headers
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.host.cache_folder import cache_directory

SOURCE = """
#include "pyc_half.h"
void widen(const _Float16 *from, float *to, int n) { for (int i = 0; i < n; i++) to[i] = from[i]; }
void narrow(const float *from, _Float16 *to, int n) { for (int i = 0; i < n; i++) to[i] = (_Float16)from[i]; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if platform.machine() != "x86_64":
        pytest.skip("these functions exist for x86 only")
    toolchain, isa = Toolchain(cache_directory()), ISAS["x86-64"]
    linked = toolchain.link_shared((toolchain.compile_object(SOURCE, isa, headers()),), isa, "half.so")
    path: Path = tmp_path_factory.mktemp("half") / "half.so"
    path.write_bytes(linked)
    assert b"__extendhfsf2" not in linked  # hidden: no other library meets them
    return ctypes.CDLL(str(path))


def test_every_half_widens_exactly(library: ctypes.CDLL) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide = np.empty(65536, np.float32)
    library.widen(ctypes.c_void_p(halves.ctypes.data), ctypes.c_void_p(wide.ctypes.data), 65536)
    number = ~np.isnan(halves)
    np.testing.assert_array_equal(wide[number].view(np.uint32), halves[number].astype(np.float32).view(np.uint32))
    assert np.isnan(wide[~number]).all()


def test_floats_round_to_nearest_even(library: ctypes.CDLL) -> None:
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (finite[:-1] + finite[1:]) / 2
    edges = [finite, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))]
    special = np.array([65519.99, 65520, 65536, 1e38, np.inf, np.nan, 1e-30, 1e-45], np.float32)
    values = np.concatenate([*edges, special, *[-edge for edge in edges], -special])
    halves = np.empty(values.size, np.float16)
    library.narrow(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(halves.ctypes.data), values.size)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(halves[number].view(np.uint16), expected[number].view(np.uint16))
    assert np.isnan(halves[~number]).all()
