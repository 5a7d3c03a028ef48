"""JSON schema of the recipe, for editors and other tools; recipe.schema.json beside this file is this, written out.

`schema_path` needs neither YAML nor anything else that a base install lacks.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from pyc.compiler.recipe.types import Document

SCHEMA_VERSION = "https://json-schema.org/draft/2020-12/schema"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def schema_path() -> Path:
    """Return the file that holds the schema, as it was installed."""
    return Path(__file__).with_name("recipe.schema.json")


def to_json_schema() -> dict[str, Json]:
    """Return the schema (draft 2020-12) that the classes of `types` spell.

    It accepts what the parser accepts and more: rules that join several keys (instruction sets of another
    architecture, repeated buckets, activations at odds with an alias) and regular expressions that do not
    compile are the parser's alone.
    """
    schema: dict[str, Json] = json.loads(msgspec.json.encode(msgspec.json.schema(Document)))
    _take_gpus_as_arch(schema["$defs"]["Target"]["properties"])  # type: ignore[index,call-overload,arg-type]
    schema["$schema"] = SCHEMA_VERSION
    schema["title"] = "pyc recipe (model.yaml)"
    return schema


def _take_gpus_as_arch(target: dict[str, dict[str, Json]]) -> None:
    """Let `arch` be a list of GPUs, too, as `isa` is."""
    arch, isa = target["arch"], target["isa"]
    shown = {name: arch.pop(name) for name in ("description", "default")}
    gpus = {name: isa[name] for name in ("type", "items", "maxItems")}
    target["arch"] = {**shown, "anyOf": [arch, gpus]}


def schema_text() -> str:
    """Return the schema as the text of compiler/recipe/recipe.schema.json."""
    return json.dumps(to_json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")  # noqa: T201  (python -m pyc.compiler.recipe.schema > compiler/recipe/recipe.schema.json)
