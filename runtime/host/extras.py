"""The extras of the package: which one brings a module, how to install it, and what a failed import says."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyc.runtime.errors import MissingExtraError

EXTRAS = {
    "compiler": ("apache-tvm", "rich", "tvm", "yaml", "ziglang"),
    "cuda": ("nvidia-cuda-nvrtc",),
    "hub": ("huggingface_hub",),
    "object-stores": ("obstore",),
    "onnx": ("onnx", "onnxruntime"),
    "ray": ("grpc", "ray"),
    "tensorrt": ("cuda", "tensorrt"),
    "torch": ("torch",),
    "torch-tensorrt": ("torch_tensorrt",),
}
"""Modules and distributions of each extra: when one cannot be found, the extra is not installed."""


def install_line(extra: str) -> str:
    """Return the command that installs an extra, and where to type it."""
    return f"in a checkout of pyc: pip install -c constraints.txt '.[{extra}]'"


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra which would bring the missing module; None where no extra would."""
    root = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if root in modules), None)
    if extra is None:
        return None
    return MissingExtraError(f"this needs {error.name}, which is not installed; to install it, {install_line(extra)}")


def interruption(error: BaseException) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt behind an import that failed, as modules in C turn one into an ImportError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause


@contextmanager
def naming_missing_extras() -> Iterator[None]:
    """Raise MissingExtraError in the place of a ModuleNotFoundError whose module an extra would bring."""
    try:
        yield
    except ModuleNotFoundError as error:
        if missing := missing_extra(error):
            raise missing from error
        raise
