"""Artifacts of programs without weights (ADR 51): compiled code, buckets and the tensor table of a shape of models.

The header requires them by name, since a reader that does not know them would look for the tensors. Every tensor has
its name, dtype and shape, and an empty span.
"""

from __future__ import annotations

from pyc.runtime.artifact.format import PROGRAM_ONLY, Header
from pyc.runtime.errors import ArtifactError


def is_program_only(header: Header) -> bool:
    """Return whether the artifact has programs and no weights."""
    return PROGRAM_ONLY in header.requires


def require_weights(header: Header, path: object) -> None:
    """Raise ArtifactError, with the remedy, for an artifact at `path` that has none."""
    if is_program_only(header):
        raise ArtifactError(
            f"{path}: has programs and no weights; add those of a checkpoint: pyc attach {path} RECIPE -o model.pyca"
        )


def check_empty(header: Header) -> None:
    """Every tensor of an artifact without weights has an empty span."""
    for tensor in header.tensors:
        if tensor.span.chunk_count:
            raise ArtifactError(
                f"tensor {tensor.name!r}: has {tensor.span.chunk_count} chunks, expected none: `requires` says "
                f"{PROGRAM_ONLY}"
            )
