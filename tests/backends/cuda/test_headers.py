"""Headers of kernels, all in one program, as a program with every kernel includes them: their names are unique."""

import pytest
from cuda_emulation import compile_emulated

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.toolchain.nvrtc import compile_kernels, headers, program_text

KERNEL = "extern \"C\" __global__ void __launch_bounds__(32) nothing(float* __restrict__ x) { x[threadIdx.x] = 0; }\n"


@pytest.mark.parametrize("order", [1, -1])
def test_all_headers_go_together_in_any_order(order):
    source = "".join(f'#include "{name}"\n' for name in sorted(headers())[::order]) + KERNEL
    assert compile_kernels([source], find_arch("sm_80"))
    assert compile_emulated(program_text([source]))
