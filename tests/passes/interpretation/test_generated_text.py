"""passes/interpretation/generated_text.py: what a model generates for its own calibration, beside transformers."""

import json

import numpy as np
import pytest

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration.calibration_text import calibration_sources, calibration_windows, held_back_windows
from pyc.passes.comparison.check_artifact import check_artifact
from pyc.passes.driver.build import build
from pyc.passes.interpretation import generated_text
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import QuantizeError, RecipeError

pytestmark = pytest.mark.usefixtures("compiled_once")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


def recipe_of(path, **calibration):
    calibration = {"generate": 256, "window": 32, **calibration}
    return recipe_from(
        {"model": str(path), "quantize": {"scheme": "int4-g32", "algorithm": "gptq", "calibration": calibration}}
    )


def windows_of(path, cache, **calibration):
    recipe = recipe_of(path, **calibration)
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    with SourceFiles() as files:
        return calibration_windows(recipe, module, files, cache)


def with_marks(path, start, ends):
    """The checkpoint with this token at the start of texts, and these at their ends."""
    marks = {"bos_token_id": start, "eos_token_id": ends}
    for name in ("config.json", "generation_config.json"):
        file = path / name
        document = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(document | marks))
    return path


MARKS = {
    "the start ends texts": (7, 7),
    "the start is one of the ends": (7, [9, 7]),
    "the start ends nothing": (7, 9),
    "many tokens end texts": (7, list(range(64, 128))),
    "many end texts, the start too": (7, [7, *range(64, 128)]),
    "no start": (None, list(range(64, 128))),
    "neither": (None, None),
}


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_tokens_are_drawn_from_what_transformers_predicts(model_type, marks, tiny_copy, tmp_path, monkeypatch):
    """By the same numbers; in batches, of which each goes on where the draws of the one before ended."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = tiny_copy(model_type, tie_word_embeddings=model_type == "qwen3", **SIZES)
    with_marks(path, *MARKS[marks])
    loaded = load_model(ModelSource(str(path), path))
    cache, together = loaded.info.kv_cache, 3
    a_window = 2 * 4 * cache.layers * cache.heads * cache.head_dim * 32
    monkeypatch.setattr(generated_text, "MOST_CACHE_BYTES", together * a_window)
    ids = windows_of(path, Cache(None), seed=3).ids
    assert ids.shape == (8, 32)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor(ids.astype(np.int64))).logits.double().numpy()
    ends, start, vocabulary = loaded.generation.eos_token_ids, loaded.generation.bos_token_id, loaded.info.vocab_size
    draw, same = np.random.Generator(np.random.PCG64(3)), []
    for at in range(0, 8, together):
        own = ids[at : at + together]
        firsts = draw.integers(vocabulary, size=len(own))
        assert (own[:, 0] == (firsts if start is None else start)).all()
        for position in range(31):
            p = np.exp(logits[at : at + together, position])
            numbers = draw.random(len(own))
            masses = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)
            wanted = [np.searchsorted(row, u, side="right") for row, u in zip(masses, numbers, strict=True)]
            firsts = draw.integers(vocabulary, size=len(own))
            for row, token in enumerate(wanted):
                if own[row, position] in ends and own[row, position] != start:
                    token = firsts[row] if start is None else start
                same.append(own[row, position + 1] == token)
    assert np.mean(same) > 0.99
    assert len(np.unique(ids)) > 20


class Chain:
    """In place of an interpreter: what comes next depends on the last token alone, by a table of probabilities."""

    table: np.ndarray

    def __init__(self, graph, weights, is_float32):
        pass

    def run(self, function, given):
        return given["token_ids"] if function == "forward" else np.log(self.table[given["hidden"]])


def texts_one_by_one(table, start, ends, count, window, seed):
    """Windows of a chain, told a token at a time, as texts: a start, what is drawn behind it, an end."""
    vocabulary, draw = len(table), np.random.Generator(np.random.PCG64(seed))
    starts = [int(each) if start is None else start for each in draw.integers(vocabulary, size=count)]
    windows = [[each] for each in starts]
    for _ in range(window - 1):
        numbers, starts = draw.random(count), draw.integers(vocabulary, size=count)
        for own, number, other in zip(windows, numbers, starts, strict=True):
            total = token = 0
            while total + table[own[-1]][token] <= number:
                total += table[own[-1]][token]
                token += 1
            a_text_ended = own[-1] in ends and own[-1] != start
            own.append((int(other) if start is None else start) if a_text_ended else token)
    return windows


@pytest.mark.parametrize("marks", [(3, (3,)), (3, (5, 3)), (3, (5,)), (None, (5, 6)), (3, ()), (3, (5, 6, 7))], ids=str)
def test_texts_follow_texts(marks, tiny_copy, monkeypatch):
    """Beside texts of a chain, told a token at a time: every token is the same."""
    start, ends = marks
    path = with_marks(tiny_copy("llama", **SIZES), start, list(ends) or None)
    vocabulary = load_model(ModelSource(str(path), path)).info.vocab_size
    table = np.random.default_rng(1).random((vocabulary, vocabulary))
    table[:, 12:] = 0  # so that ends are often drawn
    table /= table.sum(axis=1, keepdims=True)
    monkeypatch.setattr(generated_text, "Interpreter", Chain)
    monkeypatch.setattr(Chain, "table", table, raising=False)
    with np.errstate(divide="ignore"):
        ids = windows_of(path, Cache(None), seed=2).ids
    assert ids.tolist() == texts_one_by_one(table, start, ends, 8, 32, 2)
    assert set(range(12)) <= set(ids.ravel().tolist())
    if start is not None:
        counts = np.bincount(ids.ravel())
        assert counts[start] < ids.size / 2


@pytest.mark.parametrize("marks", [(3, (3,)), (3, (5, 3)), (3, (5,))], ids=str)
def test_a_model_that_ends_its_texts_at_once(marks, tiny_copy, tmp_path, monkeypatch):
    """It is refused, also when what it wrote is in the cache."""
    start, ends = marks
    path = with_marks(tiny_copy("llama", **SIZES), start, list(ends))
    vocabulary = load_model(ModelSource(str(path), path)).info.vocab_size
    table = np.full((vocabulary, vocabulary), 1e-3 / vocabulary)
    table[:, ends[0]] += 1 - 1e-3
    monkeypatch.setattr(generated_text, "Interpreter", Chain)
    monkeypatch.setattr(Chain, "table", table, raising=False)
    for _ in range(2):
        with pytest.raises(QuantizeError, match=r"generate: what the model writes is hardly a text: only \d+ of 256 "):
            windows_of(path, Cache(tmp_path / "own"))


def test_a_model_that_repeats_a_token(tiny_copy, monkeypatch):
    path = with_marks(tiny_copy("llama", **SIZES), 3, [5])
    vocabulary = load_model(ModelSource(str(path), path)).info.vocab_size
    table = np.full((vocabulary, vocabulary), 1e-12)
    table[:, 8] = 1
    monkeypatch.setattr(generated_text, "Interpreter", Chain)
    monkeypatch.setattr(Chain, "table", table, raising=False)
    with pytest.raises(QuantizeError, match=r"hardly a text: it has 1 different token in 256; give a text"):
        windows_of(path, Cache(None))


def test_the_same_seed_gives_the_same_tokens_which_are_kept(tiny_checkpoint, tmp_path, monkeypatch):
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    first = windows_of(path, cache)
    again = windows_of(path, Cache(None))
    assert np.array_equal(first.ids, again.ids)
    assert first.digest == again.digest
    other = windows_of(path, cache, seed=1)
    assert (other.ids != first.ids).any()
    assert other.digest != first.digest
    monkeypatch.setattr(generated_text, "_generated", None)
    assert np.array_equal(windows_of(path, cache).ids, first.ids)
    assert windows_of(path, None).digest == first.digest
    assert windows_of(path, None).ids.shape == first.ids.shape


def test_a_build_without_a_tokenizer(tiny_checkpoint, tmp_path, monkeypatch):
    """The same bytes again, and checked without generating."""
    path = tiny_checkpoint("llama", tokenizer=False, **SIZES)
    document = {
        "model": str(path),
        "shapes": {"tokens": [1, 8], "logits": [1]},
        "targets": [{"isa": ["x86-64"]}],
        "quantize": {"scheme": "int4-g32", "algorithm": "gptq", "calibration": {"generate": 256, "window": 32}},
    }
    first = build(document, output=tmp_path / "m.pyca").path
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "another"))
    second = build(document, output=tmp_path / "again.pyca").path
    assert first.read_bytes() == second.read_bytes()
    with open_artifact(first) as artifact:
        names = [source.name for source in artifact.header.provenance.sources]
    assert not any("calibration" in name for name in names)
    monkeypatch.setattr(generated_text, "_generated", None)
    assert check_artifact(recipe_from(document), first).is_up_to_date
    recipe = recipe_from(document)
    assert calibration_sources(recipe) == ()
    with SourceFiles() as files:
        assert held_back_windows(recipe, load_model(ModelSource(str(path), path)), files, 64) is None


def test_models_that_cannot(tiny_checkpoint, tmp_path):
    with pytest.raises(QuantizeError, match=r"calibration\.generate: an encoder generates nothing; give a text"):
        windows_of(tiny_checkpoint("bert", **SIZES), Cache(None))
    path = tiny_checkpoint("llama", max_position_embeddings=512, **SIZES)
    with pytest.raises(QuantizeError, match=r"calibration\.generate: got 256, expected at least 512, one window"):
        windows_of(path, Cache(None), window=512)


def test_a_recipe_with_a_text_as_well():
    with pytest.raises(RecipeError, match=r"calibration\.generate: there is a text already"):
        recipe_of("m", text="a.txt")
