"""passes/mixed_precision/measure_speed.py: how many steps are timed, and in what context."""

import platform
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build import build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.mixed_precision import measure_speed
from pyc.passes.mixed_precision.measure_speed import SpeedMeter
from pyc.passes.mixed_precision.mix_schemes import mix_schemes

TARGETS = [{"arch": platform.machine()}]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}


@pytest.mark.parametrize(("context", "steps"), [(1, 1), (2, 1), (8, 7), (96, 64)])
def test_a_step_at_least_is_timed(context, steps, tmp_path, monkeypatch):
    """In a context of one token, too, which leaves none behind the first."""
    counts = []

    class Bench:
        def __init__(self, model):
            pass

        def decode(self, tokens):
            counts.append(tokens)
            return [0.5] * tokens

    model = SimpleNamespace(session=SimpleNamespace(context=context))
    monkeypatch.setattr(measure_speed, "load", lambda path, trust: nullcontext(model))
    monkeypatch.setattr(measure_speed, "DecoderBench", Bench)
    recipe = recipe_from({"model": "m", "quantize": {"min_tok_s": 5}, "targets": TARGETS})
    within = SimpleNamespace(build=lambda recipe, output, key: None)
    assert SpeedMeter(recipe, context, tmp_path, within).tokens_per_second(recipe) == 2
    assert set(counts) == {steps}


def test_virtual_tokens_are_not_in_the_context_that_is_timed(tiny_checkpoint, tiny_adapter, tmp_path, monkeypatch):
    """A recipe's context is beside them: with them it would be more than the model serves."""
    checkpoint = tiny_checkpoint("llama", **SIZES)
    adapter = tiny_adapter(checkpoint, "prompt_tuning", num_virtual_tokens=4, task_type="CAUSAL_LM")
    (tmp_path / "text.txt").write_text("the cat sat on the mat; the dog sat on the log\n" * 80)
    quantize = {"min_tok_s": 1, "calibration": {"text": str(tmp_path / "text.txt"), "window": 32, "tokens": 256}}
    adapters = [{"path": str(adapter)}]
    document = {"model": str(checkpoint), "adapters": adapters, "quantize": quantize, "targets": TARGETS}
    contexts = set()
    monkeypatch.setattr(SpeedMeter, "tokens_per_second", lambda self, recipe: contexts.add(self._tokens) or 2.0)
    with build_context(Cache(None), 1) as context:
        ingested = ingest_recipe(recipe_from(document), context.files, None, {})
        mix_schemes(ingested, context, lambda *what: None)
    assert contexts == {ingested.module.info.context - 4}
