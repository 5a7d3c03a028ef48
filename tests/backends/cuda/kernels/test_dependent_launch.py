"""PTX of kernels that begin before earlier launches have ended: what comes before the wait, and what never may.

It is what NVRTC hands to ptxas, which has to keep the order of a wait and of accesses to memory.
"""

import re
from dataclasses import replace

import pytest

from pyc.backends.cuda.archs import Arch, find_arch
from pyc.backends.cuda.kernels.attention import (
    AppendAttentionSpec,
    CachedAttentionSpec,
    QkvAppendSpec,
    SpanAttentionSpec,
    lower_append_attention,
    lower_cached_attention,
    lower_qkv_append,
    lower_span_attention,
)
from pyc.backends.cuda.kernels.gemv import lower_gemv_integers, lower_gemv_row
from pyc.backends.cuda.kernels.linear import EmbeddingSpec, lower_embedding, lower_linear
from pyc.backends.cuda.kernels.linear_spec import Epilogue, LinearSpec
from pyc.backends.cuda.kernels.matrix import matrix_format
from pyc.backends.cuda.kernels.rows import (
    AddRowSpec,
    GatedPairSpec,
    NormSpec,
    PoolSpec,
    RopeAnglesSpec,
    SelectRowSpec,
    lower_add_row,
    lower_gated_pair,
    lower_norm,
    lower_pool,
    lower_rope_angles,
    lower_select_row,
)
from pyc.backends.cuda.kernels.sampling import GreedySpec, SamplingSpec, lower_greedy, lower_sample
from pyc.backends.cuda.toolchain.nvrtc import compile_kernels
from pyc.compiler.schemes import SCHEMES

ACCESS = re.compile(r"\b(?:ld|st|red|atom)(?:\.\w+)*\.global|\bcp\.async\.c[ag]\.")
WAIT, BEGIN = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
PARAMETER = re.compile(r"ld\.param\.u64\s+(%rd\d+), \[\w+_param_(\d+)\]")
MADE = re.compile(r"\s(?:cvta|add|sub|mad|mov|selp)\S*\s+(%rd\d+), (.*);")
CONSTANT = re.compile(r"mov\.u64\s+(%rd\d+), [A-Za-z_]\w*;")
UNWATCHED = re.compile(r"ld\.global\.nc\S*\s+[^\[]+\[(%rd\d+)")


def attention():
    append = QkvAppendSpec(7, 4, 2, 64, 64, 1e-5, True, True, "f16", 64, 3)
    attend = CachedAttentionSpec(7, 4, 2, 64, 0.5, 0, "f16", 64, 3, 2)
    yield lower_append_attention(AppendAttentionSpec(append, attend))
    of_step = AppendAttentionSpec(replace(append, rows=1), replace(attend, rows=1))
    yield lower_append_attention(of_step)
    yield lower_cached_attention(CachedAttentionSpec(9, 4, 2, 64, 0.5, 0, "int8", 64, 3, 2))
    yield lower_qkv_append(QkvAppendSpec(9, 4, 2, 64, 64, 1e-5, False, False, "int8", 64, 3))
    yield lower_span_attention(SpanAttentionSpec(9, 4, 64, 0.5))


def lowered():
    for name in ("int4-g128", "lut3-g32", "fp8"):
        form = matrix_format(SCHEMES[name])
        yield lower_embedding(EmbeddingSpec(3, 500, 256, form))
        for rows in (1, 64):
            yield lower_linear(LinearSpec(rows, 256, 256, form, has_bias=True))
            yield lower_linear(LinearSpec(rows, 256, 256, form, activations="mxfp8"))
        for epilogue in (Epilogue(partials=8, epsilon=1e-5, gate="silu"), Epilogue(adds=True, has_gain=True)):
            yield lower_linear(LinearSpec(1, 256, 256, form, epilogue=epilogue))
    for name in ("int8", "int4-g128-asym", "lut3-g32"):
        yield lower_gemv_integers(LinearSpec(1, 256, 256, matrix_format(SCHEMES[name]), activations="int8"))
    for name, epilogue in (("bf16", Epilogue(partials=8, epsilon=1e-5)), ("fp8", Epilogue(adds=True, has_gain=True))):
        form = matrix_format(SCHEMES[name])
        yield lower_gemv_row(LinearSpec(1, 256, 512, form, activations="bf16", epilogue=epilogue))
    yield from attention()
    yield lower_norm(NormSpec("layer", 3, 256, 1e-5, has_gain=True, adds=True))
    yield lower_gated_pair(GatedPairSpec(3, 256, "silu"))
    yield lower_add_row(AddRowSpec(3, 256, 1))
    yield lower_select_row(SelectRowSpec(3, 256, "f32"))
    yield lower_rope_angles(RopeAnglesSpec(3, 64, 1.0, 1e4, 1.0, 128.0, dynamic=False))
    yield lower_pool(PoolSpec(9, 3, 256, "mean", normalize=True))
    yield lower_greedy(GreedySpec(3, 1000))
    yield lower_sample(SamplingSpec(3, 1000))


def steps():
    return {step.kernel.symbol: step for one in lowered() for step in one.steps}


def bodies(arch):
    """PTX of each kernel, in lines, by its symbol."""
    text = compile_kernels([step.kernel.source for step in steps().values()], arch).decode()
    found = {body.partition("(")[0].strip(): body.split("\n") for body in text.split(".entry ")[1:]}
    assert found.keys() == steps().keys()
    return found


def read_unwatched(lines):
    """Numbers of the parameters from whose arrays ld.global.nc reads; it reads tables of constants, too."""
    text = "\n".join(lines)
    holds = {register: {int(number)} for register, number in PARAMETER.findall(text)}
    holds |= {register: {None} for register in CONSTANT.findall(text)}
    made = [(register, re.findall(r"%rd\d+", given)) for register, given in MADE.findall(text)]
    size = 0
    while size != (size := sum(map(len, holds.values()))):
        for register, given in made:
            holds.setdefault(register, set()).update(*(holds.get(each, set()) for each in given))
    found = [holds[register] for register in UNWATCHED.findall(text)]
    assert all(found)
    return set().union(*found) - {None}


@pytest.fixture(scope="module")
def kernels():
    return bodies(find_arch("compute_100"))


def test_every_thread_waits_once_before_all_else_but_weights(kernels):
    for name, lines in kernels.items():
        begin, (wait,) = ([at for at, line in enumerate(lines) if what in line] for what in (BEGIN, WAIT))
        if name.startswith(("gemv_", "gemm_", "prompt_attention")):  # long ones
            assert not begin or begin[0] > wait, name
        else:
            assert len(begin) == 1
            assert begin[0] < wait, name
            assert not any("ret;" in line or ACCESS.search(line) for line in lines[: begin[0]]), name
        assert not any("ret;" in line for line in lines[:wait]), name
        early = [line for line in lines[:wait] if ACCESS.search(line)]
        assert bool(early) == name.startswith(("gemv_", "gemm_warpgroup", "gemm_float8", "step_attention")), name
        copies = {"gemv_integers_": ("ld.global.nc",), "step_attention": ("cp.async", "ld.global.u32")}  # places, too
        found = next((found for start, found in copies.items() if name.startswith(start)), ("cp.async",))
        assert all(any(each in line for each in found) for line in early), name
        assert any(ACCESS.search(line) for line in lines[wait:]), name


def test_only_weights_are_read_past_what_keeps_caches_coherent(kernels):
    """What other launches write is not, as caches may have it from before the wait."""
    found = {name: {steps()[name].arguments[number] for number in read_unwatched(kernels[name])} for name in kernels}
    assert set().union(*found.values()) == {"weight.codes", "weight.scales", "weight.zeros", "bias", "gain"}, found


def test_older_gpus_wait_for_nothing():
    for name, lines in bodies(Arch("compute_80", (8, 0), 0, 0, 0, 0)).items():
        assert not any("griddepcontrol" in line for line in lines), name
