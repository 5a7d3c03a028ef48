"""The virtual tokens of a model: keys and values that stand in front of every sequence (ADR 40).

They are a tensor of the artifact, f32 [layers, 2, kv_heads, tokens, head_dim], keys, then values, as attention reads
them: rotated where the model rotates. A reader that does not know them would leave them out, so the header requires
them by name.
"""

from __future__ import annotations

from pyc.runtime.artifact.format import KV_PREFIX, Header
from pyc.runtime.errors import ArtifactError


def virtual_tokens(header: Header) -> int:
    """Return how many positions of every sequence are the artifact's own; 0 for most."""
    if KV_PREFIX not in header.requires:
        return 0
    return next(tensor.shape[3] for tensor in header.tensors if tensor.name == KV_PREFIX)


def usable_context(header: Header) -> int:
    """Return how many tokens a sequence of the user's may have."""
    return header.model.context - virtual_tokens(header)


def check_prefix(header: Header) -> None:
    """The tensor is there when it is required, and no other way; it fits the cache and leaves room behind it."""
    found = next((tensor for tensor in header.tensors if tensor.name == KV_PREFIX), None)
    if (found is not None) != (KV_PREFIX in header.requires):
        there = "there is no tensor of that name" if found is None else "`requires` does not name it"
        raise ArtifactError(f"{KV_PREFIX}: {there}")
    if found is None:
        return
    cache, context = header.model.kv_cache, header.model.context
    if cache is None:
        raise ArtifactError(f"{KV_PREFIX}: the model has no kv_cache")
    shape = found.shape
    expected = (cache.layers, 2, cache.heads, shape[3] if len(shape) == 5 else 1, cache.head_dim)
    if found.dtype != "f32" or shape != expected:
        raise ArtifactError(
            f"{KV_PREFIX}: it is {found.dtype} {list(shape)}, expected f32 [{cache.layers}, 2, {cache.heads}, tokens, "
            f"{cache.head_dim}] as kv_cache says"
        )
    if shape[3] >= context:
        raise ArtifactError(f"{KV_PREFIX}: {shape[3]} tokens leave no room in a context of {context}")
