"""generation_config.json as the artifact's generation defaults; special tokens fall back to config.json."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct

from pyc.models.config import HuggingFaceConfig
from pyc.models.files import Directory
from pyc.runtime.artifact.format import Generation, decimal_text
from pyc.runtime.errors import IngestError, RunError
from pyc.runtime.generation.sampling import SamplingParams

logger = logging.getLogger(__name__)

FILE = "generation_config.json"


class _GenerationFile(Struct, frozen=True):
    eos_token_id: int | tuple[int, ...] | None = None
    bos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | tuple[int, ...] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    do_sample: bool | None = None
    num_beams: int | None = None
    no_repeat_ngram_size: int | None = None
    typical_p: float | None = None


_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "num_beams": (None, 0, 1),
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), (None, 1)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (None, 0)),
    **dict.fromkeys(("min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (None, 0)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "stop_strings"), (None, [])),
    **dict.fromkeys(("constraints", "force_words_ids"), (None, [])),
    **dict.fromkeys(("sequence_bias", "watermarking_config"), (None, {}, [])),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), (None,)),
    **dict.fromkeys(("top_h", "dola_layers"), (None,)),
    "token_healing": (None, False),
}
"""What transformers chooses tokens by and the runtime does not, and the values that change nothing."""


def read_generation(directory: Directory, config: HuggingFaceConfig, vocab_size: int) -> Generation:
    """Return the defaults of a checkpoint; token ids outside the vocabulary are dropped with a warning.

    Raises IngestError when a number is not one that the runtime samples with, or the file is malformed.
    """
    where = f"{directory.label}: {FILE}"
    file = directory.parse(FILE, _GenerationFile) or _GenerationFile()
    given = directory.parse(FILE, dict[str, object]) or {}
    dropped = [name for name, neutral in _NEUTRAL.items() if given.get(name) not in neutral]
    if dropped:
        directory.files.warn(logger, "%s: not supported, and left out: %s", where, ", ".join(dropped))
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        value = getattr(file, name)
        if value is not None:
            try:
                SamplingParams(**{name: value})
            except RunError as problem:
                raise IngestError(f"{where}: {problem}") from problem

    def token_ids(
        value: int | tuple[int, ...] | None, fallback: int | tuple[int, ...] | None
    ) -> tuple[int, ...]:
        chosen = fallback if value is None else value
        ids = (chosen,) if isinstance(chosen, int) else chosen or ()
        kept = tuple(dict.fromkeys(token for token in ids if 0 <= token < vocab_size))
        if len(kept) < len(set(ids)):
            text = "%s: token ids %s go beyond the vocabulary of %d"
            directory.files.warn(logger, text, where, list(ids), vocab_size)
        return kept

    def decimal(value: float | None) -> str | None:
        return None if value is None else decimal_text(value)

    return Generation(
        eos_token_ids=token_ids(file.eos_token_id, config.eos_token_id),
        bos_token_id=next(iter(token_ids(file.bos_token_id, config.bos_token_id)), None),
        pad_token_id=next(iter(token_ids(file.pad_token_id, config.pad_token_id)), None),
        temperature=decimal(file.temperature),
        top_k=file.top_k,
        top_p=decimal(file.top_p),
        min_p=decimal(file.min_p),
        repetition_penalty=decimal(file.repetition_penalty),
        do_sample=file.do_sample,
    )
