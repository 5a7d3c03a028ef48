"""Whether a checkpoint's tokenizer works, and fits the model: found while building, not by who runs the artifact."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
from blake3 import blake3

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.tokenizer_classes import REMEDY, warn_of_class
from pyc.runtime.errors import ArtifactError, IngestError
from pyc.runtime.text.special_tokens import CONFIG, MAP, PADDING, TOKENIZER, named_tokens
from pyc.runtime.text.tokenizer import Tokenizer
from pyc.runtime.text.tokenizer_rules import TokenizerRuleError, check_tokenizer_json
from pyc.runtime.text.tokenizer_trial import TRIAL_VERSION, Findings, try_tokenizer

logger = logging.getLogger(__name__)

LEAST_SHARE = 2
"""A tokenizer with fewer than one token for so many rows of the embedding is taken for another model's; rows that are
there for a size that suits hardware are a few per cent."""


class _Flags(msgspec.Struct, frozen=True):
    """What a build warns of, of tokenizer_config.json: anything may stand there, since nothing depends on it."""

    add_bos_token: object = None
    add_eos_token: object = None


def check_tokenizer(
    carried: Mapping[str, bytes],
    architecture: str,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    where: str,
    files: SourceFiles,
    cache: Cache,
) -> None:
    """Raise IngestError, naming file and fault, when the tokenizer among `carried` cannot be used with this model.

    It must keep to `runtime/text/tokenizer_rules.py` and pass a trial; its ids must have a row of the embedding
    (`vocab_size` rows); the special tokens that the files beside it name must exist, but for pad_token, which nothing
    here writes. An end-of-sequence token that is not among `eos_token_ids` is worth a warning: texts would not end
    where the tokenizer says. So is a flag of tokenizer_config.json on which tokens a text gets, where tokenizer.json
    has it otherwise, what the tokenizer's class does otherwise, and a tokenizer with far fewer tokens than rows. A
    trial that was passed is not repeated while its findings are in `cache`.
    """
    content = carried.get(TOKENIZER)
    if content is None:
        return
    try:
        named = named_tokens(carried.get(CONFIG), carried.get(MAP))
    except ArtifactError as problem:
        raise IngestError(f"{where}: {str(problem).partition(';')[0]}") from problem
    special = {name: token.text for name, token in named.items() if token.text is not None}
    try:
        check_tokenizer_json(content)
        findings = _tried(content, tuple(special.values()), cache)
    except TokenizerRuleError as problem:
        raise IngestError(f"{where}: {TOKENIZER}: {problem}; {REMEDY}") from problem
    if findings.largest_id >= vocab_size:
        raise IngestError(
            f"{where}: {TOKENIZER}: the token {findings.largest_token!r} has id {findings.largest_id}, expected ids "
            f"below {vocab_size}, the rows of the embedding; take the tokenizer that the model was trained with"
        )
    if 0 < (findings.largest_id + 1) * LEAST_SHARE < vocab_size:
        files.warn(
            logger,
            "%s: %s has %d tokens, and the model rows for %d; is it the tokenizer that the model was trained with?",
            where, TOKENIZER, findings.largest_id + 1, vocab_size,
        )  # fmt: skip
    ids = dict(zip(special, findings.ids, strict=True))
    for name, token in special.items():
        if ids[name] is None and name == PADDING:
            files.warn(
                logger, "%s: %s: pad_token is %r, which %s does not have; nothing is padded here, so it is not needed",
                where, named[name].file, token[:100], TOKENIZER,
            )  # fmt: skip
        elif ids[name] is None:
            raise IngestError(
                f"{where}: {named[name].file}: {name} is {token!r:.100}, which {TOKENIZER} does not have; {REMEDY}"
            )
    eos = ids.get("eos_token")
    if eos is not None and eos_token_ids and eos not in eos_token_ids:
        files.warn(
            logger,
            "%s: %s ends texts with %r (id %d), generation_config.json with ids %s; generation ends at the latter",
            where, named["eos_token"].file, special["eos_token"], eos, list(eos_token_ids),
        )  # fmt: skip
    flags = msgspec.json.decode(carried.get(CONFIG, b"{}"), type=_Flags)
    _warn_of_added(flags, special, ids, findings.added, where, files)
    warn_of_class(carried, architecture, where, files)


def _warn_of_added(
    flags: _Flags,
    special: Mapping[str, str],
    ids: Mapping[str, int | None],
    added: Sequence[int],
    where: str,
    files: SourceFiles,
) -> None:
    """Log a warning for each of add_bos_token and add_eos_token that tokenizer.json does not do.

    transformers 4 rewrote the post-processor by them for some classes of tokenizers; transformers 5 reads neither
    beside a tokenizer.json (tests/reference/test_tokenizers.py).
    """
    for name, flag, token in (
        ("add_bos_token", flags.add_bos_token, "bos_token"),
        ("add_eos_token", flags.add_eos_token, "eos_token"),
    ):
        token_id = ids.get(token)
        if not isinstance(flag, bool) or token_id is None or flag == (token_id in added):
            continue
        does, follows = ("adds no", "no text gets it") if flag else ("adds", "every text gets it")
        files.warn(
            logger,
            "%s: %s says %s: %s, and the post_processor of %s %s %r; %s, as in transformers 5",
            where, CONFIG, name, str(flag).lower(), TOKENIZER, does, special[token], follows,
        )  # fmt: skip


def check_room(files: Mapping[str, bytes], tokens: int, where: str) -> None:
    """Raise IngestError when an encoder that reads `tokens` tokens of a text reads only special tokens."""
    content = files.get(TOKENIZER)
    if content is None:
        return
    added = Tokenizer(content).added_tokens
    if tokens <= added:
        raise IngestError(
            f"{where}: the longest text in tokens is {tokens}, expected at least {added + 1}: {TOKENIZER} adds "
            f"{added} special ones; raise max_seq_length in sentence_bert_config.json, model_max_length in {CONFIG} or "
            "shapes.context or shapes.text_tokens, whichever set it"
        )


def _tried(content: bytes, tokens: tuple[str, ...], cache: Cache) -> Findings:
    """The findings of a trial that was passed, now or before; raises TokenizerRuleError."""
    import tokenizers

    parts = ("tokenizer trial", TRIAL_VERSION, tokenizers.__version__, tokens)
    key = blake3(repr(parts).encode() + content).hexdigest()
    known = cache.get(key, counts=False)
    if known is not None:
        return msgspec.msgpack.decode(known, type=Findings)
    findings = try_tokenizer(content, tokens)
    cache.put(key, msgspec.msgpack.encode(findings))
    return findings
