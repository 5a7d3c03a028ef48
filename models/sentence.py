"""The files of sentence-transformers: how an encoder's rows become one vector, and how long a text may be.

modules.json lists Transformer, Pooling and perhaps Normalize. A checkpoint without it is pooled by the mean
and not normalised, which is what sentence-transformers does with a plain encoder, with a warning: the model may want
another pooling, and was copied without the files that say so. Where sentence_bert_config.json has
no `max_seq_length`, as sentence-transformers 6 writes it, the tokenizer's `model_max_length` counts. It also counts
where modules.json is missing: sentence-transformers reads sentence_bert_config.json as a part of a module. What is too
long loses its end, or its beginning where the tokenizer's files or arguments (sentence_arguments.py) say so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from pyc.models.files import Directory
from pyc.models.messages import quoted, shown
from pyc.models.sentence_arguments import ArgumentFields, read_arguments
from pyc.models.tokenizer_files import Side, read_longest_text, read_tokenizer_config, read_truncation_side
from pyc.runtime.artifact.format import Pooling
from pyc.runtime.errors import IngestError
from pyc.runtime.text.special_tokens import CONFIG as TOKENIZER_CONFIG

logger = logging.getLogger(__name__)

MODULES = "modules.json"
CONFIG = "config.json"
SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""What sentence-transformers has called its file; the first that says anything counts, whatever the architecture."""
PROMPTS = "config_sentence_transformers.json"
_SUPPORTED = ("Transformer", "Pooling", "Normalize")
_TASK = "feature-extraction"
_OUTPUT = "last_hidden_state"
_VECTOR = "sentence_embedding"
# What sentence-transformers gives the tokenizer anyway, or what leaves the vectors as they are, by name.
_SAME_CALLS: dict[str, tuple[object, ...]] = {
    "padding": (True, "longest"),
    "truncation": (True, "longest_first"),
    "return_tensors": ("pt",),
}


class _ModuleEntry(Struct, frozen=True):
    type: str
    path: str = ""


class _PoolingFile(Struct, frozen=True):
    pooling_mode: str | tuple[str, ...] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    include_prompt: bool = True


class _Modality(Struct, frozen=True):
    method: str | None = None
    method_output_name: str | tuple[str | int, ...] | None = None


class _Calls(Struct, frozen=True):
    """The arguments of processors that concern texts."""

    common: dict[str, object] | None = None
    text: dict[str, object] | None = None


class _SentenceFile(ArgumentFields, frozen=True):
    max_seq_length: int | None = None
    do_lower_case: bool | None = None
    transformer_task: str | None = None
    modality_config: dict[str, _Modality] | None = None
    processing_kwargs: _Calls | None = None
    query_length: int | None = None
    document_length: int | None = None
    query_expansion: object = None


class _NormalizeFile(Struct, frozen=True):
    module_input_name: str | None = _VECTOR
    module_output_name: str | None = None


class _PromptFile(Struct, frozen=True):
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None
    truncate_dim: int | None = None


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """Pooling, the longest text in tokens (None: as the model has positions), the end that longer ones lose, and the
    files that said so."""

    pooling: Pooling
    max_tokens: int | None
    side: Side
    files: tuple[str, ...]


def read_sentence_config(
    directory: Directory, features: int, tokenizer: Directory, checkpoint: Directory
) -> SentenceConfig:
    """Return how an encoder with rows of `features` numbers makes a vector of a text, and of how long a one.

    `tokenizer` is where its tokenizer is, `checkpoint` where its weights are.

    Raises IngestError on a module, mode or setting that pyc does not have.
    """
    where = directory.label
    modules = directory.parse(MODULES, tuple[_ModuleEntry, ...])
    file = next((name for name in SENTENCE_CONFIGS if directory.parse(name, dict[str, object])), SENTENCE_CONFIGS[0])
    settings = directory.parse(file, _SentenceFile) or _SentenceFile()
    prompts = directory.parse(PROMPTS, _PromptFile) or _PromptFile()
    if prompts.default_prompt_name and (prompts.prompts or {}).get(prompts.default_prompt_name):
        raise IngestError(
            f"{where}: {PROMPTS}: a default prompt ({quoted(prompts.default_prompt_name)}) is not supported; "
            f"{_instead_of_prompt(directory, modules)}"
        )
    if settings.do_lower_case and not read_tokenizer_config(tokenizer).do_lower_case:
        raise IngestError(f"{where}: {file}: do_lower_case outside the tokenizer is not supported")
    if settings.max_seq_length is not None and settings.max_seq_length < 1:
        raise IngestError(f"{where}: {file}: max_seq_length is {settings.max_seq_length}")
    _check_output(settings, f"{where}: {file}")
    _check_calls(settings, f"{where}: {file}")
    _check_kinds_of_texts(settings, f"{where}: {file}")
    config = checkpoint.parse(CONFIG, dict[str, object]) or {}
    tokenizer_config = tokenizer.parse(TOKENIZER_CONFIG, dict[str, object]) or {}
    arguments = read_arguments(settings, config, tokenizer_config, f"{where}: {file}")
    if prompts.truncate_dim is not None and not prompts.truncate_dim >= features:
        raise IngestError(
            f"{where}: {PROMPTS}: truncate_dim is {prompts.truncate_dim}, expected none: vectors keep all {features} "
            "numbers; remove it, and cut the vectors where they are used"
        )
    longest, side = settings.max_seq_length, read_truncation_side(tokenizer)
    if longest is None or modules is None:
        longest = read_longest_text(tokenizer)
    if modules is not None:
        side = arguments.side or side
        longest = arguments.length if arguments.has_length else longest
    files: tuple[str, ...] = (MODULES, file, PROMPTS)
    if modules is None:
        directory.files.warn(
            logger,
            "%s: no %s, so a vector is the mean of a text's rows, not normalised; if the model has one, copy it and "
            "its 1_Pooling folder beside the weights",
            where, MODULES,
        )  # fmt: skip
        return SentenceConfig(Pooling("mean", False), longest, side, files)
    kinds = [entry.type.rsplit(".", 1)[-1] for entry in modules]
    for kind in kinds:
        if kind not in _SUPPORTED:
            raise IngestError(
                f"{where}: {MODULES}: module {quoted(kind)} is not supported (known: {', '.join(_SUPPORTED)}); "
                "embed with sentence-transformers, or take a model without it"
            )
    if kinds[:1] != ["Transformer"] or kinds[1:2] != ["Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise IngestError(
            f"{where}: {MODULES}: got {kinds}, expected Transformer, Pooling and perhaps Normalize"
        )
    if modules[0].path:
        raise IngestError(
            f"{where}: {MODULES}: the Transformer lies in {quoted(modules[0].path)}, expected '', which is where "
            f"{MODULES} is; {own_folder(modules[0].path)}"
        )
    pooling_file = f"{modules[1].path}/{CONFIG}"
    mode = _mode(directory.parse(pooling_file, _PoolingFile), f"{where}: {pooling_file}")
    files = (*files, pooling_file)
    if kinds[2:]:
        files = (*files, *_normalize_files(directory, modules[2].path))
    return SentenceConfig(Pooling(mode, len(kinds) == 3), longest, side, files)


def _normalize_files(directory: Directory, folder: str) -> tuple[str, ...]:
    """Return the file of the last module, unless it is the model's.

    Raises IngestError where it normalises something else than vectors.
    """
    name = f"{folder}/{CONFIG}" if folder else CONFIG  # that of the model says nothing of vectors
    given = directory.parse(name, _NormalizeFile) or _NormalizeFile()
    if given.module_input_name != _VECTOR or given.module_output_name not in (None, _VECTOR):
        what = f"{quoted(given.module_input_name)} to {quoted(given.module_output_name or given.module_input_name)}"
        raise IngestError(
            f"{directory.label}: {name}: normalises {what}, expected {_VECTOR!r}; embed with sentence-transformers"
        )
    return (name,) if folder else ()


def own_folder(transformer: str = "its folder") -> str:
    """What to do where sentence-transformers, before version 2, saved the Transformer in a folder of its own."""
    return (
        f"copy {MODULES} and the folders of the other modules into {shown(transformer)}, where config.json is, set the "
        f"Transformer's path in that {MODULES} to '', and give that folder"
    )


def _instead_of_prompt(directory: Directory, modules: tuple[_ModuleEntry, ...] | None) -> str:
    """What to do about a default prompt, whose rows some models leave out of the vector."""
    pools = [entry for entry in modules or () if entry.type.endswith("Pooling")]
    file = directory.parse(f"{pools[0].path}/{CONFIG}", _PoolingFile) if pools else None
    if file is not None and not file.include_prompt:
        return "its rows are no part of the vector (include_prompt), so embed with sentence-transformers"
    return "remove default_prompt_name, and write the prompt before each text"


def _check_output(settings: _SentenceFile, where: str) -> None:
    """Raise IngestError where something else than the encoder's last rows is pooled."""
    remedy = "save the model with that, or embed with sentence-transformers"
    if settings.transformer_task not in (None, _TASK):
        raise IngestError(
            f"{where}: transformer_task is {quoted(settings.transformer_task)}, expected {_TASK!r}; {remedy}"
        )
    if settings.modality_config is None:
        return
    if "text" not in settings.modality_config or "message" in settings.modality_config:
        got = shown(", ".join(settings.modality_config)) or "nothing"
        raise IngestError(f"{where}: modality_config has {got}, expected text and no message; {remedy}")
    text = settings.modality_config["text"]
    if text.method != "forward":
        raise IngestError(
            f"{where}: modality_config.text.method is {quoted(text.method)}, expected 'forward'; {remedy}"
        )
    if text.method_output_name not in (_OUTPUT, (_OUTPUT,)):
        name = text.method_output_name
        got = quoted(name) if name is None or isinstance(name, str) else shown(str(list(name)))
        raise IngestError(
            f"{where}: modality_config.text.method_output_name is {got}, expected {_OUTPUT!r}; {remedy}"
        )


def _check_calls(settings: _SentenceFile, where: str) -> None:
    """Raise IngestError where the tokenizer of texts is called with arguments that may change their ids."""
    calls = settings.processing_kwargs or _Calls()
    for kind, arguments in (("common", calls.common), ("text", calls.text)):
        for name, value in (arguments or {}).items():
            if value not in _SAME_CALLS.get(name, ()):
                raise IngestError(
                    f"{where}: processing_kwargs.{kind}.{shown(name)} is {shown(repr(value))}, expected none; remove "
                    "it (max_seq_length says how long a text may be), or embed with sentence-transformers"
                )


def _check_kinds_of_texts(settings: _SentenceFile, where: str) -> None:
    """Raise IngestError where queries and documents are read otherwise than other texts."""
    for name in ("query_length", "document_length", "query_expansion"):
        value = getattr(settings, name)
        if value is not None:
            raise IngestError(
                f"{where}: {name} is {shown(repr(value))}, expected none: all texts are read alike; remove it, or "
                "embed with sentence-transformers"
            )


def _mode(file: _PoolingFile | None, where: str) -> Literal["mean", "cls"]:
    if file is None:
        raise IngestError(f"{where} is missing, but {MODULES} lists it")
    if file.pooling_mode is not None:
        modes = (file.pooling_mode,) if isinstance(file.pooling_mode, str) else file.pooling_mode
    else:
        legacy = {
            "cls": file.pooling_mode_cls_token,
            "max": file.pooling_mode_max_tokens,
            "mean": file.pooling_mode_mean_tokens,
            "mean_sqrt_len_tokens": file.pooling_mode_mean_sqrt_len_tokens,
            "weightedmean": file.pooling_mode_weightedmean_tokens,
            "lasttoken": file.pooling_mode_lasttoken,
        }
        modes = tuple(mode for mode, is_on in legacy.items() if is_on) or ("mean",)
    if modes == ("mean",):
        return "mean"
    if modes == ("cls",):
        return "cls"
    raise IngestError(f"{where}: pooling mode {' + '.join(modes)} is not supported (known: mean, cls)")


def require_no_pooling(directory: Directory) -> None:
    """Raise IngestError for a decoder whose rows sentence-transformers pools, as models for embeddings have it.

    `directory` is that of its checkpoint, or of an adapter, which sentence-transformers saves with the same files.
    """
    kinds = [entry.type.rsplit(".", 1)[-1] for entry in directory.parse(MODULES, tuple[_ModuleEntry, ...]) or ()]
    if "Pooling" in kinds:
        raise IngestError(
            f"{directory.label}: {MODULES} makes this decoder a model for embeddings, and pyc embeds with BERT "
            f"encoders only; embed with sentence-transformers, or, to generate text with it, remove {MODULES}"
        )
