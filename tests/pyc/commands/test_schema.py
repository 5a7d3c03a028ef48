"""pyc schema: the schema that was installed, printed or written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyc.compiler.recipe.schema import schema_text


def test_it_prints_the_schema(pyc):
    assert pyc("schema") == (0, schema_text(), "")


def test_it_writes_the_schema(pyc, tmp_path):
    target = tmp_path / "recipe.schema.json"
    assert pyc("schema", "-o", target) == (0, "", f"wrote {target}\n")
    assert target.read_text() == schema_text()
    assert pyc("schema", "-o", target)[0] == 0  # a schema may be replaced by a newer one
    target.write_text("mine")
    assert pyc("schema", "-o", target)[0] == 3
    assert target.read_text() == "mine"
    assert pyc("schema", "-o", target, "--force")[0] == 0
    assert json.loads(target.read_text())["title"] == "pyc recipe (model.yaml)"


def test_a_schema_of_something_else_is_not_replaced(pyc, tmp_path):
    """Nor one of the user's that is written in the same way."""
    target = tmp_path / "s.json"
    assert pyc("schema", "--of", "build", "-o", target)[0] == 0
    older = json.loads(target.read_text()) | {"$defs": {"Older": {}}}
    target.write_text(json.dumps(older))
    assert pyc("schema", "--of", "build", "-o", target)[0] == 0, "of another version"
    mine = json.dumps({"$defs": {"AdapterRef": {}}, "title": "mine"}, indent=2)
    for text, kind in ((target.read_text(), "recipe"), (target.read_text(), "eval"), (mine, "recipe"), (mine, "build")):
        target.write_text(text)
        code, _, err = pyc("schema", "--of", kind, "-o", target)
        assert code == 3 and "is there already and is not the schema of pyc " in err
        assert target.read_text() == text


@pytest.mark.parametrize("output", ["/dev/null", "", ".", "no/where"])
def test_a_target_that_is_no_file(output, pyc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = pyc("schema", "-o", output)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_base_install_has_all_that_it_needs():
    """YAML and TVM come with the extra `compiler`."""
    probe = (
        "import sys; sys.modules.update(yaml=None, tvm=None, rich=None)\n"
        "from pyc.cli import main; sys.exit(main(['schema']))"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, schema_text(), "")
