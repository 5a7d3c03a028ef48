"""Every call into torch_tensorrt: the builder and the runtime.

What stands here is typed against the package torch-tensorrt 2.13.0: the signatures and docstrings of its
`dynamo.compile`, `Input`, `save` and `load`, which https://docs.pytorch.org/TensorRT/py_api/dynamo.html and
https://docs.pytorch.org/TensorRT/py_api/torch_tensorrt.html show. None of it has run: its libraries want an NVIDIA GPU.
`tests/plugins/torch_tensorrt_double.py` stands in for it, and refuses what those signatures do not have.

From 2.13 on networks are strongly typed: `enabled_precisions` and `use_explicit_typing` are no arguments of
`dynamo.compile` any more, and would be taken for `**kwargs` and forgotten. A lower precision is asked for by
`enable_autocast`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule

from pyc.backends.torch_tensorrt.export import DTYPES, examples, flat_shapes, load_program
from pyc.backends.torch_tensorrt.interface import (
    INTERFACE,
    Interface,
    decode_interface,
    encode_interface,
    without_empty,
)
from pyc.runtime.errors import LowerError
from pyc.runtime.host.extras import install_line

Precision = Literal["f32", "f16", "bf16"]

_LOW: Mapping[Precision, torch.dtype | None] = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}


class Dynamo(Protocol):
    """torch_tensorrt.dynamo, as far as it is used here."""

    def compile(
        self,
        exported_program: ExportedProgram,
        *,
        arg_inputs: Sequence[Any],
        device: str,
        disable_tf32: bool,
        min_block_size: int,
        immutable_weights: bool,
        cache_built_engines: bool,
        reuse_cached_engines: bool,
        engine_cache_dir: str = ...,
        timing_cache_path: str = ...,
        enable_autocast: bool,
        autocast_low_precision_type: torch.dtype | None,
        attn_bias_is_causal: bool,
    ) -> GraphModule:
        """Build engines for what TensorRT can run of a program; the rest stays with torch."""
        ...


class Library(Protocol):
    """torch_tensorrt, as far as it is used here."""

    @property
    def dynamo(self) -> Dynamo:
        """Its front end for exported programs."""
        ...

    def Input(  # noqa: N802 - its name there
        self,
        *,
        min_shape: Sequence[int],
        opt_shape: Sequence[int],
        max_shape: Sequence[int],
        dtype: torch.dtype,
        name: str,
    ) -> Any:
        """Return the sizes of an input that engines are built for."""
        ...

    def save(
        self,
        module: GraphModule,
        file_path: str,
        *,
        extra_files: dict[str, str],
        output_format: str,
        arg_inputs: Sequence[Any],
        dynamic_shapes: tuple[dict[int, Any], ...],
    ) -> None:
        """Write what `dynamo.compile` made, engines in it."""
        ...

    def load(self, file_path: str, extra_files: dict[str, Any]) -> ExportedProgram:
        """Return what `save` wrote."""
        ...


def compile_engine(
    program: str | os.PathLike[str],
    engine: str | os.PathLike[str],
    *,
    precision: Precision = "f32",
    device: str = "cuda:0",
    cache: str | os.PathLike[str] | None = None,
) -> Path:
    """Build TensorRT engines for `program`, a file of `pyc export --to torch`, write them to `engine` and return it.

    It runs on the kind of GPU that `device` is, with the versions of torch-tensorrt and TensorRT that built it.
    TensorRT has no empty tensors: where a program takes an empty cache, its engine takes one of a masked position.
    `precision` "f32" computes in f32 without TF32; "f16" and "bf16" let torch-tensorrt choose what is computed in that.
    `cache` is a folder for its timing and engine caches; engines in it can be refitted, which may cost speed. What is
    at `engine` is replaced at the end. Raises LowerError when torch-tensorrt is not installed or cannot be loaded, when
    the file is no such program, and when the builder fails.
    """
    library = _library()
    exported, given = load_program(program)
    interface = Interface(given.inputs, given.outputs, without_empty(given.ranges))
    target = Path(engine)
    partial = target.with_name(f".{target.name}.partial")
    try:
        compiled = library.dynamo.compile(
            move_to_device_pass(exported, device),
            arg_inputs=_inputs(library, interface),
            device=device,
            disable_tf32=True,
            min_block_size=1,
            immutable_weights=cache is None,  # engines with immutable weights are not cached
            cache_built_engines=cache is not None,
            reuse_cached_engines=cache is not None,
            **_caches(cache),
            enable_autocast=precision != "f32",
            autocast_low_precision_type=_LOW[precision],
            attn_bias_is_causal=False,  # masks have windows and padding too
        )
        library.save(
            compiled,
            str(partial),
            extra_files={INTERFACE: encode_interface(interface)},
            output_format="exported_program",
            arg_inputs=examples(interface, device),  # not those of above: their likely sizes may be 1
            dynamic_shapes=flat_shapes(interface),
        )
        partial.replace(target)
    except Exception as error:  # of torch, torch-tensorrt or TensorRT, which have no common class
        raise LowerError(
            f"{os.fspath(program)}: torch-tensorrt cannot build it for {device}: {type(error).__name__}: {error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded engine: `run` takes tensors of its device in the order of `interface.inputs`."""

    run: Callable[..., tuple[torch.Tensor, ...]]
    interface: Interface


def load_engine(engine: str | os.PathLike[str]) -> Engine:
    """Return what `compile_engine` wrote, to run. Raises LowerError as that does."""
    library = _library()
    found: dict[str, Any] = {INTERFACE: ""}
    try:
        program = library.load(os.fspath(engine), extra_files=found)
    except Exception as error:
        raise LowerError(f"{os.fspath(engine)}: torch-tensorrt cannot load it: {error}") from error
    return Engine(program.module(), decode_interface(found[INTERFACE], os.fspath(engine)))


def _library() -> Library:
    """Import torch_tensorrt, which loads TensorRT; LowerError says what to install."""
    try:
        return cast("Library", importlib.import_module("torch_tensorrt"))
    except ModuleNotFoundError as error:
        raise LowerError(
            f"the package torch-tensorrt is not installed (no module {error.name}); it needs an NVIDIA GPU and brings "
            f"TensorRT: {install_line('torch-tensorrt')}"
        ) from error
    except Exception as error:  # it raises Exception itself where TensorRT's libraries cannot be loaded
        raise LowerError(f"torch-tensorrt is installed and cannot be loaded: {error}") from error


def _inputs(library: Library, interface: Interface) -> list[Any]:
    return [
        library.Input(
            min_shape=interface.shape(given, "min"),
            opt_shape=interface.shape(given, "opt"),
            max_shape=interface.shape(given, "max"),
            dtype=DTYPES[given.dtype],
            name=given.name,
        )
        for given in interface.inputs
    ]


def _caches(cache: str | os.PathLike[str] | None) -> dict[str, str]:
    if cache is None:
        return {}
    folder = Path(cache)
    return {"engine_cache_dir": str(folder / "engines"), "timing_cache_path": str(folder / "timing_cache.bin")}
