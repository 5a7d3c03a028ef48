"""The least time that launches can take on a GPU: a roofline, by data sheets. An estimate, never a measurement.

A launch takes at least as long as its bytes at the bandwidth of memory, or its products at the rate of matrix
instructions, whichever is longer; launches one after another take the sum. What a launch reads is its arrays, each
once: of an embedding the rows that it takes, of attention the keys and values of `CONTEXT` positions. Latencies,
launches, caches and clocks are left out, so that real times are longer.

Rates of bf16 are those of the fastest instructions that the data sheet counts. Kernels here use mma.sync, which has
been measured to reach 0.62 of that on an H100 (arXiv:2402.13499), and less is likely on a B200.

Floating point of 8 bits by MXFP8 has a rate of its own where mma.sync of it is an instruction. For Hopper and B200
ptxas makes two products of f16 of each, at the rate of bf16.
"""

import re
from dataclasses import dataclass

from pyc.runtime.executors.cuda.program import CudaProgram, DeviceFunction

CONTEXT = 1024
PRODUCTS = re.compile(r"^(?:gemv|gemm)_.*_r(\d+)_n(\d+)_k(\d+)")
FLOAT8_PRODUCTS = re.compile(r"^gemm_w8a8_fp8_.*_x_mxfp8")
LOOKUP = re.compile(r"^embedding_.*_r(\d+)_n(\d+)_k")


@dataclass(frozen=True)
class Gpu:
    """Bytes a second of its memory, and products of bf16 a second (half of the dense FLOP/s of its data sheet), or of
    floating point of 8 bits, with sums in f32."""

    name: str
    bytes_a_second: float
    products_a_second: float
    float8_products_a_second: float


GPUS = (
    Gpu("H100 SXM", 3.35e12, 989e12 / 2, 989e12 / 2),
    Gpu("H200", 4.8e12, 989e12 / 2, 989e12 / 2),
    Gpu("B200", 8.0e12, 2250e12 / 2, 2250e12 / 2),
    Gpu("RTX 5090", 1.792e12, 209.5e12 / 2, 419e12 / 2),
)


def least_seconds(function: DeviceFunction, program: CudaProgram, gpu: Gpu) -> float:
    """The sum over the launches of a function."""
    total = 0.0
    for number, launch in enumerate(function.launches):
        size, products = work_of(function, program, number)
        is_float8 = FLOAT8_PRODUCTS.match(program.kernels[launch.kernel].symbol)
        rate = gpu.float8_products_a_second if is_float8 else gpu.products_a_second
        total += max(size / gpu.bytes_a_second, products / rate)
    return total


def work_of(function: DeviceFunction, program: CudaProgram, number: int) -> tuple[int, int]:
    """The bytes that a launch moves at least, and the products that it computes."""
    launch = function.launches[number]
    symbol = program.kernels[launch.kernel].symbol
    sizes = [size_of(function, program, symbol, index) for index in launch.buffers]
    found = PRODUCTS.match(symbol)
    rows, outputs, inputs = map(int, found.groups()) if found else (0, 0, 0)
    return sum(sizes), rows * outputs * inputs


def size_of(function: DeviceFunction, program: CudaProgram, symbol: str, index: int) -> int:
    buffer = function.buffers[index]
    if buffer.kind == "cache":
        blocks = -(-CONTEXT // 64) if "attention" in symbol else 0
        return blocks * program.cache_block_bytes
    lookup = LOOKUP.match(symbol)
    if buffer.kind == "weight" and lookup:
        rows, vocabulary = map(int, lookup.groups())
        return buffer.size_bytes * rows // vocabulary
    return buffer.size_bytes
