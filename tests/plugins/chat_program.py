"""`python chat_program.py ARGUMENTS`: the command line `pyc ARGUMENTS` over a model that needs no build and says what a
test wants to hear. Its context is 120 tokens, a letter is about a token.

    "seen"     how many messages it sees           "slow"    a dot for ever
    "think"    thinks first                        "escape"  tries to colour and rename the terminal
    "refuse"   its template refuses                "fail"    fails after three letters
    "long"     letters until it is cut             else      what it heard, as Python writes it
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import fake_model
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import pyc.commands.run
import pyc.runtime.model
from pyc import cli
from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.generation.request import Token
from pyc.runtime.model import Model
from pyc.runtime.text.tokenizer import Tokenizer

CONTEXT = 120
TEMPLATE = (
    "{% for message in messages %}{% if message.content == 'refuse' %}{{ raise_exception('I refuse') }}{% endif %}"
    "<{{ message.role[0] }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)


class SayingModel(Model):
    """Answers as the module's docstring says."""

    def generate(self, prompt: object, **options: object) -> Iterator[Token]:  # type: ignore[override]
        heard = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = cast("Sequence[Mapping[str, str]]", heard)
        variables = cast("Mapping[str, bool]", options["chat_variables"])
        ids = self.prompt_ids(messages, chat_variables=variables)  # type: ignore[arg-type]
        room = self.session.context - len(ids)
        assert room > 0, "the conversation hands over prompts that fit"
        limit = min(cast(int, options["max_tokens"]), room)
        for count, letter in enumerate(self._answer(messages, variables), 1):
            reason = "stop" if letter is None else "length" if count == limit else None
            yield Token(count, letter or "", None, (), reason)  # type: ignore[arg-type]
            if reason:
                return

    def _answer(self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, bool]) -> Iterator[str | None]:
        question = messages[-1]["content"]
        if question == "slow":
            for _ in itertools.count():
                yield "."
                time.sleep(0.01)
        if question == "long":
            yield from itertools.repeat("x")
        if question == "fail":
            yield from "abc"
            raise RunError("the kernels are out of order")
        thinks = question == "think" and variables.get("enable_thinking", True)
        answers = {
            "seen": f"{len(messages)} messages",
            "think": "<think>hm</think>\n\nwell" if thinks else "well",
            "escape": "\x1b[31mred\x1b]0;owned\x07 \u202eback",
        }
        yield from answers.get(question, repr(question))
        yield None


def _model() -> Model:
    backend = Backend(models.BPE(vocab={letter: index for index, letter in enumerate(_letters())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    info = fake_model.decoder_info(vocab_size=256, context=CONTEXT)
    executor = fake_model.FakeDecoder(info, kv_blocks=30)
    return SayingModel(info, Generation(), executor, Tokenizer(backend.to_str().encode()), TEMPLATE, kv_blocks=30)


def _letters() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(path=path, header=SimpleNamespace(model=fake_model.decoder_info()))


if __name__ == "__main__":
    pyc.commands.run.open_ahead = _opened  # type: ignore[assignment]
    pyc.runtime.model.load = lambda opened, **options: _model()  # type: ignore[assignment]
    cli.entry()
