"""`pyc diff`: what it prints, and that nothing of two artifacts reaches a terminal or a page as it is."""

import json

import pytest

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact.format import Generation, KvCache, ModelInfo, Provenance, SourceFile, Tool

CACHE = KvCache(layers=2, heads=4, head_dim=16, dtype="f16", block_tokens=16)
EVIL = "<script>alert(1)</script>\u202e|x"


@pytest.fixture
def artifact(tmp_path, key_home):
    """`artifact(name, **what)`: a small artifact without programs."""

    def make(name, *, tool="1", value=1, extra=(), blob=b"a", recipe='{"quantize":{"scheme":"none"}}'):
        path = tmp_path / name
        with ArtifactWriter(path) as writer:
            writer.add_tensor("v", "f32", (4,), [bytes([0, 0, 128, 63]) * 4])
            writer.add_tensor("m", "bf16", (2, 2), [bytes([0, value, 128, 63, 0, 0, 0, 64])])
            for other in extra:
                writer.add_tensor(other, "f32", (1,), [bytes(4)])
            writer.add_blob("tokenizer.json", blob)
            writer.finish(
                model=ModelInfo("llama", "decoder", 32, 8, 64, 2, CACHE, None),
                generation=Generation(),
                provenance=Provenance(recipe, (SourceFile("w", 1, "0" * 64),), (Tool("pyc", tool),), ()),
                programs=(),
                signing_key=None,
            )
        return path

    return make


def test_equal_artifacts(pyc, artifact):
    one, two = artifact("one.pyca"), artifact("two.pyca")
    code, out, err = pyc("diff", one, two, "--exit-code")
    assert (code, err) == (0, "")
    assert "are the same" in out and len(out.splitlines()) == 1
    data = bytearray(two.read_bytes())
    data[-1] ^= 1
    two.write_bytes(data)  # only the header is read here
    assert "the same by the digests in their headers" in pyc("diff", one, two)[1]
    assert pyc("verify", two, "--allow-unsigned")[0] == 8


def test_every_group(pyc, artifact):
    one = artifact("one.pyca")
    two = artifact("two.pyca", tool="2", value=2, extra=("new",), blob=b"b", recipe='{"quantize":{"scheme":"int8"}}')
    code, out, _ = pyc("diff", one, two)
    assert code == 0
    for text in ("quantize.scheme", '"none"', '"int8"', "pyc", "tokenizer.json", "1 tensors of 16 bytes are equal"):
        assert text in out, text
    document = json.loads(pyc("diff", one, two, "--json")[1])
    tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert set(tensors) == {"m", "new"}
    assert tensors["new"]["before"] is None and tensors["new"]["distance"] is None
    assert document["equal_tensors"] == 1 and not document["is_same"]
    # bf16 0x0100 and 0x0200 are tiny beside 1 and 2, so the matrix has hardly moved, and moved.
    assert 0 < tensors["m"]["distance"] < 1e-30
    assert set(document["groups"]) == {"recipe", "tools", "files"}
    assert pyc("diff", one, two, "--exit-code", "--quick")[0] == 1


def test_names_are_somebody_elses(pyc, artifact, tmp_path):
    one = artifact("one.pyca")
    two = artifact("two.pyca", extra=(EVIL,), tool=EVIL, recipe=json.dumps({EVIL: EVIL}))
    page = tmp_path / "page.html"
    for option in ((), ("--markdown",)):
        code, out, _ = pyc("diff", one, two, *option, "--html", page, "--force")
        assert code == 0
        assert "\u202e" not in out and "\\u202e" in out
    assert "\\|x" in out  # a cell of markdown
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text and "\u202e" not in text


def test_deep_recipes_and_recipes_that_are_none(pyc, artifact):
    deep = "[" * 900 + "]" * 900
    for recipe in ("no JSON", deep, '"text"', "5"):
        code, _, err = pyc("diff", artifact("one.pyca"), artifact("two.pyca", recipe=recipe))
        assert (code, err) == (0, ""), recipe[:20]


def test_what_is_wrong(pyc, artifact, tmp_path):
    one, two = artifact("one.pyca"), artifact("two.pyca", value=2)
    data = bytearray(two.read_bytes())
    (tmp_path / "page.html").write_text("mine")
    assert pyc("diff", one, tmp_path / "none.pyca")[0] == 10
    assert pyc("diff", one, two, "--json", "--markdown")[0] == 2
    assert pyc("diff", one, two, "--force")[0] == 2
    assert pyc("diff", one, two, "--html", one)[0] == 8
    assert pyc("diff", one, two, "--html", tmp_path / "page.html")[0] == 8
    assert (tmp_path / "page.html").read_text() == "mine"
    place = data.rindex(bytes([0, 2, 128, 63]))
    data[place] ^= 1
    two.write_bytes(data)
    code, out, err = pyc("diff", one, two)
    assert (code, out) == (8, "") and "altered" in err
    assert pyc("diff", one, two, "--quick")[0] == 0
