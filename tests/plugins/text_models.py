"""Models over the fake decoder with a tokenizer, for tests of generation."""

from collections.abc import Callable
from types import ModuleType

import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.generation.request import Token
from pyc.runtime.model import Model
from pyc.runtime.text.tokenizer import Tokenizer

KV_BLOCKS = 30
CONTEXT = 128
Make = Callable[..., Model]


@pytest.fixture
def make(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> Make:
    """A Model over the fake decoder, whose vocabulary is the byte-level tokenizer's."""

    def build(
        generation: Generation | None = None,
        *,
        template: str | None = None,
        text: bool = True,
        tokenizer: Tokenizer = tokenizers["byte_level_bpe"],
    ) -> Model:
        info = fake.decoder_info(vocab_size=tokenizer.vocab_size, context=CONTEXT)
        executor = fake.FakeDecoder(info, kv_blocks=KV_BLOCKS)
        return Model(
            info,
            generation or Generation(),
            executor,
            tokenizer if text else None,
            template,
            kv_blocks=KV_BLOCKS,
        )

    return build


def greedy(fake: ModuleType, model: Model, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens from the reference, which knows no cache."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(fake.reference_logits(model.info, ids)[-1].argmax()))
    return ids[len(prompt) :]


def ids_of(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]
