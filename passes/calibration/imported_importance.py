"""Importance that a recipe brings: mean squared inputs out of llama.cpp's imatrix, in place of those of a text.

    x = g n, W (g n) = (W diag(g)) n:  E[n_k^2] = E[x_k^2] / g_k^2

A file has inputs x as the checkpoint's matrices read them. Behind a norm whose gain g was folded into a matrix
(`fold_norm`) the matrix reads n, and importance is divided by the square of g. Where g is 0 the column is, too, and
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module, SourcePath
from pyc.compiler.recipe.types import Recipe
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.scales import Floats
from pyc.compiler.stacked_names import names_in_stack
from pyc.compiler.weights import Expression, ScaledColumns, Stacked, Stored
from pyc.models.gguf_names import checkpoint_name
from pyc.models.imatrix_file import read_imatrix
from pyc.passes.assign_schemes import quantizable
from pyc.passes.calibration.matrix_algorithms import algorithm_of, is_quantized
from pyc.runtime.artifact.format import is_plain_name
from pyc.runtime.errors import QuantizeError

Importance = Mapping[str, tuple[Floats, ...]]
"""Of a weight, mean squares f32 [K] for each matrix that it is stacked of."""

MOST_BYTES = 1 << 30


def calibration_source(recipe: Recipe, wanted: str, key: str) -> SourcePath:
    """Return a file of the recipe's calibration, and what provenance calls it. Raises QuantizeError for a name that no
    artifact can record."""
    name = f"calibration/{Path(wanted).name}"
    if Path(wanted).name not in ("", "..") and not is_plain_name(name):  # those are folders, which reading refuses
        raise QuantizeError(
            f"quantize.calibration.{key}: an artifact records the file's name, and {Path(wanted).name!a} is no plain "
            "one: no backslash, no control character; rename the file, or make a link to it"
        )
    return SourcePath(name, str(recipe.locate(wanted)))


def importance_source(recipe: Recipe) -> SourcePath | None:
    """Return the file of the importance, and what provenance calls it; None where the recipe names none."""
    wanted = recipe.quantize.calibration.imatrix
    return None if wanted is None else calibration_source(recipe, wanted, "imatrix")


def imported_importance(recipe: Recipe, module: Module, files: SourceFiles) -> Importance | None:
    """Return the importance of matrices that are rounded by `imatrix`, None where the recipe brings none.

    The head may be missing, as llama-imatrix leaves it out unless it is told to. Raises QuantizeError for a file that
    is malformed, lacks another matrix, has one that the model has not, or whose length is not the matrix's inputs.
    """
    source = importance_source(recipe)
    if source is None:
        return None
    where = f"quantize.calibration.imatrix: {recipe.quantize.calibration.imatrix}"
    given = _given(source.path, where, module, files)
    found: dict[str, tuple[Floats, ...]] = {}
    for name, weight in module.weights.items():
        if not is_quantized(weight) or algorithm_of(module, name, recipe.quantize.algorithm) != "imatrix":
            continue
        names = names_in_stack(name) if isinstance(weight, Stacked) else [name]
        missing = next((part for part in names if part not in given), None)
        if missing is not None and may_be_left_out(module, name, weight):
            continue
        if missing is not None:
            raise QuantizeError(
                f"{where}: it has nothing for {missing}; was it made from this model? Give an override with another "
                "algorithm to what it lacks"
            )
        parts = weight.parts if isinstance(weight, Stacked) else (weight,)
        found[name] = tuple(
            _unfolded(module, name, part, given[each], files) for part, each in zip(parts, names, strict=True)
        )
    return found


def _given(path: str, where: str, module: Module, files: SourceFiles) -> dict[str, Floats]:
    """The file's entries by the names of the checkpoint, of the lengths of its matrices."""
    try:
        if files.size_bytes(path) > MOST_BYTES:
            raise QuantizeError(f"{where}: it has {files.size_bytes(path):,} bytes, expected at most {MOST_BYTES:,}")
        entries = read_imatrix(files.read(path))
    except OSError as error:
        raise QuantizeError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise QuantizeError(f"{where}: {error}") from error
    columns = {
        part: module.weights[name].shape[1]
        for name in quantizable(module)
        for part in (names_in_stack(name) if isinstance(module.weights[name], Stacked) else [name])
    }
    found: dict[str, Floats] = {}
    for entry, values in entries.items():
        name = checkpoint_name(entry, columns)
        if name is None:
            raise QuantizeError(f"{where}: {entry}: this model has no such matrix; was it made from this model?")
        if len(values) != columns[name]:
            raise QuantizeError(
                f"{where}: {entry}: it has {len(values)} numbers, expected {columns[name]}, the inputs of {name}; was "
                "it made from this model?"
            )
        if name in found:
            raise QuantizeError(f"{where}: {entry}: it is {name}, of which there is an entry already")
        found[name] = values
    return found


def may_be_left_out(module: Module, name: str, weight: Expression) -> bool:
    """Return whether a file may lack a matrix: one of the logits that no override gives the algorithm to."""
    heads = {o.weights[0] for f in module.graph.functions if f.name == "logits" for o in f.operations if o.weights}
    return name in heads and isinstance(weight, Stored) and weight.algorithm is None


def _unfolded(module: Module, name: str, part: Expression, values: Floats, files: SourceFiles) -> Floats:
    """Importance of the inputs that a matrix reads once the gain of the norm before it is its own."""
    (reader, *_) = weight_readers(module.graph, name)
    function = next(f for f in module.graph.functions if reader in f.operations)
    maker = function.definitions().get(reader.operands[0])
    if maker is None or maker.kind != "rms_norm" or any(maker.weights):
        return values
    assert isinstance(part, Stored), name
    assert isinstance(part.base, ScaledColumns), name
    gain = np.square(evaluate_rows(part.base.vector, 0, part.base.vector.shape[0], files))
    return np.divide(values, gain, out=np.zeros_like(values), where=gain > 0)
