"""What other tools call schemes and algorithms, and what to take for it here (docs/which-scheme.md)."""

from __future__ import annotations

import re

_OF_GGUF = {"8": "int8-g32", "6": "int8", "5": "lut5-g32", "4": "lut4-g32", "3": "lut3-g32", "2": "lut2-g32"}
"""By the bits that llama.cpp has in a name."""
SCHEMES_ELSEWHERE = {
    "int8": "8bit 8-bit uint8 qint8 quint8 bnb8 int8-sym int8-asym int8-dynamic int8-static dynamic-int8 int8wo "
    "int8-weight-only q8f16 q8f32 q8f16-1 q8f32-1",
    "int4-g32": "4bit 4-bit int4-sym uint4 int4wo int4-weight-only int4-g16 q4f16 q4f16-0 q4f16-1 q4f16-2 q4f32 "
    "q4f32-1 q4bf16-1",
    "int4-g128": "int4-g256",
    "int4-g32-asym": "int4-asym uint4-asym",
    "lut4-g32": "nf4 bnb4 fp4",
    "lut3-g32": "3bit 3-bit int3 q3f16-0 q3f16-1",
    "lut2-g32": "2bit 2-bit int2",
    "ternary": "tq1-0 tq2-0 bitnet i2-s",
    "fp8": "fp8-e4m3 fp8-e4m3fn e4m3 float8 float8-e4m3 float8-e4m3fn float8wo mxfp8",
    "fp8-e5m2": "e5m2 float8-e5m2",
    "fp8-b128": "fp8-block fp8-pb-wo",
    "f16": "fp16 float16 q0f16",
    "bf16": "bfloat16 q0bf16",
    "f32": "fp32 float32 q0f32",
}
"""Names of Olive, ModelOpt, torchao, optimum, OpenVINO, MLC and bitsandbytes."""
_ALGORITHMS = {"awq": "awq", "gptq": "gptq", "smoothquant": "smoothquant", "sq": "smoothquant", "rtn": "rtn"}
"""Words in a name that say how codes are chosen and not how they are stored."""
_BESIDE = {"fp8": "fp8", "8": "int8", "3": "lut3-g32", "2": "lut2-g32"}
"""What a name has in it, and the scheme of so many bits."""
WORDS_ELSEWHERE = {
    "gpu": "cuda",
    "nearest": "rtn",
    "round-to-nearest": "rtn",
    "amd64": "x86_64",
    "x64": "x86_64",
    "x86-64": "x86_64",
    "arm64": "aarch64",
    "avx": "x86-64",
    "sse": "x86-64",
    "avx2": "x86-64-v3",
    "haswell": "x86-64-v3",
    "vnni": "avx512-vnni",
    "avx512f": "avx512-vnni",
    "avx10": "avx512-vnni",
    "amx": "amx-bf16",
    "neon": "armv8",
    "armv8-a": "armv8",
    "dotprod": "armv8-dotprod",
    "armv8.2-a": "armv8-dotprod",
    "sve": "armv8-dotprod",
}
"""Words for backends, algorithms, architectures and instruction sets, and ours, where that may stand."""


def scheme_elsewhere(name: str) -> tuple[str, str] | None:
    """Return the scheme to take for a name of other tools, and whose it is; None for what is none."""
    plain = name.lower().replace("_", "-")
    if gguf := re.fullmatch("i?q([2-68])-[0-9a-z-]+", plain):
        return _OF_GGUF[gguf[1]], "llama.cpp's"
    if grouped := re.fullmatch("u?int4-(sym|asym)-g(32|64|128)", plain):
        return f"int4-g{grouped[2]}{'-asym' if grouped[1] == 'asym' else ''}", "other tools'"
    scheme = next((scheme for scheme, names in SCHEMES_ELSEWHERE.items() if plain in names.split()), None)
    return None if scheme is None else (scheme, "other tools'")


def algorithm_in(name: str) -> str | None:
    """Return the algorithm that a word of `name` is (`awq` of `int4_awq`), None where none is one."""
    words = re.split("[-_]", name.lower())
    return next((_ALGORITHMS[word] for word in words if word in _ALGORITHMS), None)


def scheme_beside(name: str) -> str:
    """Return a scheme to go with `algorithm_in(name)`: by the bits that the name says, else one of 4."""
    return next((scheme for sign, scheme in _BESIDE.items() if sign in name.lower()), "int4-g32")
