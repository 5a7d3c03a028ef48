"""backends/cpu/emit/call_list.py and templates/cpu/calls.c.j2: where tensors lie, and calls in order."""

import ctypes
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.backends.cpu.emit.call_list import ALIGNMENT_BYTES, Call, CallList, Tensor
from pyc.backends.cpu.emit.call_source import calls_source, compile_calls
from pyc.backends.cpu.isa import host_isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cpu import executor as cpu_executor
from pyc.runtime.executors.cpu.libraries import load_library
from pyc.runtime.host.aligned import aligned_zeros
from pyc.runtime.host.cache_folder import cache_directory


@st.composite
def call_lists(draw):
    """Calls of kernels with one or two results, each of which reads what earlier ones made."""
    made = [Tensor((draw(st.integers(1, 300)),), "uint8")]
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        operands = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
        results = [Tensor((draw(st.integers(1, 300)),), "uint8") for _ in range(draw(st.integers(1, 2)))]
        calls.append(Call("k", tuple(operands), tuple(results)))
        made += results
    return CallList("f", (made[0],), tuple(calls), calls[-1].results[0])


@given(call_lists())
def test_tensors_in_use_at_a_time_do_not_overlap(function):
    """In use: from the call that makes a tensor to the last that has it."""
    used = {}
    for index, call in enumerate(function.calls):
        for tensor in (*call.operands, *call.results):
            used.setdefault(tensor, [index, index])[1] = index
    places = function.offsets
    assert set(places) == set(used) - {*function.parameters, function.result}
    for tensor, offset in places.items():
        assert offset % ALIGNMENT_BYTES == 0
        assert offset + tensor.size_bytes <= function.workspace_bytes
        for other, other_offset in places.items():
            (first, last), (other_first, other_last) = used[tensor], used[other]
            if other is not tensor and first <= other_last and other_first <= last:
                assert offset + tensor.size_bytes <= other_offset or other_offset + other.size_bytes <= offset


def test_memory_is_used_again():
    """A chain of any length takes two places."""
    tensors = [Tensor((100,), "float32") for _ in range(9)]
    calls = tuple(Call("k", (a,), (b,)) for a, b in pairwise(tensors))
    assert CallList("f", (tensors[0],), calls, tensors[-1]).workspace_bytes == 2 * 448


def test_memory_is_used_again_by_tensors_of_the_same_shape():
    """A thread that has the first half of each tensor's rows writes to no line that another has written to."""
    tensors = [Tensor((8, 16 * (1 + index % 2)), "float32") for index in range(9)]
    calls = tuple(Call("k", (a,), (b,)) for a, b in pairwise(tensors))
    function = CallList("f", (tensors[0],), calls, tensors[-1])
    assert len(set(function.offsets.values())) == 2
    for tensor, offset in function.offsets.items():
        for other, other_offset in function.offsets.items():
            apart = offset + tensor.size_bytes <= other_offset or other_offset + other.size_bytes <= offset
            assert apart or (offset == other_offset and tensor.shape == other.shape)


# By the calling convention of TVM's kernels: the sum and the matmul of two tensors, and one that fails on demand.
KERNELS = """
#include <stdint.h>
struct tensor {
    float *data;
    int32_t device, device_id, rank;
    uint8_t kind, bits;
    uint16_t lanes;
    const int64_t *shape;
};
struct any { int32_t type; uint32_t zero; struct tensor *tensor; };
#define KERNEL(name, operation)                                                                     \
    int32_t k_##name(void *self, const struct any *a, int32_t count, struct any *result) {          \
        if (count != 3 || a[0].type != 7) return -1;                                                \
        const struct tensor *x = a[0].tensor, *y = a[1].tensor, *z = a[2].tensor;                   \
        if (z->rank != 2 || z->kind != 2 || z->bits != 32 || z->lanes != 1) return -1;              \
        for (int i = 0; i < z->shape[0] * z->shape[1]; i++) z->data[i] = x->data[i] operation y->data[i]; \
        return 0;                                                                                   \
    }
KERNEL(plus, +)
KERNEL(times, *)
int32_t k_check(void *self, const struct any *a, int32_t count, struct any *result) {
    a[1].tensor->data[0] = a[0].tensor->data[0];
    return a[0].tensor->data[0] < 0;
}
"""
SHAPE = (3, 5)


@pytest.fixture(scope="module")
def functions():
    """f(x, y) = check((x + y) * x + y), and `other`, which is y * y."""
    x, y, total, scaled, plain, result = (Tensor(SHAPE, "float32") for _ in range(6))
    calls = (
        Call("plus", (x, y), (total,)),
        Call("times", (total, x), (scaled,)),
        Call("plus", (scaled, y), (plain,)),
        Call("check", (plain,), (Tensor((1,), "float32"),)),
        Call("plus", (plain, x), (result,)),
    )
    squared = Tensor(SHAPE, "float32")
    return CallList("f", (x, y), calls, result), CallList("other", (y,), (Call("times", (y, y), (squared,)),), squared)


@pytest.fixture(scope="module")
def library(functions):
    isa, toolchain = host_isa(), Toolchain(cache_directory())
    start = "long pyc_start(long threads) { return threads; }\n"
    others = "void pyc_stop(void) {}\nvoid pyc_set_distances(const void *distances) {}\n"
    others += "void *pyc_guard(void) { return 0; }\nvoid pyc_unguard(void) {}\n"
    objects = [toolchain.compile_object(text, isa, {}) for text in (KERNELS, start + others)]
    compiled = compile_calls(functions, "k_", isa.arch, toolchain)
    return load_library(toolchain.link_shared([*objects, compiled], isa, "calls.so"), isa.name)


def handle(library, symbol):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, symbol)))


def bind(library, function, first, *arrays):
    addresses = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    library.pyc_bind(function, first, len(arrays), addresses)


def arrays_of(*seeds):
    arrays = [aligned_zeros(SHAPE, np.float32) for _ in seeds]
    for array, seed in zip(arrays, seeds, strict=True):
        array[:] = np.random.default_rng(seed).random(SHAPE, np.float32)
    return arrays


def test_calls_run_in_order_on_what_is_bound(library):
    function, other = handle(library, "f"), handle(library, "other")
    x, y, z = arrays_of(0, 1, 2)
    result, squared = (aligned_zeros(SHAPE, np.float32) for _ in range(2))
    workspace = aligned_zeros((1024,), np.uint8)
    bind(library, function, 0, x, y, result, workspace)
    bind(library, other, 0, y, squared, workspace)
    for _ in range(2):
        assert library.pyc_run(function) == 0
        np.testing.assert_array_equal(result, (x + y) * x + y + x)
    bind(library, function, 1, z)  # the others stay
    assert library.pyc_run(function) == 0
    np.testing.assert_array_equal(result, (x + z) * x + z + x)
    assert library.pyc_run(other) == 0
    np.testing.assert_array_equal(squared, y * y)


def test_a_call_that_fails_is_named_and_ends_the_function(library):
    function = handle(library, "f")
    x, y = arrays_of(0, 1)
    result, workspace = aligned_zeros(SHAPE, np.float32), aligned_zeros((1024,), np.uint8)
    bind(library, function, 0, x, y, result, workspace)
    y[0, 0] = -10
    assert library.pyc_run(function) == 4
    assert not result.any()
    y[0, 0] = 10
    assert library.pyc_run(function) == 0


def test_parameters_are_described(library, functions):
    found = np.ones(4, cpu_executor._PARAMETER)
    assert library.pyc_describe(handle(library, "f"), found.ctypes.data, 4) == 4
    *tensors, workspace = ((list(shape), *rest) for shape, *rest in found.tolist())
    assert tensors == [([3, 5, 0, 0, 0], 2, 2, 32, 0)] * 3
    assert workspace == ([functions[0].workspace_bytes, 0, 0, 0, 0], 1, 1, 8, 0)
    assert library.pyc_describe(handle(library, "f"), None, 0) == 4, "how many there are"


def test_the_source_is_the_same_each_time(functions):
    assert calls_source(functions, "k_") == calls_source(functions, "k_")


def test_a_kernel_that_nobody_has_is_an_error_of_the_build(functions):
    isa, toolchain = host_isa(), Toolchain(cache_directory())
    with pytest.raises(LowerError, match="k_plus"):
        toolchain.link_shared([compile_calls(functions, "k_", isa.arch, toolchain)], isa, "calls.so")
