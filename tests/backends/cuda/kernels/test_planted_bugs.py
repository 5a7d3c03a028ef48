"""Bugs planted into kernels are found: by the emulated device, or because results are far from what they should be."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_emulation import CudaError, preload, run_kernel
from cuda_matrices import stored_matrix

from pyc.backends.cuda.kernels.attention import (
    AppendAttentionSpec,
    CachedAttentionSpec,
    QkvAppendSpec,
    cache_head_bytes,
    lower_append_attention,
    lower_cached_attention,
    lower_qkv_append,
)
from pyc.backends.cuda.kernels.gemv import lower_gemv_integers, lower_gemv_row
from pyc.backends.cuda.kernels.kernel import Kernel
from pyc.backends.cuda.kernels.linear import lower_linear
from pyc.backends.cuda.kernels.linear_spec import Epilogue, LinearSpec
from pyc.backends.cuda.kernels.matrix import matrix_format
from pyc.backends.cuda.kernels.rows import NormSpec, lower_norm
from pyc.backends.cuda.toolchain.nvrtc import headers
from pyc.compiler.schemes import SCHEMES

INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
POSITIONS = np.array([129, *range(60, 68)], np.int32)
SEQUENCES = np.array([1] + [0] * 8, np.int32)
BLOCK_TABLE = np.array([[1, 4, 2], [5, 0, 3]], np.int32)


def norm():
    random = np.random.default_rng(1)
    arrays = {"x": random.standard_normal((3, 600), np.float32)}
    arrays |= {name: random.standard_normal(600, np.float32) for name in ("gain", "bias")}
    return lower_norm(NormSpec("layer", 3, 600, 1e-5, has_gain=True, adds=False)), arrays, (3, 600)


def append():
    random = np.random.default_rng(2)
    spec = QkvAppendSpec(9, 2, 1, 32, 32, 1e-5, True, True, "int8", 64, 3)
    arrays = {
        "qkv": random.standard_normal((9, 4 * 32), np.float32),
        "angles": random.standard_normal((9, 32), np.float32),
        "q_gain": random.standard_normal(32, np.float32),
        "k_gain": random.standard_normal(32, np.float32),
    }
    return lower_qkv_append(spec), arrays | cache_arrays("int8", np.zeros), (9, 64)


def cache_arrays(dtype, make):
    cache = make((6, 2, 1, cache_head_bytes(dtype, 32, 64)), np.uint8)
    return {"positions": POSITIONS, "sequences": SEQUENCES, "block_table": BLOCK_TABLE, "cache": cache}


def attention():
    random = np.random.default_rng(3)
    spec = CachedAttentionSpec(9, 2, 1, 32, 0.5, 0, "f16", 64, 3, 2)
    numbers = random.standard_normal((6, 2, 1, 64 * 32), np.float32).astype(np.float16).view(np.uint8)
    arrays = {**cache_arrays("f16", lambda *_: numbers), "q": random.standard_normal((9, 64), np.float32)}
    return lower_cached_attention(spec), arrays, (9, 64)


def both():
    random = np.random.default_rng(4)
    append = QkvAppendSpec(7, 2, 1, 32, 32, 1e-5, False, False, "f16", 64, 3)
    attention = CachedAttentionSpec(7, 2, 1, 32, 0.5, 0, "f16", 64, 3, 2)
    numbers = random.standard_normal((6, 2, 1, 64 * 32), np.float32).astype(np.float16).view(np.uint8)
    arrays = cache_arrays("f16", lambda *_: numbers)
    arrays |= {"positions": POSITIONS[:7], "sequences": SEQUENCES[:7]}
    arrays |= {"qkv": random.standard_normal((7, 4 * 32), np.float32)}
    arrays |= {"angles": random.standard_normal((7, 32), np.float32)}
    return lower_append_attention(AppendAttentionSpec(append, attention)), arrays, (7, 64)


def step():
    arrays = both()[1]
    row = {name: arrays[name][5:6] for name in ("positions", "sequences", "qkv", "angles")}
    row["qkv"] = 30 * row["qkv"]
    append = QkvAppendSpec(1, 2, 1, 32, 32, 1e-5, False, False, "f16", 64, 3)
    attention = CachedAttentionSpec(1, 2, 1, 32, 0.5, 0, "f16", 64, 3, 2)
    return lower_append_attention(AppendAttentionSpec(append, attention)), arrays | row, (1, 64)


def table(name="lut3-g32"):
    random = np.random.default_rng(5)
    stored = stored_matrix(random.standard_normal((40, 96), np.float32), name)
    arrays = {"x": random.standard_normal((3, 96), np.float32), **stored.arrays}
    return lower_linear(LinearSpec(3, 40, 96, matrix_format(SCHEMES[name]))), arrays, (3, 40)


def integers():
    random = np.random.default_rng(6)
    stored = stored_matrix(random.standard_normal((33, 1408), np.float32), "int4-g32")
    arrays = {"x": random.standard_normal((1, 1408), np.float32), **stored.arrays}
    spec = LinearSpec(1, 33, 1408, matrix_format(SCHEMES["int4-g32"]), activations="int8")
    return lower_gemv_integers(spec), arrays, (1, 33)


def in_turns():
    random = np.random.default_rng(8)
    stored = stored_matrix(random.standard_normal((5000, 512), np.float32), "bf16")  # several turns of each block
    arrays = {"x": random.standard_normal((1, 512), np.float32), **stored.arrays}
    spec = LinearSpec(1, 5000, 512, matrix_format(SCHEMES["bf16"]), activations="bf16")
    return lower_gemv_row(spec), arrays, (1, 5000)


def gated():
    random = np.random.default_rng(7)
    stored = stored_matrix(random.standard_normal((80, 96), np.float32), "int4-g32")
    arrays = {"x": random.standard_normal((3, 96), np.float32), **stored.arrays}
    arrays["squares"] = (arrays["x"] ** 2).reshape(3, 48, 2).sum(2)
    epilogue = Epilogue(partials=48, epsilon=1e-5, gate="silu")
    return lower_linear(LinearSpec(3, 80, 96, matrix_format(SCHEMES["int4-g32"]), epilogue=epilogue)), arrays, (3, 40)


def table_of_32():
    return table("lut5-g32")


FARTHER = "farther off than any rounding"
EARLIER = "wait_for_earlier_launches();"
RACE = "a race|uninitialized"
OUT = "out of bounds"
WAITLESS = "it ends|has not waited|before"
BARRIER = "__syncthreads();"
NO_BARRIER = BARRIER, ""
WAIT = "number * Tile::BYTES);\n    wait_for_earlier_launches();"
BUGS = {
    "norm: no barrier": (norm, "kept[threadIdx.x / 32] = value;\n    __syncthreads();", *NO_BARRIER, RACE),
    "norm: one too many": (norm, "&& at >= features;", ">= features", "> features", "out of bounds|a race"),
    "norm: one too few": (norm, "threadIdx.x) * width)) continue;", "* width", "* width + width", FARTHER),
    "norm: half a sum": (norm, "for (int by = width / 2; by > 0", "width / 2; by", "width / 4; by", FARTHER),
    "append: the next position": (append, "slot = position % block_tokens", "position %", "(position + 1) %", FARTHER),
    "append: a scale of 64 steps": (append, "return all / (float)Kind::most", "Kind::most", "64", FARTHER),
    "step: no wait": (step, "is_made_here) wait_for_earlier_launches();", EARLIER, ";", WAITLESS),
    "step: the row's place is read": (step, "Source::is_made_here && here == position;", "here ==", "0 ==", "a race"),
    "step: no barrier": (step, "__syncthreads(); /* all heads", *NO_BARRIER, RACE),
    "step: no key": (step, "keys[p][c] = Chunk::load(source.key(State::at(c)));", "key(", "value(", FARTHER),
    "attention: not the last position": (attention, "here <= mine.last;", "<=", "<", FARTHER),
    "attention: the next block": (attention, "min(here, position) / block_tokens]", "tokens]", "tokens + 2]", OUT),
    "attention: no scale": (attention, "loaded.at[e] * scale", " * scale", "", FARTHER),
    "attention: no wait for keys": (attention, "wait_for_copies<stages - 1>();", "- 1", "", "uninitialized"),
    "attention: the sums of others' copies": (attention, "__syncthreads(); /* nobody needs", *NO_BARRIER, "a race"),
    "attention: a neighbour's score": (attention, "kept + __shfl_xor", "kept +", "given +", FARTHER),
    "attention: no barrier": (attention, "__syncthreads(); /* all groups", *NO_BARRIER, RACE),
    "tables: a neighbour's third bit": (table, "[M::BITS - 1] >> t & 0x11111111u", ">> t", ">> (t ^ 1)", FARTHER),
    "tables: two codes for each other": (table, "(word | word << 14) & 0x33333333u", "<< 14", "<< 12", FARTHER),
    "tables: the half of another code": (table_of_32, "0, highest))", "highest", "highest >> 4", FARTHER),
    "tables: farther than a row": (
        table,
        "&& (is_whole || from < ROW_BYTES);",
        "is_whole ||",
        "true ||",
        "out of bounds",
    ),
    "prompts: no wait for keys": (
        attention,
        "wait_for_copies<0>();\n            __syncthreads(); /* keys",
        "wait_for_copies<0>();",
        "",
        "uninitialized",
    ),
    "prompts: no barrier for keys": (attention, "__syncthreads(); /* keys", *NO_BARRIER, RACE),
    "prompts: no barrier for values": (attention, "__syncthreads(); /* values", *NO_BARRIER, RACE),
    "prompts: other matrices": (attention, "= {b[0], b[1]}", "b[0], b[1]", "b[0], b[2]", FARTHER),
    "last block: nothing is published": (both, "__threadfence();\n        before", "__threadfence();", "", RACE),
    "last block: too early": (both, "if (before != used - 1) return;", "used - 1", "0", RACE),
    "last block: one more": (both, "i < used; }", "<", "<=", RACE),
    "last block: no barrier": (both, "__syncthreads(); /* all shares", *NO_BARRIER, RACE),
    "last block: counters are of another": (both, "counters[thread] = 0", "= 0", "= 1", "uninitialized"),
    "early: no wait": (table, WAIT, "wait_for_earlier_launches();", "", "a race .*, without a wait for earlier"),
    "early: some do not wait": (table, WAIT, "wait_for", "if (g < ROWS) wait_for", "it ends, without a wait"),
    "integers: no barrier": (integers, "__syncthreads();\n\n#pragma unroll 1", *NO_BARRIER, RACE),
    "integers: no wait": (integers, f"{EARLIER}\n    epilogue.add_squares(kept);\n    Row", EARLIER, "", "a race|wait"),
    "integers: pieces behind the last": (integers, "|| !has_piece(piece)) return", "|| !has_piece(piece)", "", OUT),
    "integers: outputs behind the last": (integers, "if (group >= GROUPS ||", "group >= GROUPS ||", "", OUT),
    "integers: codes less seven": (integers, "return -8;", "-8", "-7", FARTHER),
    "integers: the lower byte's carry": (integers, "(integers[i] + 128) >> 8", " + 128", "", FARTHER),
    "turns: no barrier for the row": (in_turns, "__syncthreads(); /* the row", *NO_BARRIER, RACE),
    "turns: no barrier for sums": (in_turns, "__syncthreads(); /* the sums", *NO_BARRIER, RACE),
    "turns: sums of one place": (in_turns, "number % 2 * WARPS", "number % 2", "0", "a race"),
    "turns: no wait": (in_turns, f"{EARLIER}\n    let_later", EARLIER, "", "a race|wait"),
    "turns: the outputs before": (in_turns, "copied_group += gridDim.x;", "+= gridDim.x", "+= 0", FARTHER),
    "epilogue: squares of one warp alone": (gated, "all += kept[row][warp]", "all +=", "all =", FARTHER),
    "epilogue: squares of another place": (gated, "squares[row * PARTIALS + at]", "+ at", "+ at + 1", OUT),
    "epilogue: no barrier": (gated, f"    {BARRIER}\n#pragma unroll 1\n    for (int first_", *NO_BARRIER, RACE),
    "epilogue: no wait": (gated, WAIT, "wait_for_earlier_launches();", "", "a race .*, without a wait for earlier"),
    "epilogue: another row's gate": (gated, "__shfl_xor_sync(0xffffffffu, sum, APART)", "APART", "APART / 2", FARTHER),
    "epilogue: halves for each other": (gated, "row / together % 2 * half", "row", "(row + together)", OUT),
    "combine: splits are left out": (attention, "s + i < splits ? __shfl", "< splits", "< splits - 2", FARTHER),
}
"""What is run, a place in the kernels' sources, what is there replaced by what, and how it shows."""


def planted(lowered, context, old, new, index):
    """The launches with `old` replaced in `context`, in kernels of names of their own."""
    assert old in context
    steps = []
    for step in lowered.steps:
        source = whole(step.kernel.source, set())
        if context in source:
            symbol = f"{step.kernel.symbol}_{index}"
            source = source.replace(context, context.replace(old, new)).replace(step.kernel.symbol, symbol)
            step = replace(step, kernel=renamed(step.kernel, symbol, source))
        steps.append(step)
    assert tuple(steps) != lowered.steps, f"nowhere: {context}"
    return replace(lowered, steps=tuple(steps))


def renamed(kernel, symbol, source):
    """The kernel in a namespace of its own, since headers differ."""
    body = source.replace("namespace pyc", f"namespace {symbol}_").replace("pyc::", f"{symbol}_::")
    return Kernel(symbol, body, kernel.grid, kernel.threads, kernel.shared_bytes)


def whole(source, seen):
    """The text with all that it includes, once."""

    def included(match):
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return whole(headers()[match[1]].replace("#pragma once\n", ""), seen)

    return INCLUDE.sub(included, source)


PLANTED = {name: planted(bug[0]()[0], *bug[1:4], index) for index, (name, bug) in enumerate(BUGS.items())}


@pytest.fixture(scope="module", autouse=True)
def compiled():
    right = (norm, append, attention, both, step, table, integers, in_turns, gated)
    preload([*(make()[0] for make in right), *PLANTED.values()])


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    make, _, _, _, expected = BUGS[name]
    lowered, arrays, shape = make()
    results = {"result": (shape, np.float32)} | ({"cache": None} if make is append else {})
    right = run_kernel(lowered, arrays, results)
    if expected != FARTHER:
        with pytest.raises(CudaError, match=expected):
            run_kernel(PLANTED[name], arrays, results, seed=1)
        return
    wrong = run_kernel(PLANTED[name], arrays, results, seed=1)
    assert max(np.abs(wrong[key].astype(float) - right[key]).max() for key in results) > 1e-2
