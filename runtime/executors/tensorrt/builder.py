"""The calls that build an engine: TensorRT's Builder, OnnxParser, BuilderConfig and TimingCache, and no others.

None of this has run with TensorRT. Tests hand it to a double that has the documented names and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.executors.tensorrt.documented import BuilderConfig, OnnxParser, TimingCache
from pyc.runtime.executors.tensorrt.program import Graph, Profile
from pyc.runtime.executors.tensorrt.toolkit import Toolkit

_MOST_ERRORS = 4
Contents = Callable[[], list[tuple[str, NDArray[np.uint8]]]]
"""Gives the bytes of each initializer by name."""


def build_engine(
    toolkit: Toolkit, graph: Graph, contents: Contents, *, is_exact: bool, timings: bytes
) -> tuple[bytes, bytes]:
    """Return the engine of a graph for this GPU, and the timing cache after it was built. Raises RunError.

    `timings` is a timing cache, b"" or one of another version or GPU: then a new one is begun.
    """
    trt, log = toolkit.tensorrt, toolkit.log
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    weights = contents()  # they live until the engine is built
    if not parser.load_model_proto(graph.model):
        raise _not_parsed(toolkit, graph, parser)
    for name, data in weights:
        if not parser.load_initializer(name, data.ctypes.data, data.nbytes):
            raise _not_parsed(toolkit, graph, parser, f"the weight {name!r} of {data.nbytes} bytes is not taken")
    if not parser.parse_model_proto():
        raise _not_parsed(toolkit, graph, parser)
    config = builder.create_builder_config()
    if is_exact:
        config.clear_flag(trt.BuilderFlag.TF32)
    cache = _timing_cache(config, timings)
    for index, profile in enumerate(graph.profiles):
        if config.add_optimization_profile(_profile(builder.create_optimization_profile(), profile)) != index:
            raise RunError(f"TensorRT {toolkit.version} refuses the profile {profile.name!r}: {toolkit.remarks()}")
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RunError(
            f"TensorRT {toolkit.version} builds no engine of the graph {graph.name!r} for {toolkit.device.name}: "
            f"{toolkit.remarks()}"
        )
    return bytes(memoryview(engine)), bytes(memoryview(cache.serialize()))


def _profile(made: Any, profile: Profile) -> Any:
    for extent in profile.extents:
        made.set_shape(extent.input, extent.least, extent.likely, extent.largest)
    return made


def _timing_cache(config: BuilderConfig, timings: bytes) -> TimingCache:
    """Return the cache that the builder uses."""
    for serialized in (timings, b""):
        cache = config.create_timing_cache(serialized)
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
    raise RunError("TensorRT takes no timing cache, not even an empty one")


def _not_parsed(toolkit: Toolkit, graph: Graph, parser: OnnxParser, why: str = "") -> RunError:
    """The error of a graph that the parser does not take: which operator of which layer, in its words."""
    found = [parser.get_error(index) for index in range(min(parser.num_errors, _MOST_ERRORS))]
    said = [f"{error.node_operator()} at {error.node_name()}: {' '.join(error.desc().split())}" for error in found]
    reasons = "; ".join([*([why] if why else ()), *said]) or toolkit.remarks()
    return RunError(
        f"TensorRT {toolkit.version} cannot express the graph {graph.name!r}: {reasons}; install a newer TensorRT, or "
        "run another program of the artifact (--backend)"
    )
