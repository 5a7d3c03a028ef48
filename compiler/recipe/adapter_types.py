"""Adapters and how they are merged: a part of the recipe's data (`compiler.recipe.types`)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pyc.compiler.recipe.calibration_types import Text


class AdapterRef(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A PEFT adapter to fuse into the weights."""

    path: Annotated[Text, Meta(description="Adapter's folder, relative to the recipe's folder, or hub id")]
    weight: Annotated[
        float,
        Meta(ge=-100, le=100, description="Factor on the adapter's own scaling; 1: as PEFT"),
    ] = 1.0


class Merge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How LoRA adapters become one before they are fused; methods as PEFT's add_weighted_adapter names them."""

    method: Annotated[
        Literal[
            "linear",
            "cat",
            "svd",
            "ties",
            "ties_svd",
            "dare_linear",
            "dare_linear_svd",
            "dare_ties",
            "dare_ties_svd",
            "magnitude_prune",
            "magnitude_prune_svd",
            "slerp",
        ],
        Meta(description="What is done with the adapters' factors, or (svd, slerp) with their products"),
    ]
    density: Annotated[
        Annotated[float, Meta(ge=0.001, le=1)] | None,
        Meta(description="Share of values that ties, dare and magnitude_prune keep of each adapter"),
    ] = None
    majority_sign: Annotated[
        Literal["total", "frequency"] | None,
        Meta(description="How ties votes on a sign: by the sum of values, or by their number; null: total"),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None, Meta(description="What dare draws the values to keep by")
    ] = None
    rank: Annotated[
        Annotated[int, Meta(ge=1, le=8192)] | None,
        Meta(description="Rank of the result of the methods with svd; null: the adapters' largest"),
    ] = None
