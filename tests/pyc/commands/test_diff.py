"""`pyc diff`: what it prints, and that nothing of two artifacts reaches a terminal or a page as it is."""

import copy
import json

import pytest
from artifact_forge import canonical, join, make, put

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
    for text in ("quantize.scheme", '"none"', '"int8"', "pyc", "tokenizer.json", "1 tensor of 16 bytes is equal"):
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


def program(document):
    return document["programs"][0]


def function(document):
    return program(document)["functions"][0]


PROGRAM = "cpu x86-64-v3 x86_64"
HEADER_CHANGES = {
    "weights": (lambda d: function(d)["weights"].reverse(), "forward of 1 tokens: weights", "a, b", "b, a"),
    "inputs": (lambda d: function(d)["inputs"].append("x"), "forward of 1 tokens: inputs", "token_ids", "token_ids, x"),
    "symbol": (lambda d: function(d).update(symbol="f2"), "forward of 1 tokens: symbol", "f1", "f2"),
    "fewer": (lambda d: program(d)["functions"].pop(), PROGRAM, "2 functions for 1, 16", "1 functions for 1"),
    "order": (lambda d: program(d)["functions"].reverse(), f"{PROGRAM}: order of functions", "of 1", "of 16"),
    "features": (lambda d: program(d)["features"].append("fma"), f"{PROGRAM}: features", "avx2", "avx2, fma"),
    "abi": (lambda d: program(d)["abi"][0].update(version="9"), f"{PROGRAM}: abi", "tvm_ffi 0.1.15", "tvm_ffi 9"),
    "system": (lambda d: program(d).update(system="darwin"), f"{PROGRAM}: system", "linux", "darwin"),
    "device": (lambda d: program(d).update(device="npu"), f"{PROGRAM}: device", "cpu", "npu"),
    "library": (lambda d: program(d).update(library="t.json"), f"{PROGRAM}: library", "lib", "t.json"),
    "programs": (lambda d: d["programs"].reverse(), "order of programs", "x86_64, onnx", "onnx any any, "),
    "twice": (lambda d: d["programs"].append(copy.deepcopy(program(d))), f"{PROGRAM} (2)", "-", "2 functions for"),
    "requires": (lambda d: d["model"]["kv_cache"].update(dtype="fp8"), "requires", "", "kv_cache_fp8"),
    "passes": (lambda d: d["provenance"]["passes"].reverse(), "order", "fuse, fold", "fold, fuse"),
    "spaces": (lambda d: d["provenance"].update(recipe="{ }"), "SHA-256 of the header", "", ""),
}


@pytest.mark.parametrize("change", HEADER_CHANGES)
def test_whatever_is_different_in_a_header_is_shown(change, pyc, tmp_path):
    """In text, JSON and the page: an exit code alone tells a reviewer nothing."""
    document, payload = make()
    function(document)["weights"].append("b")
    document["programs"].append({**copy.deepcopy(program(document)), "backend": "onnx", "isa": "any", "arch": "any"})
    document["provenance"]["passes"].append({"name": "fold", "version": 1, "options": "{}"})
    paths = [tmp_path / name for name in ("one.pyca", "two.pyca")]
    put(paths[0], join(canonical(document), payload))
    mutate, name, before, after = HEADER_CHANGES[change]
    mutate(document)
    document["requires"] = ["kv_cache_fp8"] if change == "requires" else []
    put(paths[1], join(canonical(document), payload))
    code, out, _ = pyc("diff", *paths, "--exit-code", "--html", tmp_path / "page.html")
    assert code == 1
    rows = [row for group in json.loads(pyc("diff", *paths, "--json")[1])["groups"].values() for row in group]
    (row,) = (row for row in rows if row["name"].endswith(name))
    assert row["before"] != row["after"]
    for given, expected in ((row["before"], before), (row["after"], after)):
        assert given is None if expected == "-" else expected in given
    assert len(rows) == {"library": 3, "requires": 2, "fewer": 2}.get(change, 1), rows
    page = (tmp_path / "page.html").read_text().replace("&#39;", "'")
    for text in (out, page):
        assert name in text and before in text and after in text


def test_long_values_are_shown_from_their_first_difference(pyc, tmp_path):
    document, payload = make()
    paths = [tmp_path / name for name in ("one.pyca", "two.pyca")]
    for path, last in zip(paths, ("old", "new"), strict=True):
        function(document)["inputs"] = [*(f"input{number}" for number in range(100)), last]
        put(path, join(canonical(document), payload))
    out = pyc("diff", *paths, "--markdown")[1]
    assert "| ...95, input96, input97, input98, input99, old | ...95, input96, input97, input98, input99, new |" in out
