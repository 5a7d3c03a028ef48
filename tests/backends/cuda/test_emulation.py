"""The emulated device: it computes what CUDA C++ means, and finds what a kernel must not do."""

import ctypes

import numpy as np
import pytest
from cuda_emulation import CudaError, device, run_kernel

from pyc.backends.cuda.kernels.kernel import Kernel, Lowered, Step

KERNEL = """
extern "C" __global__ void __launch_bounds__(64) %s(const float* __restrict__ x, float* __restrict__ result) {
    __shared__ float kept[2];
    const int t = threadIdx.x, at = blockIdx.x * 64 + t;
    %s
}
"""
GOOD = """
    const float sum = pyc::reduce_block<pyc::Sum, 2>(x[at], kept);
    if (t == 0) result[blockIdx.x] = sum;
"""
BARRIER = "dynamic[t] = x[at]; __syncthreads(); if (t == 0) result[blockIdx.x] = dynamic[63];"
FAULTS = {
    "a read behind an array": ("if (t == 63) result[blockIdx.x] = x[at + 1];", "read of 4 bytes at 768 of an array"),
    "a write before an array": ("result[(int)blockIdx.x - 1] = 0;", "out of bounds: write of 4 bytes"),
    "a read of nothing": ("if (t == 0) result[blockIdx.x] += x[at];", "uninitialized: read of 4 bytes"),
    "shared memory not written": ("if (t == 0) result[blockIdx.x] = kept[1];", "uninitialized: .* static shared"),
    "behind dynamic shared memory": (
        "SHARED_MEMORY(bytes); ((float *)bytes)[t + 1] = 0;",
        "out of bounds: write of 4 bytes at 256 of shared memory",
    ),
    "a missing barrier": (
        "SHARED_MEMORY(bytes); float *dynamic = (float *)bytes; "
        + BARRIER.replace("__syncthreads();", "if (t < 32) __syncwarp();"),
        "a race with a|uninitialized",
    ),
    "a missing barrier in a warp": (
        "SHARED_MEMORY(bytes); float *d = (float *)bytes; d[t] = x[at]; __syncthreads(); d[t ^ 1] += d[t];",
        "a race with a",
    ),
    "two blocks write": ("if (t == 0) result[0] = x[at];", "a race with a write"),
    "a lane that does not come": (
        "if (t < 3) result[t] = __shfl_xor_sync(0xffffffff, x[at], 1);",
        "waits for lanes 0xffffffff of its warp, of which 0x7 arrived",
    ),
    "a lane outside of the mask": ("result[0] = __shfl_xor_sync(0xffff, x[at], 1);", "not in its own mask"),
    "two barriers": ("if (t < 32) __syncthreads();\nelse __syncthreads();", "waits at the barrier of line"),
    "a misaligned vector": ("const float4 v = *(const float4 *)(x + 1); result[blockIdx.x] = v.x;", "misaligned"),
    "an index": ("kept[t] = x[at];", "an index out of bounds"),
    "too much shared memory": ("__syncthreads();", "233472 bytes|attribute 8"),
}


BODIES = {f"sums{index}": body for index, body in enumerate((GOOD, *(body for body, _ in FAULTS.values())))}
SOURCE = '#include "reduce.cuh"\n' + "".join(KERNEL % item for item in BODIES.items())


def run(index, seed=0, shared_bytes=0):
    x = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    kernel = Kernel(f"sums{index}", SOURCE, (3, 1, 1), 64, shared_bytes)
    lowered = Lowered((Step(kernel, ("x", "result")),))
    return run_kernel(lowered, {"x": x}, {"result": ((3,), np.float32)}, seed)["result"], x


@pytest.mark.parametrize("seed", range(3))
def test_a_block_adds_up(seed):
    result, x = run(0, seed)
    # 64 additions of f32
    np.testing.assert_allclose(result, x.astype(np.float64).sum(1), atol=64 * 2.0**-24 * np.abs(x).sum(1).max())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name):
    with pytest.raises(CudaError, match=FAULTS[name][1]):
        run(1 + list(FAULTS).index(name), seed=1, shared_bytes=228 << 10 if "too much" in name else 256)


MATRIX = """#include "dtypes.cuh"
extern "C" __global__ void __launch_bounds__(32) product(
    const unsigned short* __restrict__ a, const unsigned short* __restrict__ b, float* __restrict__ result) {
    SHARED_MEMORY(bytes);
    const int lane = threadIdx.x;
    emulated_cp_async_16(bytes + 16 * lane, a + 8 * lane);
    if (lane < 16) emulated_cp_async_16(bytes + 512 + 16 * lane, b + 8 * lane);
    emulated_cp_async_commit();
    emulated_cp_async_wait(0);
    %s
    unsigned left[4], right[2];
    emulated_ldmatrix_x4(left, bytes + 32 * (lane %% 16) + 16 * (lane / 16));
    emulated_ldmatrix_x2%s(right, bytes + 512 + 16 * (lane %% 16));
    float d[4] = {0, 0, 0, 0};
    emulated_mma_bf16_m16n8k16(d, left, right);
    for (int r = 0; r < 4; r++) result[(lane / 4 + r / 2 * 8) * 8 + lane %% 4 * 2 + r %% 2] = d[r];
}
"""


def multiply(wait="__syncwarp();"):
    """Of a [16, 16] and b [16, 8] in bf16, rows as they are written: b is transposed on its way."""
    a, b = (np.random.default_rng(1).integers(-8, 8, shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
    kernel = Kernel("product", MATRIX % (wait, "_trans"), (1, 1, 1), 32, 768)
    bits = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in (("a", a), ("b", b))}
    made = run_kernel(Lowered((Step(kernel, ("a", "b", "result")),)), bits, {"result": ((16, 8), np.float32)}, seed=2)
    return made["result"], a @ b


def test_matrices_are_copied_loaded_and_multiplied():
    result, expected = multiply()
    np.testing.assert_array_equal(result, expected)


def test_a_copy_that_others_do_not_wait_for_is_found():
    with pytest.raises(CudaError, match=r"a race with a write|uninitialized"):
        multiply(wait="")


@pytest.fixture
def chain():
    """Three arrays, and launches a -> b -> c of one kernel that adds 1."""
    gpu = device()
    source = """
extern "C" __global__ void __launch_bounds__(32) plus(const float* __restrict__ x, float* __restrict__ result) {
    result[threadIdx.x] = x[threadIdx.x] + 1;
}
"""
    kernel = Kernel("plus", source, (1, 1, 1), 32)
    addresses = [gpu.allocate(128) for _ in range(3)]
    gpu.upload(addresses[0], np.zeros(32, np.float32))
    yield gpu, kernel, addresses
    gpu.driver.emulated_reset()
    for address in addresses:
        gpu.free(address)


def launch(gpu, launches, seed=0):
    gpu.configure("seed", seed)
    gpu.call("cuGraphLaunch", gpu.graph(launches), None)
    gpu.call("cuCtxSynchronize")


@pytest.mark.parametrize("seed", range(4))
def test_a_graph_does_its_nodes_in_an_order_that_they_allow(chain, seed):
    gpu, kernel, (a, b, c) = chain
    launch(gpu, [(kernel, (a, b), ()), (kernel, (b, c), (0,))], seed)
    np.testing.assert_array_equal(gpu.download(c, (32,), np.float32), 2)


def test_a_missing_dependency_is_found_in_either_order(chain):
    gpu, kernel, (a, b, c) = chain
    gpu.upload(b, np.zeros(32, np.float32))
    messages = set()
    for seed in range(8):
        with pytest.raises(CudaError, match="a race with a"):
            launch(gpu, [(kernel, (a, b), ()), (kernel, (b, c), ())], seed)
        text = ctypes.c_char_p()
        gpu.driver.cuGetErrorString(700, ctypes.byref(text))
        messages.add(text.value.decode().split(": ")[1])
        gpu.driver.emulated_reset()
    assert messages == {"a race with a read", "a race with a write"}


def test_a_stale_address_of_a_graph_is_found(chain):
    gpu, kernel, addresses = chain
    gone = gpu.allocate(128)
    graph = gpu.graph([(kernel, (addresses[0], gone), ())])
    gpu.call("cuGraphLaunch", graph, None)
    gpu.call("cuCtxSynchronize")
    gpu.free(gone)
    gpu.allocate(128)
    gpu.call("cuGraphLaunch", graph, None)
    with pytest.raises(CudaError, match="freed: write of 4 bytes"):
        gpu.call("cuCtxSynchronize")
