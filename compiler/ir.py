"""The intermediate representation: an SSA graph over operators of language models, and its weights.

Everything here is frozen; a pass returns a new Module. Dimensions are integers or one of the symbols
"tokens" (rows of a flattened batch) and "sequences"; a bucket fixes them when a function is lowered.
The legal operators, with their arity and attributes, are the table in `compiler.operators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Generation, ModelInfo, PassRecord

Dimension = int | str
Scalar = int | float | str | bool


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type ("f32", "i32", ...) and shape of a value."""

    dtype: str
    shape: tuple[Dimension, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A named SSA value."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator application: `result = kind(operands; weights) {attributes}`.

    `operands` name earlier values, `weights` name entries of `Module.weights` ("" marks an absent optional
    weight, such as a bias), `attributes` are sorted by key. `also` are further results of operators that have some.
    """

    kind: str
    result: Value
    operands: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Scalar], ...] = ()
    also: tuple[Value, ...] = ()

    @property
    def results(self) -> tuple[Value, ...]:
        """All results, `result` first."""
        return (self.result, *self.also)

    def integer(self, key: str) -> int:
        """Return the integer attribute `key`; KeyError when it is absent."""
        value = dict(self.attributes)[key]
        assert isinstance(value, int)
        return value

    def number(self, key: str) -> float:
        """Return the numeric attribute `key`; KeyError when it is absent."""
        value = dict(self.attributes)[key]
        assert isinstance(value, (int, float))
        return float(value)

    def text(self, key: str) -> str:
        """Return the string attribute `key`; KeyError when it is absent."""
        value = dict(self.attributes)[key]
        assert isinstance(value, str)
        return value


@dataclass(frozen=True, slots=True)
class Function:
    """A straight-line function; `result` names the value that it returns.

    `version`: of the functions with one name that a backend has for different cases, which this is (`Graph.versions`).
    """

    name: str
    parameters: tuple[Value, ...]
    operations: tuple[Operation, ...]
    result: str
    version: str = ""

    def users(self) -> dict[str, tuple[Operation, ...]]:
        """Return, for each value name, the operations that read it (not counting the function's result)."""
        users: dict[str, list[Operation]] = {}
        for operation in self.operations:
            for name in dict.fromkeys(operation.operands):
                users.setdefault(name, []).append(operation)
        return {name: tuple(found) for name, found in users.items()}

    def definitions(self) -> dict[str, Operation]:
        """Return the operation that defines each value; parameters are absent."""
        return {value.name: operation for operation in self.operations for value in operation.results}


@dataclass(frozen=True, slots=True)
class Graph:
    """The functions of a model: "forward", "prompt" and "logits" for decoders, "embed" for encoders.

    `versions` compute the same as the function of their name, of other operations: a backend has them for some machines
    or numbers of rows, and chooses.
    """

    functions: tuple[Function, ...]
    versions: tuple[Function, ...] = ()

    def function(self, name: str, version: str = "") -> Function:
        """Return the function called `name`, or the version of it called `version`; KeyError when there is none."""
        return {(function.name, function.version): function for function in self.all_functions}[name, version]

    @property
    def all_functions(self) -> tuple[Function, ...]:
        """Functions, then versions of them."""
        return (*self.functions, *self.versions)

    def weight_names(self) -> tuple[str, ...]:
        """Return the weights that the graph reads, in order of first use."""
        names = (w for f in self.all_functions for o in f.operations for w in o.weights if w)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class SourcePath:
    """A file that the build reads: `name` is what provenance records, `path` where it lies here."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values of `tokens` virtual tokens in front of every sequence.

    `values` are bytes of f32 [layers, 2, kv_heads, tokens, head_dim], as attention reads them; none until they are
    computed.
    """

    tokens: int
    values: bytes = b""


@dataclass(frozen=True, slots=True)
class Module:
    """Graph, weights and what the artifact says of the model.

    `files` are carried into the artifact as they are (tokenizer, chat template); `sources` are the files whose
    digests provenance records; `passes` is the log of what ran; `truncation`: an encoder's texts are cut as the
    carried tokenizer.json says.
    """

    graph: Graph
    weights: Mapping[str, Expression]
    info: ModelInfo
    generation: Generation = field(default_factory=Generation)
    files: tuple[tuple[str, bytes], ...] = ()
    sources: tuple[SourcePath, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    prefix: Prefix | None = None
    truncation: bool = False

    @property
    def usable_context(self) -> int:
        """Return how many tokens a sequence may have beside virtual ones."""
        return self.info.context - (self.prefix.tokens if self.prefix else 0)

    def with_graph(self, graph: Graph, weights: Mapping[str, Expression] | None = None) -> Module:
        """Return a module with another graph; weights that it no longer reads are dropped."""
        table = self.weights if weights is None else weights
        return replace(self, graph=graph, weights={name: table[name] for name in graph.weight_names()})
