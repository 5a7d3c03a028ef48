"""How the tensors of an artifact are stored, whichever backend reads them: found out from its header."""

from __future__ import annotations

from collections.abc import Sequence

from pyc.backends.cpu import stored_schemes
from pyc.backends.cpu.stored_schemes import StoredWeight
from pyc.backends.cuda import stored_schemes as cuda_stored_schemes
from pyc.backends.onnx.stored_schemes import counts, stored_parts
from pyc.backends.recipe_schemes import RecipeSchemes
from pyc.runtime.artifact.format import Header

__all__ = ["StoredWeight", "main_scheme", "scheme_bytes", "stored_weights", "weights_of"]

main_scheme = stored_schemes.main_scheme


def stored_weights(header: Header) -> tuple[StoredWeight, ...]:
    """Return how every tensor is stored, in the header's order. Raises nothing, whatever the header says."""
    schemes = RecipeSchemes(header)
    parts = {**stored_parts(header, schemes), **cuda_stored_schemes.stored_parts(header, schemes)}
    return tuple(parts.get(weight.name, weight) for weight in stored_schemes.stored_weights(header, schemes))


def weights_of(header: Header) -> dict[str, tuple[StoredWeight, ...]]:
    """Return the weights that programs of each backend read, in the header's order of backends."""
    read: dict[str, set[str]] = {}
    for program in header.programs:
        names = read.setdefault(program.backend, set())
        names.update(name for function in program.functions for name in function.weights)
    weights = stored_weights(header)
    if not read:
        return {"": weights}
    return {backend: tuple(weight for weight in weights if weight.name in names) for backend, names in read.items()}


def scheme_bytes(weights: Sequence[StoredWeight]) -> tuple[tuple[str, int, int], ...]:
    """Return the name, the number of matrices and the bytes of each scheme, that of the most bytes first."""
    found = counts(weights)
    return tuple((name, found[name], size) for name, _, size in stored_schemes.scheme_bytes(tuple(weights)))
