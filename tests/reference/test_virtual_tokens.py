"""Prompt tuning, P-tuning and prefix tuning in an artifact, against PEFT's own forward in float32.

Keys and values of virtual tokens are computed in f64 by numpy, what is behind them by compiled code, which rounds every
product and sum to f32, as transformers does: the bounds are those of `test_decoders`. The tokens are drawn so that they
change the model by a KL of 1e-2 and more.
"""

from pathlib import Path

import numpy as np
import pytest
from adapter_cases import with_adapter
from built_models import SMALL_SHAPES, difference, margins, random_ids, single_steps

DEMO = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
KL_BOUND = 1e-10
MARGIN = 1e-4
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
CAUSAL = {"task_type": "CAUSAL_LM"}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
QWEN3 = {"tie_word_embeddings": True, "rope_parameters": YARN}
WINDOW = {"sliding_window": 7}

PROJECTED = {"num_virtual_tokens": 70, "prefix_projection": True, "encoder_hidden_size": 24}

CASES = {
    "prompt": ("prompt_tuning", {"num_virtual_tokens": 5}),
    "p-tuning-mlp": ("p_tuning", {"num_virtual_tokens": 4, "encoder_hidden_size": 32}),
    "p-tuning-lstm": (
        "p_tuning",
        {"num_virtual_tokens": 4, "encoder_hidden_size": 16, "encoder_reparameterization_type": "LSTM"},
    ),
    "prefix": ("prefix_tuning", {"num_virtual_tokens": 6}),
    "prefix-projection": ("prefix_tuning", PROJECTED),
}
"""Of one model: they share its programs."""

ONNX = {
    "prompt-llama": ("llama", {}, "prompt_tuning", {"num_virtual_tokens": 6}),
    "prefix-llama": ("llama", {}, "prefix_tuning", {"num_virtual_tokens": 6}),
    "prompt-qwen3-yarn": ("qwen3", QWEN3, "prompt_tuning", {"num_virtual_tokens": 3}),
    "prefix-qwen3-yarn": ("qwen3", QWEN3, "prefix_tuning", PROJECTED),
    "prompt-mistral-window": ("mistral", WINDOW, "prompt_tuning", {"num_virtual_tokens": 4}),
    "prefix-mistral-window": ("mistral", WINDOW, "prefix_tuning", {"num_virtual_tokens": 4}),
    "prompt-qwen2": ("qwen2", {}, "prompt_tuning", {"num_virtual_tokens": 4}),
    "prefix-qwen2": ("qwen2", {}, "prefix_tuning", {"num_virtual_tokens": 4}),
}


def logits_of(model, ids):
    """PEFT's or transformers' logits of the tokens behind any virtual ones."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()[-len(ids) :]


@pytest.mark.parametrize("case", CASES)
def test_virtual_tokens_are_pefts(case, tiny_checkpoint, tiny_adapter, built, reference):
    kind, options = CASES[case]
    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, kind, **CAUSAL, **options)
    model = built(path, adapters=[{"path": str(adapter)}], quantize={"kv_cache": "f32"})
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    found = difference(wanted, model.logits(ids))
    assert difference(logits_of(reference(path), ids), wanted).mean_kl > 1e-2
    assert found.mean_kl <= KL_BOUND, found
    assert np.array_equal(single_steps(model, ids), model.logits(ids)), "a prefill is not the sum of its steps"
    assert model.session.context == model.info.context - options["num_virtual_tokens"]


@pytest.mark.parametrize("kind", ["prompt_tuning", "prefix_tuning"])
def test_greedy_tokens_are_pefts(kind, tiny_checkpoint, tiny_adapter, built, reference):
    """Alone, and beside requests of other lengths, of which each gives what it gives alone."""
    import torch

    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, kind, num_virtual_tokens=6, **CAUSAL)
    shapes = {**SMALL_SHAPES, "batch": [1, 4]}
    model = built(path, adapters=[{"path": str(adapter)}], quantize={"kv_cache": "f32"}, shapes=shapes)
    ids = random_ids(model, 16)
    peft_model = with_adapter(reference(path), adapter)
    with torch.no_grad():
        continued = peft_model.generate(
            input_ids=torch.tensor([ids]),
            max_new_tokens=32,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = continued.sequences[0, -32:].tolist()
    undecided = np.flatnonzero(margins(np.stack([row[0].numpy() for row in continued.logits])) < MARGIN)
    first = undecided[0] if undecided.size else 32
    settings = {"max_tokens": 32, "temperature": 0, "ignore_eos": True}
    alone = [token.id for token in model.generate(ids, **settings)]
    assert first > 16
    assert alone[:first] == tokens[:first]
    prompts = [ids, ids[:3], random_ids(model, 30, seed=4), ids[5:], ids[:1], ids]
    expected = [[token.id for token in model.generate(prompt, **settings)] for prompt in prompts]
    assert expected[0] == alone
    assert [[token.id for token in stream] for stream in model.generate(prompts, **settings)] == expected


@pytest.mark.parametrize("cache", ["f16", "fp8"])
def test_a_rounded_cache_holds_them(cache, tiny_checkpoint, tiny_adapter, built, reference):
    """16 bits are bf16 in some libraries of quantized weights. Rounding costs what it costs without virtual tokens."""
    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, "prefix_tuning", num_virtual_tokens=70, **CAUSAL)
    quantize = {"scheme": "int8", "embeddings": "int8", "kv_cache": cache}
    model, plain = built(path, adapters=[{"path": str(adapter)}], quantize=quantize), built(path, quantize=quantize)
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    found = difference(wanted, model.logits(ids)).mean_kl
    assert found <= 3 * difference(logits_of(reference(path), ids), plain.logits(ids)).mean_kl
    assert np.array_equal(single_steps(model, ids), model.logits(ids)), "a prefill is not the sum of its steps"


def test_a_low_rank_adapter_below_them(tiny_checkpoint, tiny_adapter, built, reference):
    """PEFT puts virtual tokens in front of a base into which LoRA was merged; the recipe's order does not matter."""
    path = tiny_checkpoint("llama", **CONTEXT)
    lora = tiny_adapter(path, "lora", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    prompt = tiny_adapter(path, "prompt_tuning", num_virtual_tokens=5, **CAUSAL)
    merged = with_adapter(reference(path), lora).merge_and_unload()
    refs = [{"path": str(prompt)}, {"path": str(lora)}]
    model = built(path, adapters=refs, quantize={"kv_cache": "f32"})
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(merged, prompt), ids)
    assert difference(wanted, model.logits(ids)).mean_kl <= KL_BOUND
    assert difference(wanted, logits_of(with_adapter(reference(path), prompt), ids)).mean_kl > 1e-2


@pytest.mark.parametrize("case", ONNX)
def test_onnx_runtime_computes_the_same(case, tiny_checkpoint, tiny_adapter, built, reference):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    model_type, config, kind, options = ONNX[case]
    path = tiny_checkpoint(model_type, **CONTEXT, **config)
    adapter = tiny_adapter(path, kind, **CAUSAL, **options)
    model = built(path, adapters=[{"path": str(adapter)}], targets=[{"backend": "onnx"}], shapes={"batch": [2]})
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    got = model.logits(ids)
    assert difference(wanted, got).mean_kl <= KL_BOUND
    assert np.abs(single_steps(model, ids) - got).max() < MARGIN
    prompts, settings = [ids[:9], ids[:3]], {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [[token.id for token in model.generate(prompt, **settings)] for prompt in prompts]
    assert [[token.id for token in stream] for stream in model.generate(prompts, **settings)] == alone


def test_the_demo_model(tiny_adapter, built, reference):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    adapter = tiny_adapter(DEMO, "prompt_tuning", num_virtual_tokens=8, **CAUSAL)
    model = built(DEMO, adapters=[{"path": str(adapter)}], targets=[{"backend": "onnx"}])
    ids = random_ids(model, 100)
    wanted = logits_of(with_adapter(reference(DEMO), adapter), ids)
    assert difference(logits_of(reference(DEMO), ids), wanted).mean_kl > 1e-2
    assert difference(wanted, model.logits(ids)).mean_kl <= KL_BOUND
