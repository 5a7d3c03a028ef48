"""What compiled programs depend on, as text: whoever has the same text may run them on other weights (ADR 51).

    code 8c1f...                                    code generators, kernels and layouts
    model.context = 512                             what the header says of the model
    buckets.tokens = [1, 16]
    weight model.norm.weight = f32 [64], ...        dtype, shape and scheme, in the order of first use
    forward(token_ids: i32[tokens]) -> %9 {         the lowered graph, with every constant of config.json in it

No value of a weight is in it, no path, and no version of a compiler. Each program records the text's digest in its
`abi`; an artifact of programs alone has the text itself, to say what differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
from blake3 import blake3

from pyc.backends.protocol import Buckets
from pyc.compiler.text import print_graph
from pyc.passes.lower import Part
from pyc.runtime.artifact.format import ModelInfo, Tool

MODULE = "pyc-module"
"""The component of a program's `abi` whose version is the digest of what it was compiled from."""


def identity_text(part: Part, buckets: Buckets) -> str:
    """Return all that the programs of a backend depend on, but for the instruction set and compilers' versions."""
    lines = [f"code {part.backend.sources_digest()}", *model_lines(part.module.info)]
    lines += (f"buckets.{name} = {list(getattr(buckets, name))}" for name in ("tokens", "logits"))
    for name in part.module.graph.weight_names():
        stored = part.backend.stored(part.module.weights[name])
        matrix = f"{stored.scheme.name} [{stored.rows}, {stored.columns}] {stored.scheme!r}"
        lines.append(f"weight {name} = {stored.dtype} {list(stored.shape)}, {matrix}")
    return "\n".join([*lines, print_graph(part.module.graph), ""])


def identity_of(text: str) -> Tool:
    """Return what a program that was compiled from this says in its `abi`."""
    return Tool(MODULE, blake3(text.encode()).hexdigest())


def text_blob(backend: str) -> str:
    """Return the name of the blob that has the text of a backend's programs."""
    return f"module/{backend}.txt"


def model_lines(info: ModelInfo) -> Iterator[str]:
    """Yield a line for each field of the model that the header describes."""
    document: dict[str, object] = msgspec.to_builtins(info)
    for name, value in document.items():
        yield f"model.{name} = {json.dumps(value)}"
