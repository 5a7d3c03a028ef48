"""What this executor needs of a machine: TensorRT, CUDA, a GPU and its driver. What is missing is an error."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from dataclasses import dataclass
from typing import Any, cast

from pyc.runtime.errors import RunError
from pyc.runtime.executors.tensorrt.device import Device, require_gpu
from pyc.runtime.executors.tensorrt.documented import Cuda, TensorRt
from pyc.runtime.host.extras import install_line, interruption
from pyc.runtime.host.native_modules import noexec_remedy

logger = logging.getLogger(__name__)

LEAST_VERSION = (10, 15)
"""The first whose parser has RotaryEmbedding and RMSNormalization."""
_MOST_REMARKS = 8
_CUDA = "cuda.bindings.runtime", "CUDA's bindings for Python"
_TENSORRT = "tensorrt", "TensorRT"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The modules, the device, and the logger that TensorRT's objects are given."""

    tensorrt: TensorRt
    device: Device
    log: Any

    @property
    def version(self) -> str:
        """Of TensorRT."""
        return self.tensorrt.__version__

    def remarks(self) -> str:
        """Return what TensorRT has complained about since this was last asked, on one line."""
        said: list[str] = self.log.remarks
        text = "; ".join(" ".join(remark.split())[:400] for remark in said[-_MOST_REMARKS:])
        said.clear()
        return text or "TensorRT gives no reason"


def open_toolkit() -> Toolkit:
    """Return what there is on this machine; RunError says what is missing, and what to do."""
    cuda = cast("Cuda", _module(*_CUDA))
    device = Device(cuda)
    tensorrt = cast("TensorRt", _module(*_TENSORRT))
    found = tuple(int(part) for part in tensorrt.__version__.split(".")[:2])
    if found < LEAST_VERSION:
        raise RunError(
            f"backend tensorrt: TensorRT {tensorrt.__version__} is too old: its ONNX parser lacks operators that "
            f"graphs have; install {LEAST_VERSION[0]}.{LEAST_VERSION[1]} or newer"
        )
    return Toolkit(tensorrt, device, _log_of(tensorrt))


def check_machine() -> None:
    """Raise RunError where something is missing, and begin nothing on the GPU."""
    require_gpu(cast("Cuda", _module(*_CUDA)))
    if importlib.util.find_spec("tensorrt") is None:
        _module(*_TENSORRT)


def _module(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if interrupted := interruption(error):
            raise interrupted from None
        root = name.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == root:
            why = f"{what} ({root}) is not installed; to install it, {install_line('tensorrt')}"
        else:
            why = f"{what} cannot be loaded: {' '.join(str(error).split())[:300]}"
            remedy = noexec_remedy(error)
            why = f"{why}; {remedy}" if remedy else why
        raise RunError(
            f"backend tensorrt: {why}. It runs on Linux with an NVIDIA GPU; another program of the artifact runs "
            "without one (--backend)"
        ) from error


def _log_of(tensorrt: TensorRt) -> Any:
    """Return a logger of TensorRT's kind that hands messages to Python's, and keeps errors for who raises them."""
    base = tensorrt.ILogger
    levels = {base.INTERNAL_ERROR: logging.ERROR, base.ERROR: logging.ERROR, base.WARNING: logging.DEBUG}

    def log(self: Any, severity: Any, msg: str) -> None:
        level = levels.get(severity, logging.DEBUG)
        if level == logging.ERROR:
            self.remarks.append(msg)
        logger.log(logging.DEBUG, "TensorRT: %s", msg)

    def begin(self: Any) -> None:
        base.__init__(self)
        self.remarks = []

    return type("Log", (base,), {"__init__": begin, "log": log})()
