"""What a caller may set of a generation: names, bounds, defaults and meaning, once for Python and the command line.

Nothing heavy is imported here: the command line reads the table before it knows whether there is an artifact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from pyc.runtime.arguments import integer, number, shown
from pyc.runtime.errors import RunError

if TYPE_CHECKING:
    from pyc.runtime.text.chat.template import JsonValue

DEFAULT_MAX_TOKENS = 256


class GenerateSettings(TypedDict, total=False):
    """The settings of `Model.generate`, which says what they mean and what they are without."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float
    presence_penalty: float
    seed: int | None
    stop: str | Sequence[str] | None
    logprobs: int | None
    tools: Sequence[Mapping[str, JsonValue]] | None
    chat_variables: Mapping[str, JsonValue] | None
    ignore_eos: bool
    reuse_prefix: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """A number that a caller may set: an integer or any, from `low` (or above it) to `high` (None: without end).

    `default` holds where the caller says nothing: None is what `otherwise` says, and cannot always be said. `meaning`
    explains the value in messages, `help` the setting.
    """

    name: str
    kind: Literal["integer", "number"]
    low: float
    high: float | None
    meaning: str
    help: str
    default: float | None = None
    otherwise: str = ""
    is_open: bool = False
    """Whether `low` itself is too low."""

    @property
    def bounds(self) -> str:
        """The range in words."""
        if self.high is None:
            return f"at least {self.low}"
        return f"above {self.low}, at most {self.high}" if self.is_open else f"{self.low} to {self.high}"

    def checked(self, value: object) -> int | float:
        """`value` as Python's number, numpy's included. Raises RunError that names the setting."""
        check = integer if self.kind == "integer" else number
        article = "an integer" if self.kind == "integer" else "a number"
        found = check(value, self.name, f"{article} ({self.meaning})")
        is_low = found > self.low if self.is_open else found >= self.low
        if not (is_low and (self.high is None or found <= self.high)):  # so NaN is refused, too
            raise RunError(f"{self.name}: got {shown(found)}, expected {self.bounds} ({self.meaning})")
        return found


_MODELS = "the model's own"

MAX_TOKENS = Setting("max_tokens", "integer", 1, None, "tokens at most; Python's None is no limit",
                     "Tokens to generate at most.", DEFAULT_MAX_TOKENS)  # fmt: skip
SAMPLING = (
    Setting("temperature", "number", 0, 100, "0 is greedy, 1 leaves the distribution as it is",
            "0 is greedy, 1 leaves the model's distribution as it is.", otherwise=_MODELS),
    Setting("top_k", "integer", 0, 1 << 31, "0 keeps every token", "Keep the k likeliest tokens; 0 keeps all.",
            otherwise=_MODELS),
    Setting("top_p", "number", 0, 1, "1 keeps every token; temperature 0 is greedy",
            "Keep the likeliest tokens up to this mass.", otherwise=_MODELS, is_open=True),
    Setting("min_p", "number", 0, 1, "0 keeps every token",
            "Keep tokens at least this likely relative to the likeliest.", otherwise=_MODELS),
    Setting("repetition_penalty", "number", 0.01, 100, "1 is none", "Divide the logits of tokens seen; 1 is none.",
            otherwise=_MODELS),
    Setting("frequency_penalty", "number", -100, 100, "0 is none",
            "Subtract this for each time a token was generated.", 0.0),
    Setting("presence_penalty", "number", -100, 100, "0 is none",
            "Subtract this once from tokens that were generated.", 0.0),
    Setting("seed", "integer", 0, (1 << 64) - 1, "any integer of 64 bits",
            "The same seed gives the same tokens with the same variant.", otherwise="another each time"),
    Setting("logprobs", "integer", 0, 1000, "the number of alternatives",
            "Report log-probabilities with this many alternatives.", otherwise="none"),
)  # fmt: skip
"""What tokens are chosen by, in the order of `sampling.SamplingParams`."""

NUMBERS = (MAX_TOKENS, *SAMPLING)
"""Every setting that is a number, in the order of the command line's help."""
