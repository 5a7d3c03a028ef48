"""passes/calibration/imported_importance.py: files of llama.cpp's names give what the text they are of gives."""

import json
import struct

import numpy as np
import pytest
from msgspec.structs import replace

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.weights import Rounded
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration.calibrate import calibrate, weights_to_round
from pyc.passes.calibration.imported_importance import imported_importance
from pyc.passes.comparison.weight_errors import weight_errors
from pyc.passes.driver.build import build
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, QuantizeError, RecipeError

pytestmark = pytest.mark.usefixtures("compiled_once")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
DECODER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
ENCODER = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "intermediate.dense": "ffn_up", "output.dense": "ffn_down",
}  # fmt: skip
MODELS = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "qwen2": ("qwen2", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "bitnet": ("bitnet", {"tie_word_embeddings": False}),
    "bert": ("bert", {}),
}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


def windows():
    return Windows(np.random.default_rng(0).integers(3, 90, (4, 16)).astype(np.int32), "digest")


def squares(path, model_type):
    """Mean squares of the inputs of every product of transformers' model, by llama.cpp's names."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind = transformers.AutoModel if model_type == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    found = {}
    for name, part in model.named_modules():
        if not isinstance(part, torch.nn.Linear):
            continue
        if name == "lm_head":
            called = "output"
        else:
            layers = ("encoder.layer.", ENCODER) if model_type == "bert" else ("model.layers.", DECODER)
            if not name.startswith(layers[0]):
                continue
            index, _, rest = name.removeprefix(layers[0]).partition(".")
            called = f"blk.{index}.{layers[1][rest]}"

        def heard(part, x, y, called=called):
            rows = x[0].detach().numpy().astype(np.float64).reshape(-1, x[0].shape[-1])
            found[f"{called}.weight"] = (rows**2).mean(axis=0).astype("<f4")

        part.register_forward_hook(heard)
    with torch.no_grad():
        model(torch.tensor(windows().ids.astype(np.int64)))
    return found


def write(path, entries):
    data = struct.pack("<i", len(entries))
    for name, values in entries.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 1, len(values)) + values.tobytes()
    path.write_bytes(data)
    return path


def recipe_of(path, folder=None, **quantize):
    calibration = {} if folder is None else {"calibration": {"imatrix": str(folder / "model.imatrix")}}
    return recipe_from(
        {"model": str(path), "quantize": {"scheme": "int4-g32", "algorithm": "imatrix", **calibration, **quantize}}
    )


def calibrated(recipe, path, folder, given):
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    folder.mkdir()
    done = []
    with SourceFiles() as files:
        importance = imported_importance(recipe, module, files)
        made = calibrate(
            module, given, files, Cache(None), folder, done.append, recipe.quantize.algorithm, 0.5, importance
        )
        assert sum(done) == weights_to_round(module, recipe.quantize.algorithm, importance)
    return {name: codes_of(weight) for name, weight in made.weights.items() if isinstance(weight, Rounded)}, made


def codes_of(weight):
    return np.fromfile(weight.codes.path, "u1", offset=weight.codes.offset, count=np.prod(weight.shape))


@pytest.mark.parametrize("case", MODELS)
def test_a_file_gives_what_its_text_gives(case, tiny_checkpoint, tmp_path):
    model_type, config = MODELS[case]
    path = tiny_checkpoint(model_type, **SIZES, **config)
    entries = squares(path, model_type)
    write(tmp_path / "model.imatrix", entries)
    wanted, _ = calibrated(recipe_of(path), path, tmp_path / "text", windows())
    found, _ = calibrated(recipe_of(path, tmp_path), path, tmp_path / "file", None)
    assert found.keys() == wanted.keys()
    assert len(found) >= 8
    same = {name: (found[name] == codes).mean() for name, codes in wanted.items()}
    assert min(same.values()) > 0.97, same  # a group's scale is another where two cost the same but for the last bits
    assert np.mean(list(same.values())) > 0.995, same
    write(tmp_path / "model.imatrix", {name: np.ones_like(values) for name, values in entries.items()})
    flat, _ = calibrated(recipe_of(path, tmp_path), path, tmp_path / "flat", None)
    assert np.mean([(flat[name] == codes).mean() for name, codes in wanted.items()]) < 0.97, "a test that cannot fail"


def test_a_head_that_is_left_out_is_rounded_to_nearest(tiny_checkpoint, tmp_path):
    """As llama-imatrix does without --process-output; where an override asks for it, it is missed."""
    path = tiny_checkpoint("llama", tie_word_embeddings=False, **SIZES)
    entries = squares(path, "llama")
    del entries["output.weight"]
    write(tmp_path / "model.imatrix", entries)
    found, made = calibrated(recipe_of(path, tmp_path, embeddings="int4-g32"), path, tmp_path / "file", None)
    assert "lm_head.weight" not in found
    assert len(found) == 8
    (record,) = (record for record in made.passes if record.name == "calibrate")
    assert "importance" in record.options
    assert "text" not in record.options
    override = {"match": "lm_head", "scheme": "int4-g32", "algorithm": "imatrix"}
    with pytest.raises(QuantizeError, match=r"it has nothing for lm_head\.weight; was it made from this model"):
        calibrated(recipe_of(path, tmp_path, overrides=[override]), path, tmp_path / "again", None)


def test_beside_an_algorithm_that_reads_the_text(tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama", **SIZES)
    entries = {name: values for name, values in squares(path, "llama").items() if "ffn" in name}
    write(tmp_path / "model.imatrix", entries)
    override = {"match": "re:.*mlp", "scheme": "int4-g32", "algorithm": "imatrix"}
    recipe = recipe_of(path, tmp_path, algorithm="gptq", overrides=[override])
    assert recipe.quantize.reads_text()
    found, _ = calibrated(recipe, path, tmp_path / "both", windows())
    alone, _ = calibrated(recipe_of(path), path, tmp_path / "text", windows())
    assert (found["model.layers.0.mlp.down_proj.weight"] == alone["model.layers.0.mlp.down_proj.weight"]).mean() > 0.998
    assert (found["model.layers.0.self_attn.o_proj.weight"] != alone["model.layers.0.self_attn.o_proj.weight"]).any()


WRONG = {
    "missing": (lambda e: e.pop("blk.1.ffn_up.weight"), r"it has nothing for model\.layers\.1\.mlp\.up_proj\.weight"),
    "extra": (lambda e: e.update({"blk.2.ffn_up.weight": np.ones(64, "<f4")}), r"blk\.2\.ffn_up\.weight: this model"),
    "another kind": (lambda e: e.update({"blk.0.ssm_in.weight": np.ones(64, "<f4")}), "this model has no such matrix"),
    "wrong length": (
        lambda e: e.update({"blk.0.ffn_down.weight": np.ones(64, "<f4")}),
        r"blk\.0\.ffn_down\.weight: it has 64 numbers, expected 96, the inputs of model\.layers\.0\.mlp\.down_proj",
    ),
    "twice by two names": (
        lambda e: e.update({"output.weight": np.ones(64, "<f4"), "token_embd.weight": np.ones(64, "<f4")}),
        r"token_embd\.weight: it is model\.embed_tokens\.weight, of which there is an entry already",
    ),
    "not finite": (lambda e: e.update({"blk.0.ffn_down.weight": np.full(96, np.inf, "<f4")}), "negative, infinite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_of_another_model(case, tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama", tie_word_embeddings=True, **SIZES)
    change, said = WRONG[case]
    entries = {f"blk.{i}.{name}.weight": np.ones(64, "<f4") for i in (0, 1) for name in DECODER.values()}
    entries |= {f"blk.{i}.ffn_down.weight": np.ones(96, "<f4") for i in (0, 1)}
    change(entries)
    write(tmp_path / "model.imatrix", entries)
    with pytest.raises(QuantizeError, match=rf"^quantize\.calibration\.imatrix: .*{said}"):
        calibrated(recipe_of(path, tmp_path), path, tmp_path / "file", None)


@pytest.mark.parametrize(("make", "said"), [
    (lambda path: None, "cannot be read: No such file"),
    (lambda path: path.mkdir(), "cannot be read"),
    (lambda path: path.write_bytes(b"GGUF"), "it ends within version"),
])  # fmt: skip
def test_files_that_cannot_be_read(make, said, tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama", **SIZES)
    make(tmp_path / "model.imatrix")
    with pytest.raises(QuantizeError, match=rf"quantize\.calibration\.imatrix: .*model\.imatrix: {said}"):
        calibrated(recipe_of(path, tmp_path), path, tmp_path / "file", None)


def test_a_recipe_that_has_no_use_for_it():
    quantize = {"scheme": "int8", "algorithm": "gptq", "calibration": {"imatrix": "a"}}
    with pytest.raises(RecipeError, match=r"quantize\.calibration\.imatrix: no matrix is rounded by it"):
        recipe_from({"model": "m", "quantize": quantize})


def test_a_build_records_the_file(tiny_checkpoint, tmp_path):
    """It needs no tokenizer, and is checked without being built."""
    path = tiny_checkpoint("llama", tokenizer=False, tie_word_embeddings=True, **SIZES)
    write(tmp_path / "model.imatrix", {n: v for n, v in squares(path, "llama").items() if n != "output.weight"})
    document = {
        "model": str(path),
        "shapes": {"tokens": [1, 8], "logits": [1]},
        "targets": [{"isa": ["x86-64"]}],
        "quantize": {
            "scheme": "int4-g32", "algorithm": "imatrix", "calibration": {"imatrix": str(tmp_path / "model.imatrix")},
        },
    }  # fmt: skip
    made = build(document, output=tmp_path / "m.pyca").path
    with open_artifact(made) as artifact:
        names = [source.name for source in artifact.header.provenance.sources]
    assert "calibration/model.imatrix" in names
    assert "calibration.txt" not in names


def without_the_head(tiny_checkpoint, folder, named):
    """A checkpoint, and a recipe whose file of importances, in `folder`, leaves out the head."""
    path = tiny_checkpoint("llama", tie_word_embeddings=False, **SIZES)
    write(folder / "model.imatrix", {n: v for n, v in squares(path, "llama").items() if n != "output.weight"})
    return path, {
        "model": str(path),
        "shapes": {"tokens": [1, 8], "logits": [1]},
        "targets": [{"isa": ["x86-64"]}],
        "quantize": {"scheme": "int4-g32", "algorithm": "imatrix", "calibration": {"imatrix": named}},
    }


def test_a_report_says_that_a_head_that_the_file_leaves_out_is_rounded_to_nearest(tiny_checkpoint, tmp_path):
    path, document = without_the_head(tiny_checkpoint, tmp_path, str(tmp_path / "model.imatrix"))
    made = build(document, output=tmp_path / "m.pyca").path
    with open_artifact(made) as artifact, SourceFiles() as files:
        errors = weight_errors(artifact, recipe_from(document), files, Cache(None))
    found = {each.name: each.algorithm for each in errors}
    assert found["lm_head.weight"] == "rtn"
    assert {found[name] for name in found if ".layers." in name} == {"imatrix"}
    write(tmp_path / "model.imatrix", squares(path, "llama"))
    said = r"it was made from something else: sources calibration/model\.imatrix: "
    with open_artifact(made) as artifact, SourceFiles() as files, pytest.raises(ArtifactError, match=said):
        weight_errors(artifact, recipe_from(document), files, Cache(None))


def test_a_report_of_a_checkpoint_alone_believes_no_other_file_of_that_name(tiny_checkpoint, tmp_path, caplog):
    path, document = without_the_head(tiny_checkpoint, tmp_path, "model.imatrix")
    (tmp_path / "recipe.yaml").write_text(json.dumps(document))
    made = build(tmp_path / "recipe.yaml", output=tmp_path / "m.pyca").path

    def algorithm_of_the_head(folder):
        source = replace(recipe_from({"model": str(path)}), folder=str(folder))
        with open_artifact(made) as artifact, SourceFiles() as files:
            errors = weight_errors(artifact, source, files, Cache(None))
        return {each.name: each.algorithm for each in errors}["lm_head.weight"]

    (tmp_path / "elsewhere").mkdir()
    assert algorithm_of_the_head(tmp_path / "elsewhere") == "unknown"
    write(tmp_path / "elsewhere" / "model.imatrix", squares(path, "llama"))
    assert algorithm_of_the_head(tmp_path / "elsewhere") == "unknown"
    asked = "whether lm_head.weight has importance in calibration/model.imatrix is not known: "
    missing, other = caplog.messages
    assert missing.startswith(asked) and f"there is no file {tmp_path}/elsewhere/model.imatrix" in missing
    assert other.startswith(asked) and f"another file at {tmp_path}/elsewhere/model.imatrix" in other
    caplog.clear()
    assert algorithm_of_the_head(tmp_path) == "rtn", "it is the file itself"
    assert not caplog.messages


def test_a_report_without_the_file_knows_what_the_file_cannot_have_left_out(tiny_checkpoint, tmp_path, caplog):
    path, document = without_the_head(tiny_checkpoint, tmp_path, str(tmp_path / "model.imatrix"))
    write(tmp_path / "model.imatrix", squares(path, "llama"))
    document["quantize"]["overrides"] = [{"match": "lm_head", "scheme": "int4-g32", "algorithm": "imatrix"}]
    made = build(document, output=tmp_path / "m.pyca").path
    (tmp_path / "model.imatrix").unlink()
    with open_artifact(made) as artifact, SourceFiles() as files:
        errors = weight_errors(artifact, recipe_from({"model": str(path)}), files, Cache(None))
    assert {each.name: each.algorithm for each in errors}["lm_head.weight"] == "imatrix"
    assert not caplog.messages


def test_a_report_of_a_recipe_whose_file_is_missing_is_refused(tiny_checkpoint, tmp_path):
    _, document = without_the_head(tiny_checkpoint, tmp_path, str(tmp_path / "model.imatrix"))
    made = build(document, output=tmp_path / "m.pyca").path
    (tmp_path / "model.imatrix").unlink()
    said = rf"it was made from calibration/model\.imatrix, and there is no file {tmp_path}/model\.imatrix; "
    with open_artifact(made) as artifact, SourceFiles() as files, pytest.raises(ArtifactError, match=said):
        weight_errors(artifact, recipe_from(document), files, Cache(None))
