"""Nodes to a `Document`: types, limits and choices from the annotations, then rules that join several keys.

Every message is `PLACE: key.path: what; got ..., expected ...; did you mean '...'?`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import msgspec
from msgspec import inspect as kinds

from pyc.compiler.recipe.names_elsewhere import WORDS_ELSEWHERE, algorithm_in, scheme_beside, scheme_elsewhere
from pyc.compiler.recipe.places import MAX_SHOWN, find_node, mark_of, shortened
from pyc.compiler.recipe.quantize_rules import canonical_quantize
from pyc.compiler.recipe.types import (
    ISAS,
    PORTABLE_BACKENDS,
    AdapterRef,
    Document,
    Merge,
    Quality,
    Shapes,
    Target,
)
from pyc.compiler.recipe.yaml import ListNode, MapNode, Node, Scalar, fail, resolve_plain
from pyc.runtime.errors import RecipeError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

MOST_PLACES = 3
"""Places of a recipe that a message names."""
_PLAIN = re.compile(r"[A-Za-z0-9./~][A-Za-z0-9./_~-]*")
"""Letters that mean nothing else inside brackets."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def decode_document(node: Node) -> Document:
    """Return the document that `node` spells, canonical; RecipeError with the place of the first error."""
    plain = _value(node, kinds.type_info(Document), "")
    document = msgspec.convert(plain, Document)
    return msgspec.structs.replace(
        document,
        adapters=_adapters(document.adapters, node),
        merge=_merge(document.merge, document.adapters, node),
        quantize=canonical_quantize(document.quantize, node),
        shapes=_shapes(document.shapes, node),
        targets=_targets(document.targets, node),
        quality=_quality(document.quality, node),
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for the known name closest to `name`, or nothing; case does not count. For a scheme
    of other tools, return what to take here."""
    found = scheme_elsewhere(name)
    if found is not None:
        ours = next((name for name in (found[0], found[0].partition("-")[0]) if name in known), None)
        if ours is not None:  # int8 for int8-g32, say, where caches have no groups
            return f"; this is a name of {found[1]}, take {ours!r}"
    algorithm = algorithm_in(name)
    if algorithm is not None and "int4-g32" in known:
        scheme = scheme_beside(name)
        return f"; {algorithm!r} is an algorithm: write `algorithm: {algorithm}` beside a scheme such as {scheme!r}"
    ours = WORDS_ELSEWHERE.get(name.lower().replace("_", "-"))
    if ours is not None and ours in known:
        return f"; did you mean {ours!r}?"
    lowered = {item.lower(): item for item in reversed(known)}
    close = [item for item in map(str.lower, known) if len(name) > 2 and item.startswith(name.lower())]
    close = close or difflib.get_close_matches(name.lower(), list(lowered), n=1)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


def _value(node: Node, kind: kinds.Type, path: str) -> Plain:
    """`node` as plain values, checked against `kind`, the type that stands at `path`."""
    choices: Sequence[str] = ()
    aliases: Mapping[str, str] = {}
    while isinstance(kind, kinds.Metadata):
        enum = (kind.extra_json_schema or {}).get("enum")
        choices = tuple(str(item) for item in enum) if isinstance(enum, list) else choices
        aliases = (kind.extra or {}).get("aliases", aliases)
        kind = kind.type
    if isinstance(kind, kinds.UnionType):
        if isinstance(node, Scalar) and node.value is None:
            return None
        kind = next(member for member in kind.types if not isinstance(member, kinds.NoneType))
        return _value(node, kind, path)
    if isinstance(kind, kinds.StructType):
        return _mapping(node, kind, path)
    if isinstance(kind, kinds.VarTupleType):
        return _list(node, kind, path)
    if isinstance(kind, kinds.LiteralType):
        choices = tuple(str(value) for value in kind.values)
    if isinstance(kind, kinds.IntType | kinds.FloatType):
        return _number(node, kind, path)
    if choices:
        return _choice(node, choices, path, aliases)
    assert isinstance(kind, kinds.StrType), kind
    return _text(node, kind, path)


def _mapping(node: Node, kind: kinds.StructType, path: str) -> Plain:
    fields = {field.encode_name: field for field in kind.fields}
    known = list(fields)
    if not isinstance(node, MapNode):
        meant = _entry(node, kind) if path.endswith("]") else None
        hint = f"; write {meant}" if meant else ""
        _mismatch(node, path or "recipe", f"a mapping with keys {', '.join(known)}", hint)
    if kind.cls is Target:
        node = _gpus_as_isa(node)
    plain: dict[str, Plain] = {}
    for entry in node.entries:
        where = f"{path}.{entry.key}" if path else entry.key
        if entry.key not in fields:
            shown = shortened(entry.key)
            inside = f" in {path}" if path else ""
            expected = f"expected one of {', '.join(known)}{_place_of(entry.key, path) or nearest(entry.key, known)}"
            fail(entry.key_mark, f"unknown key {shown}{inside}; {expected}")
        plain[entry.key] = _value(entry.node, fields[entry.key].type, where)
    for name, field in fields.items():
        if field.required and name not in plain:
            inside = f"{path}: " if path else ""
            fail(node.mark, f"{inside}the key {name} is missing; add `{name}: ...`")
    return plain


def _place_of(key: str, path: str) -> str:
    """Return `; did you mean 'quantize.scheme'?` for a key that stands below `path` or elsewhere, or nothing."""
    places = [place for place in _places(kinds.type_info(Document), "") if place.rpartition(".")[2] == key]
    below = [place for place in places if place.startswith(f"{path}.")] if path else []
    others = [place for place in places if not place.startswith("merge.")]  # of few recipes
    found = below or [place for place in others if "[]" not in place] or others
    return f"; did you mean {' or '.join(map(repr, found))}?" if 0 < len(found) <= MOST_PLACES else ""


def _places(kind: kinds.Type, path: str) -> Iterator[str]:
    """Where each key of a recipe stands, as in targets[].isa."""
    if isinstance(kind, kinds.Metadata):
        yield from _places(kind.type, path)
    elif isinstance(kind, kinds.UnionType):
        for member in kind.types:
            yield from _places(member, path)
    elif isinstance(kind, kinds.VarTupleType):
        yield from _places(kind.item_type, f"{path}[]")
    elif isinstance(kind, kinds.StructType):
        for field in kind.fields:
            place = f"{path}.{field.encode_name}" if path else field.encode_name
            yield place
            yield from _places(field.type, place)


def _gpus_as_isa(target: MapNode) -> MapNode:
    """Return a target whose list `arch`, of GPUs, stands at `isa`; others as they are."""
    backend = next((entry.node for entry in target.entries if entry.key == "backend"), None)
    if not isinstance(backend, Scalar) or backend.value != "cuda" or any(e.key == "isa" for e in target.entries):
        return target
    entries = (
        replace(entry, key="isa") if entry.key == "arch" and isinstance(entry.node, ListNode) else entry
        for entry in target.entries
    )
    return replace(target, entries=tuple(entries))


def _list(node: Node, kind: kinds.VarTupleType, path: str) -> Plain:
    if not isinstance(node, ListNode):
        written = ""
        if entry := _entry(node, kind.item_type):
            written = f"; write [{entry}]"
        if isinstance(node, Scalar) and node.value is None:
            written = "; write [] or leave the key out"
        _mismatch(node, path, "a list", written)
    low, high = kind.min_length or 0, kind.max_length
    if len(node.items) < low or (high is not None and len(node.items) > high):
        limits = f"{low} to {high}" if high is not None else f"at least {low}"
        fail(node.mark, f"{path}: got {len(node.items)} entries, expected {limits}")
    return [_value(item, kind.item_type, f"{path}[{index}]") for index, item in enumerate(node.items)]


def _entry(node: Node, kind: kinds.Type) -> str | None:
    """How a single value that stands where a list does is written as an entry of it; None where that cannot be told."""
    if not isinstance(node, Scalar) or node.value is None or len(node.text) > MAX_SHOWN:
        return None
    if not isinstance(kind, kinds.StructType):
        return node.text
    names = [field.encode_name for field in kind.fields if field.required]
    if kind.cls is Target:
        is_backend, is_arch = node.text in ("cpu", *PORTABLE_BACKENDS), node.text in ISAS
        names = ["backend"] if is_backend else ["arch"] if is_arch else []
    if not names:
        return None
    return f"{{{', '.join([f'{names[0]}: {_written(node)}', *(f'{name}: ...' for name in names[1:])])}}}"


def _written(node: Scalar) -> str:
    """A scalar as text is written inside brackets: quoted where YAML takes it for something else without."""
    with contextlib.suppress(RecipeError):
        if _PLAIN.fullmatch(node.text) and resolve_plain(node.text, node.mark) == node.text:
            return node.text
    return json.dumps(node.text, ensure_ascii=False)


def _number(node: Node, kind: kinds.IntType | kinds.FloatType, path: str) -> Plain:
    whole = isinstance(kind, kinds.IntType)
    low, high = kind.ge, kind.le
    limits = f" from {low} to {high}" if low is not None and high is not None else ""
    expected = ("a whole number" if whole else "a number") + limits
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        _mismatch(node, path, expected)
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        _mismatch(node, path, expected)
    return value if whole else float(value)


def _text(node: Node, kind: kinds.StrType, path: str) -> str:
    value = node.value if isinstance(node, Scalar) else None
    if not isinstance(value, str):
        quote = ""
        if isinstance(node, Scalar) and node.value is not None:
            quote = f'; quote it ("{shortened(node.text)[1:-1]}") if text is meant'
        _mismatch(node, path, "text", quote)
    if _CONTROL.search(value):
        _mismatch(node, path, "text without control characters")
    if not (kind.min_length or 0) <= len(value) <= (kind.max_length or len(value)):
        _mismatch(node, path, f"text of {kind.min_length or 0} to {kind.max_length} characters")
    if kind.pattern and not re.search(kind.pattern, value):
        _mismatch(node, path, f"text that matches {kind.pattern}")
    return value


def _choice(node: Node, choices: Sequence[str], path: str, aliases: Mapping[str, str]) -> str:
    """The choice that `node` names; an alias is taken for what it stands for, and never proposed."""
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, str) and value in aliases:
        return aliases[value]
    listed = f"one of {', '.join(choices)}" if len(choices) > 1 else f"{choices[0]} (the only one so far)"
    if not isinstance(value, str) or value not in choices:
        text = node.text if isinstance(node, Scalar) else ""
        _mismatch(node, path, listed, nearest(text, choices) if text else "")
    return value


def _mismatch(node: Node, path: str, expected: str, hint: str = "") -> NoReturn:
    """Fail at `node` with what was got and what was expected."""
    fail(node.mark, f"{path}: got {_describe(node)}, expected {expected}{hint}")


def _describe(node: Node) -> str:
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if node.value is None:
        return "nothing (null)"
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    if isinstance(node.value, str):
        return f"the text {shortened(node.value)}"
    return f"the number {shortened(node.text)[1:-1]}"


def _adapters(adapters: tuple[AdapterRef, ...], node: Node) -> tuple[AdapterRef, ...]:
    seen: dict[str, int] = {}
    for index, adapter in enumerate(adapters):
        first = seen.setdefault(adapter.path, index)
        if first != index:
            fail(mark_of(node, "adapters", index, "path"),
                 f"adapters[{index}].path: got {adapter.path!r}, which adapters[{first}] names already; "
                 "raise its weight instead of listing it twice")  # fmt: skip
    return adapters



def _merge(merge: Merge | None, adapters: tuple[AdapterRef, ...], node: Node) -> Merge | None:
    """The options that the method has, no others, and adapters to merge."""
    if merge is None:
        return None
    method = merge.method
    wants = {
        "density": method.startswith(("ties", "dare", "magnitude")),
        "seed": method.startswith("dare"),
        "majority_sign": "ties" in method,
        "rank": method.endswith("svd"),
    }
    for name, is_wanted in wants.items():
        given = getattr(merge, name)
        if given is not None and not is_wanted:
            fail(mark_of(node, "merge", name), f"merge.{name}: the method {method} has no {name}; remove the key")
        if given is None and is_wanted and name in ("density", "seed"):
            fail(mark_of(node, "merge"), f"merge.{name}: the method {method} needs it; add `{name}: ...`")
    if len(adapters) < 2 or (method == "slerp" and len(adapters) > 2):
        most = "two adapters" if method == "slerp" else "two adapters or more"
        fail(mark_of(node, "merge"), f"merge: got {len(adapters)} under adapters, expected {most} to make one of")
    if method == "slerp" and (min(each.weight for each in adapters) < 0 or not any(each.weight for each in adapters)):
        fail(mark_of(node, "merge"), "merge: slerp takes weights as shares; expected none below 0 and one above")
    if "ties" in method and merge.majority_sign is None:
        return msgspec.structs.replace(merge, majority_sign="total")
    return merge

def _shapes(shapes: Shapes, node: Node) -> Shapes:
    """Buckets in ascending order, each once; of the default batch what `tokens` has rows for."""
    if find_node(node, "shapes", "batch") is None:
        batch = tuple(size for size in shapes.batch if size <= max(shapes.tokens))
        shapes = msgspec.structs.replace(shapes, batch=batch)
    for name, buckets in (("tokens", shapes.tokens), ("batch", shapes.batch), ("logits", shapes.logits)):
        for index, size in enumerate(buckets):
            if size in buckets[:index]:
                fail(
                    mark_of(node, "shapes", name, index),
                    f"shapes.{name}[{index}]: {size} is listed twice; keep one",
                )
    if max(shapes.batch) > max(shapes.tokens):
        fail(
            mark_of(node, "shapes", "batch"),
            f"shapes: batch goes up to {max(shapes.batch)}, but tokens only to {max(shapes.tokens)}; "
            "a decoding step takes one row for each sequence, so raise tokens or lower batch",
        )
    return msgspec.structs.replace(
        shapes,
        tokens=tuple(sorted(shapes.tokens)),
        batch=tuple(sorted(shapes.batch)),
        logits=tuple(sorted(shapes.logits)),
    )


def _targets(targets: tuple[Target, ...], node: Node) -> tuple[Target, ...]:
    """Instruction sets that belong to their architecture, and no program twice."""
    seen: set[tuple[str, str]] = set()
    for index, target in enumerate(targets):
        _check_portable(target, node, index)
        if (target.arch == "any") != (target.backend in PORTABLE_BACKENDS):
            expected = ", ".join(arch for arch in ISAS if arch != "any")
            fail(
                mark_of(node, "targets", index, "arch"),
                f"targets[{index}].arch: got 'any' for backend {target.backend}, expected one of {expected}",
            )
        if target.device != "cpu" and target.backend not in PORTABLE_BACKENDS:
            fail(
                mark_of(node, "targets", index, "device"),
                f"targets[{index}].device: got {target.device!r} for backend {target.backend}, expected cpu",
            )
        for position, isa in enumerate(target.isa):
            mark = mark_of(node, "targets", index, "isa", position)
            where = f"targets[{index}].isa[{position}]"
            portable = PORTABLE_BACKENDS.get(target.backend)
            known = portable[1] if portable else ISAS[target.arch]
            if isa not in known:
                fail(
                    mark,
                    f"{where}: got {isa!r}, expected one of {', '.join(known)} for "
                    f"{target.backend if portable else target.arch}{nearest(isa, known)}",
                )
            if (target.arch, isa) in seen:
                fail(mark, f"{where}: {target.arch} {isa} is listed twice; keep one")
            seen.add((target.arch, isa))
    return targets


def _check_portable(target: Target, node: Node, index: int) -> None:
    """A device or an architecture that is written for a backend which has one alone is that one."""
    if target.backend not in PORTABLE_BACKENDS:
        return
    for name, expected, others in (("device", target.device, ("cpu", "cuda")), ("arch", "any", ISAS)):
        written = find_node(node, "targets", index, name)
        if isinstance(written, Scalar) and written.value in others and written.value != expected:
            where = f"targets[{index}].{name}"
            fail(
                written.mark,
                f"{where}: got {written.value!r} for backend {target.backend}, expected {expected}; leave it out",
            )


def _quality(quality: Quality | None, node: Node) -> Quality | None:
    """A gate that has a limit, and a reference where a limit compares."""
    if quality is None:
        return None
    limits = dict(quality.limits())
    if not limits:
        fail(
            mark_of(node, "quality"),
            "quality: a gate without a limit, expected max_kl, max_ppl, min_same_top or min_cosine; add one",
        )
    compared = [name for name in limits if name != "max_ppl"]
    if quality.reference == "none" and compared:
        fail(
            mark_of(node, "quality", "reference"),
            f"quality.reference: got 'none', but {compared[0]} compares with a reference; write checkpoint, or leave "
            f"{compared[0]} out",
        )
    return quality
