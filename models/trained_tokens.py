"""Trainable tokens of PEFT: rows of an embedding, or of a head, that an adapter brings whole.

They come as an adapter of their own (`TRAINABLE_TOKENS`, with `token_indices`), or beside LoRA's factors
(`trainable_token_indices`, a list for the embedding or one for each module). Where the model ties its head to the
embedding, the rows count for both, unless both have rows and of different tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyc.compiler.weights import Source
from pyc.models.adapter_config import EMBEDDINGS, HEAD, AdapterConfig, is_listed
from pyc.models.messages import quoted, shown
from pyc.runtime.errors import AdapterError

_ROWS = re.compile(r"(?P<module>.+?)(?P<inner>\.base_layer)?(\.token_adapter)?\.trainable_tokens_delta(\.[^.]+)?")
"""`inner` are those of a head that was wrapped once more when it was tied: the outer ones take their place."""
MAX_INDEX = 1 << 31


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows [tokens, hidden] that take the place of the rows `indices` of the weight of `module`."""

    module: str
    rows: Source
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The rows of an embedding and of the head. `is_for_both` says that the head's are the embedding's, which needs a
    model that ties both."""

    embedding: TokenRows | None
    head: TokenRows | None
    is_for_both: bool = False

    @property
    def every(self) -> tuple[TokenRows, ...]:
        """Those of both that are there."""
        return tuple(rows for rows in (self.embedding, self.head) if rows is not None)

    @property
    def has_own_head(self) -> bool:
        """Whether the head's rows are its own over a model, too, whose head is its embedding."""
        return self.head is not None and (self.embedding is None or self.embedding.indices != self.head.indices)


def read_trained_tokens(
    tensors: Mapping[str, Source], config: AdapterConfig, taken: set[str], where: str
) -> TrainedTokens | None:
    """Return the rows that an adapter has; None for none. Names of tensors that are used are added to `taken`.

    Raises AdapterError for rows without indices, indices without rows, and where their numbers differ.
    """
    wanted = _indices(config, where)
    if not wanted:
        return None
    found = dict[str, Source]()
    for name, source in tensors.items():
        match = _ROWS.fullmatch(name)
        if match is None:
            continue
        taken.add(name)
        if match["inner"]:
            continue
        if match["module"] in found:
            raise AdapterError(f"{where}: {shown(match['module'])} has two trainable_tokens_delta tensors")
        found[match["module"]] = source
    copied = _copied_head(found, wanted, where)
    rows = tuple(_rows(module, source, wanted, where) for module, source in found.items() if module not in copied)
    heads = [each for each in rows if _last(each.module) == HEAD]
    embeddings = [each for each in rows if _last(each.module) != HEAD]
    for several in (heads, embeddings):
        if len(several) > 1:
            raise AdapterError(
                f"{where}: tensors {several[0].rows.tensor!r} and {several[1].rows.tensor!r} are both rows of "
                f"{'a head' if several is heads else 'an embedding'}, expected those of one"
            )
    embedding, head = next(iter(embeddings), None), next(iter(heads), None)
    if config.peft_type == "TRAINABLE_TOKENS":
        embedding = _targeted(embedding, config, where)
        head = _targeted(head, config, where, is_tied=embedding is not None)
    without = [name for name in wanted if name and not any(is_listed((name,), each.module, where) for each in rows)]
    is_for_both = bool(copied) or (
        embedding is not None
        and any(_last(name) == HEAD and wanted[name] == embedding.indices for name in without)
    )
    for name in without:
        if not (is_for_both and _last(name) == HEAD):
            raise AdapterError(f"{where}: {quoted(name)} has trainable tokens and no trainable_tokens_delta tensor")
    if not rows:
        raise AdapterError(f"{where}: trainable tokens are set, and there is no trainable_tokens_delta tensor")
    return TrainedTokens(embedding, head, is_for_both)


def _indices(config: AdapterConfig, where: str) -> dict[str, tuple[int, ...]]:
    """Return the tokens by the module that the configuration names; by "" where it names none."""
    given = config.token_indices if config.peft_type == "TRAINABLE_TOKENS" else config.trainable_token_indices
    if not given:
        return {}
    table = given if isinstance(given, dict) else {"": given}
    for name, indices in table.items():
        at = f" of {quoted(name)}" if name else ""
        _check(indices, f"{where}: trainable tokens{at}")
    return {name: tuple(indices) for name, indices in table.items() if indices}


def _check(indices: Sequence[int], what: str) -> None:
    known = set[int]()
    for index in indices:
        if not 0 <= index < MAX_INDEX:
            raise AdapterError(f"{what}: {index} is not the index of a token")
        if index in known:
            raise AdapterError(f"{what}: {index} is there twice, so that either of two rows could be meant")
        known.add(index)


def _copied_head(
    found: Mapping[str, Source], wanted: Mapping[str, tuple[int, ...]], where: str
) -> tuple[str, ...]:
    """Return a head that no name of `wanted` means while one means an embedding: PEFT stores the rows of a tied one
    again, where it stores whole embeddings beside them."""
    named = {module for module in found if is_listed(tuple(wanted), module, where)}
    if "" in wanted or not any(_last(module) != HEAD for module in named):
        return ()
    return tuple(module for module in found if _last(module) == HEAD and module not in named)


def _rows(module: str, source: Source, wanted: Mapping[str, tuple[int, ...]], where: str) -> TokenRows:
    last = _last(module)
    if last not in (*EMBEDDINGS, HEAD):
        raise AdapterError(
            f"{where}: tensor {source.tensor!r} belongs to {shown(module)}, expected an embedding or {HEAD}"
        )
    indices = next((tokens for name, tokens in wanted.items() if not name or is_listed((name,), module, where)), None)
    if indices is None:
        raise AdapterError(
            f"{where}: tensor {source.tensor!r} belongs to {shown(module)}, which trainable_token_indices does not name"
        )
    if len(source.shape) != 2 or source.shape[0] != len(indices):
        raise AdapterError(
            f"{where}: tensor {source.tensor!r} has shape {list(source.shape)}, expected [{len(indices)}, hidden], "
            "a row for each token of adapter_config.json"
        )
    return TokenRows(module, source, indices)


def _targeted(
    rows: TokenRows | None, config: AdapterConfig, where: str, is_tied: bool = False
) -> TokenRows | None:
    """Return rows that target_modules names. PEFT stores those of a head that `is_tied` to the embedding again."""
    if rows is None or config.target_modules is None or is_listed(config.target_modules, rows.module, where):
        return rows
    if is_tied:
        return None
    raise AdapterError(
        f"{where}: tensor {rows.rows.tensor!r} belongs to {shown(rows.module)}, which target_modules does not name"
    )


def _last(module: str) -> str:
    return module.rpartition(".")[2]
