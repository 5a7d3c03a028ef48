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
from built_models import difference
from decoder_cases import VARIANTS
from encoder_cases import TEXTS, TINY
from long_runs import sample
from onnx_exports import CONTEXT, IDS, Loop, exported
from scheme_mixes import mixes_of, quantize_of

from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.runtime.errors import ArtifactError

__all__ = ["exported"]

KL_BOUND = 1e-10
MIXES = mixes_of()
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32, **CONTEXT}


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
@pytest.mark.parametrize("variant", sample(VARIANTS))
def test_a_graph_computes_what_transformers_does(variant, flavour, tiny_checkpoint, exported, reference):
    model_type, config = VARIANTS[variant]
    path = tiny_checkpoint(model_type, **{**CONTEXT, **config})
    loop = Loop(exported(path, "onnx", flavour=flavour))
    got = np.concatenate([loop.feed(IDS[:16]), loop.feed(IDS[16:17]), loop.feed(IDS[17:])])
    found = difference(reference_logits(reference(path)), got)
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found


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


@pytest.mark.parametrize(("model_type", "tied", "algorithm"), sample(CALIBRATED))
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
@pytest.mark.parametrize("case", TINY)
def test_an_encoder_of_rows_padded_before_their_texts_is_sentence_transformers(
    case, flavour, tiny_checkpoint, exported
):
    import sentence_transformers

    config, pooling, normalize = TINY[case]
    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize, **config)
    folder = exported(path, "onnx", flavour=flavour, shapes={"tokens": [64], "batch": [8]})
    reference = sentence_transformers.SentenceTransformer(str(path), device="cpu").float()
    reference.tokenizer.padding_side = "left"
    wanted = reference.encode(TEXTS, batch_size=len(TEXTS))
    given = reference.tokenizer(TEXTS, padding=True, return_tensors="np")
    assert not given["attention_mask"][:, 0].all()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    inputs = {name: given[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    assert np.abs(session.run(["sentence_embedding"], inputs)[0] - wanted).max() < 4e-5


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
