"""Fixtures: small seeded checkpoints made with transformers, and adapters made with PEFT.

Weights are drawn so that logits differ by a few units: with transformers' own initialisation they are nearly
uniform and a wrong graph would hardly show.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from adapter_cases import CONFIGS, butterflies

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TRAINING_TEXT = "the cat sat on the mat; the dog sat on the log"
TOKENIZER_SIZE = 263  # 256 bytes, three special tokens, four merges
SHAPE = {
    "vocab_size": TOKENIZER_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CheckpointFactory = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFactory:
    """`tiny_checkpoint(model_type, *, dtype, sharded, seed, tokenizer, pooling, normalize, **config)`.

    Returns the directory. `model_type` is llama, mistral, qwen2, qwen3 or bert; `dtype` float32, bfloat16,
    float16 or float64; `pooling` ("mean" or "cls") and `normalize` write the files of sentence-transformers;
    the rest overrides fields of the configuration. Equal arguments give the same directory: take `tiny_copy`
    to change one.
    """
    made: dict[str, Path] = {}

    def make(model_type: str = "llama", **options: object) -> Path:
        key = json.dumps([model_type, options], sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp(f"{model_type}-")
            write_checkpoint(made[key], model_type, **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_adapter(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFactory:
    """`tiny_adapter(checkpoint, kind="lora", *, seed, **config)`: the directory of a new adapter of PEFT.

    Its factors are not zero. `kind` is one of adapter_cases.CONFIGS; the rest are fields of that configuration.
    """

    def make(checkpoint: Path, kind: str = "lora", *, seed: int = 1, **config: object) -> Path:
        path = tmp_path_factory.mktemp(f"{kind}-")
        write_adapter(path, checkpoint, kind, seed, config)
        return path

    return make


@pytest.fixture
def tiny_copy(tiny_checkpoint: CheckpointFactory, tmp_path: Path) -> CheckpointFactory:
    """As tiny_checkpoint, but a directory of its own that a test may damage."""

    def make(model_type: str = "llama", **options: object) -> Path:
        return Path(shutil.copytree(tiny_checkpoint(model_type, **options), tmp_path / "checkpoint"))

    return make


def write_checkpoint(
    path: Path,
    model_type: str,
    *,
    dtype: str = "float32",
    sharded: bool = False,
    seed: int = 0,
    tokenizer: bool = True,
    pooling: str | None = None,
    normalize: bool = False,
    **config: object,
) -> None:
    """Write the checkpoint that `tiny_checkpoint` describes into `path`."""
    import torch
    import transformers

    fields = {**SHAPE, **config}
    if model_type != "bert":
        fields.setdefault("num_key_value_heads", 2)
    if model_type == "qwen3":
        fields.setdefault("head_dim", 16)
    configuration = transformers.AutoConfig.for_model(model_type, **fields)
    auto = transformers.AutoModel if model_type == "bert" else transformers.AutoModelForCausalLM
    model = auto.from_config(configuration, dtype=torch.float32).eval()
    draw_weights(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size="20KB" if sharded else "5GB")
    if tokenizer and fields["vocab_size"] >= TOKENIZER_SIZE:
        write_tokenizer(path, is_encoder=model_type == "bert", adds_bos=model_type in ("llama", "mistral"))
    if pooling is not None:
        write_sentence_files(path, fields["hidden_size"], pooling, normalize)


def draw_weights(model, seed: int) -> None:
    """Draw every parameter: matrices with gain 1 to 2 over their inputs, gains near 1, biases of 0.1."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.1 * noise)
            elif "embed" in name:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)


def write_tokenizer(path: Path, *, is_encoder: bool, adds_bos: bool) -> None:
    """Write a byte-level BPE tokenizer of 263 tokens; encoders get <s> ... </s>, Llama and Mistral <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    if is_encoder or adds_bos:
        single = "<s> $A </s>" if is_encoder else "<s> $A"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=None if is_encoder else CHAT_TEMPLATE,
    ).save_pretrained(path)


def write_sentence_files(path: Path, features: int, pooling: str, normalize: bool) -> None:
    """Write the files with which sentence-transformers says how it pools."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    folders = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": folders[index],
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    modes = ("cls_token", "mean_tokens", "max_tokens")
    file = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in modes}
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": features, **file})
    )


def write_adapter(path: Path, checkpoint: Path, kind: str, seed: int, config: dict[str, object]) -> None:
    """Write an adapter of PEFT for a checkpoint; its weights are drawn, so that it changes the model."""
    import peft
    import torch
    import transformers

    is_encoder = json.loads((checkpoint / "config.json").read_text())["model_type"] == "bert"
    auto = transformers.AutoModel if is_encoder else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(checkpoint, dtype=torch.float32)
    with butterflies(), torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = peft.get_peft_model(model, getattr(peft, CONFIGS[kind])(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(adapted.named_parameters()):
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.3 * noise if "ia3_l" in name else parameter + 0.1 * noise)
    adapted.save_pretrained(path)
