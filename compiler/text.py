"""Prints a graph as text and reads it back; golden tests of passes are written in this form.

    forward(token_ids: i32[tokens]) -> %1 {
      %0 = embedding(token_ids; model.embed_tokens.weight) : f32[tokens, 64]
      %1 = rms_norm(%0; model.norm.weight) {epsilon = 1e-06} : f32[tokens, 64]
    }

An absent optional weight is written `-`. Strings are quoted, so an attribute reads back with its type. A version of a
function is `forward.version(...)`, and follows all functions; further results and their types stand behind the first:
`%2, %1 = ... : u8[tokens, 96], f32[tokens, 64]`.
"""

from __future__ import annotations

import json
import re

from pyc.compiler.ir import Dimension, Function, Graph, Operation, Scalar, TensorType, Value

_HEAD = re.compile(r"(\w+)(?:\.(\w+))?\((.*)\) -> (\S+) \{")
_BODY = re.compile(r"(\S+(?:, \S+)*) = (\w+)\(([^;)]*)(?:; ([^)]*))?\)(?: \{(.*)\})? : (\S+\[.*\])")


def print_graph(graph: Graph) -> str:
    """Return the text of a graph, one operation a line."""
    return "\n".join(_print_function(function) for function in graph.all_functions)


def parse_graph(text: str) -> Graph:
    """Return the graph that `print_graph` wrote; ValueError names the line that does not parse."""
    functions: list[Function] = []
    head: re.Match[str] | None = None
    operations: list[Operation] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line:
            continue
        if head is None:
            head = _HEAD.fullmatch(line)
            if head is None:
                raise ValueError(f"line {number}: expected a function head, got {line!r}")
        elif line == "}":
            functions.append(_function(head, tuple(operations)))
            head, operations = None, []
        else:
            operations.append(_parse_operation(line, number))
    if head is not None:
        raise ValueError("the last function is not closed")
    plain, versions = (tuple(f for f in functions if bool(f.version) == is_version) for is_version in (False, True))
    return Graph(plain, versions)


def _print_function(function: Function) -> str:
    parameters = ", ".join(f"{value.name}: {_print_type(value.type)}" for value in function.parameters)
    version = f".{function.version}" if function.version else ""
    lines = [f"{function.name}{version}({parameters}) -> {function.result} {{"]
    lines += [f"  {_print_operation(operation)}" for operation in function.operations]
    return "\n".join([*lines, "}"])


def _print_operation(operation: Operation) -> str:
    arguments = ", ".join(operation.operands)
    if operation.weights:
        arguments += "; " + ", ".join(name or "-" for name in operation.weights)
    attributes = ", ".join(f"{key} = {json.dumps(value)}" for key, value in operation.attributes)
    braces = f" {{{attributes}}}" if attributes else ""
    names = ", ".join(value.name for value in operation.results)
    types = ", ".join(_print_type(value.type) for value in operation.results)
    return f"{names} = {operation.kind}({arguments}){braces} : {types}"


def _print_type(kind: TensorType) -> str:
    return f"{kind.dtype}[{', '.join(str(size) for size in kind.shape)}]"


def _parse_type(text: str) -> TensorType:
    dtype, _, sizes = text.rstrip("]").partition("[")
    shape: tuple[Dimension, ...] = tuple(
        int(size) if size.strip().isdigit() else size.strip() for size in sizes.split(",") if size.strip()
    )
    return TensorType(dtype, shape)


def _function(head: re.Match[str], operations: tuple[Operation, ...]) -> Function:
    name, version, parameters, result = head.groups()
    values = tuple(
        Value(declared[0], _parse_type(declared[1])) for declared in re.findall(r"(\w+): (\w+\[[^\]]*\])", parameters)
    )
    return Function(name, values, operations, result, version or "")


def _parse_operation(line: str, number: int) -> Operation:
    found = _BODY.fullmatch(line)
    if found is None:
        raise ValueError(f"line {number}: expected an operation, got {line!r}")
    names, kind, operands, weights, attributes, types = found.groups()
    found_types = re.findall(r"\w+\[[^\]]*\]", types)
    if len(found_types) != len(names.split(", ")):
        raise ValueError(f"line {number}: expected a type for each of {names}, got {types}")
    results = tuple(map(Value, names.split(", "), map(_parse_type, found_types)))
    pairs: list[tuple[str, Scalar]] = []
    for item in re.findall(r'(\w+) = ("[^"]*"|[^,]+)', attributes or ""):
        value = json.loads(item[1])
        if not isinstance(value, (str, int, float, bool)):
            raise ValueError(f"line {number}: attribute {item[0]} is not a scalar")
        pairs.append((item[0], value))
    return Operation(
        kind,
        results[0],
        tuple(name.strip() for name in operands.split(",") if name.strip()),
        tuple("" if name.strip() == "-" else name.strip() for name in (weights or "").split(",") if name.strip()),
        tuple(pairs),
        results[1:],
    )
