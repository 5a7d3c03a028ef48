"""The schemes that a build chose, for a reader and as JSON."""

from typing import TYPE_CHECKING

from pyc.runtime.host.sizes import human_bytes

if TYPE_CHECKING:
    from pyc.passes.mixed_precision.mixture import Mixture, UniformScheme


def mixture_lines(mixture: "Mixture") -> list[str]:
    """Return a short table of schemes, and what was predicted and measured."""
    shares = mixture.by_scheme()
    rows = [("scheme", "matrices", "bits", "size", f"{mixture.metric} alone")]
    rows += [
        (
            share.scheme,
            str(share.matrices),
            f"{8 * share.size_bytes / share.weights:.2f}",
            human_bytes(share.size_bytes),
            f"{share.distance:.2g}",
        )
        for share in shares
    ]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    table = [
        "  ".join(cell.ljust(width) if not index else cell.rjust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    lines = [
        f"{mixture.goal} {_wanted(mixture)}: {mixture.bits_per_weight:.3f} bits a weight, all tensors "
        f"{mixture.size_bytes:,} bytes",
        *table,
        f"{mixture.metric} {mixture.measured:.4g} measured, {mixture.predicted:.4g} predicted, over "
        f"{mixture.positions} positions of the calibration text",
    ]
    if mixture.tokens_per_second is not None:
        measured, predicted = mixture.tokens_per_second
        lines.append(f"decoding here {measured:.4g} tokens a second measured, {predicted:.4g} predicted")
    if mixture.uniform is not None:
        lines.append(_beside(mixture, mixture.uniform))
    return [f"{'mix' if not index else '':12}{line}" for index, line in enumerate(lines)]


def _wanted(mixture: "Mixture") -> str:
    return f"{int(mixture.wanted):,}" if mixture.goal == "size_bytes" else f"{mixture.wanted:g}"


def _beside(mixture: "Mixture", uniform: "UniformScheme") -> str:
    name = uniform.scheme
    if uniform.embeddings != uniform.scheme:
        name += f", {uniform.embeddings} for embeddings"
    if mixture.is_uniform:
        return f"that is {name} for all: no mix within the goal was better on that text"
    distance = f"{mixture.metric} {uniform.measured:.4g}"
    return f"the best of one scheme for all: {name}, {uniform.size_bytes:,} bytes, {distance}"


def mixture_document(mixture: "Mixture") -> dict[str, object]:
    """Return the mixture as JSON: sizes in bytes, every group of matrices with what rounding it alone is predicted to
    cost, and the recipe's overrides, which build the same artifact without measuring."""
    uniform = mixture.uniform
    return {
        "goal": mixture.goal,
        "wanted": mixture.wanted,
        "size_bytes": mixture.size_bytes,
        "matrix_bytes": mixture.matrix_bytes,
        "bits_per_weight": round(mixture.bits_per_weight, 4),
        "metric": mixture.metric,
        "positions": mixture.positions,
        "predicted": mixture.predicted,
        "measured": mixture.measured,
        "is_uniform": mixture.is_uniform,
        "tokens_per_second": None
        if mixture.tokens_per_second is None
        else dict(zip(("measured", "predicted"), mixture.tokens_per_second, strict=True)),
        "uniform": None
        if uniform is None
        else {
            "scheme": uniform.scheme,
            "embeddings": uniform.embeddings,
            "size_bytes": uniform.size_bytes,
            "measured": uniform.measured,
        },
        "groups": [
            {
                "names": list(group.names),
                "scheme": group.scheme,
                "size_bytes": group.size_bytes,
                "weights": group.weights,
                "predicted": group.distance,
                "is_fixed": group.is_fixed,
            }
            for group in mixture.groups
        ],
        "overrides": [
            {"match": override.match, "scheme": override.scheme} for override in mixture.recipe.quantize.overrides
        ],
    }
