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
    return run_kernel(lowered, {"x": x}, {"result": ((3,), np.float32)}, seed, waits=False)["result"], x


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
    lowered = Lowered((Step(kernel, ("a", "b", "result")),))
    made = run_kernel(lowered, bits, {"result": ((16, 8), np.float32)}, seed=2, waits=False)
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


EARLY = """#include "dependent_launch.cuh"
extern "C" __global__ void __launch_bounds__(32) %s(const float* x, float* result) {
    pyc::let_later_launches_begin();
    %s
}
"""
WAIT, PLUS = "pyc::wait_for_earlier_launches();", "result[threadIdx.x] = x[threadIdx.x] + 1;"
EARLY_BODIES = {
    "waits": f"{WAIT} {PLUS}",
    "reads_early": f"const float early = x[threadIdx.x]; {WAIT} result[threadIdx.x] = early + 1;",
    "writes_early": f"result[threadIdx.x] = 0; {WAIT} {PLUS}",
    "counts_early": f"if (threadIdx.x == 0) atomicAdd((unsigned *)result, 1u); {WAIT} {PLUS}",
    "returns": f"if (threadIdx.x == 7) return; {WAIT} {PLUS}",
    "ignores": "",
}


@pytest.fixture
def early(chain):
    """The arrays of `chain`, and kernels that add 1, by what they do about earlier launches."""
    gpu, _, addresses = chain
    kernels = {name: Kernel(name, EARLY % (name, body), (1, 1, 1), 32) for name, body in EARLY_BODIES.items()}
    gpu.preload(kernels.values())
    return gpu, kernels, addresses


def launch_early(gpu, launches, seed=0):
    gpu.configure("seed", seed)
    gpu.call("cuGraphLaunch", gpu.graph(launches, programmatic=True), None)
    gpu.call("cuCtxSynchronize")


@pytest.mark.parametrize("seed", range(4))
def test_launches_that_wait_may_begin_early(early, seed):
    """The third reads what the first wrote, and writes what it read: they are ordered by the second."""
    gpu, kernels, (a, b, c) = early
    gpu.upload(c, np.full(32, 5, np.float32))
    plus = kernels["waits"]
    launch_early(gpu, [(plus, (a, b), ()), (plus, (c, c), (0,)), (plus, (b, a), (1,))], seed)
    np.testing.assert_array_equal(gpu.download(a, (32,), np.float32), 2)


EARLY_FAULTS = {
    "reads_early": "a race with a write: read of 4 bytes at .*, without a wait for earlier launches",
    "writes_early": "a race with a read: write of 4 bytes at .*, without a wait for earlier launches",
    "counts_early": "an atomic operation: .*, without a wait for earlier launches",
    "returns": "thread 7: it ends, without a wait for earlier launches",
    "ignores": "it ends, without a wait for earlier launches",
}


@pytest.mark.parametrize("name", EARLY_FAULTS)
def test_a_launch_that_begins_early_and_does_not_wait_is_found(early, name):
    gpu, kernels, (a, b, c) = early
    gpu.upload(b, np.zeros(32, np.float32))
    arrays = (b, c) if name == "reads_early" else (b, a)
    launches = [(kernels["waits"], (a, b), ()), (kernels[name], arrays, (0,))]
    launch(gpu, launches)  # a plain edge is enough for it
    with pytest.raises(CudaError, match=EARLY_FAULTS[name]):
        launch_early(gpu, launches)


def test_what_a_launch_before_the_last_writes_is_not_there_early(early):
    """Where each begins before the one before it has ended, the third may begin while the first runs."""
    gpu, kernels, (a, b, c) = early
    other = gpu.allocate(128)
    try:
        plus = kernels["waits"]
        with pytest.raises(CudaError, match="a race with a write: read of 4 bytes"):
            launch_early(gpu, [(plus, (a, b), ()), (plus, (a, c), (0,)), (kernels["reads_early"], (b, other), (1,))])
    finally:
        gpu.driver.emulated_reset()
        gpu.free(other)


def test_behind_a_full_edge_earlier_launches_have_ended(early):
    """The third begins with the second, which begins when the first has ended: both of its launches have."""
    gpu, kernels, (a, b, c) = early
    plus = kernels["waits"]
    launches = [
        (plus, (a, b), ()),
        (plus, (a, a), (0,)),
        (plus, (b, c), (0, 1)),
        (kernels["reads_early"], (a, b), (2,)),
    ]
    with pytest.raises(CudaError, match="a race with a write: read of 4 bytes"):
        launch_early(gpu, [*launches[:2], (plus, (a, c), (1,)), launches[3]])
    gpu.driver.emulated_reset()
    launch_early(gpu, launches)


FULL, PROGRAMMATIC = bytes(8), bytes([1, 0, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ([[(0, 1, FULL), (1, 2, PROGRAMMATIC)]], "edges of several kinds"),
        ([[(0, 2, PROGRAMMATIC)], [(1, 2, FULL)]], "a programmatic edge beside others"),
        ([[(0, 1, bytes([1, 0, 0, 0, 0, 0, 0, 0]))]], "an edge of no known kind"),
        ([[(0, 1, FULL)], [(0, 1, FULL)]], "an edge that there is"),
        ([[(2, 1, FULL)]], "an edge from node 2 to node 1"),
    ],
)
def test_edges_that_a_graph_cannot_have_are_refused(early, edges, says):
    gpu, kernels, (a, b, _) = early
    graph, nodes = gpu.nodes([(kernels["waits"], (a, b), ())] * 3)

    def make():
        for call in edges:
            before, after = ((ctypes.c_void_p * len(call))(*[nodes[edge[side]] for edge in call]) for side in (0, 1))
            data = b"".join(kind for _, _, kind in call)
            gpu.call("cuGraphAddDependencies_v2", graph, before, after, data, ctypes.c_size_t(len(call)))
        gpu.instantiated(graph)

    with pytest.raises(CudaError, match=says):
        make()
