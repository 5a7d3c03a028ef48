"""What calibration looks at: a part of the recipe's data (`compiler.recipe.types`)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class CalibrationText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text whose activations algorithms look at, and what they know without one."""

    text: Annotated[
        Text | None,
        Meta(description="A file of UTF-8 text, relative to the recipe's folder; null: Python's documentation"),
    ] = None
    tokens: Annotated[int, Meta(ge=256, le=1 << 22, description="Tokens of it that are used, from its start")] = 16384
    window: Annotated[int, Meta(ge=16, le=1 << 16, description="Tokens that are read together")] = 512
    generate: Annotated[
        Annotated[int, Meta(ge=256, le=1 << 20)] | None,
        Meta(description="So many tokens that the model itself generates, in place of a text"),
    ] = None
    seed: Annotated[int, Meta(ge=0, le=1 << 53, description="What generate draws them by")] = 0
    imatrix: Annotated[
        Text | None,
        Meta(description="A file of llama-imatrix (llama.cpp), .gguf or .dat, in place of a text for imatrix"),
    ] = None
