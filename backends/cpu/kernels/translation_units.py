"""The C kernels of a CPU library as source text and objects.

A library has up to two units: products of integers by vectors, and all else. Instruction sets whose code for a unit is
the same (`Isa.products_of`, `Isa.rest_of`) share its object.
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
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.templates.rendering import render, source_text

TEMPLATE = "cpu/kernels.c.j2"
FLAGS = ("-fno-slp-vectorize",)
"""What is a vector in straight-line code, kernels say; looking for more takes time and found nothing that pays."""
HEADERS = (
    "pyc_ahead.h",
    "pyc_amx.h",
    "pyc_amx_records.h",
    "pyc_amx_weights.h",
    "pyc_attention.h",
    "pyc_attention_amx.h",
    "pyc_attention_partials.h",
    "pyc_attention_tiles.h",
    "pyc_attention_token.h",
    "pyc_attention_unit.h",
    "pyc_cache.h",
    "pyc_distances.h",
    "pyc_dot.h",
    "pyc_embedding.h",
    "pyc_gates.h",
    "pyc_half.h",
    "pyc_instructions.h",
    "pyc_linear_amx.h",
    "pyc_linear_append.h",
    "pyc_linear_float.h",
    "pyc_linear_folded.h",
    "pyc_linear_gated.h",
    "pyc_linear_integer.h",
    "pyc_linear_rounded.h",
    "pyc_pack.h",
    "pyc_parts.h",
    "pyc_qkv_append.h",
    "pyc_quantize_rows.h",
    "pyc_records.h",
    "pyc_round_rows.h",
    "pyc_scales.h",
    "pyc_softmax.h",
    "pyc_span_attention.h",
    "pyc_split_rows.h",
    "pyc_tiles.h",
    "pyc_vectors.h",
)


@dataclass(frozen=True, slots=True)
class Core:
    """What products have in common that differ in N alone (`KernelSpec.core`), of which `product` is one.

    `outputs` is their N if they all have the same: a constant is half a percent of a prompt.
    """

    product: KernelSpec
    outputs: int | None


@dataclass(frozen=True, slots=True)
class Unit:
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
    """Of each core in another unit that is called, a product that has it."""
    caches: tuple[CacheSpec, ...]
    """Those that are attended to."""
    kernels: tuple[AnySpec, ...]


def units_of(specs: tuple[AnySpec, ...], isa: Isa) -> tuple[Unit, ...]:
    """Return the units of a library for `isa` with the kernels `specs`, each in order of their symbols."""
    kernels = sorted({spec.symbol: spec for spec in specs}.values(), key=lambda spec: spec.symbol)
    cores = _cores_of(kernels)
    products = Unit(
        find_isa(isa.products_of or isa.name),
        tuple(spec for spec in kernels if isinstance(spec, KernelSpec) and spec.is_integer_by_vectors),
        tuple(core for core in cores if core.product.is_integer_by_vectors),
    )
    others = tuple(spec for spec in kernels if spec not in products.specs)
    codes = any(isinstance(spec, AttentionSpec) and spec.cache.dtype == "int8" for spec in others)
    rest = Unit(
        isa if codes else find_isa(isa.rest_of or isa.name),
        others,
        tuple(core for core in cores if not core.product.is_integer_by_vectors),
    )
    return tuple(unit for unit in (products, rest) if unit.specs or unit.cores)


def compile_unit(unit: Unit, toolchain: Toolchain) -> bytes:
    """Return the ELF object of `unit`; raises LowerError when the compiler does."""
    return toolchain.compile_object(unit_source(unit), unit.isa, headers(), FLAGS)


def unit_source(unit: Unit) -> str:
    """Return one C translation unit with the kernels of `unit`."""
    called = {product.core: product for product in map(_product_of, unit.specs) if product is not None}
    own = {core.product.core for core in unit.cores}
    others = tuple(product for name, product in called.items() if name not in own)
    caches = tuple(dict.fromkeys(spec.cache for spec in unit.specs if isinstance(spec, AttentionSpec)))
    context = KernelContext(unit.isa.name, HEADERS, unit.cores, others, caches, unit.specs)
    return render(TEMPLATE, {"context": context})


@cache
def headers() -> dict[str, str]:
    """Return the text of each header, by name."""
    return {CONSTANTS: constants_header(), **{name: source_text(f"cpu/include/{name}") for name in HEADERS}}


def _cores_of(kernels: Sequence[AnySpec]) -> list[Core]:
    """Return the cores that `kernels` call, each once."""
    products: dict[str, KernelSpec] = {}
    outputs: dict[str, set[int | None]] = {}
    for spec in kernels:
        if (product := _product_of(spec)) is not None:
            products[product.core] = product
            outputs.setdefault(product.core, set()).add(product.outputs if spec is product else None)  # a strip's
    only = {name: found.pop() if len(found) == 1 else None for name, found in outputs.items()}
    return [Core(product, only[name]) for name, product in products.items()]


def _product_of(spec: AnySpec) -> KernelSpec | None:
    """Return the product whose core a kernel calls."""
    match spec:
        case KernelSpec(kind="linear"):
            return spec
        case LinearAppendSpec(product) | GatedSpec(product) if not product.tiles:
            return product
        case _:
            return None
