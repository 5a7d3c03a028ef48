"""The names of weights that are stacked of several: layer.q_proj+k_proj.weight (`passes.stack_linear`)."""

from __future__ import annotations


def names_in_stack(stacked: str) -> list[str]:
    """Return the names of the matrices that a weight is stacked of: a.q+k.weight is a.q.weight and a.k.weight."""
    stem, _, kind = stacked.rpartition(".")
    first, *others = stem.split("+")
    prefix = first.rpartition(".")[0]
    return [f"{first}.{kind}", *(".".join(filter(None, (prefix, other, kind))) for other in others)]
