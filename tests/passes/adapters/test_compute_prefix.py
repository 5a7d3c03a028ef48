"""compute_prefix.py: what a build interprets, on a text too, is PEFT's forward behind virtual tokens."""

import numpy as np
import pytest
from adapter_cases import with_adapter
from built_models import difference

from pyc.compiler.evaluate import evaluate_rows, unstored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.weights import Stacked, Stored
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.interpretation.interpret_text import Windows, prefix_digest
from pyc.passes.interpretation.predict_text import Predictor

TOKENS = 6


def logits_of(module, files, ids):
    def rows_of(name, start, stop):
        weight = module.weights[name]
        return evaluate_rows(unstored(weight) if isinstance(weight, Stored | Stacked) else weight, start, stop, files)

    model = Predictor(module, Windows(ids, ""))
    return model.predictions(model.inputs(), 0, rows_of, np.arange(ids.size)).reshape(*ids.shape, -1)


@pytest.mark.parametrize("kind", ["prompt_tuning", "prefix_tuning"])
def test_a_text_is_interpreted_behind_them(kind, tiny_checkpoint, tiny_adapter):
    """Two windows, each behind the prefix, in a model whose attention has a window that ends within it."""
    import torch
    import transformers

    path = tiny_checkpoint("mistral", sliding_window=9, tokenizer=False)
    adapter = tiny_adapter(path, kind, num_virtual_tokens=TOKENS, task_type="CAUSAL_LM")
    ids = np.random.default_rng(1).integers(3, 263, (2, 20)).astype(np.int32)
    with SourceFiles() as files:
        recipe = recipe_from({"model": str(path), "adapters": [{"path": str(adapter)}]})
        module = lower_recipe(recipe, files, rounding=lambda module: module).common
        planned = lower_recipe(recipe, files).common
        got = logits_of(module, files, ids)
    base = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        wanted = with_adapter(base, adapter)(torch.tensor(ids.astype(np.int64))).logits.numpy()[:, -20:]
    for window in range(2):
        assert difference(wanted[window], got[window]).mean_kl <= 1e-10
    assert module.prefix.tokens == planned.prefix.tokens == TOKENS
    assert not planned.prefix.values, "a plan reads no weight"
    assert module.usable_context == module.info.context - TOKENS
    assert prefix_digest(module) != prefix_digest(planned)
    assert [record.name for record in module.passes][-1] == "compute_prefix"
