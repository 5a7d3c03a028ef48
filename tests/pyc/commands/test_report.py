"""pyc report: errors of the bytes in an artifact, as numpy computes them, and a page in which names are text."""

import json
import math
import os
import shutil
from pathlib import Path

import artifact_forge
import jsonschema
import msgspec
import numpy as np
import pytest
from blake3 import blake3
from dequantized_reference import dequantized
from html_pages import NASTY, Page
from quantized_checkpoints import quantized_copy
from safetensors.numpy import load_file

from pyc.backends.artifact_storage import storage_of
from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.protocol import CompiledProgram
from pyc.backends.registry import BACKENDS
from pyc.commands.report_page import STEPS, report_page
from pyc.commands.result_schemas import schema_of
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import KEEP_CODES, SCHEMES
from pyc.passes.adapters.fuse_lora import FuseLora
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.comparison.weight_errors import MatrixError
from pyc.passes.driver.build import build
from pyc.runtime.artifact.format import Function
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.host.machine import describe_machine
from pyc.runtime.measure.quality import Estimate
from pyc.runtime.measure.quality_report import ArtifactQuality, QualityReport, Speed, Storage, Text
from pyc.runtime.text.tokenizer import Tokenizer

WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
LAYER = "model.layers.{}."
FOLDED = {"q_proj": "input", "k_proj": "input", "v_proj": "input", "gate_proj": "post", "up_proj": "post"}
TEXT = "the cat sat on the mat; the dog sat on the log\n" * 40


class WithoutCode(CpuBackend):
    """Compiles nothing: functions read all weights."""

    def compile(self, module, buckets, isas):
        for isa in isas:
            functions = (Function("forward", 1, "forward_1", (), module.graph.weight_names()),)
            yield CompiledProgram(isa, "x86_64", (), b"no code", functions)


@pytest.fixture
def made(tiny_checkpoint, tiny_adapter, tmp_path, monkeypatch, key_home):
    """`made(**quantize)`: artifact, recipe, checkpoint and adapter."""
    monkeypatch.setitem(BACKENDS, "cpu", WithoutCode)

    def make(**quantize):
        checkpoint = tiny_checkpoint("llama", **WIDE)
        adapter = tiny_adapter(checkpoint, "lora", r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
        recipe = tmp_path / "tuned.yaml"
        targets = [{"isa": ["x86-64"]}]
        document = {"model": str(checkpoint), "adapters": [{"path": str(adapter)}], "quantize": quantize}
        recipe.write_text(json.dumps({**document, "targets": targets}))
        return build(recipe, output=tmp_path / "tuned.pyca").path, recipe, checkpoint, adapter

    return make


def exact(checkpoint, adapter):
    """Matrices in float64: the adapter added, the gains of norms multiplied into what they are before."""
    values = {name: value.astype(np.float64) for name, value in load_file(checkpoint / "model.safetensors").items()}
    factors = load_file(adapter / "adapter_model.safetensors")
    found = {}
    for name, value in values.items():
        if value.ndim != 2:
            continue
        stem = name.removesuffix(".weight")
        halves = [factors.get(f"base_model.model.{stem}.lora_{half}.weight") for half in "AB"]
        if halves[0] is not None:
            value = value + 8 / 4 * halves[1].astype(np.float64) @ halves[0].astype(np.float64)
        kind = stem.rpartition(".")[2]
        if kind in FOLDED:
            norm = "input_layernorm" if FOLDED[kind] == "input" else "post_attention_layernorm"
            value = value * values[f"{name.partition(kind)[0].rpartition('.')[0].rpartition('.')[0]}.{norm}.weight"]
        found[name] = value
    return found


def relative(value, wanted):
    return math.sqrt(np.square(value - wanted).sum() / np.square(wanted).sum())


@pytest.mark.parametrize("algorithm", ["rtn", "gptq", "awq"])
def test_errors_are_those_of_numpy(algorithm, made, tmp_path, pyc):
    (tmp_path / "text.txt").write_text(TEXT)
    overrides = [{"match": "re:.*down_proj", "scheme": "int8"}, {"match": "re:.*o_proj", "scheme": "f32"}]
    calibration = {"text": str(tmp_path / "text.txt"), "window": 32, "tokens": 256} if algorithm != "rtn" else {}
    artifact, recipe, checkpoint, adapter = made(
        scheme="int4-g32", algorithm=algorithm, overrides=overrides, calibration=calibration
    )
    code, out, err = pyc("report", artifact, recipe, "--json")
    validator = jsonschema.Draft202012Validator(json.loads(schema_of("report")))
    document = json.loads(out)
    validator.validate(document)
    document["matrices"][0]["more"] = 1
    assert not validator.is_valid(document)
    assert code == 0, err
    document = json.loads(out)
    wanted = exact(checkpoint, adapter)

    def scheme_of(name):
        chosen = {"down_proj": "int8", "o_proj": "f32", "embed_tokens": "int8", "lm_head": "int8"}
        return SCHEMES[next((scheme for part, scheme in chosen.items() if part in name), "int4-g32")]

    shapes = {name: value.shape for name, value in load_file(checkpoint / "model.safetensors").items()}
    kept = dequantized(artifact, shapes, scheme_of)
    assert {each["name"] for each in document["matrices"]} == wanted.keys()
    squares = [0.0, 0.0]
    for each in document["matrices"]:
        name, value = each["name"], wanted[each["name"]]
        if algorithm == "awq":  # columns were scaled before; least squares tell by what, nearly
            if "gate_proj" in name:
                scaled = value * ((kept[name] * value).sum(0) / np.square(value).sum(0))
                assert relative(kept[name], value) > 1.05 * each["relative_error"], "factors differ from 1"
                assert each["relative_error"] == pytest.approx(relative(kept[name], scaled), rel=0.05)
            continue
        difference = kept[name].astype(np.float64) - value
        squares = [squares[0] + np.square(difference).sum(), squares[1] + np.square(value).sum()]
        assert each["shape"] == list(value.shape)
        assert each["scheme"] == scheme_of(name).name
        # The exact values are f32: half a unit of theirs beside an error of 1e-3 and more.
        assert each["relative_error"] == pytest.approx(relative(kept[name], value), rel=1e-4, abs=1e-7)
        assert each["largest_error"] == pytest.approx(np.abs(difference).max(), rel=1e-4, abs=1e-6)
        is_table = name in ("model.embed_tokens.weight",)
        expected = "exact" if "o_proj" in name else "rtn" if is_table else algorithm
        assert each["algorithm"] == expected, name
        assert (each["layer"], each["kind"]) == (
            (int(name.split(".")[2]), name.split(".", 3)[3].removesuffix(".weight"))
            if ".layers." in name
            else (None, name.removesuffix(".weight"))
        )
        if "down_proj" in name and algorithm == "rtn":  # rounding itself, in numpy
            scale = np.abs(value).max(1, keepdims=True).astype(np.float32) / np.float32(127)
            rounded = np.rint(value / scale) * scale
            assert each["relative_error"] == pytest.approx(relative(rounded, value), rel=1e-3)
            assert each["bits"] == pytest.approx(8 + 32 / 256, rel=0.02)
    if algorithm == "awq":
        return
    assert document["relative_error"] == pytest.approx(math.sqrt(squares[0] / squares[1]), rel=1e-4)


def quality(name, header_sha256=None):
    return QualityReport(
        pyc="1",
        kind="decoder",
        text=Text(name=name, blake3="0", tokens=90, windows=4, context=20, scored=40),
        reference=None,
        artifacts=(
            ArtifactQuality(
                name=name,
                architecture=name,
                storage=Storage(
                    size_bytes=9,
                    weights_bytes=9,
                    bits_a_weight=8,
                    scheme=name,
                    schemes=((name, 9),),
                    header_sha256=header_sha256,
                ),
                speed=Speed(isa=name, threads=1),
                perplexity=Estimate(12.345, 0.1),
                mean_nll=Estimate(2.5, 0.1),
            ),
        ),
        machine=describe_machine(),
    )


def test_a_page_of_a_build(made, tmp_path, pyc):
    artifact, recipe, *_ = made(scheme="int8")
    (tmp_path / "eval.json").write_bytes(msgspec.json.encode(quality("held.txt")))
    page = tmp_path / "report.html"
    code, out, err = pyc("report", artifact, recipe, "--html", page, "--eval", tmp_path / "eval.json")
    assert code == 0, err
    assert out.splitlines()[0].split() == ["kind", "matrices", "schemes", "bits", "relative", "error", "largest", "in"]
    text = page.read_text()
    read = Page(text)
    assert "12.3" in read.text and "held.txt: 40 scored" in read.text
    cells = [attributes for tag, attributes in read.tags if tag == "td" and "title" in attributes]
    assert len(cells) == 2 * 7
    assert {attributes["class"] for attributes in cells} <= {f"h{step}" for step in range(STEPS)}
    assert all(tag not in ("script", "link", "img", "a", "base", "form") for tag, _ in read.tags)
    assert "url(" not in text and "@import" not in text and "http" not in text.replace("http-equiv", "")
    first = page.read_bytes()
    assert pyc("report", artifact, recipe, "--html", page)[0] == 0, "a page is replaced"
    assert page.read_bytes() != first, "it has no evaluation now"


def test_an_evaluation_of_another_artifact_is_refused(made, tmp_path, pyc):
    artifact, recipe, *_ = made(scheme="int8")
    page, document = tmp_path / "report.html", tmp_path / "eval.json"
    arguments = ("report", artifact, recipe, "--html", page, "--eval", document)
    document.write_bytes(msgspec.json.encode(quality("other.pyca", "0" * 64)))
    code, out, err = pyc(*arguments)
    assert (code, out, page.exists()) == (8, "", False)
    assert f"eval.json: it is of other.pyca, and not of {artifact} as it is now; " in err, err
    with open_artifact(artifact) as opened:
        own = storage_of(opened).header_sha256
    document.write_bytes(msgspec.json.encode(quality("tuned.pyca", own)))
    assert pyc(*arguments)[0] == 0
    older = json.loads(document.read_bytes())
    del older["artifacts"][0]["storage"]["header_sha256"]
    document.write_text(json.dumps(older))
    assert pyc(*arguments)[0] == 0, "it does not say of which artifact it is"


def test_names_are_text():
    def matrix(layer, relative):
        return MatrixError(NASTY, layer, NASTY, 2, 3, NASTY, NASTY, 4.0, relative**2, 1.0, relative)

    errors = [matrix(0, 0.1), matrix(1, 0.0), matrix(2, math.inf), matrix(3, math.nan), matrix(None, 1e-3)]
    text = report_page(NASTY, [NASTY], errors, quality(NASTY), NASTY)
    assert "<script" not in text and "<img" not in text
    page = Page(text)
    assert page.text.count("</pre><script>alert(1)</script>") >= 8, "it is all there to be read"
    assert "{{ 7 * 7 }}" in page.text
    assert "\x1b" not in page.text.replace(NASTY, "") or "\x1b" not in text.partition("Layers and kinds")[2]
    for tag, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href")}, tag


def test_what_it_does_not_compare(made, tiny_checkpoint, tmp_path, pyc):
    artifact, recipe, _, adapter = made(scheme="int8")
    other = tmp_path / "other.yaml"
    seeded = tiny_checkpoint("llama", seed=5, **WIDE)
    other.write_text(json.dumps({"model": str(seeded), "adapters": [{"path": str(adapter)}]}))
    code, _, err = pyc("report", artifact, other)
    assert code == 8 and "tuned.pyca: it was made from something else: sources model.safetensors: " in err, err
    code, _, err = pyc("report", artifact, tmp_path / "none.yaml")
    assert code == 3, err
    code, _, err = pyc("report", artifact, recipe, "--html", artifact)
    assert (code, "tuned.pyca" in err) == (8, True), err
    code, _, err = pyc("report", artifact, recipe, "--force")
    assert code == 2
    (tmp_path / "bad.json").write_text("[]")
    code, _, err = pyc("report", artifact, recipe, "--html", tmp_path / "r.html", "--eval", tmp_path / "bad.json")
    assert (code, "not a document of `pyc eval --json`" in err) == (9, True), err
    assert not (tmp_path / "r.html").exists()


def test_the_artifact_comes_first(pyc, make_artifact, tmp_path):
    (tmp_path / "model.yaml").write_text("model: nowhere\n")
    artifact = make_artifact()
    code, out, err = pyc("report", tmp_path / "model.yaml", artifact)
    assert (code, out) == (2, "")
    assert f"the artifact comes first: pyc report {artifact} {tmp_path / 'model.yaml'}" in err


@pytest.mark.parametrize(
    ("kind", "config"), [("bert", {}), ("llama", {}), ("llama", {"vocab_size": 300})], ids=["bert", "shorter", "other"]
)
def test_files_are_compared_before_shapes_that_the_artifact_records(kind, config, made, tiny_checkpoint, tmp_path, pyc):
    """Nobody who gives a checkpoint has a shapes.context to lower."""
    artifact, _, checkpoint, _ = made(scheme="int8")
    longest = json.loads((checkpoint / "config.json").read_text())["max_position_embeddings"]
    other = tiny_checkpoint(kind, seed=5, max_position_embeddings=longest // 2, **config)
    code, _, err = pyc("report", artifact, other)
    assert code == 8 and "tuned.pyca: it was made from something else: " in err, err
    assert "sources config.json: " in err and "shapes" not in err, err
    (other / "model.safetensors").unlink()
    assert pyc("report", artifact, other)[0] == 4, "what is no checkpoint is told as before"


LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}


@pytest.fixture
def tuned(tiny_checkpoint, tiny_adapter, tmp_path, monkeypatch, key_home):
    """`tuned(name, *adapters, merge=None)`: a recipe, of weights by folders: lora, b/lora, ia3 and prompt."""
    monkeypatch.setitem(BACKENDS, "cpu", WithoutCode)
    checkpoint = tiny_checkpoint("llama", **WIDE)
    for folder, kind, config in (
        ("lora", "lora", LORA),
        ("b/lora", "lora", LORA),
        ("ia3", "ia3", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
        ("prompt", "prompt_tuning", {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}),
    ):
        shutil.copytree(tiny_adapter(checkpoint, kind, seed=len(folder), **config), tmp_path / folder)

    def make(name, *adapters, **more):
        path = tmp_path / f"{name}.yaml"
        given = [{"path": folder, "weight": weight} for folder, weight in adapters]
        targets = [{"isa": ["x86-64"]}]
        path.write_text(json.dumps({"model": str(checkpoint), "adapters": given, "targets": targets, **more}))
        return path

    make.checkpoint = checkpoint
    return make


ONE, OTHER, IA3, PROMPT = ("lora", 1), ("b/lora", 1), ("ia3", 1), ("prompt", 1)
AGAIN = ("again/lora", 1)
BOTH = (ONE, OTHER)
CAT, TIES, SPARSE = ({"merge": {"method": "cat"}}, *({"merge": {"method": "ties", "density": d}} for d in (0.5, 0.25)))
ANOTHER = {
    "another adapter of that name": ((ONE,), {}, (OTHER,), {}, "sources lora/adapter_model.safetensors: "),
    "another kind": ((ONE,), {}, (IA3,), {}, "the adapter 'lora' (fuse_lora) is in the artifact, "),
    "another weight": ((ONE,), {}, (("lora", 0.5),), {}, 'passes fuse_lora: version 1 {"adapter": "lora", "weight": '),
    "one more": ((ONE,), {}, (ONE, IA3), {}, "the adapter 'ia3' (fuse_ia3) is not in the artifact"),
    "one less": ((ONE, IA3), {}, (ONE,), {}, "the adapter 'ia3' (fuse_ia3) is in the artifact, "),
    "none": ((ONE,), {}, (), {}, "the adapter 'lora' (fuse_lora) is in the artifact, "),
    "of a model without": ((), {}, (ONE,), {}, "the adapter 'lora' (fuse_lora) is not in the artifact"),
    "another order": (BOTH, {}, BOTH[::-1], {}, "sources lora/adapter_model.safetensors: "),
    "no merge": (BOTH, TIES, BOTH, {}, "passes fuse_merged: version 1 "),
    "a merge": (BOTH, {}, BOTH, TIES, "passes fuse_lora: version 1 "),
    "another method": (BOTH, TIES, BOTH, CAT, "passes fuse_merged: version 1 "),
    "another density": (BOTH, TIES, BOTH, SPARSE, "passes fuse_merged: version 1 "),
    "no virtual tokens": ((ONE, PROMPT), {}, (ONE,), {}, "the adapter 'prompt' (compute_prefix) is in the artifact, "),
}


@pytest.mark.parametrize("case", ANOTHER)
def test_adapters_are_those_of_the_artifact_merged_as_they_were(case, tuned, tmp_path, pyc):
    """Also those of the same folder's name, and where nothing but the way of merging differs."""
    adapters, how, others, other_way, said = ANOTHER[case]
    recipe = tuned("own", *adapters, **how)
    artifact = build(recipe, output=tmp_path / "own.pyca").path
    code, out, err = pyc("report", artifact, recipe)
    assert (code, "q_proj" in out) == (0, True), err
    source = tuned("other", *others, **other_way) if others else tuned.checkpoint
    code, out, err = pyc("report", artifact, source)
    assert (code, out) == (8, ""), err
    assert f"own.pyca: it was made from something else: {said}" in err, err
    assert "give the recipe or the checkpoint that it was built from" in err and len(err.splitlines()) == 1, err


@pytest.mark.parametrize("how", ["schemes by another pass", "another version"])
def test_passes_of_another_pyc_are_not_said_to_be_another_source(how, tuned, tmp_path, monkeypatch, pyc):
    """Who gives the right recipe cannot give a righter one."""
    recipe = tuned("own", ONE)
    with monkeypatch.context() as patch:
        if how == "another version":
            patch.setattr(FuseLora, "version", 0)
        else:
            patch.setattr(AssignSchemes, "name", "quantize_round_to_nearest")
            patch.setattr("pyc.passes.assign_schemes.KEEP_TYPES", "store_floats")
        artifact = build(recipe, output=tmp_path / "own.pyca").path
    code, out, err = pyc("report", artifact, recipe)
    assert (code, out, len(err.splitlines())) == (8, "", 1), err
    assert "own.pyca: another pyc built it, whose passes are not those of this one: passes " in err, err
    assert "report it with the pyc that built it, or build it again with this one" in err and "recipe" not in err
    # Another source is told as such, whoever built it.
    code, _, err = pyc("report", artifact, tuned("other", OTHER))
    assert code == 8 and "it was made from something else: sources lora/adapter_model.safetensors: " in err, err
    assert "passes " not in err


RENAMED = {
    "one": ((ONE,), {}, (("lora2", 1),)),
    "of the same name": (BOTH, {}, (("lora2", 1), OTHER)),
    "two that are merged": (BOTH, TIES, (("lora2", 1), ("other", 1))),
    "virtual tokens first": ((PROMPT, ONE), {}, (("tokens", 1), ("lora2", 1))),
    "virtual tokens last": ((ONE, PROMPT), {}, (("lora2", 1), ("tokens", 1))),
    "two of the same name": ((ONE, AGAIN), {}, (("lora2", 1), ONE)),
    "two copies": ((ONE, ("lora2", 1)), {}, (ONE, AGAIN)),
}
COPIES = (("lora", "lora2"), ("lora", "again/lora"), ("b/lora", "other"), ("prompt", "tokens"))


@pytest.mark.parametrize("case", RENAMED)
def test_folders_of_adapters_may_have_other_names(case, tuned, tmp_path, pyc):
    for folder, copy in COPIES:
        shutil.copytree(tmp_path / folder, tmp_path / copy)
    adapters, how, renamed = RENAMED[case]
    artifact = build(tuned("own", *adapters, **how), output=tmp_path / "own.pyca").path
    wanted = pyc("report", artifact, tuned("own", *adapters, **how), "--json")
    assert pyc("report", artifact, tuned("other", *renamed, **how), "--json") == wanted
    assert wanted[0] == 0


def test_a_folder_of_a_hub_is_the_adapter_of_its_id(tuned, tmp_path, monkeypatch, pyc):
    snapshot = tmp_path / "hub" / "models--some--tuned" / "snapshots" / ("1" * 40)
    shutil.copytree(tmp_path / "lora", snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("1" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    artifact = build(tuned("own", ("some/tuned", 1)), output=tmp_path / "own.pyca").path
    code, _, err = pyc("report", artifact, tuned("other", ONE))
    assert code == 0, err


@pytest.mark.parametrize(("adapters", "renamed", "said"), [
    ((ONE,), (("lora2", 0.5),), 'passes fuse_lora: version 1 {"adapter": "lora", "weight": "1.0"} in the artifact, '),
    ((ONE,), (("other", 1),), 'passes fuse_lora: version 1 {"adapter": "lora", '),
    (BOTH, (("other", 1), ("lora2", 1)), 'passes fuse_lora: version 1 {"adapter": "lora", '),
    ((ONE, ("other", 1), AGAIN), (("lora2", 1), OTHER, ("other", 1)), "passes fuse_lora: version 1 "),
    ((ONE,), (("lora2", 1), IA3), "passes fuse_lora: version 1 "),
])  # fmt: skip
def test_renamed_adapters_are_those_of_the_artifact(adapters, renamed, said, tuned, tmp_path, pyc):
    for folder, copy in COPIES:
        shutil.copytree(tmp_path / folder, tmp_path / copy)
    artifact = build(tuned("own", *adapters), output=tmp_path / "own.pyca").path
    code, out, err = pyc("report", artifact, tuned("other", *renamed))
    assert (code, out) == (8, ""), err
    assert f"own.pyca: it was made from something else: {said}" in err, err


def test_how_matrices_are_quantized_is_what_the_artifact_says(tuned, tmp_path, pyc):
    artifact = build(tuned("own", ONE, quantize={"scheme": "int8"}), output=tmp_path / "own.pyca").path
    code, out, err = pyc("report", artifact, tuned("other", ONE, quantize={"scheme": "int4-g32"}), "--json")
    assert code == 0, err
    assert {each["scheme"] for each in json.loads(out)["matrices"]} == {"int8"}


READ = {"text": "text.txt", "window": 32, "tokens": 256}
DRAWN = {"generate": 512, "window": 32, "seed": 1}
EDITED = {
    "fewer tokens": (READ, {**READ, "tokens": 512, "window": 16}),
    "generated now": (READ, {"generate": 256, "window": 32}),
    "no text": (READ, {"window": 32}),
    "a text in another folder": (READ, {"text": "copies/text.txt"}),
    "another seed": (DRAWN, {**DRAWN, "seed": 2}),
    "more generated": (DRAWN, {**DRAWN, "generate": 1024, "window": 64}),
    "read now": (DRAWN, READ),
}


@pytest.mark.parametrize("case", EDITED)
@pytest.mark.parametrize("algorithm", ["awq", "smoothquant"])
def test_factors_of_channels_are_those_of_the_calibration_that_the_artifact_records(
    algorithm, case, tuned, tmp_path, pyc
):
    """They would be others by the text as the recipe reads it now, and every error with them."""
    built, edited = EDITED[case]
    (tmp_path / "copies").mkdir()
    for folder in (tmp_path, tmp_path / "copies"):
        (folder / "text.txt").write_text(TEXT)

    def quantize(calibration):
        return {"scheme": "int8", "algorithm": algorithm, "calibration": calibration}

    recipe = tuned("own", quantize=quantize(built))
    artifact = build(recipe, output=tmp_path / "own.pyca").path
    wanted = pyc("report", artifact, recipe, "--json")
    assert wanted[0] == 0, wanted
    assert pyc("report", artifact, tuned("edited", quantize=quantize(edited)), "--json") == wanted


def test_a_text_that_is_another_or_missing_is_refused(tuned, tmp_path, monkeypatch, pyc):
    (tmp_path / "text.txt").write_text(TEXT)
    quantize = {"scheme": "int8", "algorithm": "awq", "calibration": READ}
    recipe = tuned("own", quantize=quantize)
    artifact = build(recipe, output=tmp_path / "own.pyca").path
    with monkeypatch.context() as patch:  # as another version of the package tokenizers would read it
        patch.setattr(Tokenizer, "encode", lambda self, text: [5, 6, 7] * 200)
        code, out, err = pyc("report", artifact, recipe)
    assert (code, out) == (8, ""), err
    assert "own.pyca: it was calibrated by other tokens than are read now: text " in err and len(err.splitlines()) == 1
    (tmp_path / "text.txt").write_text(TEXT + "more")
    for edited in (READ, {"generate": 256, "window": 32}):
        code, out, err = pyc("report", artifact, tuned("edited", quantize={**quantize, "calibration": edited}))
        assert (code, out) == (8, ""), err
        assert "own.pyca: it was made from something else: sources calibration/text.txt: " in err, err
    (tmp_path / "text.txt").unlink()
    for source in (recipe, tuned.checkpoint):
        code, out, err = pyc("report", artifact, source)
        assert (code, out) == (8, ""), err
        assert "own.pyca: it was made from calibration/text.txt, and there is no file " in err, err
        assert len(err.splitlines()) == 1, err


def test_a_text_by_another_name_is_told_with_the_name_that_the_artifact_has(tuned, tmp_path, pyc):
    (tmp_path / "text.txt").write_text(TEXT)
    quantize = {"scheme": "int8", "algorithm": "awq", "calibration": READ}
    artifact = build(tuned("own", quantize=quantize), output=tmp_path / "own.pyca").path
    renamed = tmp_path / "renamed.txt"
    edited = tuned("edited", quantize={**quantize, "calibration": {**READ, "text": "renamed.txt"}})
    was = f"calibration/text.txt of {len(TEXT):,} bytes, {blake3(TEXT.encode()).hexdigest()[:12]} in the artifact"
    for text, said in (
        (None, f"it was made from calibration/text.txt, and there is no file {renamed}; "),
        (TEXT, f"it was made from calibration/text.txt, and {renamed} has the same content by another name; "),
        ("x" + TEXT[1:], f"sources calibration/renamed.txt: {was}, and another file at {renamed}; "),
        (TEXT + "more", f"sources calibration/renamed.txt: {was}, and another file at {renamed}; "),
    ):
        if text is not None:
            renamed.write_text(text)
        code, out, err = pyc("report", artifact, edited)
        assert (code, out) == (8, "") and len(err.splitlines()) == 1, err
        assert said in err, err


@pytest.mark.parametrize("case", ["another size", "the same size", "too large", "absolute", "a pipe"])
def test_a_file_that_only_the_artifact_names(case, tuned, tmp_path, monkeypatch, pyc):
    """It is read where it has the recorded size, and nothing of it is shown. `read` is what was."""
    (tmp_path / "text.txt").write_text(TEXT)
    recipe = tuned("own", quantize={"scheme": "int8", "algorithm": "awq", "calibration": READ})
    artifact, forged = build(recipe, output=tmp_path / "own.pyca").path, tmp_path / "forged.pyca"
    secret = {"another size": TEXT + "more", "the same size": "x" + TEXT[1:]}.get(case, "secret " * 20)
    named = tmp_path / "elsewhere" / "text.txt"
    named.parent.mkdir()
    if case == "a pipe":
        os.mkfifo(named)
    else:
        named.write_text(secret)
    if case == "too large":
        os.truncate(named, 200_000_000_000)

    def name_it(document):
        recorded = json.loads(document["provenance"]["recipe"])
        path = str(named) if case == "absolute" else "elsewhere/text.txt"
        recorded["quantize"]["calibration"]["text"] = path
        document["provenance"]["recipe"] = json.dumps(recorded)
        if case == "too large":
            (source,) = (each for each in document["provenance"]["sources"] if each["name"].endswith("/text.txt"))
            source["size_bytes"] = 200_000_000_000

    artifact_forge.forge(artifact, forged, name_it)
    read = []
    whole = SourceFiles.whole
    monkeypatch.setattr(SourceFiles, "whole", lambda self, path: read.append(Path(path)) or whole(self, path))
    (tmp_path / "text.txt").unlink()
    monkeypatch.chdir(tmp_path)
    code, out, err = pyc("report", forged, tuned.checkpoint)
    assert (code, out) == (8, "") and len(err.splitlines()) == 1, err
    assert blake3(secret.encode()).hexdigest()[:12] not in err
    assert case == "the same size" or f"{len(secret):,}" not in err
    assert (named.resolve() in {path.resolve() for path in read}) == (case == "the same size")
    says = {"absolute": "there is no file text.txt", "a pipe": "it is not a regular file"}
    assert says.get(case, "and another file at ") in err, err


def test_a_quantized_checkpoint_whose_codes_are_kept(tiny_checkpoint, tmp_path, monkeypatch, key_home, pyc):
    """The record of what was kept is none of an adapter."""
    monkeypatch.setitem(BACKENDS, "cpu", WithoutCode)
    checkpoint = tmp_path / "int8"
    quantized_copy(tiny_checkpoint("llama", **WIDE), "w8a8", checkpoint)
    path = build({"model": str(checkpoint), "targets": [{"isa": ["x86-64"]}]}, output=tmp_path / "int8.pyca").path
    with open_artifact(path) as artifact:
        assert KEEP_CODES in [step.name for step in artifact.header.provenance.passes]
    code, out, err = pyc("report", path, checkpoint, "--json")
    assert code == 0, err
    assert "int8" in {each["scheme"] for each in json.loads(out)["matrices"]}


def test_an_artifact_for_another_engine(tiny_checkpoint, tmp_path, key_home, pyc):
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    checkpoint = tiny_checkpoint("llama")
    targets = [{"backend": "onnx"}]
    path = build({"model": str(checkpoint), "targets": targets}, output=tmp_path / "onnx.pyca").path
    code, _, err = pyc("report", path, checkpoint)
    assert (code, "it has programs for onnx alone" in err) == (8, True), err
