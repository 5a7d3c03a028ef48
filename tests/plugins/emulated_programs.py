"""Runs whole functions of an aarch64 program under qemu: its TIR kernels, C kernels and lists of calls, on one thread.

Bare programs have no threads: those of templates/cpu/thread_pool.c need a C library.
"""

import shutil
import subprocess

import numpy as np
import pytest
from bare_programs import bare_program
from kernel_machine import compile_kernels

from pyc.backends.cpu.backend import KERNEL_PREFIX, _host_object, _program
from pyc.backends.cpu.emit.call_source import compile_calls
from pyc.backends.cpu.isa import find_isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.host.cache_folder import cache_directory

# Reads the function's index, the count of parameters, their sizes and what they hold; writes the one before the last.
MAIN = """
struct function;
%(declarations)s
static struct function *const table[] = {%(table)s};
void pyc_bind(struct function *f, int64_t first, int64_t count, uint8_t *const *addresses);
int64_t pyc_run(const struct function *f);

static uint8_t memory[1 << 26] __attribute__((aligned(64)));

struct group { void *sync; int32_t tasks; };
static int every_task(int (*task)(int, struct group *, void *), void *data, int tasks) {
    struct group group = {NULL, 64};
    int failed = 0;
    for (int i = 0; i < group.tasks; i++) failed |= task(i, &group, data);
    return failed;
}
extern int (*__TVMBackendParallelLaunch)(int (*)(int, struct group *, void *), void *, int);
int32_t pyc_prefetch_next(const uint8_t *weights, int64_t bytes) { return 0; }
int32_t pyc_threads(void) { return 2; }

static double series(double x, int term, double power) { /* x - x^3 / 3! ..., or 1 - x^2 / 2! ... */
    double sum = 0;
    for (; term < 40; term += 2, power *= -x * x / (term * (term - 1))) sum += power;
    return sum;
}
void sincosf(float x, float *sine, float *cosine) { /* the C library's */
    const double turn = 6.283185307179586476925, rest = x - turn * (double)(int64_t)(x / turn);
    *sine = series(rest, 1, rest);
    *cosine = series(rest, 0, 1);
}
void run(void) {
    int64_t head[2], sizes[512];
    uint8_t *places[512];
    transfer(63, 0, head, sizeof head);
    transfer(63, 0, sizes, 8 * head[1]);
    uint8_t *next = memory;
    for (int i = 0; i < head[1]; next += (sizes[i++] + 63) / 64 * 64) transfer(63, 0, places[i] = next, sizes[i]);
    __TVMBackendParallelLaunch = every_task;
    pyc_bind(table[head[0]], 0, head[1], places);
    if (pyc_run(table[head[0]])) system_call(93, 3, 0, 0);
    transfer(64, 1, places[head[1] - 2], sizes[head[1] - 2]);
    system_call(93, 0, 0, 0);
}
"""


class EmulatedProgram:
    """The program of a lowered module for `isa`, linked; `run` skips the test where there is no qemu-aarch64."""

    def __init__(self, module, buckets, isa, folder):
        toolchain, target = Toolchain(cache_directory()), find_isa(isa)
        builder, self._functions = _program(module, buckets, {target.gemm_strategy}, lambda: None)
        functions = builder.variants["simd"].functions
        self._lists = {function.symbol: function for function in functions}
        symbols = list(self._lists)
        declarations = "\n".join(f"extern struct function {symbol};" for symbol in symbols)
        table = ", ".join(f"&{symbol}" for symbol in symbols)
        kernels = compile_kernels(tuple(builder.kernels.c.values()), target, toolchain)
        objects = {
            **{f"kernels-{index}.o": unit for index, unit in enumerate(kernels)},
            "calls.o": compile_calls(functions, KERNEL_PREFIX, target.arch, toolchain),
            "tir.o": _host_object(builder.kernels.tir, target),
        }
        self._path = bare_program(MAIN % {"declarations": declarations, "table": table}, objects, target, folder)

    def run(self, name, tokens, inputs, weights):
        """The result of a function, f32 [rows, features]; caches are empty before, and one block large."""
        if not shutil.which("qemu-aarch64"):
            pytest.skip("compiled and linked, not run: qemu-aarch64 is not installed")
        function = next(f for f in self._functions if (f.name, f.tokens) == (name, tokens))
        calls = self._lists[function.symbol]
        known = {**inputs, **{key: weights[key] for key in function.weights}}
        contents = [known[key].tobytes() if key in known else None for key in (*function.inputs, *function.weights)]
        sizes = [tensor.size_bytes for tensor in (*calls.parameters, calls.result)] + [calls.workspace_bytes]
        contents += [None, None]
        assert all(content is None or len(content) == size for content, size in zip(contents, sizes, strict=True))
        head = np.array([list(self._lists).index(function.symbol), len(sizes), *sizes], np.int64)
        data = [bytes(size) if content is None else content for content, size in zip(contents, sizes, strict=True)]
        given = b"".join([head.tobytes(), *data])
        done = subprocess.run(["qemu-aarch64", self._path], input=given, capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.float32).reshape(calls.result.shape)
