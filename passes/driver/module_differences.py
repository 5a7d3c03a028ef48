"""Why programs do not fit a module: what differs from the one they were compiled from, the cause and a remedy (ADR 51).

Fields, weights and functions are compared by name. What is reported is the first of code, fields, weights, graph: a
weight that is another changes the graph behind it, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from pyc.compiler.ir import Module
from pyc.compiler.recipe.types import AdapterRef, Algorithm, Merge, Quantize, Recipe
from pyc.compiler.schemes import Dense
from pyc.passes.assign_schemes import dtypes_of
from pyc.passes.calibration.rounding import scaling_algorithms
from pyc.passes.driver.module_identity import model_lines, text_blob
from pyc.passes.lower import Part
from pyc.runtime.artifact.format import KV_PREFIX, Header, ModelInfo, Program
from pyc.runtime.artifact.reader import Artifact

MOST_SHOWN = 200
_HEAD = re.compile(r"(\w+(?:\.\w+)?)\(.*\) -> \S+ \{")
_WEIGHT = re.compile(r"(?P<stored>\w+ \[[^\]]*\])(?:, (?P<scheme>\S+) (?P<shape>\[[^\]]*\]).*)?")
_CONTEXT = "model.context"
_OF_CHECKPOINT = ("model.architecture", "model.kind", "model.vocab_size", "model.hidden_size")
_SHAPES = (_CONTEXT, "model.max_sequences", "buckets.tokens", "buckets.logits")
_FIT = "the code of this program does not fit"
_SAME_SHAPE = "take a checkpoint and a recipe of the same shape, or build the program again"
_SAME_ADAPTER = "build the program from a recipe with such an adapter"


@dataclass(frozen=True, slots=True)
class Described:
    """A module by names: fields, weights as text, lines of each function, and the weights that functions read.

    Without `functions`, weights are told by dtype and shape alone: an artifact with weights says no more.
    """

    fields: Mapping[str, str]
    weights: Mapping[str, str]
    functions: Mapping[str, tuple[str, ...]]
    readers: Mapping[str, frozenset[str]]


class _Made(msgspec.Struct, frozen=True):
    """What is read of the recipe by which the program was built."""

    quantize: Quantize
    adapters: tuple[AdapterRef, ...] = ()
    merge: Merge | None = None


def difference(artifact: Artifact, program: Program, part: Part, module: Module, recipe: Recipe, text: str) -> str:
    """Return the message for a program that was not compiled from the module whose identity has this text."""
    header = artifact.header
    ours, name = _parsed(text), text_blob(part.backend.name)
    has_text = any(blob.name == name for blob in header.blobs)
    theirs = _parsed(artifact.blob(name).decode("utf-8", "replace")) if has_text else _headed(header, program)
    found = (
        _code(header, ours, theirs)
        or _fields(ours, theirs, has_prefix=module.prefix is not None or KV_PREFIX in header.requires)
        or _weights(ours, theirs, part, recipe, _recipe_of(header))
        or _graph(ours, theirs)
        or "compiled for another model of the same shapes: a value of config.json, a scheme's variant or the pyc that "
        "built it is another; `pyc build --program-only` makes programs that say which"
    )
    return f"{artifact.path}: {found}"


def model_refusal(program: Artifact, info: ModelInfo) -> str | None:
    """Return the message for a checkpoint that says of itself what the program's model is not, or less of a context;
    None where it says nothing such."""
    here, there = (dict(line.split(" = ", 1) for line in model_lines(each)) for each in (info, program.header.model))
    for name in _OF_CHECKPOINT:
        if here[name] != there[name]:
            return f"{program.path}: {_pair(name, here[name], there[name], _SAME_SHAPE)}"
    if info.context < program.header.model.context:
        remedy = f"build the program again with shapes.context={info.context}"
        return f"{program.path}: {_pair(_CONTEXT, here[_CONTEXT], there[_CONTEXT], remedy)}"
    return None


def scaling_refusal(path: object, algorithm: Algorithm) -> str:
    """Return the message for an algorithm that makes another graph than any program without weights is for."""
    return (
        f"{path}: quantize.algorithm: {algorithm} scales channels by weights, which is another graph than this "
        "program's; take rtn or one that only chooses codes, such as gptq, or take as the program the artifact "
        f"of a whole build by {algorithm}"
    )


def _parsed(text: str) -> Described:
    fields: dict[str, str] = {}
    weights: dict[str, str] = {}
    functions: dict[str, tuple[str, ...]] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, _, value = line.partition(" = ")
        if head := _HEAD.fullmatch(line):
            functions[head[1]] = (line, *_body(lines))
        elif name.startswith("weight "):
            weights[name.removeprefix("weight ")] = value
        elif value:
            fields[name] = value
        else:
            fields["code"] = line
    readers = {name: frozenset(_read(body, weights)) for name, body in functions.items()}
    return Described(fields, weights, functions, readers)


def _body(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == "}":
            return
        yield line.strip()


def _read(body: Iterable[str], weights: Mapping[str, str]) -> Iterator[str]:
    for line in body:
        _, _, behind = line.partition("; ")
        yield from (name for name in behind.partition(")")[0].split(", ") if name in weights)


def _headed(header: Header, program: Program) -> Described:
    """Return what the header of an artifact with weights says of the module of a program."""
    readers: dict[str, frozenset[str]] = {}
    for function in program.functions:
        readers[function.name] = readers.get(function.name, frozenset()) | set(function.weights)
    used = frozenset().union(*readers.values())
    fields = dict(line.split(" = ", 1) for line in model_lines(header.model))
    for name, functions in (("tokens", ("forward", "embed")), ("logits", ("logits",))):
        if buckets := {each.tokens for each in program.functions if each.name in functions}:
            fields[f"buckets.{name}"] = str(sorted(buckets))
    weights = {each.name: f"{each.dtype} {list(each.shape)}" for each in header.tensors if each.name in used}
    return Described(fields, weights, {}, readers)


def _recipe_of(header: Header) -> _Made | None:
    """Return what the program's recipe says; None where another pyc wrote it otherwise."""
    try:
        return msgspec.convert(json.loads(header.provenance.recipe), _Made)
    except (ValueError, RecursionError):
        return None


def _code(header: Header, ours: Described, theirs: Described) -> str | None:
    if not theirs.functions or ours.fields.get("code") == theirs.fields.get("code"):
        return None
    made = next((tool.version for tool in header.provenance.tools if tool.name == "pyc-compiler"), "unknown")
    return f"built by another pyc ({made}), whose code does not fit; build it with this one"


def _fields(ours: Described, theirs: Described, *, has_prefix: bool) -> str | None:
    for name, value in ours.fields.items():
        other = theirs.fields.get(name)
        if value == other or name == "code" or (other is None and not theirs.functions):
            continue
        remedy = "write the same shapes in both recipes, or build the program again" if name in _SHAPES else _SAME_SHAPE
        if name == _CONTEXT and other is not None:
            remedy = f"set shapes.context to {other} (--set shapes.context={other}), or build the program again"
        if name == _CONTEXT and has_prefix:
            remedy = "an adapter's virtual tokens take positions: build the program from a recipe with as many"
        return _pair(name, value, other, remedy)
    return None


def _weights(ours: Described, theirs: Described, part: Part, recipe: Recipe, made: _Made | None) -> str | None:
    here, there = dict(ours.weights), theirs.weights
    if not theirs.functions:
        here = {name: _fields_of(value)[0] for name, value in here.items()}
    if here == there:
        return None
    changed = [name for name, value in here.items() if name in there and there[name] != value]
    for name in changed:
        if _fields_of(here[name])[2] != _fields_of(there[name])[2]:
            remedy = "take a checkpoint of the same shape, or build the program again"
            return _pair(f"weight {name}", here[name], there[name], remedy)
    is_same = made is not None and _schemes(made.quantize) == _schemes(recipe.quantize)
    cause = _scaling(recipe, made) or _head(ours, theirs)
    if cause is None and is_same and made is not None:
        cause = _widened(changed, here, there, part, recipe, made)
    if cause is not None:
        return f"{_FIT}: {cause}"
    remedy = _SAME_SHAPE
    if not is_same:
        remedy = "write the same schemes in both recipes, or build the program again"
    elif made is not None and (made.adapters, made.merge) != (recipe.adapters, recipe.merge):
        remedy = f"if an adapter makes the difference, {_SAME_ADAPTER}; else {remedy}"
    name = next(name for name in (*changed, *here, *there) if here.get(name) != there.get(name))
    return _pair(f"weight {name}", here.get(name), there.get(name), remedy)


def _scaling(recipe: Recipe, made: _Made | None) -> str | None:
    """Return what is said where one recipe alone has an algorithm that scales channels."""
    here = scaling_algorithms(recipe.quantize.algorithms())
    there = scaling_algorithms(made.quantize.algorithms()) if made else ()
    if bool(here) == bool(there):
        return None
    algorithm, where = (here[0], "this recipe alone") if here else (there[0], "the program's recipe alone")
    return (
        f"algorithm {algorithm} of {where} scales channels by weights, which is another graph; write it in both "
        "recipes, and take the artifact of a whole build as the program, or write it in neither"
    )


def _head(ours: Described, theirs: Described) -> str | None:
    """Return what is said where the token embedding makes the logits on one side alone."""
    logits = ours.readers.get("logits", frozenset())
    has_own = logits.isdisjoint(ours.readers.get("forward", ()))
    which, other = (ours, theirs) if has_own else (theirs, ours)
    prefetched = which.readers.get("forward", ())  # the function of the logits asks for the next step's first matrix
    alone = which.readers.get("logits", frozenset()).difference(prefetched, other.weights)
    heads = [name for name in alone if name in which.weights]
    names = sorted(name for name in heads if "," in _fields_of(which.weights[name])[0])
    if not logits or not names:
        return None
    here, there = ("here", "in the program") if has_own else ("in the program", "here")
    remedy = _SAME_ADAPTER if has_own else "build the program from a recipe without such an adapter"
    return (
        f"the logits have a matrix of their own {here} ({', '.join(names)}), and {there} the token embedding makes "
        f"them; an adapter of one of the two does that, and so does tie_word_embeddings; {remedy}"
    )


def _widened(
    changed: list[str], here: Mapping[str, str], there: Mapping[str, str], part: Part, recipe: Recipe, made: _Made
) -> str | None:
    """Return what is said of matrices that "none" stores as other floats here than there."""
    ours = [name for name in changed if recipe.adapters and _is_widened(part, name)]
    theirs = [name for name in changed if made.adapters and _dtype(part, name) in ("f16", "bf16")]
    for names, where, adapted in ((ours, "here", "this recipe"), (theirs, "in the program", "its recipe")):
        if names:
            short = "f16" if "f16" in dtypes_of(part.module.weights[names[0]]) else "bf16"
            remedy = _SAME_ADAPTER if where == "here" else "build the program from a recipe without such an adapter"
            return (
                f"{_several(names)} f32 {where} alone: an adapter of {adapted}, which is stored as another type, is "
                f"fused into them, and scheme none keeps the sum exactly; write `scheme: {short}` in both recipes and "
                f"build the program again, or {remedy}"
            )
    kinds = {name: (_fields_of(here[name])[1], _fields_of(there[name])[1]) for name in changed}
    floats = [name for name, (one, two) in kinds.items() if one != two and {one, two} <= {"f32", "f16", "bf16"}]
    if not floats:
        return None
    one, two = kinds[floats[0]]
    return (
        f"{_several(floats)} {one} here and {two} in the program, since scheme none keeps what the checkpoint has; "
        f"write `scheme: {two}` in both recipes and build the program again"
    )


def _several(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{len(names)} matrices ({names[0]} first) are"


def _is_widened(part: Part, name: str) -> bool:
    """Say whether a matrix is f32 though something of shorter floats is in it."""
    return _dtype(part, name) == "f32" and bool({"f16", "bf16"} & dtypes_of(part.module.weights[name]))


def _dtype(part: Part, name: str) -> str | None:
    """Return the dtype of a weight of floats; None of codes."""
    scheme = part.backend.stored(part.module.weights[name]).scheme
    return scheme.dtype if isinstance(scheme, Dense) else None


def _schemes(quantize: Quantize) -> object:
    overrides = [(each.match, each.scheme) for each in quantize.overrides]
    return quantize.scheme, quantize.embeddings, quantize.activations, overrides


def _fields_of(value: str) -> tuple[str, str | None, str | None]:
    """Return how a weight is stored, its scheme and the shape of its matrix; None: the text has no scheme."""
    found = _WEIGHT.fullmatch(value)
    return (value, None, None) if found is None else (found["stored"], found["scheme"], found["shape"])


def _graph(ours: Described, theirs: Described) -> str | None:
    """Return the first line that differs of the first function that does, and whether it has fewer or more."""
    if not theirs.functions:
        return None
    for name in (*ours.functions, *theirs.functions):
        here, there = (each.functions.get(name, ()) for each in (ours, theirs))
        for one, other in zip_longest(here, there):
            if one != other:
                lines = f"{len(here) - 1} operations here, {len(there) - 1} there"
                counts = f" of {name} ({lines})" if here and there else ""
                what = f"this has {_shown(one)}; the program has {_shown(other)}"
                return f"{_FIT}: another graph{counts}: {what}; {_SAME_SHAPE}"
    return None


def _pair(name: str, ours: str | None, theirs: str | None, remedy: str) -> str:
    """Return what is said of a field or weight that is another, or that one side has alone."""
    here, there = (_shown(None if value is None else f"{name} = {value}") for value in (ours, theirs))
    return f"{_FIT}: this has {here}; the program has {there}; {remedy}"


def _shown(line: str | None) -> str:
    text = "none" if line is None else line.strip()
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."
