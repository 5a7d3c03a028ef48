"""What a kernel is called, the source it becomes, and the key it is cached under."""

import re
from dataclasses import replace

import pytest
from jinja2 import UndefinedError

from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.linear import AnySpec, KernelSpec, QuantizeSpec
from pyc.backends.cpu.kernels.translation_units import headers, unit_source, units_of
from pyc.backends.cpu.layouts import activation_layout, panel_layout
from pyc.compiler.schemes import SCHEMES, Activations, Int4Group, parse_scheme
from pyc.runtime.errors import QuantizeError
from pyc.templates import rendering

ISA = ISAS["x86-64"]


def linear(scheme: str, bias: bool = False) -> KernelSpec:
    return KernelSpec("linear", 4096, 1024, parse_scheme(scheme), bias)


def sources(*specs: AnySpec) -> list[str]:
    return [unit_source(unit) for unit in units_of(specs, ISA)]


@pytest.mark.parametrize(
    ("spec", "symbol"),
    [
        (linear("int4-g32"), "pyc_linear_int4_g32_n4096_k1024"),
        (linear("int4-g128-asym", True), "pyc_linear_int4_g128_asym_n4096_k1024_bias"),
        (linear("W4A16"), "pyc_linear_int4_g128_n4096_k1024_x_f32"),
        (linear("int8"), "pyc_linear_int8_n4096_k1024"),
        (linear("int8-g32", True), "pyc_linear_int8_g32_n4096_k1024_bias"),
        (linear("bf16"), "pyc_linear_bf16_n4096_k1024"),
        (replace(linear("int8", True), amx=True), "pyc_linear_int8_n4096_k1024_bias_amx"),
        (KernelSpec("linear", 99, 77, parse_scheme("bf16", "bf16"), True), "pyc_linear_bf16_n99_k77_x_bf16_bias"),
        (KernelSpec("linear", 99, 77, parse_scheme("f16", "bf16")), "pyc_linear_f16_n99_k77"),
        (linear("FP8_DYNAMIC"), "pyc_linear_fp8_n4096_k1024"),
        (KernelSpec("linear", 99, 77, parse_scheme("fp8-b128", "bf16")), "pyc_linear_fp8_b128_n99_k77_x_bf16"),
        (KernelSpec("embedding", 99, 77, parse_scheme("bf16", "bf16")), "pyc_embedding_bf16_n99_k77"),
        (KernelSpec("embedding", 99, 77, parse_scheme("int8")), "pyc_embedding_int8_n99_k77"),
        (KernelSpec("embedding", 99, 77, parse_scheme("int8", "f32")), "pyc_embedding_int8_n99_k77"),
        (QuantizeSpec(77, "float_scale"), "pyc_quantize_rows_float_scale_k77"),
    ],
)
def test_symbols(spec: KernelSpec | QuantizeSpec, symbol: str) -> None:
    assert spec.symbol == symbol


CHOICES: dict[str, tuple[Activations, ...]] = {
    name: ("f32", "bf16") for name in SCHEMES if name == "bf16" or name.startswith("fp8")
}
"""What matmuls by floating point multiply with, where there is a choice."""


def test_different_matmuls_have_different_symbols() -> None:
    specs = [
        KernelSpec("linear", outputs, inputs, parse_scheme(name, activations), bias, tiles)
        for outputs in (16, 17)
        for inputs in (128, 256)
        for name in SCHEMES
        if name != "none"
        for activations in CHOICES.get(name, ("int8", "f32") if name.startswith("int") else ("f32",))
        for bias in (False, True)
        for tiles in (False, True)
    ]
    assert len({spec.symbol for spec in specs}) == len(specs)


def test_shape_follows_the_layouts() -> None:
    shape = linear("int4-g64-asym").shape
    layout, row = panel_layout(SCHEMES["int4-g64-asym"], 1024), activation_layout(1024)
    assert layout.zeros is not None
    assert (shape.outputs, shape.inputs, shape.blocks, shape.group_blocks) == (4096, 1024, 32, 2)
    assert (shape.zeros, shape.data, shape.panel_bytes) == (
        layout.zeros.offset,
        layout.data.offset,
        layout.panel_bytes,
    )
    offsets = shape.row_corrections, shape.row_data, shape.row_bytes
    assert offsets == (row.corrections.offset, row.data.offset, row.row_bytes)


def test_a_shape_that_the_scheme_does_not_divide_is_refused() -> None:
    with pytest.raises(QuantizeError, match="in_features=100 is not divisible by group_size=32"):
        sources(KernelSpec("linear", 16, 100, Int4Group(32)))


def test_source_has_each_kernel_once_in_order() -> None:
    specs = (linear("int8"), linear("bf16"), linear("int8"), linear("int4-g32"), QuantizeSpec(1024, "power_of_two"))
    found = [re.findall(r"^int32_t (\w+)\(", source, re.MULTILINE) for source in sources(*specs)]
    assert found == [
        ["pyc_linear_int4_g32_n4096_k1024", "pyc_linear_int8_n4096_k1024"],
        ["pyc_linear_bf16_n4096_k1024", "pyc_quantize_rows_power_of_two_k1024"],
    ]
    assert sources(*specs) == sources(*specs[::-1])


def test_a_name_that_the_context_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "source_text", lambda name: "{{ no_such_name }}")
    monkeypatch.setattr(rendering, "_template", rendering._template.__wrapped__)  # parsed templates are kept
    with pytest.raises(UndefinedError, match="no_such_name"):
        sources(linear("int8"))


def test_headers_include_only_each_other_and_the_compilers() -> None:
    for text in headers().values():
        for included in re.findall(r'#include [<"]([^>"]+)', text):
            assert included in headers() or included in (
                "stddef.h",
                "stdint.h",
                "string.h",
                "arm_neon.h",
            )
