"""What this machine lacks for programs of a backend: all that the common pipeline asks of the machine that builds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from pyc.backends.cpu.isa import find_isa
from pyc.runtime.artifact.format import Program
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu.features import lacking


def lacks_here(names: Iterable[str]) -> dict[str, str]:
    """Return, in words, what this CPU lacks for each instruction set of its architecture, the fastest first; nothing
    for one that it runs. Raises LowerError for an unknown name."""
    isas = sorted(map(find_isa, names), key=lambda isa: isa.rank, reverse=True)
    return {isa.name: lacking(isa.features) for isa in isas}


def engine_lacks(backend: str, isa: str) -> str:
    """Return, in words, what this machine lacks for a variant of a backend that is not the CPU's; nothing for one that
    it runs. Nothing is begun on a device. Raises LowerError for an unknown GPU."""
    return {"cuda": _cuda_lacks, "onnx": _onnx_lacks, "tensorrt": _tensorrt_lacks}[backend](isa)


def _onnx_lacks(isa: str) -> str:
    return "" if importlib.util.find_spec("onnxruntime") else "the package onnxruntime"


def _tensorrt_lacks(isa: str) -> str:
    from pyc.runtime.executors.tensorrt.toolkit import check_machine

    try:
        check_machine()
    except RunError:
        return "TensorRT, and an NVIDIA GPU with its driver"
    return ""


def _cuda_lacks(isa: str) -> str:
    from pyc.backends.cuda.archs import find_arch
    from pyc.runtime.executors.cuda.choice import best_program
    from pyc.runtime.executors.cuda.device import find_gpu
    from pyc.runtime.executors.cuda.driver import open_driver

    try:
        gpu = find_gpu(open_driver())
    except RunError:
        return "an NVIDIA GPU and its driver"
    try:
        best_program([Program("cuda", "cuda", "any", "any", isa, find_arch(isa).features, "", (), ())], gpu)
    except RunError:
        return f"another GPU than {gpu.name}"
    return ""
