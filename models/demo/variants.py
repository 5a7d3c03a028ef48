"""The models that `train.py` makes: what each is trained on, and its shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyc.models.demo.corpus import Corpus, read_corpus, read_prose
from pyc.models.demo.network import Shape


@dataclass(frozen=True, slots=True)
class Variant:
    """One model: its text, its dimensions, the learning rate at the plateau, and the tokens of a step."""

    read: Callable[[], Corpus]
    shape: Shape
    learning_rate: float
    batch_tokens: int


VARIANTS: Mapping[str, Variant] = {
    "code": Variant(read_corpus, Shape(), 6e-3, 8192),
    "prose": Variant(
        read_prose,
        Shape(
            vocab_size=8192,
            hidden_size=512,
            layers=4,
            heads=8,
            kv_heads=4,
            head_size=64,
            ffn_size=1536,
            norm_eps=1e-5,
            head_norm=False,
            tied=False,
        ),
        4e-3,
        2048,
    ),
}
"""`code` is the demo model, of Qwen3's type; `prose` a second one, of Mistral's type with a head of its own."""
