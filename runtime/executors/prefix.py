"""The virtual tokens of an artifact, read for the executor that writes them to its cache."""

from __future__ import annotations

from typing import cast

from pyc.runtime.artifact.format import KV_PREFIX
from pyc.runtime.artifact.prefix import virtual_tokens
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.executors.protocol import FloatArray, RandomWeights
from pyc.runtime.executors.random_weights import filled_tensors


def read_prefix(artifact: Artifact, random_weights: RandomWeights | None = None) -> FloatArray | None:
    """Return keys and values f32 [layers, 2, kv_heads, tokens, head_dim]; None for an artifact without any.

    With `random_weights` they are not read. Raises ArtifactError for damaged bytes.
    """
    if not virtual_tokens(artifact.header):
        return None
    if random_weights is not None:
        return cast("FloatArray", filled_tensors(artifact.header, [KV_PREFIX], random_weights)[KV_PREFIX])
    return cast("FloatArray", artifact.tensor(KV_PREFIX))
