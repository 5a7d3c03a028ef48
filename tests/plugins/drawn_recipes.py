"""Recipes drawn from a seed: a checkpoint, adapters and what is asked of the quantization, each by chance."""

import random
from dataclasses import dataclass, field
from pathlib import Path

from adapter_cases import KINDS
from scheme_mixes import QUANTIZED

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
SMALL = {"shapes": {"tokens": [1, 16], "logits": [1]}, "targets": [{"isa": ["x86-64-v3"]}, {"backend": "onnx"}]}
TEXT = "the cat sat on the mat; the dog sat on the log\n" * 80

SAVED = [[], [], ["lm_head"], ["embed_tokens"], ["lm_head", "embed_tokens"], ["down_proj"], ["input_layernorm"]]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head", "embed_tokens"]
PLACES = ("q_proj", "[qkv]_proj", "o_proj", "(gate|up)_proj", "down_proj")


@dataclass(frozen=True)
class Drawn:
    """What one seed gives. `quantize` lacks the text of a calibration."""

    model_type: str
    checkpoint: dict[str, object]
    adapters: tuple[tuple[str, dict[str, object]], ...]
    weights: tuple[float, ...]
    quantize: dict[str, object] = field(default_factory=dict)

    @property
    def is_calibrated(self) -> bool:
        return "bits_per_weight" in self.quantize or "algorithm" in self.quantize

    def document(self, checkpoint: Path, adapters: list[Path], text: Path) -> dict[str, object]:
        """The recipe, for a CPU and, as exports have it, ONNX; rounded is nothing but weights."""
        quantize = {**self.quantize, "activations": "f32", "kv_cache": "f32"}
        if self.is_calibrated:
            quantize["calibration"] = {"text": str(text), "window": 32, "tokens": 256}
        given = [
            {"path": str(path)} if weight == 1 else {"path": str(path), "weight": weight}
            for path, weight in zip(adapters, self.weights, strict=True)
        ]
        document: dict[str, object] = {"model": str(checkpoint), "quantize": quantize, **SMALL}
        return document | ({"adapters": given} if given else {})


def draw(seed: int) -> Drawn:
    chance = random.Random(seed)
    model_type = chance.choice(["llama", "mistral", "qwen2", "qwen3"])
    checkpoint = {
        **SIZES,
        "tie_word_embeddings": chance.random() < 0.5,
        "dtype": chance.choice(["float32", "bfloat16", "float16"]),
        "sharded": chance.random() < 0.3,
        "num_hidden_layers": chance.choice([1, 2]),
        "max_position_embeddings": 128,
    }
    layers = checkpoint["num_hidden_layers"]
    adapters = [_adapter(chance, layers) for _ in range(chance.choice([0, 1, 1, 1, 2]))]
    if len(adapters) == 2:  # PEFT adds up those of one kind
        adapters = [("lora", _lora(chance, layers, saves=False)) for _ in adapters]
    weights = tuple(chance.choice([1, 0.5, -1.25]) if len(adapters) == 2 else 1 for _ in adapters)
    return Drawn(model_type, checkpoint, tuple(adapters), weights, _quantize(chance))


def _adapter(chance: random.Random, layers: int) -> tuple[str, dict[str, object]]:
    kind = chance.choice(["lora", "lora", "lora", "trainable_tokens", "prompt_tuning", "prefix_tuning", *KINDS])
    if kind == "lora":
        return "lora", _lora(chance, layers, saves=True)
    if kind == "trainable_tokens":
        return kind, {"token_indices": sorted(chance.sample(range(263), 5))}
    if kind in ("prompt_tuning", "prefix_tuning"):
        return kind, {"num_virtual_tokens": chance.choice([1, 5]), "task_type": "CAUSAL_LM"}
    name, config = KINDS[kind]
    if "layers_to_transform" in config:
        config = config | {"layers_to_transform": [0]}
    saved = [] if "lm_head" in config["target_modules"] else chance.choice(SAVED)
    return name, config | ({"modules_to_save": saved} if saved else {})


def _lora(chance: random.Random, layers: int, *, saves: bool) -> dict[str, object]:
    targets = sorted(chance.sample(TARGETS, chance.choice([1, 3, 5])))
    config: dict[str, object] = {"r": chance.choice([1, 4, 16]), "lora_alpha": 8, "target_modules": targets}
    config["use_rslora"] = chance.random() < 0.3
    config["use_dora"] = saves and chance.random() < 0.3
    config["rank_pattern"] = {targets[0]: 2} if chance.random() < 0.3 else {}
    config["bias"] = chance.choice(["none", "none", "all", "lora_only"]) if saves else "none"
    saved = [name for name in chance.choice(SAVED) if name not in targets] if saves else []
    if saved:
        config["modules_to_save"] = saved
    elif saves and "embed_tokens" not in targets and chance.random() < 0.3:
        config["trainable_token_indices"] = sorted(chance.sample(range(263), 3))
    return config


def _quantize(chance: random.Random) -> dict[str, object]:
    kind = chance.choice(["none", "scheme", "scheme", "mixed", "goal", "goal", "algorithm"])
    if kind == "none":
        return {}
    if kind == "goal":
        return {"bits_per_weight": chance.choice([5, 6, 8.5])} | _overrides(chance, chance.random() < 0.4, ["int8"])
    if kind == "algorithm":
        return {"scheme": chance.choice(["int4-g32", "int4-g128", "int8"]), "algorithm": chance.choice(["gptq", "awq"])}
    found: dict[str, object] = {"scheme": chance.choice(QUANTIZED)}
    if chance.random() < 0.5:
        found["embeddings"] = chance.choice(["int8", "int4-g32", "bf16", "fp8"])
    return found | _overrides(chance, kind == "mixed", ["int8", "bf16", "f32"])


def _overrides(chance: random.Random, wanted: bool, schemes: list[str]) -> dict[str, object]:
    if not wanted:
        return {}
    return {"overrides": [{"match": f"re:.*{chance.choice(PLACES)}.*", "scheme": chance.choice(schemes)}]}
