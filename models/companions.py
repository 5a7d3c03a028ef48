"""Which folders the files beside the weights are read from, and adapters that lie in the checkpoint's own.

They are the checkpoint's, but for two cases. Where sentence-transformers saved an encoder's adapter,
`SentenceTransformer(path)` reads all but the base model's weights from the adapter's folder, so pooling, lengths,
prompts and tokenizer are those there. And a recipe may name the folder of a tokenizer, which counts before any other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.adapters import CONFIG as ADAPTER_CONFIG
from pyc.models.adapters import WEIGHTS as ADAPTER_WEIGHTS
from pyc.models.files import Directory
from pyc.models.hub_cache import find_directory
from pyc.models.messages import MAX_SHOWN, shown
from pyc.models.model_source import ModelSource
from pyc.models.sentence import MODULES, SentenceConfig, read_sentence_config
from pyc.runtime.errors import AdapterError, IngestError
from pyc.runtime.text.special_tokens import TOKENIZER


@dataclass(frozen=True, slots=True)
class Companions:
    """The folders that a recipe names: of its checkpoint and its adapters, and of a tokenizer, if it does."""

    checkpoint: Directory
    adapters: tuple[Directory, ...]
    named_tokenizer: Directory | None

    def tokenizer(self, folder: Directory) -> Directory:
        """Return where the tokenizer is that goes with `folder`: the checkpoint's where it has none."""
        if self.named_tokenizer is not None:
            return self.named_tokenizer
        return self.checkpoint if folder.locate(TOKENIZER) is None else folder


@dataclass(frozen=True, slots=True)
class Vectors:
    """How an encoder makes vectors, the folder that says so, and the one of its tokenizer."""

    config: SentenceConfig
    folder: Directory
    tokenizer: Directory


class AdapterBase(Struct, frozen=True):
    """Of adapter_config.json, the model that the adapter was trained on."""

    base_model_name_or_path: str | None = None


def adapter_folder(reference: str, base_dir: Path, files: SourceFiles) -> Directory:
    """Return the folder of an adapter, relative to `base_dir`, or of its hub id. Raises AdapterError."""
    return find_directory(reference, base_dir, files, AdapterError)


def find_companions(source: ModelSource, checkpoint: Directory) -> Companions:
    """Return the folders beside that of the checkpoint, each adapter's once.

    Raises AdapterError for an adapter that is not there, IngestError for a tokenizer that is not, and for an adapter in
    the checkpoint's folder that the recipe does not name.
    """
    adapters = (adapter_folder(path, source.base_dir, checkpoint.files) for path in source.adapters)
    each = tuple({folder.root: folder for folder in adapters}.values())
    companions = Companions(checkpoint, each, _tokenizer_folder(source, checkpoint.files))
    _require_named(source, companions)
    return companions


def _tokenizer_folder(source: ModelSource, files: SourceFiles) -> Directory | None:
    if source.tokenizer is None:
        return None
    try:
        folder = find_directory(source.tokenizer, source.base_dir, files)
    except IngestError as problem:
        raise IngestError(f"tokenizer: {problem}") from problem
    if folder.locate(TOKENIZER) is None:
        raise IngestError(
            f"tokenizer: {folder.label}: no {TOKENIZER}; name a folder that save_pretrained of the tokenizer wrote"
        )
    return folder


def read_vectors(companions: Companions, features: int, positions: int) -> Vectors:
    """Return how an encoder of `positions`, with rows of `features` numbers, makes vectors: as an adapter that
    sentence-transformers saved says, else as the checkpoint.

    Raises IngestError for what `read_sentence_config` refuses, and for adapters that say different things.
    """
    saved = [replace(folder, error=IngestError) for folder in companions.adapters if MODULES in folder.names()]
    first, *others = [_vectors(companions, folder, features) for folder in saved or [companions.checkpoint]]
    for other in others:
        ours, theirs = _said(first.config, positions), _said(other.config, positions)
        if ours != theirs:
            raise IngestError(
                f"{first.folder.label} says {ours}, {other.folder.label} {theirs}, and a text becomes one vector; fuse "
                f"adapters that agree, or remove {MODULES} from the folder of the one that is not to count"
            )
    return first


def _vectors(companions: Companions, folder: Directory, features: int) -> Vectors:
    tokenizer = companions.tokenizer(folder)
    return Vectors(read_sentence_config(folder, features, tokenizer, companions.checkpoint), folder, tokenizer)


def _said(config: SentenceConfig, positions: int) -> str:
    normalized = "normalized" if config.pooling.normalize else "not normalized"
    length = min(config.max_tokens or positions, positions)
    return f"pooling {config.pooling.mode}, {normalized}, {length} tokens, of longer texts the {config.side} end cut"


def _require_named(source: ModelSource, companions: Companions) -> None:
    """Raise IngestError where the checkpoint's folder has an adapter of its own that the recipe does not name.

    transformers 5 loads a folder with both as the model with its adapter, and refuses one without the adapter's
    weights. Of a hub id with both it takes the adapter alone, and the base model that adapter_config.json names.
    """
    checkpoint = companions.checkpoint
    names = checkpoint.names()
    if ADAPTER_CONFIG not in names or any(checkpoint.root == adapter.root for adapter in companions.adapters):
        return
    label, remove = checkpoint.label, f"to build the model without it, remove {ADAPTER_CONFIG}"
    if not os.path.isdir(source.base_dir / os.path.expanduser(source.checkpoint)):
        raise both_on_the_hub(label, checkpoint.parse(ADAPTER_CONFIG, AdapterBase) or AdapterBase())
    if not any(name.startswith("adapter_model.") for name in names):
        raise IngestError(
            f"{label}: {ADAPTER_CONFIG} of an adapter is beside the weights, but no {ADAPTER_WEIGHTS}; transformers "
            f"does not load such a folder; copy the adapter's weights there, or, {remove}"
        )
    raise IngestError(
        f"{label}: an adapter ({ADAPTER_CONFIG}) is beside the weights, and transformers loads the model with it; to "
        f"have that, name the folder under `adapters` of the recipe, too: `- path: {label}` (pyc init {label} "
        f"--adapter {label}); {remove}"
    )


def both_on_the_hub(label: str, adapter: AdapterBase) -> IngestError:
    """The error for a hub id of a model with an adapter beside it that no recipe names."""
    base = adapter.base_model_name_or_path
    named = shown(base, MAX_SHOWN) if base else "the model that it was trained on"
    return IngestError(
        f"{label}: an adapter ({ADAPTER_CONFIG}) is beside the weights, and transformers loads {named} with that "
        f"adapter; to have it, write {named} as `model`, and {label} under `adapters`; to build the weights that "
        f"are here, copy them and their files without {ADAPTER_CONFIG} into a folder"
    )
