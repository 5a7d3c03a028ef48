"""What rounding has cost each matrix of an artifact: its bytes beside the checkpoint and adapters it was made from.

Matrices are as matmuls read them: adapters fused, the gains of norms before them and factors of channels multiplied in.
Of each, with W that in f32 and V what the artifact's bytes stand for, both summed in f64 by ROWS_AT_A_TIME rows:

    relative error = sqrt(sum (V - W)^2 / sum W^2)        largest error = max |V - W|

Nothing of the artifact is executed; what is read of it is verified, and every file of the sources by its digest.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from pyc.backends.stored_values import Rows, is_stored_as, stored_values
from pyc.compiler.evaluate import evaluate_rows, is_kept, stored_scheme, unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.files.work_folder import work_folder
from pyc.compiler.ir import Module, SourcePath
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import neutral_path, recipe_from
from pyc.compiler.recipe.types import Recipe
from pyc.compiler.schemes import Dense
from pyc.compiler.stacked_names import names_in_stack
from pyc.compiler.weights import Stacked, Stored
from pyc.passes.adapters.compute_prefix import compute_prefix
from pyc.passes.assign_schemes import quantizable
from pyc.passes.calibration.calibrate import calibration_records, with_scaled_channels
from pyc.passes.calibration.calibration_text import calibration_sources, calibration_windows
from pyc.passes.calibration.imported_importance import importance_source, imported_importance, may_be_left_out
from pyc.passes.calibration.matrix_algorithms import calibrated, scaled
from pyc.passes.comparison.require_sources import require_files, require_model, require_tokens
from pyc.passes.driver.ingest_recipe import ingest_recipe, ingest_sources
from pyc.passes.mixed_precision.scheme_problem import Ingested
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.format import Header, Tensor
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.tensor_rows import TensorRows
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.errors import ArtifactError, PycError, RecipeError

logger = logging.getLogger(__name__)

ROWS_AT_A_TIME = 4096

_IN_LAYER = re.compile(r"(?:^|\.)(\d+)\.(.+)\.weight")

Advance = Callable[[int, int], None]
"""Is told how many numbers have been compared, of how many."""


@dataclass(frozen=True, slots=True)
class MatrixError:
    """A matrix [rows, columns]: how it is stored, by what algorithm it was rounded, bits a weight, and what that cost.

    `layer` is None for what is in none; `kind` is the rest of the name. `algorithm` is "exact", "kept" (the codes of
    a quantized checkpoint), the recipe's, or "unknown" (a file that would tell is not at hand).
    """

    name: str
    layer: int | None
    kind: str
    rows: int
    columns: int
    scheme: str
    algorithm: str
    bits: float
    error_square: float
    square: float
    largest: float

    @property
    def relative(self) -> float:
        """The relative error; of zeros that are not zeros any more infinity."""
        return relative_error(self.error_square, self.square)


def relative_error(error_square: float, square: float) -> float:
    """Return the root of a quotient of sums of squares; 0 where there is no error."""
    if not error_square:
        return 0.0
    return math.sqrt(error_square / square) if square else math.inf


def weight_errors(
    artifact: Artifact, source: Recipe, files: SourceFiles, cache: Cache, advance: Advance = lambda done, total: None
) -> tuple[MatrixError, ...]:
    """Return the errors of the matrices that schemes apply to, in the order in which the model reads them.

    `source` names the checkpoint, the adapters, how they are merged, and where the files of the calibration are; how
    they were quantized is what the artifact says. Factors of channels, which AWQ and SmoothQuant multiply in, come from
    the build cache, or are searched anew. Raises ArtifactError when sources are not those that the artifact was made
    from, or are merged in another way, when it has no program for CPUs, and for damaged bytes; and what reading a
    checkpoint raises.
    """
    recorded = _recorded_recipe(artifact)
    recipe = _with_places(recorded, source)
    of_calibration = {file.name for file in calibration_sources(recorded)}
    try:
        ingested = ingest_recipe(recipe, files, None, {})
    except PycError:  # another model need not take the shapes that the artifact records
        require_model(artifact, ingest_sources(recipe, files), of_calibration, files)
        raise
    require_model(artifact, ingested, of_calibration, files)
    module = run_passes(ingested.module, pipeline(recipe, ingested.adapters))
    tensors = {tensor.name.partition("@")[0]: tensor for tensor in _read_by_cpus(artifact.header)}
    if not tensors:
        there = ", ".join(dict.fromkeys(program.backend for program in artifact.header.programs)) or "nothing"
        raise ArtifactError(
            f"{artifact.path}: it has programs for {there} alone; codes are the same in one for CPUs: build that, and "
            "report it"
        )
    names = [name for name in module.weights if name in quantizable(module)]
    missing = next((name for name in names if name not in tensors), None)
    if missing is not None:
        raise ArtifactError(f"{artifact.path}: it has no matrix {missing!r} for CPUs; was it made from this model?")
    is_named = source.quantize.calibration.imatrix is not None
    algorithms = _algorithms(artifact, module, recipe, files, is_named=is_named)
    total, done = sum(_size(module, name) for name in names), 0
    found: list[MatrixError] = []
    with _scaled(artifact, module, ingested, files, cache) as scaled:
        for name in names:
            found += _of_stack(artifact, scaled, name, tensors[name], files, algorithms.get(name, "rtn"))
            done += _size(module, name)
            advance(done, total)
    return tuple(found)


@contextlib.contextmanager
def _scaled(
    artifact: Artifact, module: Module, ingested: Ingested, files: SourceFiles, cache: Cache
) -> Iterator[Module]:
    """Yield the module as it was when codes were chosen; factors of its channels last as long as the context."""
    recipe = ingested.recipe
    wanted = recipe.quantize
    if scaled(calibrated(module, wanted.algorithm))[0] is None:
        yield module
        return
    _require_calibration(artifact, calibration_sources(recipe), files)
    module = compute_prefix(module, ingested.adapters, files)
    windows = calibration_windows(recipe, module, files, cache)
    require_tokens(artifact, calibration_records(module, windows, wanted.algorithm, wanted.migration))
    with work_folder("report") as folder:
        yield with_scaled_channels(
            module, windows, files, cache, folder, lambda weights: None, wanted.algorithm, wanted.migration
        )


def _of_stack(
    artifact: Artifact, module: Module, name: str, tensor: Tensor, files: SourceFiles, algorithm: str
) -> Iterator[MatrixError]:
    """Yield the errors of the matrices that a weight is stacked of, or of the one that it is."""
    weight, array = module.weights[name], TensorRows(artifact, tensor)
    rows, columns = weight.shape
    scheme = stored_scheme(weight)
    if not is_stored_as(array, scheme, rows, columns):
        raise ArtifactError(
            f"{artifact.path}: tensor {tensor.name!r} is {tensor.dtype} {list(tensor.shape)}, which is no "
            f"{scheme.name} of [{rows}, {columns}]; was it made from this model?"
        )
    parts = weight.parts if isinstance(weight, Stacked) else (weight,)
    bits = 8 * tensor_bytes(tensor.dtype, tensor.shape) / (rows * columns)
    first = 0
    for part_name, part in zip(names_in_stack(name), parts, strict=True):
        assert isinstance(part, Stored), part_name
        yield _measured(part_name, part, array, first, files, "kept" if is_kept(part) else algorithm, bits)
        first += part.shape[0]


def _measured(
    name: str,
    weight: Stored,
    array: Rows,
    first: int,
    files: SourceFiles,
    algorithm: str,
    bits: float,
) -> MatrixError:
    rows, columns = weight.shape
    error_square = square = largest = 0.0
    for start in range(0, rows, ROWS_AT_A_TIME):
        stop = min(start + ROWS_AT_A_TIME, rows)
        exact = evaluate_rows(unstored(weight), start, stop, files).astype(np.float64)
        kept = stored_values(array, weight.scheme, columns, first + start, first + stop)
        difference = kept - exact
        error_square += float(np.square(difference).sum())
        square += float(np.square(exact).sum())
        largest = max(largest, float(np.abs(difference).max()))
    match = _IN_LAYER.search(name)
    return MatrixError(
        name=name,
        layer=int(match[1]) if match else None,
        kind=match[2] if match else name.removesuffix(".weight"),
        rows=rows,
        columns=columns,
        scheme=weight.scheme.name,
        algorithm="exact" if not error_square and isinstance(weight.scheme, Dense) else algorithm,
        bits=bits,
        error_square=error_square,
        square=square,
        largest=largest,
    )


def _algorithms(
    artifact: Artifact, module: Module, recipe: Recipe, files: SourceFiles, *, is_named: bool
) -> Mapping[str, str]:
    """Return how matrices were rounded that were not to nearest, as those are that an importance file leaves out.

    Unless the source itself has it `is_named`, the file is looked for where the artifact's recipe has it. Where it is
    not, or is another, what it may have left out is "unknown", and a warning says so.
    """
    algorithm, source = recipe.quantize.algorithm, importance_source(recipe)
    if source is None:
        return calibrated(module, algorithm)
    try:
        _require_calibration(artifact, (source,), files)
    except (ArtifactError, OSError) as error:
        if is_named:
            raise
        found = calibrated(module, algorithm)
        imported = [name for name, how in found.items() if how == "imatrix"]
        unknown = [name for name in imported if may_be_left_out(module, name, module.weights[name])]
        if unknown:
            logger.warning("whether %s has importance in %s is not known: %s", ", ".join(unknown), source.name, error)
        return {**found, **dict.fromkeys(unknown, "unknown")}
    return calibrated(module, algorithm, imported_importance(recipe, module, files))


def _require_calibration(artifact: Artifact, sources: Iterable[SourcePath], files: SourceFiles) -> None:
    """Raise ArtifactError unless these are files of the calibration that the artifact was made with."""
    require_files(artifact, sources, files, {file.name for file in calibration_sources(_recorded_recipe(artifact))})


def _recorded_recipe(artifact: Artifact) -> Recipe:
    try:
        document = msgspec.json.decode(artifact.header.provenance.recipe, type=dict[str, object])
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{artifact.path}: its recipe is no JSON: {error}") from error
    try:
        return recipe_from(document)
    except RecipeError as error:
        raise ArtifactError(
            f"{artifact.path}: its recorded recipe is another pyc's ({error}); report it with the pyc that built it"
        ) from error


def _with_places(recorded: Recipe, source: Recipe) -> Recipe:
    """Return the model of `source`, quantized as the artifact's recipe says.

    Of the calibration only the places of the files that the artifact was made from may be those of `source`. An
    artifact names none by an absolute path: what one that anybody wrote has there is taken as pyc would record it.
    """
    made_of, given = recorded.quantize.calibration, source.quantize.calibration
    calibration = replace(
        made_of,
        text=None if made_of.text is None else given.text or neutral_path(made_of.text),
        imatrix=None if made_of.imatrix is None else given.imatrix or neutral_path(made_of.imatrix),
    )
    quantize = replace(recorded.quantize, calibration=calibration)
    return replace(source, quantize=quantize, shapes=recorded.shapes, targets=recorded.targets)


def _read_by_cpus(header: Header) -> Iterator[Tensor]:
    programs = [program for program in header.programs if program.backend in ("cpu", "tvm")]
    read = {name for program in programs for function in program.functions for name in function.weights}
    return (tensor for tensor in header.tensors if tensor.name in read)


def _size(module: Module, name: str) -> int:
    rows, columns = module.weights[name].shape
    return rows * columns


def read_source(given: str) -> Recipe:
    """Return the recipe of a source: a recipe's file, or a checkpoint's folder, whose adapters are none."""
    from pyc.passes.driver.build import parse

    recipe = parse(given)
    return replace(recipe, folder=str(Path(recipe.folder)))
