"""The JSON schemas (draft 2020-12) of what commands print with --json, made from the types that the documents have.

docs/*.schema.json are these, written out: `pyc schema --of NAME -o docs/NAME.schema.json`. A document has every field
of its schema and no other, so a schema names all fields as required and refuses unknown ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from inspect import cleandoc
from typing import Any, get_type_hints

import msgspec

SCHEMA_VERSION = "https://json-schema.org/draft/2020-12/schema"


def schema_of(name: str) -> str:
    """Return the schema of the document that RESULTS calls so, as the text of docs/NAME.schema.json."""
    return RESULTS[name]()


def _build() -> str:
    from pyc.commands.result_types import Build

    return _text("pyc build --json", Build)


def _check() -> str:
    from pyc.passes.comparison.check_artifact import UpToDate

    return _text("pyc build --check --json", UpToDate)


def _verify() -> str:
    from pyc.commands.verify import Verdict

    return _text("pyc verify --json", Verdict)


def _inspect() -> str:
    from pyc.commands.result_types import Inspection

    return _text("pyc inspect --json", Inspection)


def _diff() -> str:
    from pyc.passes.comparison.compare_artifacts import Comparison

    return _text("pyc diff --json", _extended("Diff", Comparison, before=str, after=str))


def _plan() -> str:
    from pyc.commands.result_types import PlannedProgram
    from pyc.passes.driver.plan import Plan

    document = _extended("Plan", Plan, output=str, scheme_bytes=dict[str, int], programs=list[PlannedProgram])
    return _text("pyc plan --json", document)


def _report() -> str:
    from pyc.commands.result_types import WeightReport

    return _text("pyc report --json", WeightReport)


def _bench() -> str:
    from pyc.commands.result_types import DecoderBench, EncoderBench

    return _text("pyc bench --json", DecoderBench, EncoderBench, many="runs")


def _eval() -> str:
    from pyc.runtime.measure.quality_report import QualityReport

    return _text("pyc eval --json", QualityReport)


RESULTS: dict[str, Callable[[], str]] = {
    "plan": _plan,
    "build": _build,
    "check": _check,
    "verify": _verify,
    "inspect": _inspect,
    "diff": _diff,
    "report": _report,
    "bench": _bench,
    "eval": _eval,
}
"""Documents by the name that `pyc schema --of` takes, and what makes their schema."""


def _extended(name: str, base: type, **more: object) -> type:
    """Return a class with the fields of a dataclass; those of `more` are of that type there, or come in addition."""
    hints: dict[str, Any] = {field.name: get_type_hints(base)[field.name] for field in fields(base)}
    made = msgspec.defstruct(name, list({**hints, **more}.items()), kw_only=True)
    made.__doc__ = base.__doc__
    return made


def _text(title: str, *types: type, many: str = "") -> str:
    """Return the schema of a document that is one of `types`; `many`: or an object with a list of them, so called."""
    found, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    root: dict[str, Any] = dict(found[0]) if len(found) == 1 else {"anyOf": list(found)}
    if many:
        listed = {"type": "array", "minItems": 2, "items": {"anyOf": list(found)}}
        root = {"anyOf": [*found, {"$ref": "#/$defs/Many"}]}
        components["Many"] = {"type": "object", "properties": {many: listed}}
    for component in components.values():
        if "properties" in component:
            component["required"] = list(component["properties"])
            component["additionalProperties"] = False
        if "description" in component:
            component["description"] = cleandoc(component["description"])
    document = {"$schema": SCHEMA_VERSION, "title": title, **root, "$defs": components}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
