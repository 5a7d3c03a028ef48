"""fuse_*.py and adapter_targets.py: what does not fit is named; tied matrices part when one is adapted."""

import json

import pytest
from safetensors.numpy import load_file, save_file

from pyc.compiler.weights import Blended, LowRank, ScaledColumns, ScaledRows, Source
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.adapters.fuse_ia3 import FuseIa3
from pyc.passes.adapters.fuse_lora import FuseLora
from pyc.runtime.errors import AdapterError

LORA = {"r": 2, "target_modules": ["q_proj", "down_proj"]}
IA3 = {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def llama(tiny_checkpoint):
    path = tiny_checkpoint("llama", attention_bias=True, mlp_bias=True)
    return path, load_model(ModelSource(str(path), path))


def test_only_what_the_adapter_names_changes(llama, tiny_adapter):
    path, module = llama
    adapter = read_adapter(str(tiny_adapter(path, "lora", **LORA)), path)
    after = FuseLora(adapter, 0.5).run(module)
    changed = {name for name, weight in after.weights.items() if weight != module.weights[name]}
    assert changed == {
        f"model.layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("self_attn.q_proj", "mlp.down_proj")
    }
    fused = after.weights[Q]
    assert isinstance(fused, LowRank)
    assert fused.base == module.weights[Q]
    assert fused.scale == pytest.approx(0.5 * 8 / 2)
    assert after.graph == module.graph
    assert {source.name for source in after.sources} > {source.name for source in module.sources}


def test_ia3_on_either_side_with_biases(llama, tiny_adapter):
    path, module = llama
    adapter = read_adapter(str(tiny_adapter(path, "ia3", **IA3)), path)
    weights = FuseIa3(adapter, 1.0).run(module).weights
    layer = "model.layers.1"
    assert isinstance(weights[f"{layer}.self_attn.k_proj.weight"], ScaledRows)
    assert isinstance(weights[f"{layer}.self_attn.k_proj.bias"], ScaledRows)
    assert isinstance(weights[f"{layer}.mlp.down_proj.weight"], ScaledColumns)
    assert isinstance(weights[f"{layer}.mlp.down_proj.bias"], Source)
    blended = FuseIa3(adapter, 0.25).run(module).weights[f"{layer}.mlp.down_proj.weight"]
    assert isinstance(blended, ScaledColumns)
    assert isinstance(blended.vector, Blended)
    assert blended.vector.weight == 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "config", "words"),
    [
        ("lora", LORA, {"hidden_size": 64}, ["down_proj", "the update of ", "has shape", "trained on another model"]),
        ("lora", LORA, {"intermediate_size": 96}, ["down_proj", "[48, 96]", "[48, 80]"]),
        (
            "lora",
            LORA,
            {"num_hidden_layers": 3},
            ["model.layers.2.", "which the model does not have", "the nearest is"],
        ),
        (
            "ia3",
            IA3,
            {"hidden_size": 64, "num_key_value_heads": 4},
            ["k_proj", "64 factors on the output", "expected 24"],
        ),
        ("ia3", IA3, {"intermediate_size": 96}, ["down_proj", "96 factors on the input", "expected 80"]),
    ],
)
def test_an_adapter_of_another_model_is_refused_by_tensor(
    kind, options, config, words, llama, tiny_checkpoint, tiny_adapter
):
    path, module = llama
    other = tiny_checkpoint("llama", attention_bias=True, mlp_bias=True, **config)
    adapter = read_adapter(str(tiny_adapter(other, kind, **options)), path)
    step = FuseLora(adapter, 1.0) if kind == "lora" else FuseIa3(adapter, 1.0)
    with pytest.raises(AdapterError) as caught:
        step.run(module)
    for word in [adapter.name, *words]:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(("target", "untied"), [("embed_tokens", True), ("q_proj", False)])
def test_an_embedding_that_is_adapted_leaves_the_head_alone(target, untied, tiny_checkpoint, tiny_adapter):
    path = tiny_checkpoint("llama", tie_word_embeddings=True)
    module = load_model(ModelSource(str(path), path))
    adapter = read_adapter(str(tiny_adapter(path, "lora", r=2, target_modules=[target])), path)
    after = FuseLora(adapter, 1.0).run(module)
    (head,) = (operation.weights[0] for operation in after.graph.function("logits").operations)
    assert (head == "lm_head.weight") == untied
    assert isinstance(after.weights[head], Source)  # of the base, or the copy of it that PEFT saves in the adapter
    assert after.graph.function("forward") == module.graph.function("forward")


def test_names_with_another_prefix(llama, tiny_adapter, tmp_path):
    """An adapter of the bare base model spells names without "model."; one ending that fits is meant."""
    path, module = llama
    folder = tiny_adapter(path, "lora", **LORA)
    tensors = load_file(folder / "adapter_model.safetensors")
    bare = {name.replace("base_model.model.model.", "base_model.model."): value for name, value in tensors.items()}
    assert bare.keys() != tensors.keys()
    save_file(bare, folder / "adapter_model.safetensors", {"format": "pt"})
    after = FuseLora(read_adapter(str(folder), path), 1.0).run(module)
    assert isinstance(after.weights[Q], LowRank)


def test_options_name_the_adapter_and_no_path(llama, tiny_adapter):
    path, _ = llama
    folder = tiny_adapter(path, "lora", **LORA)
    options = FuseLora(read_adapter(str(folder), path), 0.5).options()
    assert options == {"adapter": folder.name, "weight": "0.5"}
    assert "/" not in json.dumps(options)


@pytest.mark.parametrize(
    ("kind", "fuse", "made", "config"),
    [
        ("lora", FuseLora, LowRank, {"r": 2, "target_modules": ["dense"], "bias": "all"}),
        ("ia3", FuseIa3, ScaledRows, {"target_modules": ["dense"], "feedforward_modules": []}),
    ],
)
def test_what_an_adapter_does_to_the_pooler_is_left_out(kind, fuse, made, config, tiny_checkpoint, tiny_adapter):
    """Embeddings do not read it; PEFT adapts it wherever `dense` or all linear layers are asked for."""
    path = tiny_checkpoint("bert")
    module = load_model(ModelSource(str(path), path))
    folder = tiny_adapter(path, kind, **config)
    assert any("pooler.dense" in name for name in load_file(folder / "adapter_model.safetensors"))
    after = fuse(read_adapter(str(folder), path), 1.0).run(module)
    assert after.weights.keys() == module.weights.keys()
    assert isinstance(after.weights["encoder.layer.0.attention.output.dense.weight"], made)
