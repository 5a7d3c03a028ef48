"""A second backend, as small as one can be: it runs the logical operators in numpy, over weights of f32.

It lowers nothing but layouts: a matrix is stored as the f32 values that its scheme stands for, row after row. Its
program is the graph as text, which `ReferenceExecutor` interprets. No code of the CPU's backend or executor is in it.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from pyc.backends.protocol import CompiledProgram, Memory
from pyc.backends.registry import BACKENDS
from pyc.compiler import storage
from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.interpret import Interpreter
from pyc.compiler.operators import OPERATORS
from pyc.compiler.quantization import QuantizedRows, dequantize_rows
from pyc.compiler.recipe.types import Target
from pyc.compiler.storage import StoredTensor, row_pieces
from pyc.compiler.text import parse_graph, print_graph
from pyc.compiler.weights import Packed
from pyc.runtime.artifact.format import Function, Tool
from pyc.runtime.executors.registry import EXECUTORS, Entry

NAME, ISA, LAYOUT = "reference", "numpy", "rows-f32"
TARGET = Target(backend=NAME, isa=(ISA,))


@dataclass(frozen=True)
class LowerRows:
    """Stores every matrix as rows of f32."""

    name = "lower_rows"
    version = 1
    requires = ("stored",)
    provides = ("packed",)

    def options(self):
        return {"layout": LAYOUT}

    def run(self, module):
        operations = [o for function in module.graph.functions for o in function.operations]
        matrices = {o.weights[0] for o in operations if OPERATORS[o.kind].has_matrix}
        weights = {name: Packed(w, LAYOUT) if name in matrices else w for name, w in module.weights.items()}
        return module.with_graph(module.graph, weights)


class ReferenceBackend:
    """`backend: reference`; a variant of it is called numpy, on every machine."""

    name = NAME
    suffix = ".txt"
    memory = Memory(build_bytes=0, compilers_bytes=0, run_bytes=None)

    def __init__(self, cache, cache_block_tokens=None):
        self.operators = {}
        self.cache_block_tokens = cache_block_tokens

    def passes(self):
        return (LowerRows(),)

    def stored(self, expression):
        if not isinstance(expression, Packed):
            return storage.stored_tensor(expression)
        return StoredTensor("f32", expression.shape, *expression.shape, stored_scheme(expression.base))

    def pieces(self, expression, files, span=storage.WHOLE):
        if not isinstance(expression, Packed):
            return storage.pieces(expression, files, span)
        assert expression.layout == LAYOUT
        return row_pieces(self.stored(expression), partial(_rows, expression, files), span)

    def held_bytes(self, weight):
        return 0

    def fastest_first(self, isas):
        return isas

    def check(self, module, buckets):
        """Nothing is lacking."""

    def compile(self, module, buckets, isas):
        functions = []
        for function in module.graph.functions:
            inputs = tuple(parameter.name for parameter in function.parameters)
            weights = tuple(dict.fromkeys(name for o in function.operations for name in o.weights if name))
            for rows in buckets.of(function.name):
                functions.append(Function(function.name, rows, f"{function.name}_{rows}", inputs, weights))
        for isa in isas:
            yield CompiledProgram(isa, "x86_64", (), print_graph(module.graph).encode(), tuple(functions))

    def cache_values(self, module, isa):
        return "f32"

    def tools(self):
        return (Tool(NAME, "1"),)

    def sources_digest(self):
        return "1"

    def stop(self):
        """Nothing runs."""

    def close(self):
        """Nothing was made."""


class ReferenceExecutor:
    """Interprets the program of an artifact's reference backend."""

    isa = ISA
    threads = 1
    is_arriving, sampler = False, None

    def __init__(self, artifact, options):
        program = _chosen(artifact.header.programs, options.isa)
        names = dict.fromkeys(name for function in program.functions for name in function.weights)
        cache = artifact.header.model.kv_cache
        self.ran = []
        self._functions = program.functions
        self._interpreter = Interpreter(
            parse_graph(artifact.blob(program.library).decode()),
            artifact.tensors(names),
            block_tokens=cache.block_tokens if cache else 1,
            is_float32=True,
        )

    def functions(self, name):
        return tuple(sorted(function.tokens for function in self._functions if function.name == name))

    def check_file(self):
        """Weights are held."""

    def stop_arriving(self):
        """Nothing arrives."""

    def run(self, name, bucket, inputs):
        self.ran.append((name, bucket))
        return self._interpreter.run(name, inputs)


@pytest.fixture
def reference(monkeypatch):
    """The tables of backends and executors with this one in them; the target that asks for it."""
    monkeypatch.setitem(BACKENDS, NAME, ReferenceBackend)
    monkeypatch.setitem(EXECUTORS, NAME, Entry(_chosen, ReferenceExecutor))
    return TARGET




def _chosen(programs, isa):
    return next(program for program in programs if program.backend == NAME)


def _rows(expression, files, start, stop):
    stored = evaluate_stored(expression.base, start, stop, files)
    if isinstance(stored, QuantizedRows):
        stored = dequantize_rows(stored, stored_scheme(expression.base))
    elif stored.dtype == np.uint16:  # bf16
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(stored.astype(np.float32)).data.cast("B")
