"""Every pass on one small model of each kind, as text before and after: tests/golden/passes/NAME.txt.

A file holds the module as it was read and after each pass, the parts of it that the pass left alone folded into the
diff's context. After a change that is meant, write them again and read the diff:

    PYC_WRITE_GOLDEN=1 pytest tests/passes/test_golden_ir.py && git diff tests/golden
"""

import difflib
import os
from pathlib import Path

import pytest

from pyc.backends.cpu.backend import CpuBackend
from pyc.compiler.manager import run_passes
from pyc.compiler.module_text import module_text
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.text import parse_graph, print_graph
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.lower import lower
from pyc.passes.pipeline import pipeline

FOLDER = Path(__file__).parents[1] / "golden" / "passes"
ONE_LAYER = {"num_hidden_layers": 1, "tokenizer": False, "hidden_size": 64, "intermediate_size": 96}
IA3 = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
MODELS = {
    "qwen2-int4": ("qwen2", {}, [], {"scheme": "int4-g32"}),
    "qwen3-fused": ("qwen3", {"head_dim": 32}, [], {"scheme": "int4-g32"}),
    "llama-adapters": (
        "llama",
        {"tie_word_embeddings": True},
        [("lora", {"r": 2, "target_modules": ["q_proj", "embed_tokens"]}, 0.5), ("ia3", IA3, 1.0)],
        {},
    ),
    "qwen3-overrides": (
        "qwen3",
        {"dtype": "bfloat16"},
        [],
        {
            "scheme": "int8",
            "activations": "f32",
            "overrides": [
                {"match": "re:.*k_proj", "scheme": "none"},
                {"match": "re:.*gate", "scheme": "f32"},
            ],
        },
    ),
    "mistral-f32": ("mistral", {"sliding_window": 7}, [], {}),
    "llama-fp8": ("llama", {}, [], {"scheme": "fp8", "activations": "fp8"}),
    "llama-mxfp8": ("llama", {}, [], {"scheme": "fp8", "activations": "mxfp8"}),
    "bert-int8": ("bert", {}, [], {"scheme": "int8"}),
}


def stages(case, tiny_checkpoint, tiny_adapter):
    """(name of the stage, module) from ingest to the last pass."""
    model_type, config, adapters, quantize = MODELS[case]
    path = tiny_checkpoint(model_type, **ONE_LAYER, **config)
    read = tuple(
        (read_adapter(str(tiny_adapter(path, kind, **options)), path), weight) for kind, options, weight in adapters
    )
    recipe = recipe_from({"model": str(path), "quantize": quantize})
    module = load_model(ModelSource(str(path), path))
    yield "ingest", module
    common, backend = pipeline(recipe, read), CpuBackend()
    passes = (*common, *backend.passes())
    have: list[str] = []
    for step in passes:
        module = step.run(module)
        have.append(step.name)
        yield " ".join(["after", step.name]), module
    whole = lower(run_passes(load_model(ModelSource(str(path), path)), common), {"cpu": backend})
    assert whole.part("cpu").module.graph == module.graph


def story(found) -> str:
    """The first module whole, then what each pass changed, then the last module whole."""
    parts, last = [], ""
    for name, module in found:
        text = module_text(module)
        if not parts:
            parts.append(f"==== {name}\n{text}")
        else:
            lines = list(difflib.unified_diff(last.splitlines(), text.splitlines(), lineterm="", n=0))[2:]
            changes = [line for line in lines if not line.startswith("@@")]
            parts.append("\n".join([f"==== {name}", *(changes or ["nothing changes"]), ""]))
        last = text
    return "\n".join([*parts, f"==== the lowered module\n{last}"])


@pytest.mark.parametrize("case", MODELS)
def test_what_the_passes_do_to_a_model(case, tiny_checkpoint, tiny_adapter):
    found = list(stages(case, tiny_checkpoint, tiny_adapter))
    for _, module in found:
        assert parse_graph(print_graph(module.graph)) == module.graph
    path, text = FOLDER / f"{case}.txt", story(found)
    if os.environ.get("PYC_WRITE_GOLDEN"):
        path.write_text(text, "utf-8")
    expected = path.read_text("utf-8")
    assert text == expected, "\n".join(difflib.unified_diff(expected.splitlines(), text.splitlines(), lineterm=""))
