"""passes/calibration/matrix_algorithms.py: an algorithm for each matrix, beside transformers with the same weights."""

import numpy as np
import pytest

from pyc.compiler import scale_search
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import SCHEMES
from pyc.compiler.weights import Rounded
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.calibration.calibrate import calibrate, calibration_records, weights_to_round
from pyc.passes.calibration.rounding import by_gptq
from pyc.passes.comparison.weight_errors import weight_errors
from pyc.passes.driver.build import build
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import RecipeError

pytestmark = pytest.mark.usefixtures("compiled_once")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
INT4 = SCHEMES["int4-g32"]
LAST = "model.layers.1.mlp.down_proj"


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


def recipe_of(path, overrides, **quantize):
    named = [{"match": match, "scheme": "int4-g32", "algorithm": algorithm} for match, algorithm in overrides.items()]
    return recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32", **quantize, "overrides": named}})


def calibrated(path, folder, overrides, **quantize):
    """The weights of a module whose matrices are rounded by these algorithms, and the text that is read."""
    recipe = recipe_of(path, overrides, **quantize)
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    windows = Windows(np.random.default_rng(0).integers(3, 90, (8, 16)).astype(np.int32), "digest")
    done = []
    with SourceFiles() as files:
        made = calibrate(module, windows, files, Cache(None), folder, done.append, recipe.quantize.algorithm)
        assert sum(done) == weights_to_round(module, recipe.quantize.algorithm)
    return made, windows


def inputs(model, name, windows):
    """What a layer of transformers' model multiplies, [tokens, K]."""
    torch, seen = pytest.importorskip("torch"), []
    hook = model.get_submodule(name).register_forward_hook(lambda part, x, y: seen.append(x[0].detach().numpy()))
    with torch.no_grad():
        model(torch.tensor(windows.ids.astype(np.int64)))
    hook.remove()
    return seen[0].reshape(-1, seen[0].shape[-1])


def codes_of(weight):
    return np.fromfile(weight.codes.path, "u1", offset=weight.codes.offset, count=np.prod(weight.shape)).reshape(
        weight.shape
    )


def test_one_matrix_by_gptq_makes_up_for_nearest_rounding_of_the_others(tiny_checkpoint, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = tiny_checkpoint("llama", **SIZES)
    made, windows = calibrated(path, tmp_path, {LAST: "gptq"}, embeddings="f32")
    assert [name for name, weight in made.weights.items() if isinstance(weight, Rounded)] == [f"{LAST}.weight"]

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    exact = inputs(model, LAST, windows)
    for layer in model.model.layers:  # the gains of norms are folded before the others are rounded
        norms = {"self_attn": layer.input_layernorm, "mlp": layer.post_attention_layernorm}
        for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            nearest(layer.get_submodule(part), norms[part.split(".")[0]].weight.detach().numpy())
        nearest(layer.self_attn.o_proj, np.ones(1, np.float32))
        if layer is not model.model.layers[-1]:
            nearest(layer.mlp.down_proj, np.ones(1, np.float32))
    x = inputs(model, LAST, windows)
    rows = model.get_submodule(LAST).weight.detach().numpy()
    wanted = by_gptq(INT4, exact, x, None, 1)(rows, None)
    assert (codes_of(made.weights[f"{LAST}.weight"]) == wanted.codes).mean() > 0.995
    own = by_gptq(INT4, exact, exact, None, 2)(rows, None)
    assert (own.codes != wanted.codes).any(), "a test that cannot fail"


def nearest(layer, gain):
    torch = pytest.importorskip("torch")
    rows = layer.weight.detach().numpy() * gain
    rounded = dequantize_rows(quantize_rows(rows.astype(np.float32), INT4), INT4) / gain
    layer.weight = torch.nn.Parameter(torch.from_numpy(rounded.astype(np.float32)))


def test_a_tied_head_by_imatrix(tiny_checkpoint, tmp_path):
    """Weighted by what the head reads, which is known last, though the table is looked up first."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = tiny_checkpoint("qwen3", tie_word_embeddings=True, **SIZES)
    name = "model.embed_tokens.weight"
    made, windows = calibrated(path, tmp_path, {name: "imatrix"}, algorithm="gptq")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    x = inputs(model, "lm_head", windows)
    rows = model.lm_head.weight.detach().numpy()
    metric = scale_search.importance((x * x).mean(axis=0), INT4)
    wanted = scale_search.search_rows(rows, INT4, metric, None)
    found = codes_of(made.weights[name])
    assert (found == wanted.codes).mean() > 0.995
    assert (found != quantize_rows(rows, INT4).codes).any()
    assert isinstance(made.weights["model.layers.0.mlp.down_proj.weight"], Rounded)


def test_a_matrix_by_rtn_keeps_its_nearest_codes(tiny_checkpoint, tmp_path):
    """And is not stacked with those of another algorithm."""
    path = tiny_checkpoint("llama", **SIZES)
    made, _ = calibrated(path, tmp_path, {"re:.*q_proj": "rtn"}, algorithm="gptq")
    kinds = {name: isinstance(weight, Rounded) for name, weight in made.weights.items() if "layers.0" in name}
    assert not kinds["model.layers.0.self_attn.q_proj.weight"]
    assert kinds["model.layers.0.self_attn.k_proj+v_proj.weight"]


@pytest.mark.parametrize("algorithm", ["awq", "smoothquant", "awq-gptq", "yaqa"])
def test_algorithms_beside_gptq(algorithm, tiny_checkpoint, tmp_path):
    """Channels are scaled where all that read them are scaled; sketches are made of those that want one."""
    path = tiny_checkpoint("llama", **SIZES)
    made, windows = calibrated(path, tmp_path, {"re:.*(gate|up)_proj": algorithm}, algorithm="gptq")
    operations = [operation for function in made.graph.functions for operation in function.operations]
    gains = [any(operation.weights) for operation in operations if operation.kind == "rms_norm"]
    assert gains[:4] == [False, algorithm != "yaqa"] * 2
    (record,) = (record for record in made.passes if record.name == "calibrate")
    assert record == calibration_records(made_before(path, algorithm), windows, "gptq", 0.5)[0]


def made_before(path, algorithm):
    recipe = recipe_of(path, {"re:.*(gate|up)_proj": algorithm}, algorithm="gptq")
    return run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("algorithm", ["gptq", "imatrix"])
def test_what_a_table_cannot_take(algorithm, tied, tiny_checkpoint):
    path = tiny_checkpoint("llama", tie_word_embeddings=tied, **SIZES)
    recipe = recipe_of(path, {"model.embed_tokens": algorithm})
    module = load_model(ModelSource(str(path), path))
    if tied and algorithm == "imatrix":
        made = AssignSchemes(recipe.quantize).run(module)
        assert made.weights["model.embed_tokens.weight"].algorithm == "imatrix"
        return
    said = "looked up as well as multiplied with, expected rtn or imatrix" if tied else "it is looked up, expected rtn"
    with pytest.raises(RecipeError, match=rf"algorithm {algorithm} for model\.embed_tokens\.weight: .*{said}"):
        AssignSchemes(recipe.quantize).run(module)


def test_a_report_names_the_algorithm_of_each_matrix(tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama", **SIZES)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; the dog sat on the log\n" * 80)
    document = {
        "model": str(path),
        "shapes": {"tokens": [1, 8], "logits": [1]},
        "targets": [{"isa": ["x86-64"]}],
        "quantize": {
            "scheme": "int4-g32",
            "calibration": {"text": str(text), "window": 32},
            "overrides": [{"match": "re:.*down_proj", "scheme": "int4-g32", "algorithm": "gptq"}],
        },
    }
    path = build(document, output=tmp_path / "m.pyca").path
    with open_artifact(path) as artifact, SourceFiles() as files:
        errors = weight_errors(artifact, recipe_from(document), files, Cache(None))
        found = {each.name: each.algorithm for each in errors}
        names = [record.name for record in artifact.header.provenance.passes]
    assert {name for name, algorithm in found.items() if algorithm == "gptq"} == {
        f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)
    }
    assert set(found.values()) == {"rtn", "gptq"}
    assert "calibrate" in names
