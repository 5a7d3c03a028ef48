"""Rules of a recipe's `quantize` that join several keys: aliases, goals and patterns."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyc.compiler.name_patterns import PatternError, name_pattern
from pyc.compiler.recipe.places import find_node, mark_of, shortened
from pyc.compiler.recipe.types import UNCODED, Override, Quantize
from pyc.compiler.recipe.yaml import Mark, Node, fail
from pyc.compiler.schemes import ALIASES, Activations, activations_beside

GOALS = ("size_bytes", "bits_per_weight", "max_kl", "min_tok_s")
"""Keys of quantize by which a build chooses schemes."""

SCALING = ("awq", "smoothquant")
"""What names of algorithms that scale channels begin with."""


def _check_goal(quantize: Quantize, node: Node) -> None:
    """At most one goal, and beside it no scheme for all."""
    goal = quantize.goal()
    if goal is None:
        return
    others = [name for name in GOALS if name != goal[0] and getattr(quantize, name) is not None]
    if others:
        fail(
            mark_of(node, "quantize", others[0]),
            f"quantize.{others[0]}: {goal[0]} is there already, expected one of {', '.join(GOALS)}; remove the others",
        )
    if quantize.scheme != "none":
        fail(
            mark_of(node, "quantize", "scheme"),
            f"quantize.scheme: got {quantize.scheme!r}, but {goal[0]} chooses schemes; remove one of the keys "
            "(overrides and embeddings fix those of some matrices)",
        )


def canonical_quantize(quantize: Quantize, node: Node) -> Quantize:
    """Return names of schemes made canonical: an alias ending in A16 or A8 also says what activations are."""
    _check_goal(quantize, node)
    named = (quantize.scheme, quantize.embeddings, *(override.scheme for override in quantize.overrides))
    if quantize.goal() is None and quantize.algorithm != "rtn" and UNCODED.issuperset(named):
        fail(
            mark_of(node, "quantize", "algorithm"),
            f"quantize.algorithm: got {quantize.algorithm!r}, but scheme {quantize.scheme} has no codes to choose; "
            "remove it (--set quantize.algorithm=rtn), or write a scheme of codes, such as int4-g32",
        )
    if quantize.calibration.imatrix is not None and "imatrix" not in quantize.algorithms():
        fail(
            mark_of(node, "quantize", "calibration", "imatrix"),
            "quantize.calibration.imatrix: no matrix is rounded by it; write algorithm: imatrix, or remove the key",
        )
    smooths = any(name.startswith("smoothquant") for name in quantize.algorithms())
    if quantize.migration != Quantize().migration and not smooths:
        fail(
            mark_of(node, "quantize", "migration"),
            "quantize.migration: no matrix is scaled by it; write algorithm: smoothquant, or remove the key",
        )
    if quantize.calibration.generate is not None and quantize.calibration.text is not None:
        fail(
            mark_of(node, "quantize", "calibration", "generate"),
            "quantize.calibration.generate: there is a text already; remove one of the keys",
        )
    meant = _activations_of(quantize.scheme)
    written = find_node(node, "quantize", "activations")
    if meant is not None and written is not None and not _agree(quantize.activations, meant):
        fail(
            written.mark,
            f"quantize.activations: got {quantize.activations!r}, but scheme {quantize.scheme} means {meant};"
            f" write scheme: {ALIASES[quantize.scheme]} to choose activations",
        )
    activations = meant if meant is not None and written is None else quantize.activations
    overrides = []
    for index, override in enumerate(quantize.overrides):
        _check_pattern(override, mark_of(node, "quantize", "overrides", index, "match"), index)
        mark = mark_of(node, "quantize", "overrides", index, "scheme")
        _check_algorithm(quantize, override, mark_of(node, "quantize", "overrides", index, "algorithm"), index)
        scheme = _canonical(override.scheme, activations, mark)
        overrides.append(msgspec.structs.replace(override, scheme=scheme))
    return msgspec.structs.replace(
        quantize,
        scheme=ALIASES.get(quantize.scheme, quantize.scheme),
        activations=activations,
        overrides=tuple(overrides),
        embeddings=_canonical(quantize.embeddings, activations, mark_of(node, "quantize", "embeddings")),
    )


def _activations_of(scheme: str) -> Literal["f32", "int8"] | None:
    """What an alias says of activations; None for a canonical name, and where only f32 comes into question."""
    if scheme not in ALIASES or scheme.startswith("FP8"):
        return None
    return "f32" if "A16" in scheme else "int8"


def _agree(activations: Activations, meant: str) -> bool:
    """Whether a recipe's activations are what an alias means: bf16 and fp8 leave those of integer codes int8."""
    return meant == activations_beside(activations)


def _canonical(scheme: str, activations: Activations, mark: Mark) -> str:
    """The canonical name of `scheme`; what an alias says of activations must hold for the recipe."""
    meant = _activations_of(scheme)
    if meant is not None and not _agree(activations, meant):
        fail(
            mark,
            f"scheme {scheme} means {meant} activations, but quantize.activations is {activations} for all"
            f" layers; write {ALIASES[scheme]}",
        )
    return ALIASES.get(scheme, scheme)


def _check_algorithm(quantize: Quantize, override: Override, mark: Mark, index: int) -> None:
    """An algorithm chooses codes, and channels are scaled in one way."""
    algorithm, where = override.algorithm, f"quantize.overrides[{index}].algorithm"
    if algorithm is None:
        return
    if override.scheme in UNCODED and algorithm != "rtn":
        fail(mark, f"{where}: got {algorithm!r}, but scheme {override.scheme} has no codes to choose; remove it")
    if len(ways := {name.split("-")[0] for name in quantize.algorithms() if name.startswith(SCALING)}) > 1:
        fail(mark, f"{where}: got {algorithm!r}, but a recipe scales channels in one way: {' or '.join(sorted(ways))}")


def _check_pattern(override: Override, mark: Mark, index: int) -> None:
    if not override.match.startswith("re:"):
        return
    where = f"quantize.overrides[{index}].match"
    if override.match == "re:":
        fail(mark, f"{where}: the regular expression after re: is empty")
    try:
        name_pattern(override.match[3:])
    except PatternError as error:
        fail(
            mark,
            f"{where}: got {shortened(override.match)}, expected a regular expression after re: ({error})",
        )
