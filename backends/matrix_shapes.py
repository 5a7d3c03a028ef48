"""The shapes of an artifact's matrices, told by their names and by the header, which has only those of panels.

Names are those that Hugging Face gives the tensors of the architectures in `models`, and say what a matrix reads and
makes: a gate reads the hidden state, whose size the header has. Sizes that it does not have, of the queries and of a
feed-forward's inner state, are the rows of the matrices that make them: a bias has as many values; where there is none,
panels of 16 rows leave a range of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pyc.backends.cpu.constants import LANES
from pyc.compiler.stacked_names import names_in_stack
from pyc.runtime.artifact.format import Header, ModelInfo, Tensor
from pyc.runtime.host.rounding import ceil_div

Size = Literal["vocabulary", "positions", "hidden", "queries", "keys", "inner"]

PLACES: Mapping[str, tuple[Size, Size]] = {
    "embed_tokens": ("vocabulary", "hidden"),
    "lm_head": ("vocabulary", "hidden"),
    "self_attn.q_proj": ("queries", "hidden"),
    "self_attn.k_proj": ("keys", "hidden"),
    "self_attn.v_proj": ("keys", "hidden"),
    "self_attn.o_proj": ("hidden", "queries"),
    "mlp.gate_proj": ("inner", "hidden"),
    "mlp.up_proj": ("inner", "hidden"),
    "mlp.down_proj": ("hidden", "inner"),
    "embeddings.word_embeddings": ("vocabulary", "hidden"),
    "embeddings.position_embeddings": ("positions", "hidden"),
    "attention.self.query": ("hidden", "hidden"),
    "attention.self.key": ("hidden", "hidden"),
    "attention.self.value": ("hidden", "hidden"),
    "attention.output.dense": ("hidden", "hidden"),
    "intermediate.dense": ("inner", "hidden"),
    "output.dense": ("hidden", "inner"),
}
"""What a matrix [out, in] makes and reads, by the last parts of its name: the most that are here decide."""
MOST_PARTS = max(name.count(".") for name in PLACES) + 1


def place_of(name: str) -> tuple[Size, Size] | None:
    """Return what a matrix of that name, such as model.layers.0.mlp.up_proj.weight, makes and reads."""
    parts = name.removesuffix(".weight").rsplit(".", MOST_PARTS)[-MOST_PARTS:]
    ends = (".".join(parts[first:]) for first in range(len(parts)))
    return next((PLACES[end] for end in ends if end in PLACES), None)


@dataclass(frozen=True, slots=True)
class MatrixShapes:
    """The sizes of a model; of those that are not known exactly, the least and the most."""

    sizes: Mapping[Size, range]

    def inputs(self, name: str) -> tuple[Size, range] | None:
        """Return what a matrix, or a stack of them, reads, and how many columns that may be; None: not known."""
        place = place_of(names_in_stack(name)[0])
        size = self.sizes.get(place[1]) if place is not None else None
        return (place[1], size) if place is not None and size else None

    def rows(self, name: str, panels: int) -> int:
        """Return how many rows a matrix of so many panels has, those of padding too where others are not known."""
        found = 0
        for part in names_in_stack(name):
            place = place_of(part)
            size = self.sizes.get(place[0]) if place is not None else None
            if not size:
                return panels * LANES
            found += size[-1]
        return found if ceil_div(found, LANES) == panels else panels * LANES

    def with_size(self, size: Size, value: int) -> MatrixShapes:
        """Return the same where one of the sizes is known."""
        return replace(self, sizes={**self.sizes, size: range(value, value + 1)})


def matrix_shapes(header: Header) -> MatrixShapes:
    """Return what a header tells of the sizes of its model."""
    info = header.model
    sizes = _sizes_of(info)
    vectors = (tensor for tensor in header.tensors if len(tensor.shape) == 1)
    biases = {tensor.name: tensor.shape[0] for tensor in vectors if tensor.name.endswith(".bias")}
    for tensor in header.tensors:
        if tensor.dtype != "u8" or len(tensor.shape) != 2:
            continue
        made = _made(tensor, biases, sizes)
        if made is None:
            continue
        size, found = made
        if size == "queries" and info.kv_cache is not None:
            step = info.kv_cache.head_dim
            found = range(ceil_div(found.start, step) * step, found.stop, step)
        known = sizes.get(size, found)
        sizes[size] = _both(known, found) or known
    return MatrixShapes({size: found for size, found in sizes.items() if found})


def _sizes_of(info: ModelInfo) -> dict[Size, range]:
    exact: dict[Size, int] = {"vocabulary": info.vocab_size, "hidden": info.hidden_size}
    if info.kv_cache is not None:
        exact["keys"] = info.kv_cache.heads * info.kv_cache.head_dim
    return {size: range(value, value + 1) for size, value in exact.items()}


def _made(tensor: Tensor, biases: Mapping[str, int], sizes: Mapping[Size, range]) -> tuple[Size, range] | None:
    """The size that a matrix, or each of several in a stack, makes, and its range; None where the header has it."""
    places = [place_of(part) for part in names_in_stack(tensor.name)]
    made = [place[0] for place in places if place is not None]
    open_ = [size for size in made if size in ("queries", "inner")]
    if len(made) < len(places) or len(set(open_)) != 1 or any(size not in sizes for size in made if size not in open_):
        return None
    others = sum(sizes[size][-1] for size in made if size not in open_)
    bias = biases.get(f"{tensor.name.removesuffix('.weight')}.bias", 0)
    last = bias or tensor.shape[0] * LANES
    first = bias or last - LANES + 1
    return open_[0], range(max(1, ceil_div(first - others, len(open_))), (last - others) // len(open_) + 1)


def _both(one: range, two: range) -> range:
    """The values of two ranges, of steps of which one is a multiple of the other, from the first to the last."""
    step = max(one.step, two.step)
    first = ceil_div(max(one.start, two.start), step) * step
    return range(first, min(one.stop, two.stop), step)
