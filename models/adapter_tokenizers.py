"""Tokenizers and chat templates that lie beside adapters: whether they are those of the artifact.

Trainers save them into the adapter's folder: as copies of the base model's, written again in another form, or with the
tokens and the template that the adapter was trained on. So what they mean is compared, and not their bytes: the ids of
tokens, the tokens that begin and end texts, and the texts of templates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.added_tokens import token_ids
from pyc.models.chat_templates import read_chat_templates
from pyc.models.files import Directory
from pyc.models.messages import quoted
from pyc.models.tokenizer_files import read_tokenizer_config, read_tokenizer_files
from pyc.runtime.errors import PycError
from pyc.runtime.text.chat.template_files import DEFAULT_FILE, SUFFIX
from pyc.runtime.text.special_tokens import CONFIG, MAP, MODEL, TOKENIZER, named_tokens, special_tokens

logger = logging.getLogger(__name__)

_ENDS = ("bos_token", "eos_token")
_UNREAD = ("pad_token", "mask_token", "unk_token")
"""Tokens that a trainer adds to a tokenizer without one, and that no prompt has."""


@dataclass(frozen=True, slots=True)
class OwnTokenizer:
    """What lies beside an adapter: in which folder, what is different in it, whether it is a whole tokenizer and not a
    chat template alone, and whether the model has a row for each of its tokens that texts may have."""

    folder: Directory
    difference: str
    is_whole: bool
    fits: bool


def own_tokenizers(
    adapters: Iterable[Directory], carried: Mapping[str, bytes], rows: int
) -> tuple[OwnTokenizer, ...]:
    """Return the tokenizers and chat templates beside adapters that are not those `carried` by the artifact of a model
    with `rows` of the embedding. What cannot be read counts as different."""
    found = []
    for adapter in adapters:
        with SourceFiles(is_quiet=True) as files:  # these are looked at, and no sources of the build
            own = _own(replace(adapter, files=files), carried, rows)
        if own.difference:
            found.append(replace(own, folder=adapter))
    return tuple(found)


def warn_of_tokenizers(adapters: Iterable[Directory], carried: Mapping[str, bytes], rows: int) -> None:
    """Log a warning for each adapter with a tokenizer or chat template that is not the artifact's."""
    for own in own_tokenizers(adapters, carried, rows):
        label = own.folder.label
        copy = "" if own.is_whole else f"copy {TOKENIZER} and the files that go with it there, and "
        own.folder.files.warn(
            logger,
            "%s: the adapter's folder has a tokenizer or chat template of its own, which is not taken: %s; if it was "
            "trained with that, %swrite `tokenizer: %s` in the recipe; else name the checkpoint there, to say so",
            label, own.difference, copy, label,
        )  # fmt: skip


def _own(adapter: Directory, carried: Mapping[str, bytes], rows: int) -> OwnTokenizer:
    is_whole = True  # a link that leads out is one, too
    try:
        is_whole = adapter.locate(TOKENIZER) is not None
        if not is_whole:
            own = dict(read_chat_templates(adapter, read_tokenizer_config(adapter).chat_template, CONFIG))
            return OwnTokenizer(adapter, _different_template(own, carried), is_whole, fits=False)
        own = dict(read_tokenizer_files(adapter, rows))
        ids = token_ids(own[TOKENIZER], f"{adapter.label}: {TOKENIZER}")
        said = (_different_tokens(own, ids, carried), _different_template(own, carried))
        written = token_ids(adapter.read(TOKENIZER) or b"{}", f"{adapter.label}: {TOKENIZER}")  # before any is left out
        unread = _unread(_special_tokens(own, carried))
        fits = all(number < rows for text, number in written.items() if text not in unread)
        return OwnTokenizer(adapter, " and ".join(part for part in said if part), is_whole, fits)
    except PycError as problem:
        said_of = str(problem).removeprefix(f"{adapter.label}: ")
        return OwnTokenizer(adapter, f"it cannot be read ({said_of})", is_whole, fits=False)


def _different_tokens(own: Mapping[str, bytes], ids: Mapping[str, int], carried: Mapping[str, bytes]) -> str:
    if TOKENIZER not in carried:
        return "the model has no tokenizer"
    ours, theirs = (_special_tokens(files, carried) for files in (own, carried))
    unread, unread_theirs = _unread(ours), _unread(theirs)
    others = ids if own[TOKENIZER] == carried[TOKENIZER] else token_ids(carried[TOKENIZER], TOKENIZER)
    for changed, said in (
        ([text for text in ids if text not in others and text not in unread], "it has more tokens"),
        ([text for text in others if text not in ids and text not in unread_theirs], "it lacks tokens"),
        ([text for text, number in ids.items() if others.get(text, number) != number], "tokens have other ids"),
    ):
        if changed:
            more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
            return f"{said} ({', '.join(map(quoted, changed[:2]))}{more})"
    for name in _ENDS:
        if ours.get(name) != theirs.get(name):
            return f"its {name} is {quoted(ours.get(name))} and not {quoted(theirs.get(name))}"
    return ""


def _special_tokens(files: Mapping[str, bytes], carried: Mapping[str, bytes]) -> dict[str, str]:
    named = named_tokens(files.get(CONFIG), files.get(MAP))
    return special_tokens(named, files[TOKENIZER], files.get(CONFIG), carried.get(MODEL))


def _unread(named: Mapping[str, str]) -> set[str]:
    read = [text for name, text in named.items() if name not in _UNREAD]
    return {text for name, text in named.items() if name in _UNREAD and text not in read}


def _different_template(own: Mapping[str, bytes], carried: Mapping[str, bytes]) -> str:
    """Templates are compared as jinja reads them, which drops one line end behind the last line."""
    for file, text in own.items():
        if not file.endswith(SUFFIX):
            continue
        if file not in carried:
            of_name = "" if file == DEFAULT_FILE else f" {file.rpartition('/')[2].removesuffix(SUFFIX)!r}"
            return f"the model has no chat template{of_name}"
        if text.removesuffix(b"\n") != carried[file].removesuffix(b"\n"):
            return f"{file} is another"
    return ""
