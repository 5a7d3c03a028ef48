"""Artifacts of a few operations each, built by the pipeline that builds models, for timing single kernels.

What is timed is the compiled function of an artifact, through the executor: the difference between two functions, or
two positions, that differ in the kernel alone.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine_limits import best_isa

from pyc.compiler.builder import FunctionBuilder
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Graph, Module
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.types import Recipe
from pyc.compiler.weights import Constant, Expression, Source
from pyc.models.decoder import BLOCK_TOKENS
from pyc.passes.driver.emit_artifact import emit_artifact
from pyc.passes.jobs.local import LocalJobs
from pyc.passes.lower import backends_of, lower
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.format import KvCache, ModelInfo
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_sources import choose_key
from pyc.runtime.executors.cpu.executor import create_executor
from pyc.runtime.executors.protocol import Executor, InputArray
from pyc.runtime.host.aligned import aligned_zeros
from pyc.runtime.host.output_file import OutputFile

LAYERS = 8  # copies of a weight or a cache, so that one pass reads more than the processor's caches hold
HEADS, HEAD_DIM, CONTEXT = 32, 128, 256
FEATURES = 4096
NARROW = 32  # features of what is projected to heads: their products cost nearly nothing
ROPE = {"base": 10000.0, "scale": 1.0, "factor": 1.0, "original_context": CONTEXT, "dynamic": 0}
ATTENTION = {
    "heads": HEADS,
    "kv_heads": HEADS,
    "head_dim": HEAD_DIM,
    "scale": HEAD_DIM**-0.5,
    "window": 0,
}
CACHE = KvCache(layers=LAYERS, heads=HEADS, head_dim=HEAD_DIM, dtype="f16", block_tokens=BLOCK_TOKENS)
BLOCKS = CONTEXT // CACHE.block_tokens


@dataclass(frozen=True)
class Weights:
    """Random bfloat16 matrices in one file; every one begins at a row of its own."""

    path: Path

    def matrix(self, name: str, rows: int, columns: int, number: int) -> Source:
        """A matrix [rows, columns]; those of other numbers overlap it and are others."""
        return Source(str(self.path), name, "bf16", (rows, columns), 2 * columns * number, 2 * rows * columns)


def random_weights(folder: Path) -> Weights:
    """Write the file: normally distributed, deviation 1 / sqrt(4096), so that products keep their scale."""
    path = folder / "weights.bin"
    random = np.random.Generator(np.random.SFC64(0))
    with path.open("wb") as file:
        for _ in range(2):
            values = random.standard_normal((FEATURES, FEATURES), dtype=np.float32) / np.float32(64)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    return Weights(path)


def norms(count: int, features: int) -> tuple[FunctionBuilder, str, dict[str, Expression]]:
    """RMSNorm with gain, so many times over."""
    weights: dict[str, Expression] = {f"gain.{index}": Constant((1.0,) * features) for index in range(count)}
    builder = FunctionBuilder("forward", {name: weight.shape for name, weight in weights.items()})
    value = builder.parameter("x", "f32", "tokens", features)
    for name in weights:
        value = builder.emit("rms_norm", value, weights=(name,), epsilon=1e-6)
    return builder, value, weights


def products(source: Weights) -> tuple[FunctionBuilder, str, dict[str, Expression]]:
    """Eight products with matrices of 4096 x 4096, one after another."""
    weights: dict[str, Expression] = {
        f"matrix.{index}.weight": source.matrix(f"{index}", FEATURES, FEATURES, index) for index in range(LAYERS)
    }
    builder = FunctionBuilder("forward", {name: weight.shape for name, weight in weights.items()})
    value = builder.parameter("x", "f32", "tokens", FEATURES)
    for name in weights:
        value = builder.emit("linear", value, weights=(name, ""))
    return builder, value, weights


def attention(source: Weights, *, attends: bool) -> tuple[FunctionBuilder, str, dict[str, Expression]]:
    """Eight layers of heads that are projected, rotated, appended to the cache and attend to it; or that are only
    projected and added up."""
    weights: dict[str, Expression] = {}
    for layer in range(LAYERS):
        for number, name in enumerate(("q", "k", "v")):
            full = f"layers.{layer}.{name}_proj.weight"
            weights[full] = source.matrix(full, HEADS * HEAD_DIM, NARROW, 3 * layer + number)
    if attends:
        weights["frequencies"] = Constant(tuple(ROPE["base"] ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)))
    builder = FunctionBuilder("forward", {name: weight.shape for name, weight in weights.items()})
    x = builder.parameter("x", "f32", "tokens", NARROW)
    positions = builder.parameter("positions", "i32", "tokens")
    sequences = builder.parameter("sequences", "i32", "tokens")
    table = builder.parameter("block_table", "i32", 1, BLOCKS)
    angles = builder.emit("rope_angles", positions, weights=("frequencies",), **ROPE) if attends else ""
    results = []
    for layer in range(LAYERS):
        q, k, v = (
            builder.emit("linear", x, weights=(f"layers.{layer}.{name}_proj.weight", "")) for name in ("q", "k", "v")
        )
        if attends:
            q, k = (builder.emit("rope", value, angles, head_dim=HEAD_DIM) for value in (q, k))
            results.append(builder.emit("attention", q, k, v, positions, sequences, table, layer=layer, **ATTENTION))
        else:
            results.append(builder.emit("add", builder.emit("add", q, k), v))
    value = results[0]
    for other in results[1:]:
        value = builder.emit("add", value, other)
    return builder, value, weights


class Program:
    """A loaded artifact with one function `forward` of one row, and its inputs."""

    def __init__(
        self, function: tuple[FunctionBuilder, str, Mapping[str, Expression]], folder: Path, *, threads: int
    ) -> None:
        builder, result, weights = function
        isa = best_isa()
        recipe = recipe_from(
            {
                "model": str(folder),
                "quantize": {"scheme": "int4-g32", "kv_cache": CACHE.dtype},
                "shapes": {"tokens": [1], "logits": [1], "context": CONTEXT},
                "targets": [{"arch": isa.arch, "isa": [isa.name]}],
            }
        )
        graph = Graph((builder.finish(result),))
        info = ModelInfo(
            architecture="kernels",
            kind="decoder",
            vocab_size=1,
            hidden_size=FEATURES,
            context=CONTEXT,
            max_sequences=1,
            kv_cache=CACHE,
            pooling=None,
        )
        path = folder / "program.pyca"
        _emit(Module(graph, dict(weights), info), recipe, path)
        with open_artifact(path) as artifact:
            self.executor: Executor = create_executor(artifact, threads=threads, kv_blocks=BLOCKS)
        self.inputs: dict[str, InputArray] = {}
        for value in graph.functions[0].parameters:
            shape = tuple(1 if extent == "tokens" else int(extent) for extent in value.type.shape)
            self.inputs[value.name] = aligned_zeros(shape, np.float32 if value.type.dtype == "f32" else np.int32)
        random = np.random.Generator(np.random.PCG64(0))
        self.inputs["x"][:] = random.standard_normal(self.inputs["x"].shape, dtype=np.float32)
        if "block_table" in self.inputs:
            self.inputs["block_table"][:] = np.arange(BLOCKS)

    def run(self) -> None:
        """Once. Raises ArithmeticError when the result is not finite: then the time means nothing."""
        if not np.isfinite(self.executor.run("forward", 1, self.inputs)[0, 0]):
            raise ArithmeticError("the function's result is not finite")

    def at(self, position: int) -> None:
        """Once, as the token of a position."""
        self.inputs["positions"][0] = position
        self.run()


def _emit(module: Module, recipe: Recipe, path: Path) -> None:
    cache = Cache(None)
    lowered = lower(run_passes(module, pipeline(recipe, ())), backends_of(recipe, cache))
    workers = len(os.sched_getaffinity(0))
    output = OutputFile(path, force=True)
    with SourceFiles() as files, LocalJobs(workers, cache) as executor:
        emit_artifact(
            lowered,
            recipe,
            output,
            signing_key=choose_key().key,
            files=files,
            cache=cache,
            executor=executor,
            progress=lambda size_bytes: None,
        )
