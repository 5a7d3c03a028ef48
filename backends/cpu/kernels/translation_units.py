"""The C kernels of a CPU library as source text and objects.

A library has up to two units: integer matmuls by SIMD, and all else. Instruction sets whose code for a unit is
the same (`Isa.integer_matmuls_of`, `Isa.rest_of`) share its object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pyc.backends.cpu.constants import HEADER as CONSTANTS
from pyc.backends.cpu.constants import constants_header
from pyc.backends.cpu.isa import Isa, find_isa
from pyc.backends.cpu.kernels.attention import AttentionSpec, CacheSpec
from pyc.backends.cpu.kernels.linear import AnySpec, GatedSpec, KernelSpec, LinearAppendSpec
from pyc.backends.cpu.toolchain.objects import ObjectCompiler
from pyc.templates.rendering import render, source_text

TEMPLATE = "cpu/kernels.c.j2"
FLAGS = ("-fno-slp-vectorize",)
"""What is a vector in straight-line code, kernels say; looking for more takes time and found nothing that pays."""
HEADERS = (
    "pyc_amx.h",
    "pyc_amx_rows.h",
    "pyc_amx_weights.h",
    "pyc_attention.h",
    "pyc_attention_amx.h",
    "pyc_attention_kv_split.h",
    "pyc_attention_register_blocks.h",
    "pyc_attention_token.h",
    "pyc_attention_work_item.h",
    "pyc_cache.h",
    "pyc_dot.h",
    "pyc_embedding.h",
    "pyc_float8.h",
    "pyc_gates.h",
    "pyc_half.h",
    "pyc_instructions.h",
    "pyc_interleaved_rows.h",
    "pyc_linear_amx.h",
    "pyc_linear_append.h",
    "pyc_linear_float.h",
    "pyc_linear_folded.h",
    "pyc_linear_gated.h",
    "pyc_linear_integer.h",
    "pyc_linear_rounded.h",
    "pyc_lookup.h",
    "pyc_pack.h",
    "pyc_prefetch.h",
    "pyc_prefetch_distances.h",
    "pyc_qkv_append.h",
    "pyc_quantize_rows.h",
    "pyc_register_blocks.h",
    "pyc_round_float8.h",
    "pyc_round_rows.h",
    "pyc_scales.h",
    "pyc_softmax.h",
    "pyc_split_rows.h",
    "pyc_varlen_attention.h",
    "pyc_vectors.h",
    "pyc_work_partition.h",
)


@dataclass(frozen=True, slots=True)
class Core:
    """What matmuls have in common that differ in N alone (`KernelSpec.core`), of which `matmul` is one.

    `outputs` is their N if they all have the same: a constant is half a percent of a prompt.
    """

    matmul: KernelSpec
    outputs: int | None


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """Kernels that are compiled together, and `cores`, which those of other units of a library may call."""

    isa: Isa
    specs: tuple[AnySpec, ...]
    cores: tuple[Core, ...]


@dataclass(frozen=True, slots=True)
class KernelContext:
    """All that the template sees."""

    isa: str
    headers: tuple[str, ...]
    cores: tuple[Core, ...]
    others: tuple[KernelSpec, ...]
    """Of each core in another unit that is called, a matmul that has it."""
    caches: tuple[CacheSpec, ...]
    """Those that are attended to."""
    kernels: tuple[AnySpec, ...]


def units_of(specs: tuple[AnySpec, ...], isa: Isa) -> tuple[TranslationUnit, ...]:
    """Return the units of a library for `isa` with the kernels `specs`, each in order of their symbols."""
    kernels = sorted({spec.symbol: spec for spec in specs}.values(), key=lambda spec: spec.symbol)
    cores = _cores_of(kernels)
    matmuls = TranslationUnit(
        find_isa(isa.integer_matmuls_of or isa.name),
        tuple(spec for spec in kernels if isinstance(spec, KernelSpec) and spec.is_integer_simd),
        tuple(core for core in cores if core.matmul.is_integer_simd),
    )
    others = tuple(spec for spec in kernels if spec not in matmuls.specs)
    codes = any(isinstance(spec, AttentionSpec) and spec.cache.dtype == "int8" for spec in others)
    rest = TranslationUnit(
        isa if codes else find_isa(isa.rest_of or isa.name),
        others,
        tuple(core for core in cores if not core.matmul.is_integer_simd),
    )
    return tuple(unit for unit in (matmuls, rest) if unit.specs or unit.cores)


def compile_unit(unit: TranslationUnit, compiler: ObjectCompiler) -> bytes:
    """Return the ELF object of `unit`; raises LowerError when the compiler does."""
    return compiler.compile_object(unit_source(unit), unit.isa, headers(), FLAGS)


def unit_source(unit: TranslationUnit) -> str:
    """Return one C translation unit with the kernels of `unit`."""
    called = {matmul.core: matmul for matmul in map(_matmul_of, unit.specs) if matmul is not None}
    own = {core.matmul.core for core in unit.cores}
    others = tuple(matmul for name, matmul in called.items() if name not in own)
    caches = tuple(dict.fromkeys(spec.cache for spec in unit.specs if isinstance(spec, AttentionSpec)))
    context = KernelContext(unit.isa.name, HEADERS, unit.cores, others, caches, unit.specs)
    return render(TEMPLATE, {"context": context})


@cache
def headers() -> dict[str, str]:
    """Return the text of each header, by name."""
    return {CONSTANTS: constants_header(), **{name: source_text(f"cpu/include/{name}") for name in HEADERS}}


def _cores_of(kernels: Sequence[AnySpec]) -> list[Core]:
    """Return the cores that `kernels` call, each once."""
    matmuls: dict[str, KernelSpec] = {}
    outputs: dict[str, set[int | None]] = {}
    for spec in kernels:
        if (matmul := _matmul_of(spec)) is not None:
            matmuls[matmul.core] = matmul
            outputs.setdefault(matmul.core, set()).add(matmul.outputs if spec is matmul else None)  # an N tile's
    only = {name: found.pop() if len(found) == 1 else None for name, found in outputs.items()}
    return [Core(matmul, only[name]) for name, matmul in matmuls.items()]


def _matmul_of(spec: AnySpec) -> KernelSpec | None:
    """Return the matmul whose core a kernel calls."""
    match spec:
        case KernelSpec(kind="linear"):
            return spec
        case LinearAppendSpec(matmul) | GatedSpec(matmul) if not matmul.amx:
            return matmul
        case _:
            return None
