"""adapter_config.json of PEFT: the fields that a build reads, and refusal of variants that it cannot fuse.

`fan_in_fan_out` is not read: it concerns Conv1D modules, and PEFT itself switches it off for Linear ones, the
only kind that the supported models have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from pyc.compiler.name_patterns import PatternError, name_pattern
from pyc.models.adapter_fields import MERGE, Kind
from pyc.models.messages import quoted
from pyc.runtime.errors import AdapterError

_LISTS = {
    "target_modules": 16384,
    "exclude_modules": 2048,
    "layers_pattern": 64,
    "modules_to_save": 2048,
    "feedforward_modules": 2048,
    "rank_pattern": 2048,
    "alpha_pattern": 2048,
}
"""Most entries of what is tried on each module."""

EMBEDDINGS = ("embed_tokens", "word_embeddings", "position_embeddings", "token_type_embeddings")
"""Modules that look rows up, by the last part of their name; PEFT names their factors lora_embedding_A and _B."""
HEAD = "lm_head"
_NOT_LINEAR = (*EMBEDDINGS, HEAD)
"""What "all-linear" leaves out: PEFT counts the output head as no linear layer."""

_TIED = ("embed_tokens", HEAD)
"""Modules that PEFT looks for to see whether `ensure_weight_tying` means anything."""

_CLASSIFIERS = ("classifier", "score", "qa_outputs")
"""Heads of transformers' models that classify; PEFT adds their names to modules_to_save by the task."""
_CLASSIFYING = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")

MAX_TERMS = 64
"""A Neumann series of small matrices has converged long before."""

_HARMLESS_INITIALISATIONS = ("gaussian", "eva", "orthogonal")


class AdapterConfig(Struct, frozen=True):
    """The fields of PEFT's configurations that decide what the tensors mean."""

    peft_type: str | None = None
    target_modules: str | tuple[str, ...] | None = None
    exclude_modules: str | tuple[str, ...] | None = None
    layers_to_transform: int | tuple[int, ...] | None = None
    layers_pattern: str | tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] | None = None
    r: int | None = None
    lora_alpha: float | None = None
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: Literal["none", "all", "lora_only", "vera_only", "oft_only", "boft_only"] = "none"
    init_lora_weights: bool | str | None = None
    feedforward_modules: str | tuple[str, ...] | None = None
    use_dora: bool = False
    ensure_weight_tying: bool = False
    peft_version: str | None = None
    alpha: float | None = None
    decompose_both: bool = False
    decompose_factor: int = -1
    save_projection: bool = True
    oft_block_size: int | None = None
    coft: bool = False
    eps: float = 6e-5
    block_share: bool = False
    use_cayley_neumann: bool = True
    num_cayley_neumann_terms: int = 5
    boft_block_size: int = 4
    boft_block_num: int = 0
    boft_n_butterfly_factor: int = 1
    task_type: str | None = None
    trainable_token_indices: tuple[int, ...] | dict[str, tuple[int, ...]] | None = None
    token_indices: tuple[int, ...] | None = None
    num_virtual_tokens: int | None = None
    token_dim: int | None = None
    num_transformer_submodules: int | None = None
    num_attention_heads: int | None = None
    num_layers: int | None = None


def check_adapter_config(config: AdapterConfig, where: str) -> Kind:
    """Return the adapter's kind; AdapterError names a field that is missing or that nothing can be fused with.

    `adapter_fields.check_fields` has looked at all fields before.
    """
    for name, most in _LISTS.items():
        entries = getattr(config, name)
        if not isinstance(entries, str | None) and len(entries) > most:
            raise AdapterError(f"{where}: {name} has {len(entries)} entries, expected at most {most}")
    if config.target_modules is None and config.peft_type != "TRAINABLE_TOKENS":
        raise AdapterError(f"{where}: target_modules is missing; write down the modules that were trained")
    match config.peft_type:
        case "IA3":
            _check_ia3(config, where)
            return "ia3"
        case "LORA":
            _check_lora(config, where)
            return "dora" if config.use_dora else "lora"
        case "LOHA" | "LOKR":
            _require(config, ("r", "alpha"), where)
            return "loha" if config.peft_type == "LOHA" else "lokr"
        case "VERA":
            _require(config, ("r",), where)
            if not config.save_projection:
                raise AdapterError(
                    f"{where}: save_projection is false: the shared matrices would have to be drawn as torch does; "
                    f"{MERGE}"
                )
            return "vera"
        case "TRAINABLE_TOKENS":
            _require(config, ("token_indices",), where)
            return "trainable_tokens"
        case "OFT":
            _check_oft(config, where)
            return "oft"
        case _:
            assert config.peft_type == "BOFT"
            if (config.boft_block_size > 0) == (config.boft_block_num > 0):
                raise AdapterError(
                    f"{where}: boft_block_size is {config.boft_block_size} and boft_block_num {config.boft_block_num}; "
                    "expected one of them to be positive and the other 0"
                )
            return "boft"


def refuse_classifier(config: AdapterConfig, tensors: Iterable[str], where: str) -> None:
    """Raise AdapterError where `tensors`, as the adapter names them below the model, have a head that classifies."""
    found = next((name for name in tensors if name.partition(".")[0] in _CLASSIFIERS), None)
    if found is None:
        return
    task = "" if config.task_type is None else f"task_type is {quoted(config.task_type)}: "
    raise AdapterError(
        f"{where}: {task}it was trained with a classification head (tensor {quoted(found)}), which is not built: "
        "artifacts continue texts or make vectors of them; use the adapter with PEFT, or train one without such a head"
    )


def modules_saved(config: AdapterConfig) -> tuple[str, ...]:
    """Return modules_to_save without the heads that PEFT adds for a task, whether the model has them or not."""
    added = _CLASSIFIERS if config.task_type in _CLASSIFYING else ()
    return tuple(name for name in config.modules_to_save or () if name not in added)


def _require(config: AdapterConfig, names: Iterable[str], where: str) -> None:
    for name in names:
        if getattr(config, name) is None:
            raise AdapterError(f"{where}: {name} is missing")


def _check_ia3(config: AdapterConfig, where: str) -> None:
    """Raise AdapterError as PEFT does: of two lists, each feed-forward entry has to be a target, word for word."""
    feedforward, targets = config.feedforward_modules, config.target_modules
    if feedforward is None:
        raise AdapterError(f"{where}: feedforward_modules, which says what scales inputs, is missing")
    if isinstance(feedforward, str) or isinstance(targets, str | None):
        return
    alone = next((entry for entry in feedforward if entry not in _unique(targets)), None)
    if alone is not None:
        raise AdapterError(
            f"{where}: feedforward_modules has {quoted(alone)}, which target_modules does not have, and PEFT refuses "
            "that; write it into target_modules if the module was trained, else take it out of feedforward_modules"
        )


def _check_lora(config: AdapterConfig, where: str) -> None:
    _require(config, ("r", "lora_alpha"), where)
    initialisation = config.init_lora_weights
    if isinstance(initialisation, str) and initialisation not in _HARMLESS_INITIALISATIONS:
        raise AdapterError(
            f"{where}: init_lora_weights {quoted(initialisation)} also changes the base model's weights; save the "
            "adapter with path_initial_model_for_weight_conversion, which turns it into plain LoRA"
        )


def _check_oft(config: AdapterConfig, where: str) -> None:
    if config.oft_block_size is None:
        raise AdapterError(f"{where}: oft_block_size is missing: OFT of PEFT before 0.14 is not read; train it again")
    if (config.oft_block_size > 0) == ((config.r or 0) > 0):
        raise AdapterError(
            f"{where}: r is {config.r} and oft_block_size {config.oft_block_size}; expected one of them to be positive "
            "and the other 0"
        )
    if config.use_cayley_neumann and not _is_since(config.peft_version, (0, 18)):
        raise AdapterError(
            f"{where}: use_cayley_neumann of PEFT {config.peft_version or 'before 0.18'} is another series than "
            "that of 0.18 and later; merge it with the PEFT that trained it, or train it again"
        )
    if config.use_cayley_neumann and not 1 <= config.num_cayley_neumann_terms <= MAX_TERMS:
        raise AdapterError(
            f"{where}: num_cayley_neumann_terms is {config.num_cayley_neumann_terms}, expected 1 to {MAX_TERMS}"
        )


def _is_since(version: str | None, wanted: tuple[int, int]) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= wanted


def matching_key(patterns: Iterable[str], module: str, where: str) -> str | None:
    """Return the first key of rank_pattern or alpha_pattern that means `module`, as PEFT matches them."""
    return next((key for key in patterns if _matches(rf"(.*\.)?({key})$", module, where)), None)


def is_listed(entries: str | tuple[str, ...], module: str, where: str) -> bool:
    """Return whether `module` is meant by a list of names (exact or as ending) or a regular expression."""
    if isinstance(entries, str):
        if entries == "all-linear":
            return module.rpartition(".")[2] not in _NOT_LINEAR
        return _matches(rf"(?:{entries})\Z", module, where)
    parts = module.split(".")
    return not _unique(entries).isdisjoint(".".join(parts[first:]) for first in range(len(parts)))


def reason_left_alone(config: AdapterConfig, module: str, where: str, is_tied: bool = True) -> str | None:
    """Return why PEFT would not apply a tensor of `module`, in words that follow its name; None when it would.

    `is_tied`: over a model whose head is its embedding.
    """
    if is_tied and module == HEAD and ties_factors(config, where):
        return None
    if config.target_modules is not None and not is_listed(config.target_modules, module, where):
        return "which target_modules does not name"
    if config.exclude_modules and is_listed(config.exclude_modules, module, where):
        return "which exclude_modules leaves out"
    if any(f".{entry}." in f".{module}." for entry in config.modules_to_save or ()):
        return "which modules_to_save replaces as a whole"
    wanted = config.layers_to_transform
    is_spelt_out = isinstance(config.target_modules, tuple) and module in config.target_modules  # as lm_head is
    has_layers = config.peft_type == "LORA" or not isinstance(config.target_modules, str)  # where PEFT heeds them
    if has_layers and config.peft_type != "IA3" and wanted not in (None, ()) and not is_spelt_out:
        layer = _layer_of(module, config.layers_pattern, where)
        if layer not in ((wanted,) if isinstance(wanted, int) else wanted or ()):
            return "which is in no layer of layers_to_transform"
    return None


def ties_whole_weights(config: AdapterConfig) -> bool:
    """Return whether PEFT gives the output head and the embedding one whole weight (`ensure_weight_tying`)."""
    return config.ensure_weight_tying and _names_tied(config.modules_to_save or ())


def ties_factors(config: AdapterConfig, where: str) -> bool:
    """Return whether PEFT gives the output head and the embedding the same factors, of LoRA."""
    if not config.ensure_weight_tying or ties_whole_weights(config):
        return False
    targets = config.target_modules or ()
    if isinstance(targets, str):
        return any(is_listed(targets, name, where) for name in _TIED)
    return _names_tied(targets)


def _names_tied(entries: Iterable[str]) -> bool:
    return any(entry.rpartition(".")[2] in _TIED for entry in entries)


def _layer_of(module: str, patterns: str | tuple[str, ...] | None, where: str) -> int | None:
    """Return the first number inside a module's path, after a list that `patterns` name; None when there is none."""
    parts = module.split(".")
    numbered = [
        (".".join(parts[:index]), int(part)) for index, part in enumerate(parts[:-1]) if index and part.isdecimal()
    ]
    if not patterns:
        return next((number for path, number in numbered if "." in path), None)
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        for path, number in numbered:
            if _matches(rf"(?:.*\.)?(?:{pattern})\Z", path, where):
                return number
    return None


def is_feedforward(config: AdapterConfig, module: str, where: str) -> bool:
    """Return whether IA3 scales the input of `module` (PEFT takes any ending here, not only whole names)."""
    entries = config.feedforward_modules or ()
    if isinstance(entries, str):
        return _matches(rf"(?:{entries})\Z", module, where)
    return any(module.endswith(entry) for entry in entries)


def lookup(
    table: Mapping[str, int] | Mapping[str, float] | None, module: str, default: float, where: str
) -> float:
    """Return the value that rank_pattern or alpha_pattern has for `module`, or `default`."""
    key = matching_key(table or (), module, where)
    return default if key is None or table is None else table[key]


@lru_cache(maxsize=4)
def _unique(entries: tuple[str, ...]) -> frozenset[str]:
    return frozenset(entries)


def _matches(pattern: str, module: str, where: str) -> bool:
    try:
        return name_pattern(pattern).matches(module)
    except PatternError as problem:
        raise AdapterError(
            f"{where}: {quoted(pattern)} is not a regular expression that is read: {problem}"
        ) from problem
