"""Prompt tuning, P-tuning and prefix tuning in an artifact, against PEFT's own forward in float32.

Keys and values of virtual tokens are computed in f32 by numpy, what is behind them by compiled code. Both round every
product and sum to f32, as transformers does: the bounds are those of `test_decoders`. The tokens are drawn so that they
change the model by a KL of 1e-2 and more.
"""

import numpy as np
import pytest
from adapter_cases import with_adapter
from built_models import difference, margins, random_ids, single_steps, target_of

KL_BOUND = {"f32": 1e-10, "f16": 1e-5, "int8": 1.6e-3}
MARGIN = 1e-4
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
CAUSAL = {"task_type": "CAUSAL_LM"}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
QWEN3 = {"tie_word_embeddings": True, "rope_parameters": YARN}
WINDOW = {"sliding_window": 7}

# Cases of one model share its programs.
CASES = {
    "prompt-llama": ("llama", {}, "prompt_tuning", {"num_virtual_tokens": 5}),
    "p-tuning-llama-mlp": ("llama", {}, "p_tuning", {"num_virtual_tokens": 4, "encoder_hidden_size": 32}),
    "p-tuning-llama-lstm": (
        "llama",
        {},
        "p_tuning",
        {"num_virtual_tokens": 4, "encoder_hidden_size": 16, "encoder_reparameterization_type": "LSTM"},
    ),
    "prefix-llama": ("llama", {}, "prefix_tuning", {"num_virtual_tokens": 6}),
    "prompt-qwen3-yarn": ("qwen3", QWEN3, "prompt_tuning", {"num_virtual_tokens": 3}),
    "prefix-qwen3-projection": (
        "qwen3",
        QWEN3,
        "prefix_tuning",
        {"num_virtual_tokens": 70, "prefix_projection": True, "encoder_hidden_size": 24},
    ),
    "prompt-mistral-window": ("mistral", WINDOW, "prompt_tuning", {"num_virtual_tokens": 4}),
    "prefix-mistral-window": ("mistral", WINDOW, "prefix_tuning", {"num_virtual_tokens": 4}),
}


def logits_of(model, ids):
    """PEFT's or transformers' logits of the tokens behind any virtual ones."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()[-len(ids) :]


@pytest.mark.parametrize("case", CASES)
def test_virtual_tokens_are_pefts(case, tiny_checkpoint, tiny_adapter, built, reference):
    model_type, config, kind, options = CASES[case]
    path = tiny_checkpoint(model_type, **CONTEXT, **config)
    adapter = tiny_adapter(path, kind, **CAUSAL, **options)
    model = built(path, adapters=[{"path": str(adapter)}], quantize={"kv_cache": "f32"})
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    found = difference(wanted, model.logits(ids))
    assert difference(logits_of(reference(path), ids), wanted).mean_kl > 1e-2
    assert found.mean_kl <= KL_BOUND["f32"], found
    assert np.array_equal(single_steps(model, ids), model.logits(ids)), "a prefill is not the sum of its steps"
    assert model.session.context == model.info.context - options["num_virtual_tokens"]


@pytest.mark.parametrize("kind", ["prompt_tuning", "prefix_tuning"])
def test_greedy_tokens_are_pefts(kind, tiny_checkpoint, tiny_adapter, built, reference):
    """Alone, and beside requests of other lengths, of which each gives what it gives alone."""
    import torch

    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, kind, num_virtual_tokens=6, **CAUSAL)
    both = {"kv_cache": "f32"}
    model = built(path, adapters=[{"path": str(adapter)}], quantize=both, shapes={"batch": [4], "tokens": [1, 16]})
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


@pytest.mark.parametrize("cache", ["f16", "int8"])
def test_a_quantized_cache_holds_them(cache, tiny_checkpoint, tiny_adapter, built, reference):
    """In a library where 16 bits may be bf16, too: int8 weights and activations against the same without a prefix."""
    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, "prefix_tuning", num_virtual_tokens=70, **CAUSAL)
    model = built(path, adapters=[{"path": str(adapter)}], quantize={"kv_cache": cache})
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    found = difference(wanted, model.logits(ids))
    assert found.mean_kl <= KL_BOUND[cache], found
    quantize = {"scheme": "int8", "embeddings": "int8", "kv_cache": cache}
    quantized = built(path, adapters=[{"path": str(adapter)}], quantize=quantize)
    plain = built(path, quantize=quantize)
    with_tokens = difference(wanted, quantized.logits(ids)).mean_kl
    assert with_tokens <= 3 * difference(logits_of(reference(path), ids), plain.logits(ids)).mean_kl


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
    assert difference(wanted, model.logits(ids)).mean_kl <= KL_BOUND["f32"]
    assert difference(wanted, logits_of(with_adapter(reference(path), prompt), ids)).mean_kl > 1e-2


@pytest.mark.parametrize("kind", ["prompt_tuning", "prefix_tuning"])
def test_onnx_runtime_computes_the_same(kind, tiny_checkpoint, tiny_adapter, built, reference):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, kind, num_virtual_tokens=6, **CAUSAL)
    model = built(path, adapters=[{"path": str(adapter)}], targets=[{"backend": "onnx"}], shapes={"batch": [2]})
    ids = random_ids(model, 40)
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    got = model.logits(ids)
    assert difference(wanted, got).mean_kl <= KL_BOUND["f32"]
    assert np.abs(single_steps(model, ids) - got).max() < MARGIN
    prompts, settings = [ids[:9], ids[:3]], {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [[token.id for token in model.generate(prompt, **settings)] for prompt in prompts]
    assert [[token.id for token in stream] for stream in model.generate(prompts, **settings)] == alone


def test_calibration_and_programs_of_both_backends(tiny_checkpoint, tiny_adapter, built, reference):
    """Codes chosen by a text behind the virtual tokens, in one artifact for two engines."""
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    path = tiny_checkpoint("llama", max_position_embeddings=128)
    adapter = tiny_adapter(path, "prefix_tuning", num_virtual_tokens=6, **CAUSAL)
    quantize = {
        "scheme": "int8",
        "algorithm": "gptq",
        "activations": "f32",
        "kv_cache": "f32",
        "calibration": {"tokens": 1024, "window": 64},
    }
    both = {"adapters": [{"path": str(adapter)}], "quantize": quantize}
    both["targets"] = [*target_of(), {"backend": "onnx"}]
    cpu, other = built(path, **both), built(path, isa="onnxruntime", **both)
    ids = random_ids(cpu, 40)
    assert difference(cpu.logits(ids), other.logits(ids)).mean_kl <= KL_BOUND["f32"]
    wanted = logits_of(with_adapter(reference(path), adapter), ids)
    assert difference(wanted, cpu.logits(ids)).mean_kl < 1e-2
