"""passes/calibration/calibrate.py: the activations that it looks at, codes from the cache, and what is refused."""

import json
import tempfile
from dataclasses import replace

import numpy as np
import pytest

from pyc.compiler.evaluate import unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Prefix
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import Dense
from pyc.compiler.weights import Rounded, Stored
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration import calibrate as calibration
from pyc.passes.calibration import rounding
from pyc.passes.calibration import scale_channels as channels
from pyc.passes.calibration.calibrate import calibrate, weights_to_round
from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.passes.calibration.scale_channels import found_sites, scale_channels, scaled_weights
from pyc.passes.driver.build import build
from pyc.passes.interpretation.interpret_text import Windows, stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import QuantizeError

TEXT = "the cat sat on the mat; the dog sat on the log\n" * 80
SMALL = {"shapes": {"tokens": [1, 8], "logits": [1]}, "targets": [{"isa": ["x86-64"]}]}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
MODELS = {
    "llama": ("llama", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "mistral-window": ("mistral", {"sliding_window": 5}),
    "bert": ("bert", {}),
}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


def module_of(path, **quantize):
    recipe = recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32", **quantize}})
    return run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))


def windows(count=4, length=16, vocabulary=90):
    ids = np.random.default_rng(0).integers(3, vocabulary, (count, length)).astype(np.int32)
    return Windows(ids, "digest")


def rounded_by(path, tmp_path, cache=None, given=None, algorithm="gptq", **quantize):
    folder = tmp_path / "codes"
    folder.mkdir(exist_ok=True)
    done = []
    with SourceFiles() as files:
        module = module_of(path, **quantize)
        made = calibrate(module, given or windows(), files, cache or Cache(None), folder, done.append, algorithm)
        assert sum(done) == weights_to_round(module, algorithm)
        written = [folder / name for name in ("codes", "scales") if (folder / name).exists()]
        data = b"".join(file.read_bytes() for file in written)
    return made, data


def logits_of(module, given):
    """What a module predicts, its weights as they are stored."""
    model = Predictor(module, given)
    with SourceFiles() as files:

        def rows_of(name, start, stop):
            return stored_rows(name, module.weights[name], start, stop, files)

        return model.predictions(model.inputs(), 0, rows_of, model.positions(1 << 30))


@pytest.mark.parametrize("case", MODELS)
def test_the_exact_stream_is_the_model(case, tiny_checkpoint, tmp_path, monkeypatch):
    """Inputs of each product against transformers' own, by hooks, in float32."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model_type, config = MODELS[case]
    path = tiny_checkpoint(model_type, **SIZES, **config)
    seen = {}

    def remember(self, name, exact, x):
        seen[name] = exact.copy()
        return chosen(self, name, exact, x)

    chosen = calibration._Calibration._round
    monkeypatch.setattr(calibration._Calibration, "_round", remember)
    given = windows()
    rounded_by(path, tmp_path, given=given, embeddings="f32")
    kind = transformers.AutoModel if model_type == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    inputs = {}
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda part, x, y, name=name: inputs.__setitem__(name, x[0].detach().numpy()))
    with torch.no_grad():
        model(torch.tensor(given.ids.astype(np.int64)))
    assert len(seen) >= 6
    for name, exact in seen.items():
        stem, _, last = name.removesuffix(".weight").rpartition(".")
        wanted = inputs[f"{stem}.{last.split('+')[0]}".lstrip(".")].reshape(exact.shape)
        gain = 1.0
        if "norm" not in name and model_type != "bert" and last.split("+")[0] in ("q_proj", "gate_proj", "lm_head"):
            gain = None  # a folded norm's gain is in the weights: inputs differ by a factor for each feature
        if gain is None:
            scale = (wanted * exact).sum(0) / (exact * exact).sum(0)
            wanted = wanted / np.where(scale == 0, 1, scale)
        assert np.abs(wanted - exact).max() < 1e-3 * max(1, np.abs(wanted).max()), name


@pytest.mark.slow
def test_codes_come_from_the_cache_and_an_interrupted_calibration_goes_on(tiny_checkpoint, tmp_path, monkeypatch):
    path = tiny_checkpoint("llama", **SIZES)
    _, wanted = rounded_by(path, tmp_path)
    cache, calls = Cache(tmp_path / "own"), []
    descend = rounding.descend

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return descend(*arguments)

    monkeypatch.setattr(rounding, "descend", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rounded_by(path, tmp_path, cache)
    _, again = rounded_by(path, tmp_path, cache)
    assert again == wanted
    count = len(calls)
    assert count == 4 + 6  # three were there: five of each two layers less those, and the head
    assert rounded_by(path, tmp_path, cache)[1] == wanted
    assert len(calls) == count, "everything is in the cache"


def test_other_text_is_another_entry(tiny_checkpoint, tmp_path):
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    _, first = rounded_by(path, tmp_path, cache)
    _, second = rounded_by(path, tmp_path, cache, Windows(windows(length=8).ids, "another"))
    assert first != second


def test_a_table_that_is_looked_up_is_rounded_to_nearest(tiny_checkpoint, tmp_path):
    made, _ = rounded_by(tiny_checkpoint("qwen3", tie_word_embeddings=True, **SIZES), tmp_path)
    kinds = {name: isinstance(weight, Rounded) for name, weight in made.weights.items()}
    assert not kinds["model.embed_tokens.weight"]
    assert kinds["model.layers.0.mlp.down_proj.weight"]


def recipe(checkpoint, tmp_path, **changes):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    quantize = {"scheme": "int4-g32", "algorithm": "gptq", "calibration": {"text": str(text), "window": 32}}
    return {"model": str(checkpoint), **SMALL, "quantize": {**quantize, **changes}}


SCALED = {
    "llama": ("llama", {"num_key_value_heads": 2, "num_attention_heads": 4}),
    "qwen2-bias": ("qwen2", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "bert": ("bert", {}),
}


@pytest.mark.parametrize("case", [case for case in SCALED if case != "bert"])
@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_scaled_channels_are_the_same_model(case, method, tiny_checkpoint, tmp_path):
    """Its exact weights, before they are rounded; factors that are far from one."""
    model_type, config = SCALED[case]
    path = tiny_checkpoint(model_type, **SIZES, **config)
    with SourceFiles() as files:
        module, given = module_of(path, embeddings="f32"), windows()
        done, names = [], frozenset(module.weights)
        scaled = scale_channels(
            module, method, names, 0.9, given, files, Cache(None), "key", tmp_path, done.append
        )
        assert sum(done) == scaled_weights(module, method, names) > 0

    def exact(module):
        weights = {name: Stored(unstored(weight), Dense("f32")) for name, weight in module.weights.items()}
        return logits_of(module.with_graph(module.graph, weights), given)

    factors = np.fromfile(tmp_path / "scales", "<f4")
    assert np.abs(np.log(factors)).max() > 0.2
    before, after = exact(module), exact(scaled)
    assert np.abs(before - after).max() < 1e-4 * np.abs(before).max()


def test_where_channels_can_be_scaled(tiny_checkpoint):
    """Behind both norms, of values and of what a gate is multiplied with; no values with a bias; no GELU."""
    sites = {}
    for case, (model_type, config) in SCALED.items():
        module = module_of(tiny_checkpoint(model_type, **SIZES, **config))
        function = module.graph.functions[0]
        sites[case] = [site.maker.kind for site in found_sites(module, function)]
    layer = ["rms_norm", "linear", "rms_norm", "linear"]
    assert sites == {
        "llama": layer * 2,
        "qwen2-bias": ["rms_norm", "rms_norm", "linear"] * 2,
        "qwen3-tied": layer * 2,
        "bert": [],
    }


def test_values_of_virtual_tokens_are_not_scaled(tiny_checkpoint):
    """So channels behind attention keep theirs."""
    module = module_of(tiny_checkpoint("llama", **SIZES))
    behind = replace(module, prefix=Prefix(3))
    kinds = [site.value for site in found_sites(behind, module.graph.functions[0])]
    every = [site.value for site in found_sites(module, module.graph.functions[0])]
    attention = [o.result.name for o in module.graph.functions[0].operations if o.kind == "attention"]
    assert sorted(set(every) - set(kinds)) == sorted(attention) != []


def test_a_model_that_smoothquant_does_nothing_for(tiny_checkpoint, tmp_path):
    """Norms of BERT are added to what is behind them, too."""
    said = "algorithm: smoothquant: no norm of this model is read by products alone; .* gptq or imatrix"
    with pytest.raises(QuantizeError, match=said):
        rounded_by(tiny_checkpoint("bert", **SIZES), tmp_path, algorithm="smoothquant")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in ROUNDINGS if name != "gptq"])
def test_every_algorithm_goes_on_from_the_cache(algorithm, tiny_checkpoint, tmp_path, monkeypatch):
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    _, wanted = rounded_by(path, tmp_path, algorithm=algorithm)
    calls, append = [], calibration._Calibration._append

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return append(*arguments)

    monkeypatch.setattr(calibration._Calibration, "_append", interrupted)
    if ROUNDINGS[algorithm].prepare is not None:
        with pytest.raises(KeyboardInterrupt):
            rounded_by(path, tmp_path, cache, algorithm=algorithm)
    assert rounded_by(path, tmp_path, cache, algorithm=algorithm)[1] == wanted
    monkeypatch.setattr(channels._Search, "scales", None)
    assert rounded_by(path, tmp_path, cache, algorithm=algorithm)[1] == wanted, "factors are in the cache, too"


@pytest.mark.slow
def test_a_build_says_what_it_did(tiny_checkpoint, tmp_path):
    document = recipe(tiny_checkpoint("llama", **SIZES), tmp_path)
    events = []
    path = build(document, output=tmp_path / "m.pyca", progress=events.append).path
    nearest = build({**document, "quantize": {"scheme": "int4-g32"}}, output=tmp_path / "n.pyca").path
    with open_artifact(path) as artifact, open_artifact(nearest) as other:
        step = next(step for step in artifact.header.provenance.passes if step.name == "calibrate")
        assert json.loads(step.options)["algorithm"] == "gptq"
        assert "calibration/text.txt" in [source.name for source in artifact.header.provenance.sources]
        assert [t.name for t in artifact.header.tensors] == [t.name for t in other.header.tensors]
        name = "model.layers.0.mlp.down_proj.weight"
        assert not np.array_equal(artifact.tensor(name), other.tensor(name))
    stages = [event for event in events if event.stage == "calibrate"]
    assert stages[-1].done_bytes == stages[-1].total_bytes > 0
    again = build(document, output=tmp_path / "again.pyca")
    assert again.path.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("content", "changes", "said"),
    [
        (b"short", {}, "it has .* tokens, expected at least 32, one window; give a longer text"),
        (b"", {}, "it has (no|0|1) tokens?"),
        (b"caf\xe9" * 400, {}, "not UTF-8 at byte 3; write it again in UTF-8"),
        (None, {}, "cannot be read: No such file"),
    ],
)
def test_a_text_that_is_no_use(content, changes, said, tiny_checkpoint, tmp_path):
    document = recipe(tiny_checkpoint("llama", **SIZES), tmp_path, **changes)
    text = tmp_path / "text.txt"
    text.unlink()
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(QuantizeError, match=f"quantize.calibration.text: .*text.txt: {said}"):
        build(document, output=tmp_path / "m.pyca")
    assert not (tmp_path / "m.pyca").exists()


def test_a_text_that_is_a_folder(tiny_checkpoint, tmp_path):
    document = recipe(tiny_checkpoint("llama", **SIZES), tmp_path)
    (tmp_path / "text.txt").unlink()
    (tmp_path / "text.txt").mkdir()
    with pytest.raises(QuantizeError, match=r"text.txt: cannot be read: .*text.txt is not a regular file"):
        build(document, output=tmp_path / "m.pyca")


def test_fewer_tokens_than_a_window(tiny_checkpoint, tmp_path):
    """Not the text is too short, but what is taken of it."""
    document = recipe(tiny_checkpoint("llama", max_position_embeddings=512, **SIZES), tmp_path)
    document["quantize"]["calibration"] |= {"tokens": 256, "window": 300}
    said = r"^quantize.calibration.tokens: got 256, expected at least 300, one window; raise it, or lower"
    with pytest.raises(QuantizeError, match=said):
        build(document, output=tmp_path / "m.pyca")


def test_what_a_killed_calibration_left_is_removed(tiny_checkpoint, tmp_path, monkeypatch):
    """Though no backend of the recipe compiles C, and sweeps."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "pyc-calibration-0123456789abcdef"
    left.mkdir()
    document = recipe(tiny_checkpoint("llama", tokenizer=False, **SIZES), tmp_path)
    with pytest.raises(QuantizeError):
        build({**document, "targets": [{"backend": "onnx"}]}, output=tmp_path / "m.pyca")
    assert not left.exists()


def test_a_model_without_a_tokenizer(tiny_checkpoint, tmp_path):
    with pytest.raises(QuantizeError, match=r"the checkpoint has no tokenizer.json"):
        build(recipe(tiny_checkpoint("llama", tokenizer=False, **SIZES), tmp_path), output=tmp_path / "m.pyca")
