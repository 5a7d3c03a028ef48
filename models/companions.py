"""Adapters beside a checkpoint's weights, which transformers applies, and a build where its recipe names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.adapters import CONFIG as ADAPTER_CONFIG
from pyc.models.adapters import WEIGHTS as ADAPTER_WEIGHTS
from pyc.models.files import Directory
from pyc.models.hub_cache import find_directory
from pyc.models.messages import MAX_SHOWN, shown
from pyc.runtime.errors import AdapterError, IngestError


class _Base(Struct, frozen=True):
    base_model_name_or_path: str | None = None


def adapter_folders(adapters: Sequence[str], base_dir: Path, files: SourceFiles) -> tuple[Directory, ...]:
    """Return the folders of a recipe's adapters, each once. Raises AdapterError."""
    found = (find_directory(path, base_dir, files, AdapterError) for path in adapters)
    return tuple({folder.root: folder for folder in found}.values())


def require_named(checkpoint: Directory, reference: str, base_dir: Path, adapters: Sequence[Directory]) -> None:
    """Raise IngestError where the checkpoint's folder has an adapter of its own that is none of `adapters`.

    transformers 5 loads a folder with both as the model with its adapter, and refuses one without the adapter's
    weights. Of a hub id with both it takes the adapter alone, and the base model that adapter_config.json names.
    """
    names = checkpoint.names()
    if ADAPTER_CONFIG not in names or any(checkpoint.root == adapter.root for adapter in adapters):
        return
    label, remove = checkpoint.label, f"to build the model without it, remove {ADAPTER_CONFIG}"
    if not os.path.isdir(base_dir / os.path.expanduser(reference)):
        base = (checkpoint.parse(ADAPTER_CONFIG, _Base) or _Base()).base_model_name_or_path
        named = shown(base, MAX_SHOWN) if base else "the model that it was trained on"
        raise IngestError(
            f"{label}: an adapter ({ADAPTER_CONFIG}) is beside the weights, and transformers loads {named} with that "
            f"adapter; to have it, write {named} as `model`, and {label} under `adapters`; to build the weights that "
            f"are here, copy them and their files without {ADAPTER_CONFIG} into a folder"
        )
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
