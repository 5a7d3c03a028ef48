"""One generation of `pyc run`: its options, its tokens as they come, and how long they took."""

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from pyc.runtime.text.counted import counted
from pyc.runtime.text.json_text import json_text

if TYPE_CHECKING:
    from pyc.runtime.generation.prompts import Prompt
    from pyc.runtime.generation.request import Token
    from pyc.runtime.generation.settings import GenerateSettings
    from pyc.runtime.model import Model
    from pyc.runtime.text.chat.template import JsonValue


@dataclass(slots=True)
class Answer:
    """What a generation has given so far, and how long it took (seconds from its start)."""

    prompt_tokens: int
    tokens: list["Token"] = field(default_factory=list)
    first_token_s: float = 0.0
    total_s: float = 0.0

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(token.text for token in self.tokens)

    def statistics(self) -> str:
        """A line with counts and speeds."""
        decoded = len(self.tokens) - 1
        decode_s = self.total_s - self.first_token_s
        speed = f", {decoded / decode_s:.1f} tokens/s" if decoded > 0 and decode_s > 0 else ""
        return (
            f"prompt {counted(self.prompt_tokens, 'token')}, first token after {self.first_token_s * 1000:.0f} ms; "
            f"{counted(len(self.tokens), 'token')} in {self.total_s:.2f} s{speed}"
        )

    def as_document(self) -> dict[str, object]:
        """The last line of --json."""
        return {
            "text": self.text,
            "finish_reason": self.tokens[-1].finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.tokens),
            "ttft_s": round(self.first_token_s, 6),
            "total_s": round(self.total_s, 6),
        }


def generate_into(
    answer: Answer,
    model: "Model",
    prompt: "Prompt",
    options: "GenerateSettings",
    *,
    variables: "Mapping[str, JsonValue] | None" = None,
    reuse_prefix: bool = False,
) -> Generator["Token", None, None]:
    """Yield the tokens that follow `prompt` and note them in `answer`. Close it when it is not read to its end."""
    start = time.perf_counter()
    settings: GenerateSettings = {**options, "chat_variables": variables, "reuse_prefix": reuse_prefix}
    generated = model.generate(prompt, **settings)
    with closing(cast("Generator[Token, None, None]", generated)) as tokens:
        try:
            for token in tokens:
                if not answer.tokens:
                    answer.first_token_s = time.perf_counter() - start
                answer.tokens.append(token)
                yield token
        finally:
            answer.total_s = time.perf_counter() - start


def token_document(token: "Token") -> dict[str, object]:
    """A token's line of --json."""
    document: dict[str, object] = {"id": token.id, "text": token.text}
    if token.logprob is not None:
        document["logprob"] = token.logprob
        document["top_logprobs"] = [{"id": top.id, "logprob": top.logprob} for top in token.top_logprobs]
    return document


def print_json_line(document: dict[str, object]) -> None:
    """One line, ASCII where standard output takes no more or is a terminal, which controls must not reach."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    is_plain = encoding != "utf8" or sys.stdout.isatty()
    print(json_text(document, ensure_ascii=is_plain), flush=True)
