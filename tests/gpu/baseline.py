"""Times transformers with random weights of a shape: steps of one sequence behind a prompt, and the prompt.

    python tests/gpu/baseline.py 1b|8b|tiny eager|compile [--device cuda] [--depth 512]
    python tests/gpu/baseline.py product eager              a product of bf16 matrices, by torch

`compile` is torch.compile with a static cache and CUDA graphs (mode reduce-overhead). Prints a line of JSON.
"""

import argparse
import json
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

SHAPES = {
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
    | {"tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 2, "vocab_size": 100},
}
DEPTH, STEPS = 512, 100


def main() -> None:
    """Measure one shape in one way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shape", choices=(*SHAPES, "product"))
    parser.add_argument("way", choices=("eager", "compile"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--depth", type=int, default=DEPTH)
    given = parser.parse_args()
    if given.shape == "product":
        print(json.dumps({"torch": torch.__version__, **measure_product(given.device)}))
        return
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5}
    config = LlamaConfig(**{**heads, **SHAPES[given.shape]}, max_position_embeddings=32768)
    with torch.device(given.device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    print(json.dumps({"torch": torch.__version__, **measure(model, config, given)}))


@torch.inference_mode()
def measure(model: LlamaForCausalLM, config: LlamaConfig, given: argparse.Namespace) -> dict[str, object]:
    """Return milliseconds of a step and of a prompt."""
    cache = StaticCache(config=config, max_cache_len=given.depth + given.steps + 64)
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True) if given.way == "compile" else model
    ids = torch.randint(0, config.vocab_size, (1, given.depth), device=given.device)
    place = torch.arange(given.depth, device=given.device)
    model(ids, past_key_values=cache, cache_position=place, logits_to_keep=1)
    cache.reset()
    wait(given.device)
    start = time.perf_counter()
    model(ids, past_key_values=cache, cache_position=place, logits_to_keep=1)
    wait(given.device)
    prompt_ms = (time.perf_counter() - start) * 1e3
    times = []
    for number in range(given.steps + 16):
        place = torch.tensor([given.depth + number], device=given.device)
        start = time.perf_counter()
        logits = step(ids[:, :1], past_key_values=cache, cache_position=place).logits
        logits[:, -1].argmax(-1).item()
        times.append((time.perf_counter() - start) * 1e3)
    return {"step_ms": sorted(times[16:])[given.steps // 2], f"prompt_{given.depth}_ms": prompt_ms}


def measure_product(device: str, size: int = 8192, repeat: int = 20) -> dict[str, object]:
    """Return the rate of products of random bf16 matrices, sizes and all."""
    size = size if device == "cuda" else 64
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(repeat + 3):
        start = time.perf_counter()
        a @ b
        wait(device)
        times.append(time.perf_counter() - start)
    return {"size": size, "tflop_s": 2 * size**3 / sorted(times[3:])[repeat // 2] / 1e12}


def wait(device: str) -> None:
    """Return when the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
