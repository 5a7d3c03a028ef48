"""torch.export of the reference module, with the sizes of a recipe's buckets, and the file that holds the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from pyc.backends.torch_tensorrt.interface import INTERFACE, Interface, decode_interface, encode_interface
from pyc.backends.torch_tensorrt.program_file import write_undisturbed
from pyc.compiler.files.work_folder import work_folder
from pyc.runtime.errors import LowerError

DTYPES = {"i64": torch.int64, "f32": torch.float32}
"""By the names of interfaces."""
_EXAMPLES = {"batch": 2, "tokens": 3, "past": 5}
"""Sizes to trace with, within their ranges: what is 0 or 1, or equal to another, could be taken for a constant."""
_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_PATHS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node")
"""What torch notes of where an operation comes from: files of this machine among it."""


def export_program(module: nn.Module, interface: Interface) -> ExportedProgram:
    """Return the program of a reference module. It takes every size within the interface's ranges.

    Python runs once and is recorded (`strict=False`): nothing in the module's code depends on a value of a tensor.
    """
    given = examples(interface)
    with _own_inductor_cache(), torch.no_grad():
        program = torch.export.export(module, given, dynamic_shapes=dynamic_shapes(interface), strict=False)
    for node in program.graph.nodes:
        for key in _PATHS:
            node.meta.pop(key, None)
    return program


@contextmanager
def _own_inductor_cache() -> Iterator[None]:
    """Have what torch asks while it traces, and makes the cache's folder of its compiler for, leave none in $TMPDIR.

    A folder that the user names, or that this process has already, is left alone.
    """
    if _INDUCTOR_CACHE in os.environ:
        yield
        return
    with work_folder("export") as folder:
        os.environ[_INDUCTOR_CACHE] = str(folder)
        try:
            yield
        finally:
            os.environ.pop(_INDUCTOR_CACHE, None)


def dynamic_shapes(interface: Interface) -> tuple[Any, ...]:
    """Return the dimensions of each argument of a reference module as torch.export takes them.

    Keys and values are one argument, `*past`, and so a tuple here.
    """
    flat = flat_shapes(interface)
    names = [given.name for given in interface.inputs]
    plain = sum(not name.startswith("past_key_values.") for name in names)
    return flat if plain == len(flat) else (*flat[:plain], flat[plain:])


def flat_shapes(interface: Interface) -> tuple[dict[int, Any], ...]:
    """Return the dynamic dimensions of each input; those of one name are one dimension."""
    dimensions = _dimensions(interface)
    return tuple(
        {axis: dimensions[d] for axis, d in enumerate(given.dimensions) if isinstance(d, str) and d in dimensions}
        for given in interface.inputs
    )


def _dimensions(interface: Interface) -> dict[str, Any]:
    ranges = interface.ranges
    found: dict[str, Any] = {
        name: Dim(name, min=size.min, max=size.max) for name, size in ranges.items() if size.is_dynamic
    }
    if "total" in ranges and not ranges["tokens"].is_dynamic:
        found["total"] = found["past"] + ranges["tokens"].max  # torch wants a sum with a number spelled out
    return found


def examples(interface: Interface, device: str = "cpu") -> tuple[Tensor, ...]:
    """Return inputs of sizes that torch does not take for constants."""
    sizes = {
        name: min(max(_EXAMPLES[name], size.min), size.max)
        for name, size in interface.ranges.items()
        if name != "total"
    }
    if "total" in interface.ranges:
        sizes["total"] = sizes["past"] + sizes["tokens"]
    shapes = ([sizes[d] if isinstance(d, str) else d for d in given.dimensions] for given in interface.inputs)
    pairs = zip(shapes, interface.inputs, strict=True)
    return tuple(torch.ones(shape, dtype=DTYPES[given.dtype], device=device) for shape, given in pairs)


def save_program(program: ExportedProgram, interface: Interface, file: BinaryIO) -> None:
    """Write a program as torch.export.load reads it, with its interface as a further file. Raises OSError, and what the
    handler of a signal raises."""
    extra = {INTERFACE: encode_interface(interface)}
    write_undisturbed(file, lambda sink: torch.export.save(program, cast(BinaryIO, sink), extra_files=extra))


def load_program(path: str | os.PathLike[str]) -> tuple[ExportedProgram, Interface]:
    """Return what `save_program` wrote. Raises LowerError when the file is something else."""
    found = {INTERFACE: ""}
    try:
        program = torch.export.load(os.fspath(path), extra_files=found)
    except Exception as error:  # torch raises what its parts raise: OSError, RuntimeError, KeyError
        raise LowerError(
            f"{os.fspath(path)}: torch {torch.__version__} cannot read it as an exported program: {error}; expected "
            "what `pyc export --to torch` writes, by a torch that is not newer"
        ) from error
    return program, decode_interface(found[INTERFACE], os.fspath(path))
