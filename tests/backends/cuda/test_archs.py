"""The GPUs that programs are compiled for; tests/runtime/executors/cuda/test_choice.py says which GPU takes which."""

import pytest

from pyc.backends.cuda.archs import find_arch
from pyc.runtime.errors import LowerError


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(LowerError, match=r"unknown GPU architecture 'sm_90'; did you mean 'sm_90a'\? \(known: sm_80, "):
        find_arch("sm_90")
