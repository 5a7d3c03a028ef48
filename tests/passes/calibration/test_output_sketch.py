"""passes/interpretation/differentiate_text.py and output_sketch.py against autograd through transformers."""

from dataclasses import replace

import numpy as np
import pytest

from pyc.compiler.evaluate import evaluate_rows, unstored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Prefix
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import Dense
from pyc.compiler.weights import Stored
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration.output_sketch import OutputSketches, drawn
from pyc.passes.driver.plan import plan
from pyc.passes.interpretation.differentiate_text import TextGradients
from pyc.passes.interpretation.interpret_text import Windows, stored_rows
from pyc.passes.pipeline import pipeline
from pyc.runtime.errors import QuantizeError

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
MODELS = {
    "llama-gqa": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen2-bias": ("qwen2", {}),
    "mistral-window": ("mistral", {"sliding_window": 5}),
}


def module_of(path):
    recipe = recipe_from({"model": str(path), "quantize": {"scheme": "int8", "embeddings": "f32"}})
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    exact = {name: Stored(unstored(weight), Dense("f32")) for name, weight in module.weights.items()}
    return module.with_graph(module.graph, exact)


def windows(count=3, length=12):
    ids = np.random.default_rng(0).integers(3, 90, (count, length)).astype(np.int32)
    return Windows(ids, "digest")


@pytest.fixture
def gradients(tiny_checkpoint):
    """`gradients(case)`: each product's inputs and gradients, with autograd's own, by the checkpoint's names."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def of(case):
        model_type, config = MODELS[case]
        path, given = tiny_checkpoint(model_type, **SIZES, **config), windows()
        module = module_of(path)
        with SourceFiles() as files:

            def rows_of(name, start, stop):
                return stored_rows(name, module.weights[name], start, stop, files)

            run = TextGradients(module, given, rows_of)
            labels = drawn(run.predictions(), 7)
            found = {operation.weights[0]: (x, d) for operation, x, d in run.products(labels)}
            gains = {name: evaluate_rows(unstored(w), 0, w.shape[0], files) for name, w in loaded(path).items()}
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        logits = model(torch.tensor(given.ids.astype(np.int64))).logits
        predicted = torch.softmax(logits, -1).detach().numpy().reshape(len(labels), -1)
        torch.nn.functional.cross_entropy(
            logits.reshape(len(labels), -1), torch.tensor(labels), reduction="sum"
        ).backward()
        wanted = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
        return found, wanted, gains, (run.predictions(), predicted)

    return of


def loaded(path):
    """Gains of norms, as the checkpoint has them."""
    module = load_model(ModelSource(str(path), path))
    return {name: Stored(w, Dense("f32")) for name, w in module.weights.items() if name.endswith("layernorm.weight")}


@pytest.mark.parametrize("case", MODELS)
def test_gradients_are_those_of_autograd(case, gradients):
    """Of every matrix; those behind a norm have its gain in their columns here, and so have gradients there."""
    found, wanted, gains, (predicted, by_torch) = gradients(case)
    assert np.abs(predicted - by_torch).max() < 1e-4
    compared = 0
    for name, (x, d) in found.items():
        stem, _, last = name.removesuffix(".weight").rpartition(".")
        got, start = d.T @ x, 0
        for part in last.split("+"):
            own = wanted.get(f"{stem}.{part}.weight")
            if own is None or part == "embed_tokens":
                continue  # a head that is tied to the embedding, whose gradient has another part
            rows, mine = slice(start, start + len(own)), got[start : start + len(own)]
            start = rows.stop
            layer = stem.rpartition(".")[0]
            norm = {"q": "input", "k": "input", "v": "input", "gate": "post_attention", "up": "post_attention"}
            kind = norm.get(part.split("_")[0])
            if kind is not None:
                mine = mine * gains[f"{layer}.{kind}_layernorm.weight"]
            assert np.abs(mine - own).max() < 1e-3 * np.abs(own).max(), (name, part)
            compared += 1
    assert compared >= 2 * 7


def test_gradients_behind_virtual_tokens(tiny_checkpoint):
    """Against differences of the loss along a direction of each matrix."""
    path, given = tiny_checkpoint("llama", **SIZES, num_attention_heads=4, num_key_value_heads=2), windows(count=2)
    module = module_of(path)
    cache, random = module.info.kv_cache, np.random.default_rng(2)
    values = random.normal(size=(cache.layers, 2, cache.heads, 5, cache.head_dim)).astype("<f4")
    plain, module = module, replace(module, prefix=Prefix(5, values.tobytes()))
    with SourceFiles() as files:
        weights = {name: stored_rows(name, w, 0, w.shape[0], files) for name, w in module.weights.items()}
    run = TextGradients(module, given, lambda name, start, stop: weights[name][start:stop])
    labels = drawn(run.predictions(), 3)

    def loss(name, step):
        moved = {**weights, name: weights[name] + np.float32(step)}
        p = TextGradients(module, given, lambda name, start, stop: moved[name][start:stop]).predictions()
        return -np.log(p[np.arange(len(labels)), labels].astype(np.float64)).sum()

    without = TextGradients(plain, given, lambda name, start, stop: weights[name][start:stop])
    assert np.abs(run.predictions() - without.predictions()).max() > 0.01
    for operation, x, d in run.products(labels):
        name = operation.weights[0]
        direction = random.normal(size=weights[name].shape) * 2e-3
        slope = (loss(name, direction) - loss(name, -direction)) / 2
        assert slope == pytest.approx(float((d.T @ x * direction).sum()), rel=0.02, abs=2e-3), name


def test_sketches_are_the_sums(tiny_checkpoint):
    """Token by token in float64; and the same when matrices are sketched one at a time."""
    path, given = tiny_checkpoint("llama", **SIZES), windows(count=2)
    module = module_of(path)
    matrices = [name for name in module.graph.weight_names() if len(module.weights[name].shape) == 2]
    names = [name for name in matrices if "embed" not in name]
    with SourceFiles() as files:

        def rows_of(name, start, stop):
            return stored_rows(name, module.weights[name], start, stop, files)

        def sketches(most):
            told = []
            made = OutputSketches(module, given, rows_of, names, lambda name: True, told.append)
            made_by_name = {}
            for name in names:
                made_by_name[name] = made.take(name)
            assert sum(told) == sum(np.prod(module.weights[name].shape) for name in names)
            return made_by_name

        found = sketches(None)
        run = TextGradients(module, given, rows_of)
        for operation, x, d in run.products(drawn(run.predictions(), 0)):
            name = operation.weights[0]
            if name not in found:
                continue
            x, d = x.astype(np.float64), d.astype(np.float64)
            outer = sum((row @ row) * np.outer(own, own) for row, own in zip(x, d, strict=True))
            inner = sum((own @ own) * np.outer(row, row) for row, own in zip(x, d, strict=True))
            assert np.abs(found[name][0] - outer).max() < 1e-4 * np.abs(outer).max()
            assert np.abs(found[name][1] - inner).max() < 1e-4 * np.abs(inner).max()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyc.passes.calibration.output_sketch.MOST_BYTES", 1)
            again = sketches(1)
    assert all(np.array_equal(again[name][side], found[name][side]) for name in names for side in (0, 1))


def test_labels_are_drawn_by_their_probabilities():
    p = np.tile(np.float32([0.1, 0.0, 0.6, 0.3]), (20000, 1))
    labels = drawn(p, 1)
    assert np.array_equal(labels, drawn(p, 1))
    assert np.abs(np.bincount(labels, minlength=4) / len(labels) - p[0]).max() < 0.02
    assert not (labels == 1).any()


OVERRIDE = {"match": "re:.*", "scheme": "int4-g32", "algorithm": "yaqa"}


@pytest.mark.parametrize("quantize", [{"algorithm": "yaqa"}, {"overrides": [OVERRIDE]}])
def test_an_encoder_has_no_predictions(quantize, tiny_checkpoint):
    """As a plan says, too, before anything is calibrated."""
    checkpoint = tiny_checkpoint("bert", **SIZES)
    recipe = recipe_from({"model": str(checkpoint), "quantize": {"scheme": "int4-g32", **quantize}})
    with pytest.raises(QuantizeError, match=r"yaqa rounds towards predictions of a decoder, and this is an encoder"):
        plan(recipe)
