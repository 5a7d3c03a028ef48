"""What fuzzing has kept, replayed without the fuzzer, and some inputs like it; `make fuzz` looks for more."""

import random

import pytest
from mutations import mutated
from parsers import PARSERS, check, corpus

MUTATIONS = 8


@pytest.mark.parametrize("parser", PARSERS)
def test_the_corpus_and_inputs_like_it(parser: str) -> None:
    """Each ends with a value or with an error of its own."""
    accepted = 0
    for number, data in enumerate(corpus(parser)):
        inputs = [data] + [made for seed in range(MUTATIONS) if (made := mutated(parser, data, seed)) is not None]
        inputs += [_damaged(data, random.Random(f"{number} {seed}")) for seed in range(MUTATIONS)]
        for made in inputs:
            accepted += check(parser, made)
    assert accepted, "no input of the corpus is right: it reaches nothing"


def _damaged(data: bytes, draw: random.Random) -> bytes:
    """A few bytes replaced, removed or added."""
    made = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(made) + 1)
        made[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
    return bytes(made)
