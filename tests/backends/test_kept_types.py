"""What `none` keeps: types, shapes and numbers of parameters found out from a header are those of the checkpoint."""

from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open
from tiny_checkpoints import tiny_adapter, tiny_checkpoint

from pyc.backends.matrix_shapes import place_of
from pyc.backends.stored_weights import stored_weights, weights_of
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.compiler.schemes import KEEP_TYPES
from pyc.compiler.stacked_names import names_in_stack
from pyc.models.catalog import ARCHITECTURES
from pyc.passes.assign_schemes import quantizable
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.format import Function, Generation, Header, Program, Provenance, Span, Tensor

__all__ = ["tiny_adapter", "tiny_checkpoint"]
DEMO = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"]}
BERT_LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["query", "output.dense"]}
TWICE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "head_dim": 64}
"""K and 2 K both are widths of the model: of the hidden state, the queries and the inner state."""
ODD = {"hidden_size": 40, "intermediate_size": 74, "num_attention_heads": 2, "head_dim": 20}
KEPT = {"match": "re:.*o_proj", "scheme": "none"}
BERT_ODD = {"hidden_size": 48, "intermediate_size": 90, "num_attention_heads": 4}


def lowered_header(checkpoint, adapters=(), targets=("cpu",), **quantize):
    """The header of a build, its stored tensors by name, and the matrices of the checkpoint by name."""
    arch = {"cuda": {"arch": ["sm_90a"]}}
    recipe = recipe_from(
        {
            "model": str(checkpoint),
            "adapters": [{"path": str(path)} for path in adapters],
            "quantize": quantize,
            "targets": [{"backend": name, **arch.get(name, {})} for name in targets],
        }
    )
    with SourceFiles() as files:
        lowered = lower_recipe(recipe, files)
    stored = {name: weight.tensor for name, weight in lowered.weights().items()}
    programs = tuple(
        Program(part.backend.name, "-", "-", "-", "-", (), "-", (), (function_of(part),)) for part in lowered.parts
    )
    header = Header(
        model=lowered.common.info,
        tensors=tuple(Tensor(name, tensor.dtype, tensor.shape, Span(0, 1)) for name, tensor in stored.items()),
        blobs=(),
        programs=programs,
        chunks=(),
        generation=Generation(),
        provenance=Provenance(recipe_text(recipe), (), (), lowered.passes()),
    )
    return header, stored


def function_of(part):
    return Function("forward", 1, "forward_1", (), part.module.graph.weight_names())


def older(header):
    """The header as it was before types that were kept had a record."""
    passes = tuple(step for step in header.provenance.passes if step.name != KEEP_TYPES)
    assert len(passes) < len(header.provenance.passes)
    return msgspec.structs.replace(header, provenance=msgspec.structs.replace(header.provenance, passes=passes))


def parameters_of(checkpoint):
    """The values of all matrices of a checkpoint, as its files have them."""
    with safe_open(checkpoint / "model.safetensors", "numpy") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118, no mapping
    return sum(shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2 and "pooler" not in name)


def matrix_values(header):
    return sum(weight.values for weight in next(iter(weights_of(header).values())) if weight.is_matrix)


MODELS = {
    "llama": ("llama", {}, LORA),
    "twice": ("qwen3", {**TWICE, "num_key_value_heads": 1}, LORA),
    "tied": ("qwen3", {**TWICE, "num_key_value_heads": 1, "tie_word_embeddings": True}, LORA),
    "odd": ("qwen3", {**ODD, "num_key_value_heads": 1}, LORA),
    "biases": ("qwen2", {**TWICE, "num_key_value_heads": 2}, LORA),
    "encoder": ("bert", {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4}, BERT_LORA),
    "odd encoder": ("bert", BERT_ODD, BERT_LORA),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_adapted", [False, True], ids=["plain", "adapted"])
def test_types_shapes_and_parameters(model, dtype, is_adapted, tiny_checkpoint, tiny_adapter):
    family, fields, adapter = MODELS[model]
    checkpoint = tiny_checkpoint(family, dtype=dtype, **fields)
    adapters = [tiny_adapter(checkpoint, "lora", **adapter)] if is_adapted else []
    header, stored = lowered_header(checkpoint, adapters)
    found = {weight.name: weight for weight in stored_weights(header)}
    before = {weight.name: weight for weight in stored_weights(older(header))}
    for name, tensor in stored.items():
        if len(tensor.shape) != 2:
            continue
        kind = tensor.scheme.name
        assert (found[name].scheme, found[name].columns, found[name].rows) == (kind, tensor.columns, tensor.rows), name
        half = "16-bit" if tensor.dtype == "u8" and kind in ("bf16", "f16") else kind
        assert (before[name].scheme, before[name].columns, before[name].rows) == (half, tensor.columns, tensor.rows)
    assert matrix_values(header) == matrix_values(older(header)) == parameters_of(checkpoint)
    kinds = {tensor.scheme.name for tensor in stored.values() if tensor.dtype == "u8"}
    assert not is_adapted or dtype == "float32" or len(kinds) == 2


@pytest.mark.parametrize("scheme", ["int8", "int4-g32", "lut4-g32"])
@pytest.mark.parametrize("match", ["re:.*down_proj", "model.layers.0.self_attn.q_proj", "re:model.layers.[01].mlp"])
@pytest.mark.parametrize("is_adapted", [False, True], ids=["plain", "adapted"])
def test_some_matrices_are_kept(scheme, match, is_adapted, tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("qwen3", dtype="bfloat16", num_key_value_heads=1, **TWICE)
    adapters = [tiny_adapter(checkpoint, "lora", **LORA)] if is_adapted else []
    header, stored = lowered_header(checkpoint, adapters, scheme=scheme, overrides=[{"match": match, "scheme": "none"}])
    found = {weight.name: weight for weight in stored_weights(header)}
    assert {name: found[name].scheme for name in stored} == {name: each.scheme.name for name, each in stored.items()}
    assert matrix_values(header) == matrix_values(older(header)) == parameters_of(checkpoint)


@pytest.mark.parametrize("others", [("onnx",), ("cuda",)], ids=str)
@pytest.mark.parametrize("quantize", [{}, {"scheme": "lut4-g32"}, {"scheme": "int8", "overrides": [KEPT]}], ids=str)
def test_programs_of_other_backends(quantize, others, tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("qwen3", dtype="bfloat16", num_key_value_heads=1, **TWICE)
    header, stored = lowered_header(
        checkpoint, [tiny_adapter(checkpoint, "lora", **LORA)], ("cpu", *others), **quantize
    )
    assert sorted(weights_of(header)) == sorted(("cpu", *others))
    for weights in weights_of(header).values():
        assert {weight.name: weight.scheme for weight in weights} == {
            weight.name: stored[weight.name].scheme.name for weight in weights
        }
        assert sum(weight.values for weight in weights if weight.is_matrix) == parameters_of(checkpoint)


def test_the_demo_model_with_an_adapter(tiny_adapter):
    """Its feed-forward's inner state has as many values as twice half of them, which a stack of two suggests."""
    header, _ = lowered_header(DEMO, [tiny_adapter(DEMO, "lora", **LORA)])
    assert sum(weight.values for weight in stored_weights(header)) == 4_492_352 + 16  # of rotary frequencies


def test_two_types_of_16_bits_are_left_open(tiny_checkpoint):
    header, _ = lowered_header(tiny_checkpoint("llama", dtype="bfloat16"))
    changed = tuple(
        msgspec.structs.replace(step, options='{"bf16": 3, "f16": 2}') if step.name == KEEP_TYPES else step
        for step in header.provenance.passes
    )
    provenance = msgspec.structs.replace(header.provenance, passes=changed)
    found = stored_weights(msgspec.structs.replace(header, provenance=provenance))
    assert {weight.scheme for weight in found} == {"16-bit", "f32"}


@pytest.mark.parametrize("family", sorted(set(ARCHITECTURES) - {"bitnet"}))
def test_every_matrix_of_every_architecture_has_a_place(family, tiny_checkpoint):
    with SourceFiles() as files:
        module = lower_recipe(recipe_from({"model": str(tiny_checkpoint(family))}), files).common
    parts = [part for name in quantizable(module) for part in names_in_stack(name)]
    assert len(parts) > 7
    assert [part for part in parts if place_of(part) is None] == []


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("encoder.layer.0.attention.output.dense.weight", ("hidden", "hidden")),
        ("encoder.layer.0.output.dense.weight", ("hidden", "inner")),
        ("lm_head.weight", ("vocabulary", "hidden")),
        ("model.embed_tokens.weight", ("vocabulary", "hidden")),
        ("proj.weight", None),
        ("", None),
        ("x" * 512, None),
    ],
)
def test_the_place_of_a_name(name, place):
    assert place_of(name) == place


def test_sizes_that_no_model_has():
    """Whatever a header says: rows that cannot be divided, and names of stacks that are none."""
    header, _ = lowered_header(DEMO)
    largest = (1 << 53) - 1
    names = ("self_attn.q_proj+k_proj+v_proj", "mlp.gate_proj+up_proj", "mlp.down_proj", "+", ".+.", "mlp.up_proj+")
    shapes = ((1, 1), (1, largest), (largest, largest))
    tensors = [
        Tensor(f"{layer}.{name}.weight", "u8", shape, Span(0, 1))
        for layer, shape in enumerate(shapes)
        for name in names
    ]
    tensors += [Tensor("1.mlp.gate_proj+up_proj.bias", "f32", (largest,), Span(0, 1))]
    found = stored_weights(msgspec.structs.replace(header, tensors=tuple(tensors)))
    assert len(found) == len(tensors)
