"""Recipes with goals, and what is chosen for them: for the tests of mixed precision."""

import os

import numpy as np
import pytest

from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build import build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.mixed_precision.mix_schemes import mix_schemes

IS_LONG = os.environ.get("PYC_CASES") == "all"
TEXT = "the cat sat on the mat; the dog sat on the log\n" * 80
SMALL = {"shapes": {"tokens": [1, 64], "logits": [1]}, "targets": [{"isa": ["x86-64"]}]}
EMBEDDING = "model.embed_tokens.weight"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """Keys and a cache of its own for a test."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def document(tmp_path, own_home):
    """`document(checkpoint, **quantize)`: a recipe for a small model that is calibrated on a short text."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def make(checkpoint, **quantize):
        calibration = {"text": str(text), "window": 32, "tokens": 512}
        return {"model": str(checkpoint), **SMALL, "quantize": {"calibration": calibration, **quantize}}

    return make


def ingested(document, files):
    """What a build has of a recipe before it chooses."""
    return ingest_recipe(recipe_from(document), files, None, {})


def mixture_of(document, cache=None, workers=2):
    """What is chosen for a recipe, and what its progress said."""
    reports = []
    with build_context(cache or Cache(None), workers) as context:
        found = mix_schemes(ingested(document, context.files), context, lambda *what: reports.append(what))
    return found, reports


def windows(count=4, length=24):
    """Random ids, none of them special."""
    ids = np.random.default_rng(0).integers(3, 90, (count, length)).astype(np.int32)
    return Windows(ids, "digest")
