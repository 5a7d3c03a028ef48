"""What a good recipe means, `--set`, Python mappings, and the text that an artifact records."""

import enum
import json
import os
import re
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pyc.backends.cpu import isa as backends_isa
from pyc.backends.cpu.row_formats import rounding_of, row_format_of
from pyc.compiler.recipe.api import load_recipe, recipe_from, recipe_text
from pyc.compiler.recipe.types import ISAS, AdapterRef, Document, Merge, Override, Quantize, Recipe, Target
from pyc.compiler.schemes import ALIASES, SCHEMES, Dense, Int4Group, Int8Channel, activations_of
from pyc.runtime.errors import RecipeError

FULL = """
model: ./checkpoint
adapters:
  - path: adapters/style
  - {path: adapters/code, weight: 0.5}
quantize:
  scheme: int4-g64-asym
  algorithm: rtn
  embeddings: int8
  kv_cache: f32
  activations: f32
  overrides:
    - match: lm_head
      scheme: none
    - {match: 're:.*down_proj', scheme: int8}
shapes:
  context: 2048
  tokens: [128, 1, 16]
  batch: [4, 1]
  logits: [4]
targets:
  - arch: x86_64
    isa: [x86-64-v3]
  - arch: aarch64
artifact:
  path: out/model.pyca
  codec: zstd
  key: release
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, FULL))
    assert recipe.model == "./checkpoint"
    assert recipe.adapters == (
        AdapterRef(path="adapters/style", weight=1.0),
        AdapterRef(path="adapters/code", weight=0.5),
    )
    assert recipe.quantize == Quantize(
        scheme="int4-g64-asym",
        overrides=(Override(match="lm_head", scheme="none"), Override(match="re:.*down_proj", scheme="int8")),
        embeddings="int8",
        kv_cache="f32",
        activations="f32",
    )
    assert (recipe.shapes.context, recipe.shapes.tokens, recipe.shapes.batch) == (2048, (1, 16, 128), (1, 4))
    assert recipe.shapes.logits == (4,)
    assert recipe.shapes.max_sequences == 4
    assert recipe.targets == (
        Target(isa=("x86-64-v3",)),
        Target(arch="aarch64", isa=("armv8", "armv8-dotprod")),
    )
    assert (recipe.artifact.codec, recipe.artifact.key) == ("zstd", "release")
    assert recipe.output() == tmp_path / "out/model.pyca"
    assert recipe.locate(recipe.model) == tmp_path / "checkpoint"


def test_defaults(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "model: m"))
    assert recipe == Recipe(model="m", folder=str(tmp_path), name="tiny", file=str(tmp_path / "tiny.yaml"))
    assert recipe.quantize.embeddings == "none"
    assert recipe.targets == (Target(isa=ISAS["x86_64"]),)
    assert recipe.output() == tmp_path / "tiny.pyca"


def test_instruction_sets_are_those_of_the_backends() -> None:
    found = {(isa.arch, isa.name) for isa in backends_isa.ISAS.values()}
    named = {(arch, name) for arch, names in ISAS.items() if arch != "any" for name in names}
    assert named == found


def test_a_portable_program_has_one_variant_for_every_architecture() -> None:
    targets = recipe_from({"model": "m", "targets": [{"backend": "cpu"}, {"backend": "onnx"}]}).targets
    assert (targets[1].arch, targets[1].isa) == ("any", ("onnxruntime",))
    with pytest.raises(RecipeError, match=r"targets\[0\].arch: got 'any' for backend cpu, expected one of x86_64"):
        recipe_from({"model": "m", "targets": [{"arch": "any"}]})
    with pytest.raises(RecipeError, match="is listed twice"):
        recipe_from({"model": "m", "targets": [{"backend": "onnx"}, {"backend": "onnx"}]})


def test_absolute_and_home_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    recipe = recipe_from({"model": "~/models/a"}, folder=tmp_path)
    assert recipe.locate(recipe.model) == Path("/home/someone/models/a")
    assert recipe.locate("/data/m") == Path("/data/m")


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_say_what_activations_are(alias: str) -> None:
    quantize = recipe_from({"model": "m", "quantize": {"scheme": alias}}).quantize
    assert quantize.scheme == ALIASES[alias]
    assert quantize.activations == ("f32" if "A16" in alias else "int8")
    assert quantize.embeddings == "int8"


@pytest.mark.parametrize("backend", ["cpu", "tvm"])
def test_a_backend_may_have_its_old_name(backend: str) -> None:
    """Recipes that say tvm are read, by every way in; what is written says cpu."""
    targets = [{"backend": backend, "isa": ["x86-64"]}]
    recipe = recipe_from({"model": "m", "targets": targets})
    assert [target.backend for target in recipe.targets] == ["cpu"]
    assert recipe == recipe_from({"model": "m", "targets": targets}, ["targets=[{backend: tvm, isa: [x86-64]}]"])
    assert '"tvm"' not in recipe_text(recipe)
    document = json.dumps({"model": "m", "targets": targets})
    assert msgspec.json.decode(document, type=Document).targets == recipe.targets


def test_bf16_activations_are_for_bf16_matrices_and_leave_the_others_int8() -> None:
    overrides = [{"match": "re:.*down_proj", "scheme": "bf16"}, {"match": "re:.*up_proj", "scheme": "f16"}]
    recipe = {"scheme": "W8A8", "activations": "bf16", "overrides": overrides}
    quantize = recipe_from({"model": "m", "quantize": recipe}).quantize
    assert (quantize.scheme, quantize.activations) == ("int8", "bf16")
    found = {name: row_format_of(quantize.scheme_of(f"a.{name}")) for name in ("down_proj", "up_proj", "q_proj")}
    assert found == {"down_proj": "bf16", "up_proj": None, "q_proj": "float_scale"}
    plain = recipe_from({"model": "m", "quantize": {**recipe, "activations": "int8"}}).quantize
    assert row_format_of(plain.scheme_of("a.down_proj")) is None


def test_mxfp8_activations_are_for_quantized_matrices() -> None:
    overrides = [{"match": f"re:.*{name}", "scheme": name} for name in ("int4-g32", "bf16", "f32")]
    recipe = {"scheme": "FP8_DYNAMIC", "activations": "mxfp8", "overrides": overrides}
    quantize = recipe_from({"model": "m", "quantize": recipe}).quantize
    names = ("fp8", "int4-g32", "bf16", "f32")
    found = {name: activations_of(quantize.scheme_of(f"a.{name}")) for name in names}
    assert found == {"fp8": "mxfp8", "int4-g32": "mxfp8", "bf16": "f32", "f32": "f32"}
    assert not any(row_format_of(quantize.scheme_of(f"a.{name}")) for name in names)
    with pytest.raises(RecipeError, match=r"quantize.activations: got 'mxfp8', but scheme W8A8 means int8"):
        recipe_from({"model": "m", "quantize": {"scheme": "W8A8", "activations": "mxfp8"}})


def test_fp8_activations_are_for_floating_point_of_8_bits_and_leave_other_codes_int8() -> None:
    names = ("fp8", "fp8-e5m2", "fp8-tensor", "fp8-b128", "int8", "int4-g32", "nvfp4", "bf16", "f32")
    overrides = [{"match": name, "scheme": name} for name in names]
    overrides.append({"match": "alias", "scheme": "W8A8"})
    recipe = {"scheme": "FP8_DYNAMIC", "activations": "fp8", "overrides": overrides}
    quantize = recipe_from({"model": "m", "quantize": recipe}).quantize
    assert (quantize.scheme, quantize.activations) == ("fp8", "fp8")
    schemes = {name: quantize.scheme_of(name) for name in (*names, "alias", "q_proj")}
    found = {name: activations_of(scheme) for name, scheme in schemes.items()}
    assert found == {
        **dict.fromkeys(("fp8", "fp8-e5m2", "fp8-tensor", "fp8-b128", "q_proj"), "fp8"),
        **dict.fromkeys(("int8", "int4-g32", "nvfp4", "alias"), "int8"),
        **dict.fromkeys(("bf16", "f32"), "f32"),
    }
    rounded = {name for name, scheme in schemes.items() if rounding_of(scheme) == "fp8"}
    assert rounded == {name for name, activations in found.items() if activations == "fp8"}
    assert not any(row_format_of(schemes[name]) for name in (*rounded, "bf16", "f32"))
    assert activations_of(quantize.scheme_of("lm_head", embedding=True)) == "int8"
    assert recipe_from({"model": "m", "quantize": {"scheme": "W8A8", "activations": "fp8"}}).quantize.scheme == "int8"
    with pytest.raises(RecipeError, match=r"quantize.activations: got 'fp8', but scheme W8A16 means f32"):
        recipe_from({"model": "m", "quantize": {"scheme": "W8A16", "activations": "fp8"}})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_embeddings_follow_the_scheme(scheme: str) -> None:
    quantize = recipe_from({"model": "m", "quantize": {"scheme": scheme}}).quantize
    assert quantize.embeddings == (scheme if isinstance(SCHEMES[scheme], Dense) else "int8")


def test_scheme_of_takes_the_first_override_that_matches() -> None:
    quantize = recipe_from(
        {
            "model": "m",
            "quantize": {
                "scheme": "W4A16",
                "overrides": [
                    {"match": "model.layers.0.mlp.down_proj", "scheme": "none"},
                    {"match": "re:.*down_proj", "scheme": "int8"},
                    {"match": "re:model.layers.1.", "scheme": "int4-g32-asym"},
                    {"match": "model.layers.2.mlp.up_proj.weight", "scheme": "f16"},
                ],
            },
        }
    ).quantize
    assert quantize.scheme_of("model.layers.0.mlp.down_proj.weight") == Dense()
    assert quantize.scheme_of("model.layers.1.mlp.down_proj.weight") == Int8Channel("f32")
    assert quantize.scheme_of("model.layers.1.mlp.up_proj.weight") == Int4Group(32, False, "f32")
    assert quantize.scheme_of("model.layers.2.mlp.up_proj.weight") == Dense("f16")
    assert quantize.scheme_of("model.layers.3.mlp.up_proj.weight") == Int4Group(128, True, "f32")
    assert quantize.scheme_of("lm_head.weight", embedding=True) == Int8Channel("f32")


@pytest.mark.parametrize(
    ("match", "tensor", "matches"),
    [
        ("lm_head", "lm_head.weight", True),
        ("lm_head.weight", "lm_head.weight", True),
        ("lm_head", "model.lm_head.weight", False),
        ("lm", "lm_head.weight", False),
        ("re:lm", "lm_head.weight", True),  # open at the end, as compressed-tensors
        ("re:head", "lm_head.weight", False),  # anchored at the start
        ("re:.*head$", "lm_head.weight", True),
        (r"re:.*\.weight$", "lm_head.weight", True),
        ("weight", "weight", True),
    ],
)
def test_override_names(match: str, tensor: str, matches: bool) -> None:
    assert Override(match=match, scheme="none").matches(tensor) is matches


def test_a_pattern_for_which_backtracking_takes_hours() -> None:
    began = time.process_time()
    assert not Override(match="re:(([a-z._0-9]+)+)+!", scheme="none").matches("model.layers.0.self_attn.q_proj.weight")
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("scheme", ["none", "bf16", "f16"])
@pytest.mark.parametrize("algorithm", ["gptq", "awq", "imatrix"])
def test_an_algorithm_without_codes_to_choose_is_refused(scheme: str, algorithm: str) -> None:
    said = f"quantize.algorithm: got '{algorithm}', but scheme {scheme} has no codes to choose; remove it (--set"
    with pytest.raises(RecipeError, match=re.escape(said)):
        recipe_from({"model": "m", "quantize": {"scheme": scheme, "algorithm": algorithm}})
    overrides = [{"match": "re:.*mlp.*", "scheme": "int4-g32"}]
    for more in ({"overrides": overrides}, {"embeddings": "int8"}):
        recipe_from({"model": "m", "quantize": {"scheme": scheme, "algorithm": algorithm, **more}})
    recipe_from({"model": "m", "quantize": {"bits_per_weight": 4, "algorithm": algorithm}})


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"backend": "cuda", "device": "cpu"}, "targets[0].device: got 'cpu' for backend cuda, expected cuda"),
        ({"backend": "tensorrt", "device": "cpu"}, "targets[0].device: got 'cpu' for backend tensorrt, expected cuda"),
        ({"backend": "onnx", "device": "cuda"}, "targets[0].device: got 'cuda' for backend onnx, expected cpu"),
        ({"backend": "onnx", "arch": "aarch64"}, "targets[0].arch: got 'aarch64' for backend onnx, expected any"),
        ({"backend": "cuda", "arch": "x86_64"}, "targets[0].arch: got 'x86_64' for backend cuda, expected any"),
    ],
)
def test_a_device_or_architecture_that_a_backend_has_not(target: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(said) + "; leave it out"):
        recipe_from({"model": "m", "targets": [target]})
    made = recipe_from({"model": "m", "targets": [{"backend": target["backend"]}]})
    assert recipe_from(json.loads(recipe_text(made))) == made


def test_a_pattern_that_is_not_read_has_its_place() -> None:
    overrides = [{"match": r"re:(a)\1", "scheme": "none"}]
    with pytest.raises(RecipeError, match=r"overrides\[0\]\.match: got .*, expected a regular .*not supported"):
        recipe_from({"model": "m", "quantize": {"overrides": overrides}})


@pytest.mark.parametrize(
    ("text", "pick"),
    [
        ("quantize.scheme=int8", lambda r: r.quantize.scheme == "int8"),
        ("quantize.activations=f32", lambda r: r.quantize.activations == "f32"),
        ("shapes.tokens=[1, 64]", lambda r: r.shapes.tokens == (1, 64)),
        ("shapes.tokens.0=256", lambda r: r.shapes.tokens == (1, 16, 256)),
        ("shapes.context=", lambda r: r.shapes.context is None),
        ("shapes={}", lambda r: r.shapes.context is None and r.shapes.batch == (1, 4)),
        ("adapters=[]", lambda r: r.adapters == ()),
        ("adapters.1.weight=1e-3", lambda r: r.adapters[1].weight == 1e-3),
        ("adapters.2.path=more", lambda r: r.adapters[2].path == "more"),
        ("model=a=b", lambda r: r.model == "a=b"),
        ("model='no'", lambda r: r.model == "no"),
        ("targets.0.isa=[]", lambda r: r.targets[0].isa == ISAS["x86_64"]),
        ("artifact.path=null", lambda r: r.artifact.path is None),
        ("quantize.overrides.0={match: x, scheme: int8}", lambda r: r.quantize.overrides[0].match == "x"),
    ],
)
def test_set(text: str, pick: object, tmp_path: Path) -> None:
    assert callable(pick)
    assert pick(load_recipe(write(tmp_path, FULL), [text]))


def test_set_makes_what_is_not_there_and_applies_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "model: m")
    recipe = load_recipe(path, ["adapters.0.path=a", "targets.0.arch=aarch64", "model=n", "model=o"])
    assert (recipe.model, recipe.adapters, recipe.targets[0].isa) == (
        "o",
        (AdapterRef(path="a"),),
        ISAS["aarch64"],
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantize.schem=int8", "did you mean 'scheme'?"),
        ("quantize.scheme=int4", "did you mean 'int4-g32'?"),
        ("shapes.context=4_096", "without underscores"),
        ("shapes.tokens=16", "write [16]"),
        ("adapters.5.path=a", "has 2 entries; the next position is 2"),
        ("adapters.first.path=a", "is a list, give a position"),
        ("shapes.0=1", "is a mapping, give a key"),
        ("model.x=3", "is a single value"),
        ("model", "expected KEY=VALUE"),
        ("=x", "expected KEY=VALUE"),
        ("a..b=x", "expected KEY=VALUE"),
        ("model=", "got nothing (null), expected text"),
        ("model=[", "not valid YAML"),
        ("model=!!python/object:os.system x", "tag"),
        ("model=*a", "alias"),
        ("model=a\n---\nb", "second document"),
        ("shapes={context: 1, context: 2}", "duplicate key"),
        ("model=a\x00b", "character U+0000"),
        ("model=\udcff", "not UTF-8"),
        ("model=\ud800", "the lone surrogate U+D800 is no text"),
        ("targets.0.isa=\udfff\udcff", "the lone surrogate U+DFFF is no text"),
    ],
)
def test_set_errors_name_the_option(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, FULL), [text])
    assert str(caught.value).startswith("--set ")
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["adapters", "quantize.overrides", "shapes.tokens", "targets", "targets.0.isa"])
def test_a_long_value_in_place_of_a_list_is_cut(key: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"got the text 'xxx.*\.\.\.', expected a list") as caught:
        load_recipe(write(tmp_path, FULL), [f"{key}={'x' * 5000}"])
    assert len(str(caught.value)) < 400


def test_an_error_in_the_file_names_the_file_in_spite_of_set(tmp_path: Path) -> None:
    path = write(tmp_path, "model: m\nshapes:\n  contxt: 5\n")
    with pytest.raises(RecipeError, match=r"tiny\.yaml:3:3: unknown key 'contxt'"):
        load_recipe(path, ["quantize.scheme=int8"])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "the key model is missing"),
        ({"model": "m", "shape": {}}, "did you mean 'shapes'?"),
        ({"model": b"m"}, "value of type bytes"),
        ({"model": "m", 3: 4}, "key 3 is not text"),
        ({"model": "m", "shapes": {"context": True}}, "got true, expected a whole number"),
        ({"model": "m", "shapes": {"tokens": {1, 16}}}, "value of type set"),
        (
            {"model": "m", "adapters": [{"path": "a", "weight": float("nan")}]},
            "expected a number from -100 to 100",
        ),
        (
            {"model": "m", "adapters": [{"path": "a", "weight": float("inf")}]},
            "expected a number from -100 to 100",
        ),
        ({"model": "a\nb"}, "without control characters"),
    ],
)
def test_mappings_are_as_strict(value: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from(value)
    assert str(caught.value).startswith("recipe: ")
    assert words in str(caught.value)


def test_a_mapping_that_holds_itself() -> None:
    loop: dict[str, object] = {"model": "m"}
    loop["shapes"] = loop
    with pytest.raises(RecipeError, match="nested deeper than 32 levels"):
        recipe_from(loop)


def test_paths_in_mappings(tmp_path: Path) -> None:
    assert recipe_from({"model": tmp_path}).locate(recipe_from({"model": tmp_path}).model) == tmp_path


def test_text_is_the_same_wherever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = set()
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        texts.add(recipe_text(load_recipe(write(folder, FULL))))
        texts.add(recipe_text(load_recipe(os.path.relpath(folder / "tiny.yaml"))))
    assert len(texts) == 1
    assert str(tmp_path) not in texts.pop()


def test_text_keeps_no_absolute_path() -> None:
    recipe = recipe_from(
        {"model": "/data/secret/m", "adapters": [{"path": "/x/y/lora/"}], "artifact": {"path": "/out/m.pyca"}}
        | {"quantize": {"scheme": "int8", "algorithm": "imatrix", "calibration": {"imatrix": "/data/secret/m.imatrix"}}}
    )
    text = recipe_text(recipe)
    assert '"model":"m"' in text
    assert '"path":"lora"' in text
    assert '"path":"m.pyca"' in text
    assert '"imatrix":"m.imatrix"' in text
    assert "secret" not in text
    assert '"/' not in text


def test_a_folder_called_tilde_is_not_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(write(tmp_path, "model: ./~"))
    assert recipe.locate(recipe.model) == tmp_path / "~"
    assert recipe.locate("~/m") == Path.home() / "m"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # a bare uid has no entry
    assert recipe.locate("~/m") == tmp_path / "~" / "m"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("  text: t", r"tiny\.yaml:3:3: quality: a gate without a limit, expected max_kl, max_ppl, min_same_top or"),
        (
            "  text: t\n  max_kl: 1\n  reference: none",
            r"tiny\.yaml:5:14: quality\.reference: got 'none', but max_kl compares with a reference",
        ),
        ("  text: t\n  max_kl: 101", r"tiny\.yaml:4:11: quality\.max_kl: got .*, expected a number from 0 to 100"),
        ("  text: t\n  max_kll: 1", r"unknown key 'max_kll' in quality.*did you mean 'max_kl'\?"),
    ],
)
def test_a_gate_that_cannot_decide(lines: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=words):
        load_recipe(write(tmp_path, f"model: m\nquality:\n{lines}\n"))


def test_a_gate_names_its_text_without_a_place_of_this_machine() -> None:
    recipe = recipe_from({"model": "m", "quality": {"text": "/home/me/held.txt", "max_ppl": 9, "reference": "none"}})
    assert recipe.quality is not None and recipe.quality.limits() == (("max_ppl", 9.0),)
    assert json.loads(recipe_text(recipe))["quality"]["text"] == "held.txt"
    assert recipe_from(json.loads(recipe_text(recipe_from({"model": "m"})))).quality is None


TWO = [{"path": "a"}, {"path": "b"}]


@pytest.mark.parametrize(
    ("adapters", "merge", "words"),
    [
        (TWO, {"method": "linear", "density": 0.5}, "merge.density: the method linear has no density; remove the key"),
        (TWO, {"method": "ties"}, "merge.density: the method ties needs it"),
        (TWO, {"method": "dare_ties", "density": 0.5}, "merge.seed: the method dare_ties needs it"),
        (TWO, {"method": "ties", "density": 0.5, "seed": 1}, "merge.seed: the method ties has no seed"),
        (TWO, {"method": "ties", "density": 0.5, "rank": 4}, "merge.rank: the method ties has no rank"),
        (TWO, {"method": "svd", "majority_sign": "total"}, "merge.majority_sign: the method svd has no"),
        (TWO[:1], {"method": "cat"}, "merge: got 1 under adapters, expected two adapters or more"),
        ([*TWO, {"path": "c"}], {"method": "slerp"}, "merge: got 3 under adapters, expected two adapters to make one"),
        ([{"path": "a", "weight": -1}, {"path": "b"}], {"method": "slerp"}, "slerp takes weights as shares"),
        (TWO, {"method": "dare"}, "got the text 'dare', expected one of cat, dare_linear"),
    ],
)
def test_a_merge_has_the_options_of_its_method(
    adapters: list[dict[str, object]], merge: dict[str, object], words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from({"model": "m", "adapters": adapters, "merge": merge})
    assert words in str(caught.value)


def test_a_merge_that_votes_says_how() -> None:
    merge = recipe_from({"model": "m", "adapters": TWO, "merge": {"method": "ties_svd", "density": 1}}).merge
    assert merge == Merge(method="ties_svd", density=1.0, majority_sign="total")
    assert recipe_from({"model": "m", "adapters": TWO, "merge": {"method": "cat"}}).merge == Merge(method="cat")


@pytest.mark.parametrize(
    ("quantize", "said"),
    [
        ("size_bytes: 4.1MB", "quantize.size_bytes: got the text '4.1MB', expected a whole number from 1 to"),
        ("size_bytes: 0", "quantize.size_bytes: got the number 0, expected a whole number from 1 to"),
        ("{size_bytes: 9, bits_per_weight: 5}", "quantize.bits_per_weight: size_bytes is there already, expected one"),
        ("{size_bytes: 9, scheme: int8}", "quantize.scheme: got 'int8', but size_bytes chooses schemes; remove one"),
        ("{bits_per_weight: 5, scheme: W4A16}", "quantize.scheme: got 'W4A16', but bits_per_weight chooses schemes"),
    ],
)
def test_goals_that_are_refused(quantize, said, tmp_path):
    path = tmp_path / "model.yaml"
    inner = quantize if quantize.startswith("{") else f"{{{quantize}}}"
    path.write_text(f"model: m\nquantize: {inner}\n")
    with pytest.raises(RecipeError, match=re.escape(said)):
        load_recipe(path)


def test_a_goal_leaves_embeddings_to_the_build():
    assert recipe_from({"model": "m", "quantize": {"size_bytes": 9}}).quantize.embeddings == "auto"
    fixed = recipe_from({"model": "m", "quantize": {"size_bytes": 9, "embeddings": "none"}})
    assert fixed.quantize.embeddings == "none"
    assert recipe_from({"model": "m", "quantize": {"scheme": "int8"}}).quantize.embeddings == "int8"


def test_the_recipe_that_an_artifact_records_has_no_folder_of_its_calibration_text():
    recipe = recipe_from({"model": "m", "quantize": {"calibration": {"text": "/home/me/texts/mine.txt"}}})
    assert json.loads(recipe_text(recipe))["quantize"]["calibration"]["text"] == "mine.txt"


def test_text_of_other_types_is_text() -> None:
    """numpy's, which no encoder of the header takes, and members of enumerations."""

    class Name(str, enum.Enum):  # noqa: UP042 -- whose str() is not its text
        INT8 = "int8"

    for scheme in (np.str_("int8"), Name.INT8):
        recipe = recipe_from({"model": "m", "quantize": {"scheme": scheme}})
        assert type(recipe.quantize.scheme) is str
        assert '"scheme":"int8"' in recipe_text(recipe)
