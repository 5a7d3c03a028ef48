"""Compiles every CUDA kernel of some models for every GPU, and prints what each takes of a multiprocessor; beside it,
what a step would take at least (`cuda_roofline.py`). Needs no GPU, and says nothing that was measured on one.

Ends with 1 where a kernel that moves most bytes or multiplies most numbers spills registers.

    python tests/bench/cuda_check.py [--model NAME]... [--arch NAME]...
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_roofline import GPUS, least_seconds
from hollow_checkpoint import LLAMA_1B, LLAMA_8B, write_hollow_checkpoint

from pyc.backends.cuda.archs import ARCHS, Arch, find_arch
from pyc.backends.cuda.backend import CudaBackend
from pyc.backends.cuda.toolchain.cubin import KernelResources, kernels_of, occupancy
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.emit_programs import buckets_of
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.executors.cuda.program import CudaProgram, Kernel, decode_program

DEMO = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
SHAPES = {"context": 8192, "tokens": [1, 8, 64, 2048], "logits": [1, 8], "batch": [1]}
MODELS = {
    "demo": (None, {"scheme": "int8"}),
    "llama-1b-bf16": (LLAMA_1B, {"scheme": "none", "activations": "bf16"}),
    "llama-8b-bf16": (LLAMA_8B, {"scheme": "none", "activations": "bf16"}),
    "llama-8b-fp8": (LLAMA_8B, {"scheme": "fp8", "activations": "bf16"}),
    "llama-8b-mxfp8": (LLAMA_8B, {"scheme": "fp8", "activations": "mxfp8"}),
    "llama-8b-int4": (LLAMA_8B, {"scheme": "int4-g128"}),
    "llama-8b-lut5": (LLAMA_8B, {"scheme": "lut5-g128"}),
    "llama-8b-lut3": (LLAMA_8B, {"scheme": "lut3-g128"}),
    "llama-8b-lut2": (LLAMA_8B, {"scheme": "lut2-g128"}),
    "llama-1b-ternary": (LLAMA_1B, {"scheme": "ternary"}),
}
"""Shapes of checkpoints, and how their matrices are stored."""
HOT = ("gemv", "gemm", "decode_attention", "prompt_attention", "step_attention")
"""What the symbols of kernels that must not spill begin with."""


@dataclass
class Checked:
    """A kernel, and what it takes on each GPU that it was compiled for."""

    kernel: Kernel
    resources: dict[str, KernelResources] = field(default_factory=dict)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="all, unless named")
    parser.add_argument("--arch", action="append", choices=list(ARCHS), help="all, unless named")
    arguments = parser.parse_args(given)
    archs = [find_arch(name) for name in arguments.arch or ARCHS]
    kernels: dict[str, Checked] = {}
    programs: dict[str, CudaProgram] = {}
    for model in arguments.model or MODELS:
        programs[model] = compiled(model, archs, kernels)
        print(f"{model}: {len(programs[model].kernels)} kernels", file=sys.stderr)
    print_kernels(kernels, [arch for arch in archs if not arch.is_ptx])
    for model, program in programs.items():
        print_estimate(model, program)
    spilling = [name for name, checked in kernels.items() if name.startswith(HOT) and spills(checked)]
    print(f"\n{len(kernels)} kernels for {', '.join(arch.name for arch in archs)}; of those that are hot, ", end="")
    print(f"these spill: {', '.join(spilling)}" if spilling else "none spills")
    return 1 if spilling else 0


def compiled(model: str, archs: list[Arch], kernels: dict[str, Checked]) -> CudaProgram:
    """The program of a model; what its kernels take is added to `kernels`."""
    shape, quantize = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        path = DEMO if shape is None else write_hollow_checkpoint(Path(folder), shape)
        target = {"backend": "cuda", "arch": [arch.name for arch in archs]}
        shapes = {**SHAPES, "context": min(SHAPES["context"], 1024)} if shape is None else SHAPES
        recipe = recipe_from({"model": str(path), "quantize": quantize, "shapes": shapes, "targets": [target]})
        backend = CudaBackend()
        lowered = lower_recipe(recipe, backends={"cuda": backend})
        buckets = buckets_of(recipe, lowered.common.info)
        module = lowered.part("cuda").module
        found = None
        for program in backend.compile(module, buckets, tuple(arch.name for arch in archs)):
            found = decode_program(program.library)
            for kernel in found.kernels:
                checked = kernels.setdefault(kernel.symbol, Checked(kernel))
                if not find_arch(program.isa).is_ptx:
                    checked.resources[program.isa] = kernels_of(found.code[kernel.unit])[kernel.symbol]
    assert found is not None
    return found


def spills(checked: Checked) -> bool:
    return any(resources.local_bytes for resources in checked.resources.values())


def print_kernels(kernels: dict[str, Checked], archs: list[Arch]) -> None:
    print("Of each kernel and GPU: registers of a thread, + bytes of local memory, and the share of a multiprocessor's")
    print("threads that run at once; - where another kernel does it. Shared memory is that of a block, in bytes.\n")
    width = max(map(len, kernels), default=0)
    print(f"{'kernel':{width}} threads  shared", *(f"{arch.name:>13}" for arch in archs))
    for symbol, checked in sorted(kernels.items()):
        kernel = checked.kernel
        static = max(resources.shared_bytes for resources in checked.resources.values())
        columns = [column(checked, arch) for arch in archs]
        print(f"{symbol:{width}} {kernel.threads:7} {kernel.shared_bytes + static:7}", *columns)


def column(checked: Checked, arch: Arch) -> str:
    resources, kernel = checked.resources.get(arch.name), checked.kernel
    if resources is None:
        return f"{'-':>13}"
    share = occupancy(resources, kernel.threads, kernel.shared_bytes, arch).share
    spilled = f"+{resources.local_bytes}" if resources.local_bytes else ""
    return f"{f'{resources.registers}{spilled}':>8} {share:4.0%}"


def print_estimate(model: str, program: CudaProgram) -> None:
    print(f"\n{model}: an estimate, of no GPU measured: the least time, by bytes and products of each launch")
    for gpu in GPUS:
        parts = []
        for label, symbols in (("step", ("forward_1", "logits_1")), ("2048 tokens", ("forward_2048", "logits_1"))):
            functions = [function for function in program.functions if function.symbol in symbols]
            if len(functions) == len(symbols):
                seconds = sum(least_seconds(function, program, gpu) for function in functions)
                parts.append(f"{label} {seconds * 1000:8.3f} ms")
        print(f"  {gpu.name:9}", ", ".join(parts))


if __name__ == "__main__":
    sys.exit(main())
