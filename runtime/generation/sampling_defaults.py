"""What one generation samples with: what its caller says, and the model's own defaults for the rest."""

from dataclasses import dataclass

from pyc.runtime.artifact.format import Generation
from pyc.runtime.generation.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What a caller sets; None leaves it to the artifact's generation defaults."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None


def resolve_sampling(defaults: Generation, overrides: SamplingOverrides) -> SamplingParams:
    """The parameters of one generation. Raises RunError on nonsense.

    Without a temperature it is greedy, unless the model's defaults say do_sample or the caller sets top_k,
    top_p or min_p. When it samples, what the caller leaves open comes from the model's defaults, then 1.0,
    off, off, off. The model's repetition penalty holds for greedy decoding too.
    """
    narrows = any(value is not None for value in (overrides.top_k, overrides.top_p, overrides.min_p))
    temperature = overrides.temperature
    if temperature is None:
        samples = bool(defaults.do_sample) or narrows
        temperature = _pick(None, defaults.temperature, 1.0) if samples else 0.0
    top_k = overrides.top_k if overrides.top_k is not None else defaults.top_k or 0
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=_pick(overrides.top_p, defaults.top_p, 1.0),
        min_p=_pick(overrides.min_p, defaults.min_p, 0.0),
        repetition_penalty=_pick(overrides.repetition_penalty, defaults.repetition_penalty, 1.0),
        frequency_penalty=overrides.frequency_penalty,
        presence_penalty=overrides.presence_penalty,
        seed=overrides.seed,
        logprobs=overrides.logprobs,
    )


def _pick(override: float | None, default: str | None, neutral: float) -> float:
    if override is not None:
        return override
    return neutral if default is None else float(default)
