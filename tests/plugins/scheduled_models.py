"""Models over the fake decoder, whose requests run together."""

from collections.abc import Callable
from types import ModuleType

import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.generation.request import Token
from pyc.runtime.model import Model
from pyc.runtime.text.tokenizer import Tokenizer

KV_BLOCKS = 24
CONTEXT = 128
PROMPTS = [[5, 6, 7], [8], [*range(10, 50)], [300, 301], [*range(60, 90)], [1] * 7, [2, 3]]
Make = Callable[..., Model]


@pytest.fixture
def make(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> Make:
    """Makes a model of three sequences over the fake decoder."""

    def build() -> Model:
        tokenizer = tokenizers["byte_level_bpe"]
        info = fake.decoder_info(vocab_size=tokenizer.vocab_size, context=CONTEXT)
        executor = fake.FakeDecoder(info, kv_blocks=KV_BLOCKS)
        return Model(info, Generation(), executor, tokenizer, kv_blocks=KV_BLOCKS)

    return build


def alone(make: Make, prompt: list[int], count: int, **settings: object) -> list[Token]:
    """What a model gives that has nothing else to do."""
    return list(make().generate(prompt, max_tokens=count, **settings))
