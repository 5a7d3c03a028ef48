"""Compiled packing against numpy, byte for byte, on every instruction set that this machine runs."""

import platform

import numpy as np
import pytest

from pyc.backends.cpu import panel_packer
from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import store_panels
from pyc.backends.cpu.panel_packer import PanelPacker
from pyc.compiler.files.cache import Cache
from pyc.compiler.schemes import SCHEMES
from pyc.runtime.errors import QuantizeError
from pyc.runtime.executors.cpu.features import cpu_features

LOOKUP = ("lut5-g32", "lut5-g128", "lut4-g32", "lut4-g128", "lut3-g32", "lut2-g32", "int3-g32", "int2-g128")
COMPILED = ("int4-g32", "int4-g64", "int4-g128", *LOOKUP)
OWN = [isa for isa in ISAS.values() if isa.arch == platform.machine() and set(isa.features) <= cpu_features()]


def rows(count: int, inputs: int) -> np.ndarray:
    """Groups of all sizes, zeros, ties and outliers."""
    rng = np.random.default_rng([count, inputs])
    size = np.exp2(rng.integers(-40, 12, (count, inputs // 32))).repeat(32, axis=1)
    w = (rng.standard_normal((count, inputs)) * size).astype(np.float32)
    w[0, :64] = 0
    w[-1] = np.round(rng.uniform(-9, 9, inputs)) / 2
    w[count // 2, ::17] *= 30
    return w


@pytest.fixture(scope="module", params=OWN, ids=lambda isa: isa.name)
def packer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PanelPacker:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel_packer, "host_isa", lambda: request.param)
        made = PanelPacker(Cache(tmp_path_factory.mktemp("cache")))
        for name in ("int4-g32", "lut4-g32"):
            made(np.ones((1, 32), np.float32), panel_layout(SCHEMES[name], 32))
        return made


@pytest.mark.parametrize("scheme", COMPILED)
@pytest.mark.parametrize("shape", [(1, 128), (16, 256), (37, 384), (130, 1024)], ids=str)
def test_bytes_are_those_of_numpy(packer: PanelPacker, scheme: str, shape: tuple[int, int]) -> None:
    w, layout = rows(*shape), panel_layout(SCHEMES[scheme], shape[1])
    np.testing.assert_array_equal(packer(w, layout), store_panels(w, layout))


@pytest.mark.parametrize("scheme", ["int8", "int8-g32", "int4-g32-asym"])
def test_other_schemes_are_left_to_numpy(packer: PanelPacker, scheme: str) -> None:
    w, layout = rows(18, 128), panel_layout(SCHEMES[scheme], 128)
    np.testing.assert_array_equal(packer(w, layout), store_panels(w, layout))


@pytest.mark.parametrize(("bad", "message"), [(np.nan, "NaN"), (-np.inf, "infinity"), (3e38, "beyond f16")])
@pytest.mark.parametrize("scheme", ["int4-g32", "lut3-g32"])
def test_faults_are_refused_by_name(packer: PanelPacker, scheme: str, bad: float, message: str) -> None:
    w = rows(18, 128)
    w[17, 100] = bad
    with pytest.raises(QuantizeError, match=message):
        packer(w, panel_layout(SCHEMES[scheme], 128))


def test_a_machine_without_a_known_instruction_set_uses_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_packer, "host_isa", lambda: None)
    w, layout = rows(18, 128), panel_layout(SCHEMES["int4-g32"], 128)
    np.testing.assert_array_equal(PanelPacker(Cache(None))(w, layout), store_panels(w, layout))


def test_code_comes_from_the_cache_the_second_time(tmp_path) -> None:
    w, layout = rows(18, 128), panel_layout(SCHEMES["int4-g32"], 128)
    PanelPacker(Cache(tmp_path))(w, layout)
    again = Cache(tmp_path)
    PanelPacker(again)(w, layout)
    assert (again.hits, again.misses) == (1, 0)
