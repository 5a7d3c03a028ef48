"""backends/cpu/kernels/translation_units.py: a library's units, shared only where code is the same."""

from dataclasses import replace

import pytest
from long_runs import sample

from pyc.backends.cpu.constants import FOLDED_TOKENS, TILE_TOKENS
from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.attention import AppendSpec, AttentionSpec, CacheSpec, VarlenAttentionSpec
from pyc.backends.cpu.kernels.linear import (
    GatedSpec,
    KernelSpec,
    LinearAppendSpec,
    QuantizeSpec,
)
from pyc.backends.cpu.kernels.translation_units import FLAGS, compile_unit, headers, unit_source, units_of
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.compiler.schemes import parse_scheme
from pyc.runtime.host.cache_folder import cache_directory

CACHES = {kind: CacheSpec(4, 2, 64, 8, 0, kind, 0.125, rounded=kind == "f16") for kind in ("f32", "f16", "int8", "fp8")}
APPEND = AppendSpec(CACHES["f16"], 32, has_gain=True, epsilon=1e-6)
MATMULS = tuple(
    KernelSpec("linear", outputs, 128, parse_scheme(name), bias)
    for name in ("int4-g32", "int4-g64-asym", "int8", "int8-g32")
    for outputs, bias in ((64, False), (50, True))
)
OTHERS = (
    AttentionSpec(CACHES["f16"]),
    AttentionSpec(CACHES["f32"]),
    VarlenAttentionSpec(4, 32, 0.125),
    APPEND,
    replace(APPEND, cache=CACHES["f32"]),
    replace(APPEND, cache=CACHES["int8"]),
    AttentionSpec(CACHES["fp8"]),
    replace(APPEND, cache=CACHES["fp8"]),
    *(KernelSpec("embedding", 64, 128, parse_scheme(name)) for name in ("int4-g32", "int8", "int8-g32", "bf16")),
    *(QuantizeSpec(128, row_format) for row_format in ("float_scale", "power_of_two", "interleaved", "bf16")),
    *(KernelSpec("linear", 64, 128, parse_scheme(name)) for name in ("f32", "f16", "bf16")),
    KernelSpec("linear", 64, 128, parse_scheme("bf16", "bf16")),
    KernelSpec("linear", 64, 128, parse_scheme("int4-g32", "f32")),
)
SHARING = [
    (isa.name, index, other)
    for isa in ISAS.values()
    for index, other in enumerate((isa.integer_matmuls_of, isa.rest_of))
    if other
]
"""An instruction set, the index of a unit, and the instruction set whose it is."""


def test_instruction_sets_share_units():
    assert SHARING == [("avx-vnni", 1, "x86-64-v3"), ("avx512-bf16", 0, "avx512-vnni"), ("amx-bf16", 0, "avx512-vnni")]
    for name, index, other in SHARING:
        assert units_of(MATMULS + OTHERS, ISAS[name])[index] == units_of(MATMULS + OTHERS, ISAS[other])[index]


SHARED = [(name, index) for name, index, _ in SHARING if name != "amx-bf16"]


@pytest.mark.parametrize(("name", "index"), sample(SHARED, ("avx512-bf16", 0)))
def test_what_is_shared_is_the_same_code(name, index):
    """Compiled for either, down to the byte."""
    unit = units_of(MATMULS + OTHERS, ISAS[name])[index]
    toolchain = Toolchain(cache_directory())
    own = toolchain.compile_object(unit_source(unit), ISAS[name], headers(), FLAGS)
    assert unit.isa.name != name
    assert compile_unit(unit, toolchain) == own
    other = units_of(MATMULS + OTHERS, ISAS[name])[1 - index]
    assert toolchain.compile_object(unit_source(other), unit.isa, headers(), FLAGS) != compile_unit(other, toolchain)


def test_libraries_with_tiles_multiply_by_vectors_where_no_scale_is_folded():
    """Below FOLDED_TOKENS the matmuls of avx512-vnni read quantized rows as they are everywhere."""
    assert TILE_TOKENS < FOLDED_TOKENS


def test_attention_over_int8_is_compiled_for_its_own_instructions():
    codes = AttentionSpec(CACHES["int8"])
    _, rest = units_of((*MATMULS, *OTHERS, codes), ISAS["avx-vnni"])
    assert rest.isa.name == "avx-vnni"


def test_a_core_is_in_one_unit_and_the_others_declare_it():
    append = LinearAppendSpec(replace(MATMULS[0], outputs=512), APPEND)
    gated = GatedSpec(replace(MATMULS[0], outputs=256), "silu", "interleaved")
    matmuls, rest = units_of((append, gated), ISAS["avx512-bf16"])
    assert (matmuls.specs, len(matmuls.cores)) == ((), 1), "called by kernels of the other unit alone"
    assert f"{MATMULS[0].core}(" in unit_source(matmuls)
    assert rest.cores == ()
    (declared,) = (line for line in unit_source(rest).splitlines() if line.startswith("PYC_SHARED"))
    assert f"{MATMULS[0].core}(" in declared


def test_a_core_knows_its_outputs_where_all_that_call_it_have_the_same():
    def outputs(*specs):
        (core,) = units_of(specs, ISAS["avx512-bf16"])[0].cores
        return core.outputs

    one, other = MATMULS[0], replace(MATMULS[0], outputs=96)
    assert (outputs(one), outputs(one, one), outputs(one, other)) == (64, 64, None)
    assert outputs(one, GatedSpec(one, "silu", "interleaved")) is None, "which takes N tiles of it"


def test_a_library_without_matmuls_of_integers_is_one_unit():
    (unit,) = units_of(OTHERS, ISAS["avx512-bf16"])
    assert unit.isa.name == "avx512-bf16"
