"""What one generation samples with: what its caller says, and the model's own defaults for the rest."""

from pyc.runtime.artifact.format import Generation
from pyc.runtime.generation.sampling import SamplingParams
from pyc.runtime.generation.settings import GenerateSettings

_NEUTRAL = SamplingParams()


def resolve_sampling(defaults: Generation, settings: GenerateSettings) -> SamplingParams:
    """The parameters of one generation; None leaves a setting to the model. Raises RunError on nonsense.

    Without a temperature it is greedy, unless the model's defaults say do_sample or the caller sets top_k,
    top_p or min_p. When it samples, what the caller leaves open comes from the model's defaults, then 1.0,
    off, off, off. The model's repetition penalty holds for greedy decoding too.
    """
    temperature = settings.get("temperature")
    if temperature is None:
        narrowing = (settings.get("top_k"), settings.get("top_p"), settings.get("min_p"))
        narrows = any(value is not None for value in narrowing)
        samples = bool(defaults.do_sample) or narrows
        temperature = _pick(None, defaults.temperature, _NEUTRAL.temperature) if samples else 0.0
    top_k = settings.get("top_k")
    return SamplingParams(
        temperature=temperature,
        top_k=top_k if top_k is not None else defaults.top_k or _NEUTRAL.top_k,
        top_p=_pick(settings.get("top_p"), defaults.top_p, _NEUTRAL.top_p),
        min_p=_pick(settings.get("min_p"), defaults.min_p, _NEUTRAL.min_p),
        repetition_penalty=_pick(
            settings.get("repetition_penalty"), defaults.repetition_penalty, _NEUTRAL.repetition_penalty
        ),
        frequency_penalty=settings.get("frequency_penalty", _NEUTRAL.frequency_penalty),
        presence_penalty=settings.get("presence_penalty", _NEUTRAL.presence_penalty),
        seed=settings.get("seed"),
        logprobs=settings.get("logprobs"),
    )


def _pick(override: float | None, default: str | None, neutral: float) -> float:
    if override is not None:
        return override
    return neutral if default is None else float(default)
