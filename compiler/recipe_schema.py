"""JSON schema of the recipe, for editors and other tools; docs/recipe.schema.json is this, written out."""

from __future__ import annotations

import json

import msgspec

from pyc.compiler.recipe_types import Document

SCHEMA_VERSION = "https://json-schema.org/draft/2020-12/schema"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def to_json_schema() -> dict[str, Json]:
    """Return the schema (draft 2020-12) that the classes of `recipe_types` spell.

    It accepts what the parser accepts and more: rules that join several keys (instruction sets of another
    architecture, repeated buckets, activations at odds with an alias) and regular expressions that do not
    compile are the parser's alone.
    """
    schema: dict[str, Json] = json.loads(msgspec.json.encode(msgspec.json.schema(Document)))
    schema["$schema"] = SCHEMA_VERSION
    schema["title"] = "pyc recipe (model.yaml)"
    return schema


def schema_text() -> str:
    """Return the schema as the text of docs/recipe.schema.json."""
    return json.dumps(to_json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")  # noqa: T201  (python -m pyc.compiler.recipe_schema > docs/recipe.schema.json)
