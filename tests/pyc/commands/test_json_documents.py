"""JSON that commands print: strict parsers read it, whatever the artifact and its file's name hold."""

import base64
import json
import os
import re
from pathlib import Path

import artifact_forge
import msgspec
import pytest

import pyc as package

ROOMS = ("pyc", "passes/attest", "passes/bundle")
FOR_ITSELF = {
    "pyc/commands/init.py": "quotes a word of YAML",
    "pyc/commands/chat_history.py": "a file that pyc alone reads",
    "pyc/commands/result_schemas.py": "made of the types of the program",
    "passes/bundle/pip_settings.py": "run by another Python, for pyc",
}
RECIPES = ('{"model":"\\ud800","\\udfff":[1]}', '{"model":NaN}', '{"model":1e999}', "[" * 400 + "]" * 400)


@pytest.fixture
def hostile(make_artifact, tmp_path):
    """`hostile(recipe)`: an artifact that nobody signed, under a name that is not UTF-8."""

    def make(recipe):
        path = tmp_path / os.fsdecode(b"mod\xe8le.pyca")
        artifact_forge.forge(make_artifact(), path, lambda document: document["provenance"].update(recipe=recipe))
        return path

    return make


@pytest.mark.parametrize("recipe", RECIPES, ids=["half", "nan", "beyond", "deep"])
@pytest.mark.parametrize(
    "command",
    [
        "inspect {} --json",
        "verify {} --allow-unsigned --json",
        "attest {} --format cyclonedx",
        "attest {} --format spdx",
        "attest {} --format slsa",
        "attest {} --format slsa --sign",
    ],
)
def test_what_is_printed_is_read(pyc, hostile, recipe, command):
    path = hostile(recipe)
    code, out, err = pyc(*(word.format(path) for word in command.split()))
    assert code == 0, err
    document = msgspec.json.decode(out.encode())
    if "--sign" in command:
        document = msgspec.json.decode(base64.b64decode(document["payload"]))
    text = json.dumps(document)
    assert "mod\\\\udce8le.pyca" in text
    if "slsa" in command:
        said = document["predicate"]["buildDefinition"]["externalParameters"]["recipe"]
        assert said == ({"model": "\\ud800", "\\udfff": [1]} if "ud800" in recipe else recipe)


def test_a_recipe_that_json_lacks_numbers_for_is_not_printed(pyc, hostile):
    for recipe in RECIPES[1:]:
        code, out, err = pyc("inspect", hostile(recipe), "--recipe")
        assert (code, out) == (8, "") and "its recipe is no JSON" in err


def test_one_module_writes_json():
    """`json.dumps` writes what strict parsers refuse; documents for others go through `json_text` or `say_json`."""
    root = Path(package.__file__).parent.parent
    found = {
        str(path.relative_to(root))
        for room in ROOMS
        for path in (root / room).rglob("*.py")
        if re.search(r"(?<!msgspec\.)\bjson\.dumps?\(", path.read_text())
    }
    assert found == set(FOR_ITSELF)
