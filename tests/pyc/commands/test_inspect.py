"""`pyc inspect`: shows the header, executes nothing, and lets no control sequence through."""

import json
import platform

import artifact_forge
import msgspec

from pyc.commands import inspect_text
from pyc.passes.driver.build import build
from pyc.runtime.artifact.format import Header, KvCache, ModelInfo, Program
from pyc.runtime.artifact.trust.key_store import list_trusted, remove_trusted, signing_key
from pyc.runtime.artifact.trust.keys import parse_public_key
from pyc.runtime.executors.cpu import features as cpu


def test_a_screen(pyc, make_artifact):
    path = make_artifact()
    code, out, err = pyc("inspect", path)
    assert (code, err) == (0, "")
    key = signing_key().public
    lines = out.splitlines()
    assert lines[0] == f"{path}: {path.stat().st_size / 1000:.3g} kB"
    for line in (
        "model        llama decoder, 15 parameters",
        f"signature    {key.fingerprint} (trusted, default)",
        "compiled for x86-64-v3",
        "context      64 tokens, 2 sequences at a time",
        "weights      bf16 30 bytes (1 matrix)",
        "kv cache     f16, 512 kB for 1000 tokens",
        "text         no tokenizer: token ids only",
        "made from    1 file of 1.23 kB",
    ):
        assert line in lines


def test_the_recipe_that_it_records_builds_it_again(pyc, tiny_checkpoint, tmp_path):
    checkpoint = tiny_checkpoint("llama")
    targets = [{"backend": "cpu", "isa": ["x86-64"]}]
    document = {"model": f"./{checkpoint.name}", "quantize": {"scheme": "int8"}, "targets": targets}
    recipe, chosen = checkpoint.parent / "model.yaml", checkpoint.parent / "chosen.yaml"
    recipe.write_text(json.dumps(document))
    path = build(recipe, output=tmp_path / "model.pyca").path
    pyc("inspect", path)  # what making the checkpoint has printed goes with it
    code, out, err = pyc("inspect", path, "--recipe")
    assert (code, err) == (0, "")
    chosen.write_text(out)
    assert json.loads(out)["quantize"]["scheme"] == "int8" and len(out.splitlines()) > 10
    assert pyc("build", chosen, "-o", path, "--check")[0] == 0
    code, out, err = pyc("inspect", path, "--recipe", "--json")
    assert (code, out) == (2, "") and "--recipe stands alone" in err


def test_a_recipe_that_is_no_json(pyc, make_artifact, tmp_path):
    path = tmp_path / "other.pyca"
    artifact_forge.forge(make_artifact(), path, lambda document: document["provenance"].update(recipe="{"))
    code, out, err = pyc("inspect", path, "--recipe")
    assert (code, out) == (8, "") and "other.pyca: its recipe is no JSON: " in err, err


def test_it_says_whether_and_as_what_it_runs_here(pyc, decoder_artifact):
    lines = pyc("inspect", decoder_artifact)[1].splitlines()
    assert [line for line in lines if line.startswith("runs here    yes, as ")]
    assert "text         tokenizer, chat template" in lines


def test_keys_and_values_of_onnx_graphs_are_f32():
    cache = KvCache(layers=2, heads=4, head_dim=16, dtype="f16", block_tokens=16)
    program = Program("onnx", "cpu", "any", "linux", "onnxruntime", (), "g", (), ())
    of_cpu = msgspec.structs.replace(program, backend="cpu")
    header = Header(ModelInfo("llama", "decoder", 32, 8, 64, 2, cache, None), (), (), (program,), (), None, None)
    assert list(inspect_text._caches(header, cache)) == ["f32, 1.02 MB for 1000 tokens"]
    header = msgspec.structs.replace(header, programs=(of_cpu, program))
    of_both = ["f16, 512 kB for 1000 tokens for cpu", "f32, 1.02 MB for 1000 tokens for onnx"]
    assert list(inspect_text._caches(header, cache)) == of_both


def test_it_says_why_it_does_not_run_here(pyc, make_artifact, decoder_artifact, monkeypatch):
    def verdict(path):
        return " ".join(pyc("inspect", path)[1].split("runs here    ")[1].split("\ncompiled for")[0].split())

    path = make_artifact(step="1")
    monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert verdict(path).startswith("no: this CPU") and "x86-64-v3 needs fma" in verdict(path)
    monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset({"avx2", "fma"}))
    assert verdict(path).startswith("no: the artifact's code was compiled for pyc-step 1")
    monkeypatch.undo()


def test_what_only_another_runtime_runs(pyc, make_artifact, tmp_path):
    """Programs of a backend that this pyc has never heard of, in a header of a newer minor version."""

    def change(document):
        for program in document["programs"]:
            program |= {"backend": "vulkan", "device": "gpu", "arch": "sm_90a", "isa": "sm_90a", "streams": 2}
            program["functions"][0]["name"] = "sample"

    path = tmp_path / "other.pyca"
    artifact_forge.forge(make_artifact(), path, change, minor=9)
    words = "programs for vulkan, and this pyc runs those for cpu, onnx, tensorrt, cuda; install a newer pyc"
    assert pyc("verify", path)[0] == 0
    code, out, _ = pyc("inspect", path, "--all")
    assert code == 0
    assert words in " ".join(out.split())
    assert out.splitlines()[1] == "format       1.9, of which this pyc knows what 1.1 has"
    document = json.loads(pyc("inspect", path, "--json")[1])
    assert (document["format_version"], "streams" in document["header"]["programs"][0]) == ("1.9", False)
    assert "program     vulkan gpu linux sm_90a sm_90a\n" in out
    code, out, err = pyc("run", path, "-p", "x")
    assert (code, out) == (9, "")
    assert words in err


def test_it_says_that_the_key_is_not_trusted(pyc, decoder_artifact):
    for key in list_trusted():
        remove_trusted(key.fingerprint)
    out = pyc("inspect", decoder_artifact)[1]
    assert "runs here    no: its key is not trusted here; `pyc trust add` it" in out


def test_no_line_of_the_screen_is_wider_than_80_columns(pyc, make_artifact, decoder_artifact):
    for path in (make_artifact(), decoder_artifact):
        lines = pyc("inspect", path)[1].splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines[1:])) <= 80


def test_all(pyc, make_artifact):
    path = make_artifact()
    code, out, err = pyc("inspect", path, "--all", "--tensors")
    assert (code, err) == (0, "")
    for line in (
        "kv cache    2 layers, 4 heads of 16, f16",
        "tensors     bf16: 1, 30 bytes",
        "blob        lib.so: 9 bytes",
        "codec       none: 2 chunks, 39 bytes stored as 39",
        "program     cpu cpu linux x86_64 x86-64-v3",
        "            needs CPU features: avx2 fma",
        "            built against tvm_ffi 0.1.15",
        "            forward for 1, 16 tokens",
        'recipe      {"model":"demo"}',
        "source      model.safetensors: 1,234 bytes, blake3 0000000000000000",
        "pass        fuse_lora 1 {}",
        "tool        pyc-compiler 0.1",
        "tensor      w  bf16 [3, 5]",
    ):
        assert line in out.splitlines()


def test_a_fusion_of_the_backend_is_no_adapter(pyc, decoder_artifact):
    header = json.loads(pyc("inspect", decoder_artifact, "--json")[1])["header"]
    assert "fuse_gate_up" in [step["name"] for step in header["provenance"]["passes"]]
    assert "\nadapters" not in pyc("inspect", decoder_artifact)[1]


def test_tensors_are_listed_on_request(pyc, make_artifact):
    assert "tensor      w" not in pyc("inspect", make_artifact())[1]


def test_json(pyc, make_artifact):
    path = make_artifact()
    code, out, _ = pyc("inspect", path, "--json")
    document = json.loads(out)
    key = signing_key().public
    assert code == 0
    assert document["path"] == str(path)
    assert document["size_bytes"] == path.stat().st_size
    assert document["format_version"] == "1.1"
    assert document["signature"]["fingerprint"] == key.fingerprint
    assert document["signature"]["trusted"] is True
    assert parse_public_key(document["signature"]["public_key"]).raw == key.raw
    assert document["header"]["tensors"][0]["shape"] == [3, 5]
    assert document["header"]["generation"]["temperature"] == "0.7"


def test_unsigned_and_untrusted(pyc, make_artifact):
    path = make_artifact(signed=False)
    assert "signature    none" in pyc("inspect", path)[1].splitlines()
    assert json.loads(pyc("inspect", path, "--json")[1])["signature"] is None
    make_artifact()
    fingerprint = signing_key().public.fingerprint
    remove_trusted(fingerprint)
    assert f"signature    {fingerprint} (not trusted here)" in pyc("inspect", path)[1].splitlines()
    assert json.loads(pyc("inspect", path, "--json")[1])["signature"]["trusted"] is False


def test_no_control_sequence_reaches_the_terminal(pyc, make_artifact):
    path = make_artifact(version="evil\x1b[2J\x9b31m\r\u202e\x7f")
    for options in ([], ["--json"], ["--all", "--tensors"]):
        code, out, _ = pyc("inspect", path, *options)
        assert code == 0
        assert "evil" in out
        assert all(letter.isprintable() for letter in out.replace("\n", ""))


def test_an_altered_header_is_refused(pyc, make_artifact):
    path = make_artifact()
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    code, out, err = pyc("inspect", path)
    assert (code, out) == (8, "")
    assert err == f"pyc: error: {path}: header altered: its SHA-256 differs from the prelude's\n"
