"""backends/torch_tensorrt/compile.py with a double of torch_tensorrt: what it asks for, and what it says of failures.

No engine is built. The double gives the program back, so what is saved and loaded runs in torch.
"""

import io
import operator
import os
import sys

import numpy as np
import pytest
import torch
from decoder_cases import DYNAMIC
from torch.export.exported_program import default_decompositions
from torch_programs import Decoder, lowered
from torch_tensorrt_double import CONVERTERS, Input

from pyc.backends.torch_tensorrt.compile import compile_engine, load_engine
from pyc.backends.torch_tensorrt.export import export_program, save_program
from pyc.backends.torch_tensorrt.interface import Range
from pyc.runtime.errors import LowerError

CONTEXT = {"tokenizer": False, "max_position_embeddings": 32}


@pytest.fixture(scope="module")
def decoder(tiny_checkpoint, tmp_path_factory):
    """The file of a program, and its module."""
    _, module, interface = lowered(tiny_checkpoint("llama", num_hidden_layers=1, **CONTEXT))
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    file = io.BytesIO()
    save_program(export_program(module, interface), interface, file)
    path.write_bytes(file.getvalue())
    return path, module


def compiled(double, program, engine, **options):
    """Arguments of dynamo.compile and of save."""
    assert compile_engine(program, engine, device="cpu", **options) == engine
    (first, building), (second, saving) = double.calls
    assert (first, second) == ("compile", "save")
    return building, saving


@pytest.mark.slow
def test_inputs_have_the_ranges_of_the_buckets_and_none_is_empty(torch_tensorrt, decoder, tmp_path):
    building, _ = compiled(torch_tensorrt, decoder[0], tmp_path / "engine.ep")
    assert all(isinstance(argument, Input) for argument in building["arguments"])
    found = {
        argument.given["name"]: (
            *(tuple(argument.given[f"{which}_shape"]) for which in ("min", "opt", "max")),
            argument.given["dtype"],
        )
        for argument in building["arguments"]
    }
    cache = ((1, 2, 1, 12), (1, 2, 16, 12), (3, 2, 31, 12), torch.float32)
    assert found == {
        "input_ids": ((1, 1), (1, 1), (3, 16), torch.int64),
        "position_ids": ((1, 1), (1, 1), (3, 16), torch.int64),
        "attention_mask": ((1, 2), (1, 17), (3, 47), torch.int64),
        "past_key_values.0.key": cache,
        "past_key_values.0.value": cache,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "low"), [("f32", None), ("f16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_options_of_the_builder(precision, low, torch_tensorrt, decoder, tmp_path):
    building, saving = compiled(torch_tensorrt, decoder[0], tmp_path / "engine.ep", precision=precision)
    del building["arguments"], building["arg_inputs"]
    assert building == {
        "device": "cpu",
        "disable_tf32": True,
        "min_block_size": 1,
        "immutable_weights": True,
        "cache_built_engines": False,
        "reuse_cached_engines": False,
        "enable_autocast": low is not None,
        "autocast_low_precision_type": low,
        "attn_bias_is_causal": False,
    }
    assert (saving["output_format"], saving["file_path"]) == ("exported_program", str(tmp_path / ".engine.ep.partial"))
    assert [path.name for path in tmp_path.iterdir()] == ["engine.ep"]


@pytest.mark.slow
def test_a_cache_has_timings_and_engines_that_can_be_refitted(torch_tensorrt, decoder, tmp_path):
    building, _ = compiled(torch_tensorrt, decoder[0], tmp_path / "engine.ep", cache=tmp_path / "cache")
    assert building["timing_cache_path"] == str(tmp_path / "cache" / "timing_cache.bin")
    assert building["engine_cache_dir"] == str(tmp_path / "cache" / "engines")
    flags = [building[name] for name in ("cache_built_engines", "reuse_cached_engines", "immutable_weights")]
    assert flags == [True, True, False]


@pytest.mark.slow
def test_what_is_saved_is_loaded_and_takes_every_size(torch_tensorrt, decoder, tmp_path):
    path, module = decoder
    compiled(torch_tensorrt, path, tmp_path / "engine.ep")
    engine = load_engine(tmp_path / "engine.ep")
    assert torch_tensorrt.calls[-1] == ("load", {"file_path": str(tmp_path / "engine.ep")})
    assert engine.interface.ranges["past"] == Range(1, 16, 31)
    ids = np.random.default_rng(0).integers(3, 263, 12).tolist()
    loaded = Decoder(engine.run, engine.interface)
    rows, cache = loaded.step([ids[:11]], [range(11)], [[0] + [1] * 11], loaded.cache(1, 1))
    last, _ = loaded.step([ids[11:]], [[11]], [[0] + [1] * 12], cache)
    wanted = Decoder(module, engine.interface).logits(ids)
    assert np.abs(np.concatenate([rows[0], last[0]]) - wanted).max() < 1e-4


WIDE = {"hidden_size": 128, "intermediate_size": 256}
KINDS = {
    "int4-asymmetric": ("qwen3", WIDE, {"quantize": {"scheme": "int4-g32-asym", "embeddings": "int4-g32"}}),
    "int8-short-groups": ("qwen2", {}, {"quantize": {"scheme": "int8-g32"}}),
    "window-bf16": ("mistral", {"sliding_window": 7, "dtype": "bfloat16"}, {}),
    "dynamic-gelu-tanh": ("llama", {"rope_parameters": DYNAMIC, "hidden_act": "gelu_pytorch_tanh"}, {}),
    "relu": ("llama", {"hidden_act": "relu", "attention_bias": True}, {}),
    "encoder": ("bert", {"pooling": "mean", "normalize": True}, {"shapes": {"tokens": [64]}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", KINDS if os.environ.get("PYC_CASES") == "all" else list(KINDS)[::3])
def test_every_operator_of_a_program_has_a_converter_to_tensorrt(case, tiny_checkpoint):
    """Decomposed by torch's own table, but for attention, which torch-tensorrt keeps as one layer."""
    model_type, config, recipe = KINDS[case]
    _, module, interface = lowered(tiny_checkpoint(model_type, num_hidden_layers=1, **config), **recipe)
    table = default_decompositions()
    del table[torch.ops.aten.scaled_dot_product_attention.default]
    program = export_program(module, interface).run_decompositions(table)
    found = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    called = {name.removeprefix("aten.") for name in found if name.startswith("aten.")}
    assert "scaled_dot_product_attention.default" in called
    checks = {"_assert_tensor_metadata.default"}  # which its pass remove_assert_nodes takes out
    assert called - checks <= CONVERTERS
    sizes = {str(function) for function in (operator.add, operator.getitem, operator.mul)}
    assert found - {f"aten.{name}" for name in called} <= sizes


@pytest.mark.parametrize("call", [lambda path: compile_engine(path, path), load_engine])
def test_a_missing_package_is_named_with_what_installs_it(call, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(LowerError, match=r"^the package torch-tensorrt is not installed .*'\.\[torch-tensorrt\]'$"):
        call(tmp_path / "model.pt2")


def test_a_package_whose_libraries_do_not_load_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "torch_tensorrt.py").write_text('raise Exception("libnvinfer.so.11: cannot open")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_tensorrt", raising=False)
    with pytest.raises(LowerError, match=r"installed and cannot be loaded: libnvinfer\.so\.11"):
        load_engine(tmp_path / "engine.ep")


@pytest.mark.slow
def test_what_the_builder_says_is_passed_on(torch_tensorrt, decoder, tmp_path):
    torch_tensorrt.fails = RuntimeError("engine build failed")
    with pytest.raises(LowerError, match=r"model\.pt2: torch-tensorrt cannot build it for cpu: .*engine build failed"):
        compile_engine(decoder[0], tmp_path / "engine.ep", device="cpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_engine_that_is_there_stays_where_saving_fails(torch_tensorrt, decoder, tmp_path):
    (tmp_path / "engine.ep").write_text("mine")

    def save(module, file_path, **given):
        open(file_path, "w").close()
        raise OSError("No space left on device")

    torch_tensorrt.save = save
    with pytest.raises(LowerError, match="No space left"):
        compile_engine(decoder[0], tmp_path / "engine.ep", device="cpu")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("engine.ep", "mine")]


def test_a_file_that_is_no_program(torch_tensorrt, tmp_path):
    with pytest.raises(LowerError, match=r"cannot read it as an exported program"):
        compile_engine(tmp_path / "model.pt2", tmp_path / "engine.ep")
    with pytest.raises(LowerError, match=r"engine\.ep: torch-tensorrt cannot load it"):
        load_engine(tmp_path / "engine.ep")


def test_the_double_refuses_what_the_package_does_not_have(torch_tensorrt):
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    given = [torch.ones(1, 2)]
    with pytest.raises(TypeError, match="has no enabled_precisions, use_explicit_typing"):
        torch_tensorrt.dynamo.compile(
            program, arg_inputs=given, enabled_precisions={torch.float32}, use_explicit_typing=True
        )
    with pytest.raises(AssertionError, match="immutable"):
        torch_tensorrt.dynamo.compile(program, arg_inputs=given, cache_built_engines=True)
    with pytest.raises(AssertionError, match="one of"):
        torch_tensorrt.dynamo.compile(program)
    with pytest.raises(ValueError, match="TensorRT wants"):
        torch_tensorrt.Input(min_shape=(0,), opt_shape=(1,), max_shape=(2,), dtype=torch.float32)
    with pytest.raises(TypeError, match="has no sizes"):
        torch_tensorrt.Input(shape=(1,), dtype=torch.float32, sizes=1)
    with pytest.raises(TypeError, match="has no format"):
        torch_tensorrt.save(program.module(), "file", format="exported_program", arg_inputs=given)
