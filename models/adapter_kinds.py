"""The tensors of LoHa, LoKr, VeRA, OFT and BOFT adapters as updates of modules.

Shapes are checked as far as they do not depend on the model; the passes that fuse check the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyc.compiler.weights import Expression, MatMul, Source
from pyc.models.adapter_config import EMBEDDINGS, AdapterConfig, lookup, reason_left_alone
from pyc.models.adapter_updates import (
    ButterflyUpdate,
    HadamardUpdate,
    KroneckerUpdate,
    RotationUpdate,
    SharedUpdate,
    Update,
)
from pyc.models.messages import shown
from pyc.runtime.errors import AdapterError

MAX_ALPHA = 1e6
MAX_RANK = 8192
"""A build holds a factor whole; adapters have ranks up to 1024."""

Tensors = Mapping[str, Source]
Parts = dict[str, Source]

_PARTS = {
    "loha": r"hada_(w1_a|w1_b|w2_a|w2_b|t1|t2)",
    "lokr": r"lokr_(w1|w1_a|w1_b|w2|w2_a|w2_b|t2)",
    "vera": r"vera_(lambda_b|lambda_d)",
    "oft": r"oft_(R|embedding_R)",
    "boft": r"boft_(R|s)",
}


def read_updates(kind: str, tensors: Tensors, config: AdapterConfig, taken: set[str], where: str) -> tuple[Update, ...]:
    """Return the updates of an adapter of `kind`; names that they use are added to `taken`."""
    pattern = re.compile(rf"(?P<module>.+)\.{_PARTS[kind]}(\.[^.]+)?(\.weight)?" if kind == "oft" else
                         rf"(?P<module>.+)\.{_PARTS[kind]}(\.[^.]+)?")  # fmt: skip
    modules = dict[str, Parts]()
    for name, source in tensors.items():
        match = pattern.fullmatch(name)
        if match is None or (kind == "vera" and name.startswith("base_model.vera_")):
            continue
        module, part = match["module"], match[2]
        parts = modules.setdefault(module, {})
        if part in parts:
            raise AdapterError(f"{where}: tensors {parts[part].tensor!r} and {source.tensor!r} are the same part")
        reason = reason_left_alone(config, module, where)
        if reason is not None:
            raise AdapterError(f"{where}: tensor {source.tensor!r} belongs to {shown(module)}, {reason}")
        if module.rpartition(".")[2] in EMBEDDINGS:
            raise AdapterError(
                f"{where}: tensor {source.tensor!r} belongs to {shown(module)}, an embedding, where only LoRA can be "
                "fused; merge with PEFT first"
            )
        parts[part] = source
        taken.add(name)
    shared = _shared(tensors, config, taken, where) if kind == "vera" else ()
    return tuple(_update(kind, module, parts, shared, config, where) for module, parts in sorted(modules.items()))


def rank_of(config: AdapterConfig, module: str, where: str) -> int:
    """Return the rank of a module's factors, as the configuration says."""
    rank = int(lookup(config.rank_pattern, module, config.r or 0, where))
    if not 1 <= rank <= MAX_RANK:
        raise AdapterError(f"{where}: {shown(module)} has rank {rank}, expected 1 to {MAX_RANK}")
    return rank


def alpha_of(config: AdapterConfig, module: str, default: float | None, where: str) -> float:
    """Return a module's alpha, as the configuration says."""
    alpha = lookup(config.alpha_pattern, module, default or 0.0, where)
    if abs(alpha) > MAX_ALPHA:
        raise AdapterError(
            f"{where}: adapter_config.json: alpha of {shown(module)} is {alpha:g}, expected at most {MAX_ALPHA:g}"
        )
    return alpha


def scale_of(config: AdapterConfig, module: str, where: str) -> float:
    """Return what LoRA multiplies a module's product by: alpha / rank, or alpha / sqrt(rank) for rsLoRA."""
    rank, alpha = rank_of(config, module, where), alpha_of(config, module, config.lora_alpha, where)
    return alpha / math.sqrt(rank) if config.use_rslora else alpha / rank


def check_form(source: Source, wanted: tuple[int | None, ...], form: str, where: str) -> None:
    """Refuse a tensor without the shape `wanted`, in which None is any size."""
    fits = len(source.shape) == len(wanted) and all(
        size in (None, got) for size, got in zip(wanted, source.shape, strict=True)
    )
    if not fits:
        raise AdapterError(
            f"{where}: tensor {source.tensor!r} has shape {list(source.shape)}, expected {form} "
            "as adapter_config.json says"
        )


def _update(
    kind: str, module: str, parts: Parts, shared: tuple[Source, ...], config: AdapterConfig, where: str
) -> Update:
    match kind:
        case "loha":
            return _hadamard(module, parts, config, where)
        case "lokr":
            return _kronecker(module, parts, config, where)
        case "vera":
            rows, ranks = _taken(module, parts, ("lambda_b", "lambda_d"), "vera_", where)
            check_form(rows, (None,), "[out]", where)
            check_form(ranks, (config.r,), f"[rank] with rank {config.r}", where)
            return SharedUpdate(module, shared[0], shared[1], ranks, rows)
        case "oft":
            return _rotation(module, parts, config, where)
        case _:
            generators, scale = _taken(module, parts, ("R", "s"), "boft_", where)
            factors = config.boft_n_butterfly_factor
            form = "[factors, blocks, size, size]"
            if len(generators.shape) != 4 or generators.shape[2] != generators.shape[3]:
                check_form(generators, (None, None, 0, 0), form, where)
            if generators.shape[0] not in (1, factors):  # PEFT trains one where its CUDA kernel is missing
                check_form(generators, (factors, None, None, None), f"{form} with {factors} factors", where)
            check_form(scale, (None, 1), "[out, 1]", where)
            flat = replace(scale, shape=(scale.shape[0],))
            return ButterflyUpdate(module, generators, flat, config.boft_block_num, config.boft_block_size, factors)


def _hadamard(module: str, parts: Parts, config: AdapterConfig, where: str) -> HadamardUpdate:
    _refuse_convolution(parts, ("t1", "t2"), where)
    rank = rank_of(config, module, where)
    products = list[MatMul]()
    for name in ("w1", "w2"):
        products.append(_product(module, parts, name, "hada_", rank, where))
    first, second = products
    if first.shape != second.shape:
        raise AdapterError(
            f"{where}: tensors {parts['w1_a'].tensor!r} and {parts['w2_a'].tensor!r} make matrices "
            f"{list(first.shape)} and {list(second.shape)}, expected two of one shape"
        )
    return HadamardUpdate(module, first, second, alpha_of(config, module, config.alpha, where) / rank)


def _kronecker(module: str, parts: Parts, config: AdapterConfig, where: str) -> KroneckerUpdate:
    _refuse_convolution(parts, ("t2",), where)
    rank = rank_of(config, module, where)
    factors = list[Expression]()
    for name in ("w1", "w2"):
        if name in parts:
            halves = [parts[half] for half in (f"{name}_a", f"{name}_b") if half in parts]
            if halves:
                raise AdapterError(
                    f"{where}: {shown(module)} has {parts[name].tensor!r} and {halves[0].tensor!r}: expected one or "
                    "the other"
                )
            check_form(parts[name], (None, None), "a matrix", where)
            factors.append(parts[name])
        else:
            factors.append(_product(module, parts, name, "lokr_", rank, where))
    first, second = factors
    scale = alpha_of(config, module, config.alpha, where) / rank
    return KroneckerUpdate(module, first, second, scale, rank, config.decompose_factor, config.decompose_both)


def _product(module: str, parts: Parts, name: str, prefix: str, rank: int, where: str) -> MatMul:
    a, b = _taken(module, parts, (f"{name}_a", f"{name}_b"), prefix, where)
    check_form(a, (None, rank), f"[out, rank] with rank {rank}", where)
    check_form(b, (rank, None), f"[rank, in] with rank {rank}", where)
    return MatMul(a, b)


def _rotation(module: str, parts: Parts, config: AdapterConfig, where: str) -> RotationUpdate:
    if "embedding_R" in parts:
        tensor = parts["embedding_R"].tensor
        raise AdapterError(f"{where}: tensor {tensor!r} rotates an embedding; merge with PEFT first")
    (generators,) = _taken(module, parts, ("R",), "oft_", where)
    check_form(generators, (None, None), "[blocks, n]", where)
    return RotationUpdate(
        module,
        generators,
        config.r or 0,
        config.oft_block_size or 0,
        config.block_share,
        config.num_cayley_neumann_terms if config.use_cayley_neumann else 0,
        config.eps if config.coft else 0.0,
    )


def _shared(tensors: Tensors, config: AdapterConfig, taken: set[str], where: str) -> tuple[Source, ...]:
    """Return VeRA's matrices a [rank, in] and b [out, rank]."""
    found = list[Source]()
    for part, wanted, form in (("A", (config.r, None), "[rank, in]"), ("B", (None, config.r), "[out, rank]")):
        names = [name for name in tensors if re.fullmatch(rf"(base_model\.)?vera_{part}(\.[^.]+)?", name)]
        if len(names) != 1:
            raise AdapterError(f"{where}: {len(names)} tensors base_model.vera_{part}, expected one")
        source = tensors[names[0]]
        check_form(source, wanted, f"{form} with rank {config.r}", where)
        found.append(source)
        taken.add(names[0])
    return tuple(found)


def _taken(module: str, parts: Parts, names: Iterable[str], prefix: str, where: str) -> tuple[Source, ...]:
    for name in names:
        if name not in parts:
            other = next(iter(parts.values())).tensor
            raise AdapterError(f"{where}: {shown(module)} has {other!r} but no {prefix}{name} tensor")
    return tuple(parts[name] for name in names)


def _refuse_convolution(parts: Parts, names: Iterable[str], where: str) -> None:
    for name in names:
        if name in parts:
            raise AdapterError(
                f"{where}: tensor {parts[name].tensor!r} is of a convolution (use_effective_conv2d), which no model "
                "here has"
            )
