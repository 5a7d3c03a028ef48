"""What a build would do, from headers alone: every tensor, kernel, program and size. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pyc.compiler.estimate import (
    RunSize,
    artifact_bytes,
    build_peak_bytes,
    kv_cache_bytes,
    run_peak_bytes,
    tokenizer_bytes,
)
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.operands import sources
from pyc.compiler.operators import OPERATORS
from pyc.compiler.recipe.types import DEFAULT_CONTEXT_LIMIT, Quality, Recipe
from pyc.compiler.schemes import activations_of
from pyc.compiler.storage import PIECE_WEIGHTS
from pyc.models.catalog import load_model
from pyc.passes.calibration.calibration_text import calibration_windows
from pyc.passes.calibration.imported_importance import imported_importance
from pyc.passes.calibration.matrix_algorithms import calibrated, scaled
from pyc.passes.calibration.scale_channels import as_if_scaled
from pyc.passes.driver.build_calibration import warn_of_unread_text
from pyc.passes.driver.build_output import output_file
from pyc.passes.driver.calibration_memory import calibration_peak_bytes, measuring_peak_bytes
from pyc.passes.driver.emit_programs import buckets_of, check_parts
from pyc.passes.driver.ingest_recipe import ingest_recipe, source_of
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.interpretation.range_warnings import range_warnings
from pyc.passes.lower import Lowered, Weight, backends_of, lower
from pyc.passes.mixed_precision.measured_windows import windows_to_measure
from pyc.passes.mixed_precision.scheme_problem import Problem, guessed_recipe, problem
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.host.machine import allowed_cpus
from pyc.runtime.text.special_tokens import TOKENIZER
from pyc.runtime.text.text_cut import TextCut, read_text_cut

FIRST_TOKENS = 512
"""What `Plan.about_run_bytes` counts in the cache: a prompt and an answer."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor of the artifact: the matrix or vector `shape` it stands for, and the tensors it is made of."""

    name: str
    shape: tuple[int, ...]
    scheme: str
    stored_bytes: int
    source_names: tuple[str, ...]
    source_dtypes: tuple[str, ...]
    source_bytes: int


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A matrix kernel with its constants baked in: `uses` matrices go through it, in every function and bucket."""

    kind: str
    scheme: str
    activations: str
    rows: int
    columns: int
    has_bias: bool
    uses: int


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A library: the buckets of each function."""

    backend: str
    device: str
    arch: str
    isa: str
    functions: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A file that the build reads."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a build would write to `output`; sizes in bytes, those called `about_` are estimates.

    `about_build_peak_bytes` is the memory of the build's own process, `about_compilers_bytes` that of the compilers
    beside it. A run's process takes `about_run_bytes` with `run_tokens` in the cache, and `about_run_full_bytes` when
    every sequence is at its full context (compiler/estimate.py says what is in it), both None where no backend's need
    is known. `quality` is the recipe's gate. `goal` is what a build chooses schemes by, with its value; then the
    schemes here are a guess of about their bytes. `text_cut` says what of an encoder's text is read, where the
    context of `model` does not.
    """

    output: Path
    model: ModelInfo
    model_context: int
    text_cut: TextCut | None
    sources: tuple[SourcePlan, ...]
    adapters: tuple[str, ...]
    virtual_tokens: int
    tensors: tuple[TensorPlan, ...]
    scheme_bytes: tuple[tuple[str, int], ...]
    source_bytes: int
    weights_bytes: int
    kernels: tuple[KernelPlan, ...]
    programs: tuple[ProgramPlan, ...]
    passes: tuple[str, ...]
    about_artifact_bytes: int
    about_build_peak_bytes: int
    about_compilers_bytes: int
    kv_cache_bytes: int
    run_tokens: int
    about_run_bytes: int | None
    about_run_full_bytes: int | None
    quality: Quality | None
    goal: tuple[str, float] | None


def plan(recipe: Recipe, *, output: Path | None = None, workers: int | None = None) -> Plan:
    """Return what a build would do; IngestError, AdapterError, QuantizeError, RecipeError, LowerError."""
    with SourceFiles() as files:
        goal, chosen = recipe.quantize.goal(), None
        if goal is not None:
            ingested = ingest_recipe(recipe, files, None, backends_of(recipe, Cache(None)))
            chosen, recipe = problem(ingested), guessed_recipe(ingested)
            lowered = lower_recipe(recipe, files)
        else:
            warn_of_unread_text(recipe)
            lowered = lower_recipe(recipe, files, observe=range_warnings(files))
        check_parts(lowered, recipe)
        module, weights = lowered.common, _as_scaled(lowered, recipe).weights()
        model_context = _model_context(recipe, module, files)
        workers = workers or allowed_cpus()
        text_bytes = 0
        if goal is not None or recipe.quantize.reads_text():
            text = calibration_windows(recipe, module, files)
            windows, length = text.ids.shape
            text_bytes = calibration_peak_bytes(module, recipe.quantize.algorithms(), windows, length, workers)
            if chosen is not None:
                text_bytes = max(text_bytes, _measuring_bytes(chosen, module, text, files, workers))
        imported_importance(recipe, module, files)
        if recipe.quality is not None:
            from pyc.passes.driver.quality_gate import read_gate

            read_gate(recipe, module, files, output_file(recipe, output))
        sizes = tuple(SourcePlan(source.name, files.size_bytes(source.path)) for source in module.sources)
    tensors = tuple(_tensor(name, weight) for name, weight in weights.items())
    weights_bytes = sum(tensor.stored_bytes for tensor in tensors)
    by_scheme: Counter[str] = Counter()
    for tensor in tensors:
        by_scheme[tensor.scheme] += tensor.stored_bytes
    read = {source for weight in weights.values() for source in sources(weight.expression)}
    files_bytes = sum(len(data) for _, data in module.files)
    info = module.info
    run = _run_size(lowered, recipe, weights_bytes)
    run_tokens = min(FIRST_TOKENS, info.context)
    memories = [part.backend.memory for part in lowered.parts]
    programs = _programs(lowered, recipe)
    merge = f", merged by {recipe.merge.method}" if recipe.merge else ""
    return Plan(
        output=output or recipe.output(),
        model=info,
        model_context=model_context,
        text_cut=read_text_cut(dict(module.files)[TOKENIZER]) if module.truncation else None,
        sources=sizes,
        adapters=tuple(f"{adapter.path} x {adapter.weight:g}{merge}" for adapter in recipe.adapters),
        virtual_tokens=module.prefix.tokens if module.prefix else 0,
        tensors=tensors,
        scheme_bytes=tuple(sorted(by_scheme.items())),
        source_bytes=sum(source.size_bytes for source in read),
        weights_bytes=weights_bytes,
        kernels=_kernels(lowered),
        programs=programs,
        passes=tuple(record.name for record in lowered.passes()),
        about_artifact_bytes=artifact_bytes(
            weights_bytes, files_bytes, len(programs), compressed=recipe.artifact.codec != "none"
        ),
        about_build_peak_bytes=max(
            build_peak_bytes(
                workers,
                _pieces(weights.values()),
                sum(memory.build_bytes for memory in memories),
            ),
            text_bytes,
        ),
        about_compilers_bytes=sum(memory.compilers_bytes for memory in memories),
        kv_cache_bytes=kv_cache_bytes(run.info if run else info, info.max_sequences, info.context),
        run_tokens=run_tokens,
        about_run_bytes=None if run is None else run_peak_bytes(run, 1, run_tokens),
        about_run_full_bytes=None if run is None else run_peak_bytes(run, info.max_sequences, _full_tokens(run)),
        quality=recipe.quality,
        goal=goal,
    )


def _as_scaled(lowered: Lowered, recipe: Recipe) -> Lowered:
    """With the gains that AWQ and SmoothQuant give to norms, as what calibrates makes them."""
    method, names = scaled(calibrated(lowered.common, recipe.quantize.algorithm))
    if method is None:
        return lowered
    backends = {part.backend.name: part.backend for part in lowered.parts}
    return lower(as_if_scaled(lowered.common, method, names), backends)


def _measuring_bytes(found: Problem, module: Module, text: Windows, files: SourceFiles, workers: int) -> int:
    """About what choosing schemes for a goal takes; 0 where the recipe leaves nothing to choose."""
    if not found.leaves_a_choice():
        return 0
    measured, _, by = windows_to_measure(found, module, text, files)
    tokens, length = measured.ids.size, measured.ids.shape[1]
    beside, calibrates = 0 if by is None else by.ids.size, found.quantize.calibrates()
    return measuring_peak_bytes(module, tokens, beside, length, workers, calibrates=calibrates)


def _run_size(lowered: Lowered, recipe: Recipe, weights_bytes: int) -> RunSize | None:
    """Of the backend that takes least; None where that is not known of any."""
    known = [part for part in lowered.parts if part.backend.memory.run_bytes is not None]
    if not known:
        return None
    part = min(known, key=lambda part: part.backend.memory.run_bytes or 0)
    module, backend = part.module, part.backend
    held_bytes = sum(backend.held_bytes(backend.stored(weight)) for weight in module.weights.values())
    reads = "forward" if module.info.kind == "decoder" else "embed"
    return RunSize(
        info=backend.memory.cache_of(module.info),
        heads_apart=backend.memory.heads_apart,
        functions=module.graph.functions,
        buckets=buckets_of(recipe, module.info).of(reads),
        weights_bytes=weights_bytes,
        tokenizer_bytes=tokenizer_bytes(module.files),
        backend_bytes=(backend.memory.run_bytes or 0) + held_bytes,
    )


def _full_tokens(run: RunSize) -> int:
    """Of each sequence when its context is full, or of all texts of an encoder's largest step."""
    return run.info.context if run.info.kind == "decoder" else run.buckets[-1]


def _pieces(weights: Iterable[Weight]) -> Iterator[int]:
    """The weights of each piece that is evaluated at once."""
    for weight in weights:
        whole, rest = divmod(prod(weight.expression.shape), PIECE_WEIGHTS)
        yield from (*[PIECE_WEIGHTS] * whole, rest)


def _tensor(name: str, weight: Weight) -> TensorPlan:
    stored = weight.tensor
    found = tuple(dict.fromkeys(sources(weight.expression)))
    return TensorPlan(
        name=name,
        shape=weight.expression.shape,
        scheme=stored.scheme.name,
        stored_bytes=stored.size_bytes,
        source_names=tuple(source.tensor for source in found),
        source_dtypes=tuple(sorted({source.dtype for source in found})),
        source_bytes=sum(source.size_bytes for source in found),
    )


def _kernels(lowered: Lowered) -> tuple[KernelPlan, ...]:
    """The distinct matrix kernels, in the order in which the graph first calls them."""
    users: dict[tuple[str, str, str, int, int, bool], set[str]] = {}
    for part in lowered.parts:
        operators = {**OPERATORS, **part.backend.operators}
        for operation in (operation for function in part.module.graph.functions for operation in function.operations):
            if not operators[operation.kind].has_matrix:
                continue
            weight = part.backend.stored(part.module.weights[operation.weights[0]])
            is_gather = operators[operation.kind].role == "lookup"
            kind, activations = ("embedding", "f32") if is_gather else ("product", activations_of(weight.scheme))
            has_bias = not is_gather and bool(operation.weights[-1])
            key = (kind, weight.scheme.name, activations, weight.rows, weight.columns, has_bias)
            users.setdefault(key, set()).add(operation.weights[0])
    return tuple(KernelPlan(*key, len(names)) for key, names in users.items())


def _programs(lowered: Lowered, recipe: Recipe) -> tuple[ProgramPlan, ...]:
    buckets = buckets_of(recipe, lowered.common.info)
    plans: list[ProgramPlan] = []
    for target in recipe.targets:
        graph = lowered.part(target.backend).module.graph
        functions = tuple((function.name, buckets.of(function.name)) for function in graph.functions)
        plans += (ProgramPlan(target.backend, target.device, target.arch, isa, functions) for isa in target.isa)
    return tuple(plans)


def _model_context(recipe: Recipe, module: Module, files: SourceFiles) -> int:
    """Tokens that the checkpoint serves, whatever the recipe asks for."""
    if recipe.shapes.context is None and module.info.context != DEFAULT_CONTEXT_LIMIT:
        return module.info.context
    return load_model(source_of(recipe), files=files).info.context
