"""What `pyc export` writes, loaded by those it is for: ONNX Runtime, onnxruntime-genai, transformers.

Unquantized models are compared with transformers over the checkpoint, bounded as in `test_onnx`; quantized ones with
transformers over the exported checkpoint, whose weights are what the codes stand for.
"""

import json

import numpy as np
import onnx
import onnxruntime
import onnxruntime_genai as genai
import pytest
from adapter_cases import ADAPTED, with_adapter
from built_models import difference, recipe_for
from decoder_cases import VARIANTS
from encoder_cases import TEXTS, TINY
from scheme_mixes import mixes_of, quantize_of

from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.passes.export.checkpoint import export_checkpoint
from pyc.passes.export.onnx import export_onnx
from pyc.passes.export.source import exportable
from pyc.runtime.errors import ArtifactError

KL_BOUND = 1e-10
MIXES = mixes_of()
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32, **CONTEXT}
IDS = [int(number) for number in np.random.Generator(np.random.PCG64(7)).integers(3, 90, 40)]


@pytest.fixture
def exported(tmp_path):
    """`exported(checkpoint, form, **recipe)`: the folder that an export of a recipe for ONNX makes."""

    def make(checkpoint, form, *, flavour="fused", **recipe):
        target = tmp_path / f"{form}-{flavour}"
        with exportable(write_recipe(tmp_path, checkpoint, recipe)) as source:
            if form == "onnx":
                return export_onnx(source, target, flavour=flavour)
            return export_checkpoint(source, target)

    return make


def write_recipe(folder, checkpoint, recipe):
    """A recipe file: JSON is YAML."""
    path = folder / "model.yaml"
    path.write_text(json.dumps(recipe_for(checkpoint, **recipe)))
    return path


class Loop:
    """A decoder as whoever loads model.onnx runs it: the cache of one step goes into the next."""

    def __init__(self, folder):
        onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
        model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        inputs = [value for value in self.session.get_inputs() if value.name.startswith("past")]
        self.cache = {value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32) for value in inputs}
        self.length = 0

    def feed(self, ids):
        """Logits [tokens, vocab] of `ids` behind those before."""
        positions = np.arange(self.length, self.length + len(ids), dtype=np.int64)[None]
        self.length += len(ids)
        given = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": positions,
            "attention_mask": np.ones((1, self.length), np.int64),
        }
        logits, *present = self.session.run(None, {**given, **self.cache})
        self.cache = dict(zip(self.cache, present, strict=True))
        return logits[0]


def reference_logits(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def loaded(folder):
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("flavour", ["fused", "standard"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_computes_what_transformers_does(variant, flavour, tiny_checkpoint, exported, reference):
    model_type, config = VARIANTS[variant]
    path = tiny_checkpoint(model_type, **{**CONTEXT, **config})
    loop = Loop(exported(path, "onnx", flavour=flavour))
    got = np.concatenate([loop.feed(IDS[:16]), loop.feed(IDS[16:17]), loop.feed(IDS[17:])])
    found = difference(reference_logits(reference(path)), got)
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found


@pytest.mark.parametrize(
    ("variant", "flavour", "sides"),
    [
        *((variant, "fused", sides) for variant in ("qwen3", "mistral-window") for sides in ("left", "right", "both")),
        *(("qwen3", "standard", sides) for sides in ("left", "right", "both")),
        ("mistral-window", "standard", "left"),  # whose window counts places, be they padding
    ],
)
def test_rows_of_a_padded_batch_are_those_alone(variant, flavour, sides, tiny_checkpoint, exported):
    """Padded before the text, as transformers asks of decoders, or behind it, as onnxruntime-genai does."""
    model_type, config = VARIANTS.get(variant, ("mistral", {"sliding_window": 8}))
    folder = exported(tiny_checkpoint(model_type, **{**CONTEXT, **config}), "onnx", flavour=flavour)
    texts = [IDS[:20], IDS[5:18], IDS[30:35]]
    is_left = {"left": (True, True, True), "right": (False, False, False), "both": (False, True, False)}[sides]
    mask, ids = np.zeros((3, 20), np.int64), np.zeros((3, 20), np.int64)
    for row, (text, left) in enumerate(zip(texts, is_left, strict=True)):
        place = slice(20 - len(text), 20) if left else slice(0, len(text))
        mask[row, place], ids[row, place] = 1, text
    loop, alone = Loop(folder), [Loop(folder) for _ in texts]
    cache = {name: np.repeat(value, 3, axis=0) for name, value in loop.cache.items()}
    for step_number in range(4):  # the prompts, and a further token of each row
        if step_number:
            ids = np.array([[IDS[7 * row + step_number]] for row in range(3)])
            mask = np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
        step = mask[:, mask.shape[1] - ids.shape[1] :]
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        logits, *present = loop.session.run(None, {**given, **cache})
        cache = dict(zip(cache, present, strict=True))
        for row, one in enumerate(alone):
            there = step[row] == 1
            wanted = one.feed([int(number) for number in ids[row][there]])
            assert np.abs(logits[row][there] - wanted).max() <= 1e-5 * np.abs(wanted).max(), (row, step_number)


@pytest.mark.parametrize("flavour", ["fused", "standard"])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_a_quantized_graph_and_the_checkpoint_stand_for_the_same(mix, flavour, tiny_checkpoint, exported):
    path = tiny_checkpoint("qwen3", tie_word_embeddings=True, **WIDE)
    embeddings = mix[0] if flavour == "fused" else mix[-1]
    quantize = {**quantize_of(mix), "embeddings": embeddings, "activations": "f32"}
    wanted = reference_logits(loaded(exported(path, "hf", quantize=quantize)))
    got = Loop(exported(path, "onnx", flavour=flavour, quantize=quantize)).feed(IDS)
    assert difference(wanted, got).mean_kl <= KL_BOUND


CALIBRATED = [
    *(("qwen3", True, algorithm) for algorithm in ROUNDINGS),
    *(("llama", False, algorithm) for algorithm in ROUNDINGS),
    ("bitnet", False, "awq-gptq"),
    ("llama", False, "rtn"),
]


@pytest.mark.parametrize(("model_type", "tied", "algorithm"), CALIBRATED)
def test_a_calibrated_graph_and_the_checkpoint_stand_for_the_same(
    model_type, tied, algorithm, tiny_checkpoint, exported
):
    """What AWQ and SmoothQuant leave to a norm whose gain was folded is the gain of the exported norm."""
    sizes = {**WIDE, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "tokenizer": True}
    path = tiny_checkpoint(model_type, tie_word_embeddings=tied, **sizes)
    quantize = {"scheme": "int4-g32", "algorithm": algorithm, "activations": "f32"}
    if algorithm != "rtn":
        quantize["calibration"] = {"tokens": 256, "window": 16}
    wanted = reference_logits(loaded(exported(path, "hf", quantize=quantize)))
    for flavour in ("fused", "standard"):
        got = Loop(exported(path, "onnx", flavour=flavour, quantize=quantize)).feed(IDS)
        found = difference(wanted, got)
        assert found.spread > 0.1
        assert found.mean_kl <= KL_BOUND, (flavour, found)


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4"])
def test_floating_point_of_4_bits_is_what_the_checkpoint_has(scheme, tiny_checkpoint, exported):
    """By ONNX's own reference, as ONNX Runtime has no kernel; tables that are looked up stay int8."""
    from onnx.reference import ReferenceEvaluator

    path = tiny_checkpoint("llama", tie_word_embeddings=True, **WIDE)
    quantize = {"scheme": scheme, "embeddings": scheme, "activations": "f32"}
    folder = exported(path, "onnx", flavour="float4", quantize=quantize)
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    model = onnx.load(str(folder / "model.onnx"))
    kinds = {i.name: i.data_type for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT4E2M1}
    assert len(kinds) == 9, "qkv, o, gate and up, down of two layers, and the head"
    given = {
        "input_ids": np.array([IDS], np.int64),
        "position_ids": np.arange(len(IDS), dtype=np.int64)[None],
        "attention_mask": np.ones((1, len(IDS)), np.int64),
    }
    for value in model.graph.input:
        if value.name.startswith("past"):
            _, heads, _, features = value.type.tensor_type.shape.dim
            given[value.name] = np.zeros((1, heads.dim_value, 0, features.dim_value), np.float32)
    got = ReferenceEvaluator(model).run(["logits"], given)[0][0]
    wanted = reference_logits(loaded(exported(path, "hf", quantize=quantize)))
    assert difference(wanted, got).spread > 1
    assert difference(wanted, got).mean_kl <= KL_BOUND
    other = exported(path, "onnx", flavour="standard", quantize=quantize)
    smaller, larger = ((made / "model.onnx.data").stat().st_size for made in (folder, other))
    assert smaller < 0.9 * larger


def test_nothing_is_floating_point_of_4_bits(tiny_checkpoint, exported):
    path = tiny_checkpoint("llama", **WIDE)
    with pytest.raises(ArtifactError, match="no matrix is mxfp4 or nvfp4, which the flavour float4 is for"):
        exported(path, "onnx", flavour="float4", quantize={"scheme": "lut4-g32"})


@pytest.mark.parametrize("case", ADAPTED)
def test_an_exported_checkpoint_is_pefts_merge(case, tiny_checkpoint, tiny_adapter, exported, reference):
    model_type, config, kind, options = ADAPTED[case]
    path = tiny_checkpoint(model_type, **CONTEXT, **{**config, "dtype": "float32"})
    adapter = tiny_adapter(path, kind, **options)
    wanted = reference_logits(with_adapter(reference(path), adapter))
    found = loaded(exported(path, "hf", adapters=[{"path": str(adapter)}]))
    assert difference(wanted, reference_logits(found)).mean_kl <= KL_BOUND


@pytest.mark.parametrize("variant", ["llama-tied-bf16-sharded", "llama-biases-f16", "qwen3", "llama-odd-f64-sharded"])
def test_an_exported_checkpoint_of_an_unquantized_model_is_the_model(variant, tiny_checkpoint, exported, reference):
    model_type, config = VARIANTS[variant]
    path = tiny_checkpoint(model_type, **{**CONTEXT, **config})
    folder = exported(path, "hf")
    wanted = config.get("dtype", "float32").replace("float64", "float32")
    assert json.loads((folder / "config.json").read_text())["dtype"] == wanted
    found = difference(reference_logits(reference(path)), reference_logits(loaded(folder)))
    assert found.largest <= 1e-5


@pytest.mark.parametrize("flavour", ["fused", "standard"])
@pytest.mark.parametrize("quantize", [{}, {"scheme": "int8", "embeddings": "int8", "activations": "f32"}])
@pytest.mark.parametrize("case", TINY)
def test_an_encoder_embeds_a_padded_batch_as_pyc_does(case, quantize, flavour, tiny_checkpoint, exported, built):
    config, pooling, normalize = TINY[case]
    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize, **config)
    recipe = {"shapes": {"tokens": [64], "batch": [8]}, "quantize": quantize}
    model = built(path, **recipe)
    folder = exported(path, "onnx", flavour=flavour, **recipe)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    texts = model.tokenizer.encode_batch(TEXTS, max_tokens=64)
    width = max(map(len, texts))
    ids = np.array([[*text, *[0] * (width - len(text))] for text in texts], np.int64)
    mask = np.array([[1] * len(text) + [0] * (width - len(text)) for text in texts], np.int64)
    rows, vectors = session.run(None, {"input_ids": ids, "attention_mask": mask})
    assert rows.shape == (*ids.shape, model.info.hidden_size)
    assert np.abs(vectors - model.embed(TEXTS)).max() < 4e-5


@pytest.mark.parametrize("flavour", ["fused", "standard"])
@pytest.mark.parametrize("scheme", ["int4-g32", "fp8"])
def test_onnxruntime_genai_generates_the_same_tokens(scheme, flavour, tiny_checkpoint, exported, built):
    path = tiny_checkpoint("qwen3", tie_word_embeddings=True, **WIDE)
    recipe = {"quantize": {"scheme": scheme, "embeddings": scheme, "activations": "f32", "kv_cache": "f32"}}
    model = built(path, **recipe)
    wanted = [token.id for token in model.generate(IDS[:9], max_tokens=24, temperature=0)]
    other = genai.Model(str(exported(path, "onnx", flavour=flavour, **recipe)))
    params = genai.GeneratorParams(other)
    params.set_search_options(max_length=9 + 24, do_sample=False)
    generator = genai.Generator(other, params)
    generator.append_tokens(IDS[:9])
    while not generator.is_done():
        generator.generate_next_token()
    got = generator.get_sequence(0).tolist()[9:]
    assert len(wanted) > 3
    assert [token for token in got if token not in model.generation.eos_token_ids] == wanted
