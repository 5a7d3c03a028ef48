"""docs/*.schema.json are what `pyc schema` prints, and what commands print with --json keeps to them.

That of `pyc report` is in test_report.py, which has an artifact with programs for CPUs.
"""

import json
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest

from pyc.commands.result_schemas import RESULTS, schema_of

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "the cat sat on the mat; the dog sat on the log\n" * 20
ONNX = {"shapes": {"tokens": [1, 16, 64], "logits": [1, 16]}, "targets": [{"backend": "onnx"}]}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}


def check(name, text):
    """The document, which has to be valid, and invalid with a field more or less at its top and below."""
    document = json.loads(text)
    validator = jsonschema.Draft202012Validator(json.loads(schema_of(name)))
    validator.validate(document)
    for broken in [{**document, "more": 1}, *({**document, key: {"?": []}} for key in document if key != "groups")]:
        assert not validator.is_valid(broken), broken.keys()
    assert not validator.is_valid(dict(list(document.items())[1:]))
    return document, validator


@pytest.mark.parametrize("name", RESULTS)
def test_the_published_schemas_are_those_that_are_printed(name, pyc):
    code, out, err = pyc("schema", "--of", name)
    assert (code, err) == (0, "")
    published = (DOCS / f"{name}.schema.json").read_text("utf-8")
    assert published == out, f"run: pyc schema --of {name} -o docs/{name}.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


def test_a_schema_replaces_its_like_and_nothing_else(pyc, tmp_path):
    target = tmp_path / "verify.schema.json"
    for name in ("verify", "build", "recipe"):
        target.unlink(missing_ok=True)
        for _ in range(2):
            assert pyc("schema", "--of", name, "-o", target) == (0, "", f"wrote {target}\n")
    assert json.loads(target.read_text())["title"] == "pyc recipe (model.yaml)"
    assert pyc("schema", "--of", "build", "-o", target)[0] == 3
    target.write_text("mine")
    assert pyc("schema", "--of", "build", "-o", target)[0] == 3
    assert pyc("schema", "--of", "nothing")[0] == 2


@pytest.mark.slow
def test_documents_of_a_decoder(pyc, tiny_copy, tmp_path, capfd):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    (tmp_path / "text.txt").write_text(TEXT)
    recipe, artifact, other = (tmp_path / name for name in ("model.yaml", "model.pyca", "other.pyca"))
    quantize = {"bits_per_weight": 8, "calibration": {"text": "text.txt", "window": 32, "tokens": 256}}
    quality = {"text": "text.txt", "max_ppl": 1e9, "reference": "none", "context": 32, "tokens": 64}
    model = str(tiny_copy("llama", **SIZES))
    recipe.write_text(json.dumps({"model": model, **ONNX, "quantize": quantize, "quality": quality}))
    capfd.readouterr()

    def printed(*arguments, expected=0):
        code, out, err = pyc(*arguments, "--json")
        assert code == expected, err
        return out

    check("plan", printed("plan", recipe))
    check("check", printed("build", recipe, "--check", expected=1))
    built, validator = check("build", printed("build", recipe))
    assert built["mixture"]["groups"] and built["quality"]
    for path in (("mixture",), ("mixture", "groups", 0), ("codecs", 0), ("quality", 0)):
        broken = deepcopy(built)
        place = broken
        for step in path:
            place = place[step]
        place["more"] = 1
        assert not validator.is_valid(broken), path
    check("check", printed("build", recipe, "--check"))
    found, validator = check("inspect", printed("inspect", artifact))
    found["header"]["model"]["more"] = 1
    assert not validator.is_valid(found)
    verified, _ = check("verify", printed("verify", artifact))
    assert verified["signatures"]
    check("verify", printed("verify", tmp_path / "none.pyca", expected=10))
    again = ("--set", "quantize.bits_per_weight=12", "-o", other)
    check("build", printed("build", recipe, *again))
    changed, _ = check("diff", printed("diff", artifact, other))
    assert changed["groups"] and changed["tensors"]
    check("check", printed("build", recipe, "--check", "-o", other, expected=1))
    check("eval", printed("eval", artifact, "--text", tmp_path / "text.txt", "--tokens", 64, "--no-speed"))
    check("bench", printed("bench", artifact, "-r", 1, "-p", 8, "-n", "2,4"))


@pytest.mark.slow
def test_documents_of_an_encoder(pyc, tiny_copy, tmp_path, capfd):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    checkpoint, artifact = tiny_copy("bert", pooling="mean"), tmp_path / "model.pyca"
    recipe = tmp_path / "model.yaml"
    recipe.write_text(json.dumps({"model": str(checkpoint), **ONNX}))
    capfd.readouterr()
    check("plan", pyc("plan", recipe, "--json")[1])
    check("build", pyc("build", recipe, "--json")[1])
    check("inspect", pyc("inspect", artifact, "--json")[1])
    check("bench", pyc("bench", artifact, "-r", 1, "--sentences", 2, "--json")[1])
