"""The GPUs that programs are compiled for: which device takes which program."""

import pytest

from pyc.backends.cuda.archs import ARCHS, find_arch
from pyc.runtime.errors import LowerError

DEVICES = {
    (7, 5): [],
    (8, 0): ["sm_80"],
    (8, 6): ["sm_80"],
    (8, 9): ["sm_80", "sm_89"],
    (9, 0): ["sm_90a"],
    (10, 0): ["sm_100a", "compute_100"],
    (10, 3): ["compute_100"],
    (12, 0): ["compute_100", "sm_120"],
    (12, 1): ["compute_100", "sm_120"],
    (13, 0): ["compute_100"],
}


@pytest.mark.parametrize("capability", DEVICES)
def test_what_runs_on_a_device(capability: tuple[int, int]) -> None:
    assert [arch.name for arch in ARCHS.values() if arch.runs_on(capability)] == DEVICES[capability]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(LowerError, match=r"unknown GPU architecture 'sm_90'; did you mean 'sm_90a'\? \(known: sm_80, "):
        find_arch("sm_90")
