"""Where recipe nodes come from: a file, a Python mapping, and `--set key.sub=value` on top of either."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyc.compiler.recipe.yaml import (
    MAX_BYTES,
    MAX_DEPTH,
    Entry,
    ListNode,
    MapNode,
    Mark,
    Node,
    Scalar,
    decode_text,
    fail,
    parse_yaml,
)
from pyc.runtime.artifact.kinds import FOLDER, instead_of_config, instead_of_recipe, kind_of
from pyc.runtime.errors import RecipeError

_url = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.ASCII | re.DOTALL)
"""A URL, which has one slash less where it has become a path."""
_INSTEAD = "give a checkpoint's folder, a model.yaml, or org/name of a model on the Hugging Face hub with --download"
_RUN = re.compile(r"checkpoint-(\d{1,18})", re.ASCII)
_CONFIGS = ("config.json", "adapter_config.json")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]{1,4}")


def read_node(path: Path) -> Node:
    """Read the YAML document at `path`, a regular file of at most 1 MiB; RecipeError otherwise."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RecipeError(f"{path}: not a regular file; give the path of a model.yaml")
            data = file.read(MAX_BYTES + 1)
            if data is None:  # as of /proc/kmsg, a regular file by its mode
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if advice := instead_of_recipe(path):
            raise RecipeError(f"{path}: {advice}")
    except FileNotFoundError as error:
        if match := _url.fullmatch(str(path)):
            slashes = "///" if match["scheme"].lower() == "file" else "//"  # with no host, as it is written for files
            url = f"{match['scheme']}:{slashes}{match['rest']}"
            raise RecipeError(f"{url}: a URL, and nothing is built from one; {_INSTEAD}") from error
        raise RecipeError(f"{path}: no such file; `pyc init CHECKPOINT` writes a recipe") from error
    except IsADirectoryError as error:
        is_plain = kind_of(path) in (None, FOLDER)
        has_modules = (path / "modules.json").is_file()  # of sentence-transformers before version 2
        found = "" if has_modules else _found_in(path)
        remedy = found or "give a checkpoint's folder or a model.yaml"
        no_checkpoint = f"is a folder without config.json, so no checkpoint; {remedy}"
        if has_modules:
            no_checkpoint += "; modules.json there says where the Transformer lies: give that folder"
        advice = no_checkpoint if is_plain else instead_of_recipe(path)
        raise RecipeError(f"{path}: {advice}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RecipeError(f"{path}: cannot be read: {reason}") from error
    source = str(path)
    return parse_yaml(decode_text(data, source), source)


def _found_in(folder: Path) -> str:
    """What tells of a folder without config.json what it is, and what to do; nothing where nothing does."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    runs = [name for name in names if _RUN.fullmatch(name)]
    runs = [name for name in runs if any((folder / name / each).is_file() for each in _CONFIGS)]
    if runs:
        last = max(runs, key=lambda name: int(name.rpartition("-")[2]))
        return f"a trainer's checkpoints are in folders of it; give one, such as the last: {folder / last}"
    return instead_of_config(names)


def node_of(value: object, source: str, depth: int = 0) -> Node:
    """Return the node of a Python value (mappings, lists, tuples, scalars, paths); errors name `source`."""
    mark = Mark(source)
    if isinstance(value, str):
        value = str.__str__(value)  # numpy's text and enumerations are text, and no encoder takes them
    if value is None or isinstance(value, bool | int | float | str):
        return Scalar(value, str(value), mark)
    if isinstance(value, os.PathLike):
        return Scalar(str(value), str(value), mark)
    if depth == MAX_DEPTH:
        fail(mark, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return ListNode(tuple(node_of(item, source, depth + 1) for item in value), mark)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                fail(mark, f"key {key!r} is not text")
        return MapNode(
            tuple(Entry(str(key), mark, node_of(item, source, depth + 1)) for key, item in value.items()),
            mark,
        )
    fail(mark, f"got a value of type {type(value).__name__}, expected mappings, lists, text and numbers")


def apply_override(node: Node, text: str) -> Node:
    """Return `node` with `text`, `key.sub.0=value`, applied: the value replaces what stood there.

    Parts of a key are names or list positions from 0; the position just past the end appends. The value is
    read as YAML, as strictly as a file. Raises RecipeError that names the `--set`.
    """
    mark = Mark(f"--set {text if len(text) <= 100 else text[:100] + '...'}")
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(_KEY.fullmatch(part) for part in parts):
        fail(
            mark,
            "expected KEY=VALUE with a dotted key, such as quantize.scheme=int8 or targets.0.isa=[x86-64]",
        )
    parsed: Node = Scalar(None, "", mark)
    if value.strip():
        clean = decode_text(_as_bytes(value.strip(), mark), mark.source)
        parsed = parse_yaml(clean, mark.source, place=False)
    return _replaced(node, parts, parsed, mark, done=())


def _replaced(node: Node | None, parts: list[str], value: Node, mark: Mark, done: tuple[str, ...]) -> Node:
    """`node` (None: not given) with the node at `parts` below it replaced by `value`."""
    if not parts:
        return value
    part, rest = parts[0], parts[1:]
    if node is None or (isinstance(node, Scalar) and node.value is None):
        node = ListNode((), mark) if part.isdigit() else MapNode((), mark)
    if isinstance(node, MapNode) and not part.isdigit():
        child = _replaced(node.get(part), rest, value, mark, (*done, part))
        if node.get(part) is None:
            return replace(node, entries=(*node.entries, Entry(part, mark, child)))
        return replace(
            node,
            entries=tuple(replace(entry, node=child) if entry.key == part else entry for entry in node.entries),
        )
    if isinstance(node, ListNode) and part.isdigit():
        position = int(part)
        if position > len(node.items):
            fail(
                mark,
                f"{'.'.join(done)} has {len(node.items)} entries; the next position is {len(node.items)}",
            )
        old = node.items[position] if position < len(node.items) else None
        child = _replaced(old, rest, value, mark, (*done, part))
        return replace(node, items=(*node.items[:position], child, *node.items[position + 1 :]))
    place = ".".join(done) or "the recipe"
    kind = {MapNode: "a mapping, give a key", ListNode: "a list, give a position such as 0"}.get(
        type(node), "a single value"
    )
    fail(mark, f"{part!r} does not lead into {place}, which is {kind}")


def _as_bytes(text: str, mark: Mark) -> bytes:
    """The bytes of a command line's text: undecodable ones came as lone surrogates, and go back to what they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        fail(mark, f"the lone surrogate U+{ord(text[error.start]):04X} is no text; remove it")


def _open_without_waiting(path: str, flags: int) -> int:
    """Open so that a pipe without a writer does not block."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
