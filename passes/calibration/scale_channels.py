"""Scale channels: multiply columns of matrices by factors, and what makes their inputs by the inverse of these.

The model stays the same function, and its matrices lose less by rounding (`compiler.channel_scales`). Inputs are made
by a norm, whose gain takes the inverse; by values of attention, of which outputs are sums; or by the rows that a gate
is multiplied with. Where nothing of these can take it, or other things read it too, a matrix stays as it is.
SmoothQuant scales behind norms alone. Values of virtual tokens come from no product, so that a model with some keeps
the channels of attention's.

The exact graph is interpreted once over the text, as in `calibrate`. Factors go to a file of the build, and to the
build cache, from which an interrupted build goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from blake3 import blake3

from pyc.compiler.channel_scales import awq_scales, shared, smoothing_scales
from pyc.compiler.evaluate import evaluate_rows, is_rounded, stored_scheme, unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import map_functions, weight_readers, with_operations
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Dense, Quantized
from pyc.compiler.weights import Expression, ScaledColumns, ScaledRows, Source, Stacked, Stored
from pyc.passes.interpretation.interpret_text import Windows, floats, quantized, stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.runtime.errors import QuantizeError

VERSION = 1
"""Changes when the same text would give other factors."""

Method = Literal["awq", "smoothquant"]


@dataclass(frozen=True, slots=True)
class Site:
    """A value that `matrices` read and nothing else does. `maker` takes the inverse: a norm, or a product of which rows
    [start, stop) do. `heads` are those of values, and how many of queries read each."""

    value: str
    matrices: tuple[str, ...]
    maker: Operation
    start: int = 0
    stop: int = 0
    heads: tuple[int, int] = (1, 1)


def scale_channels(
    module: Module,
    method: Method,
    names: frozenset[str],
    strength: float,
    windows: Windows,
    files: SourceFiles,
    cache: Cache,
    key: str,
    folder: Path,
    advance: Callable[[int], None],
) -> Module:
    """Return the module, whose passes are the common ones, with scaled channels.

    Those are scaled that matrices of `names` alone read. `key` stands for the module and the text. `folder` gets a file
    that is read as long as the build lasts; `advance` is told how many weights are done. Raises QuantizeError,
    IngestError and OSError.
    """
    model = Predictor(module, windows)
    sites = sites_for(method, names, module, model.body)
    if method == "smoothquant" and not _has_norm_sites(module, model.body):
        raise QuantizeError(
            "quantize.algorithm: smoothquant: no norm of this model is read by products alone; take gptq or imatrix"
        )
    keys = {site.value: _entry(key, VERSION, method, strength, site.value) for site in sites}
    scales: dict[str, Floats] = {}
    for site in sites:
        data = cache.get(keys[site.value], counts=False)
        if data is not None:
            scales[site.value] = np.frombuffer(data, np.float32)
    search = _Search(module, files, method, strength)
    missing = [site for site in sites if site.value not in scales]
    advance(sum(_size(module.weights[name]) for site in sites if site not in missing for name in site.matrices))
    waiting = {_first_reader(site, model.body): site for site in missing}
    for index, values in model.steps(partial(_exact_rows, module, files)) if waiting else ():
        if index in waiting:
            site = waiting.pop(index)
            scales[site.value] = search.scales(site, floats(values[site.value]))
            files.check()
            cache.put(keys[site.value], scales[site.value].tobytes())
            advance(sum(_size(module.weights[name]) for name in site.matrices))
        if not waiting:
            break
    path = folder / "scales"
    made, numbers = _scaled(module, sites, scales, path)
    path.write_bytes(numbers)
    return made


def as_if_scaled(module: Module, method: Method, names: frozenset[str]) -> Module:
    """Return what `scale_channels` makes of a module, but for the factors: they are in no file, and not to be read."""
    function = next(f for f in module.graph.functions if f.name in ("forward", "embed"))
    sites = sites_for(method, names, module, function)
    ones = {site.value: np.ones(module.weights[site.matrices[0]].shape[1], np.float32) for site in sites}
    return _scaled(module, sites, ones, Path("unknown"))[0]


def scaled_weights(module: Module, method: Method, names: frozenset[str]) -> int:
    """Return how many weights factors are searched for."""
    function = next(f for f in module.graph.functions if f.name in ("forward", "embed"))
    sites = sites_for(method, names, module, function)
    return sum(_size(module.weights[name]) for site in sites for name in site.matrices)


def sites_for(method: Method, names: frozenset[str], module: Module, function: Function) -> list[Site]:
    """Return where a method scales channels of a function for matrices of `names`, in its order."""
    found = [site for site in found_sites(module, function) if names.issuperset(site.matrices)]
    return [site for site in found if method == "awq" or site.maker.kind != "linear"]


def _entry(*parts: object) -> str:
    return blake3(repr(parts).encode()).hexdigest()


def found_sites(
    module: Module, function: Function, may_read: Callable[[Module, Operation], bool] | None = None
) -> list[Site]:
    """Return where channels of a function can be scaled, in its order: of what all readers are such as `may_read` says,
    by default products that are quantized and not rounded yet."""
    is_free = may_read or _is_free
    users, makers = function.users(), function.definitions()
    found: list[Site] = []
    for operation in function.operations:
        name = operation.result.name
        readers = users.get(name, ())
        if name == function.result or not readers or not all(is_free(module, reader) for reader in readers):
            continue
        site = Site(name, tuple(reader.weights[0] for reader in readers), operation)
        if operation.kind == "rms_norm":
            if all(not weight or len(weight_readers(module.graph, weight)) == 1 for weight in operation.weights):
                found.append(site)
        elif operation.kind == "gated":
            found += _behind_rows(module, site, operation.operands[1], users, makers)
        elif operation.kind in ("attention", "span_attention") and module.prefix is None:
            heads = operation.integer("heads")
            kv_heads = operation.integer("kv_heads") if operation.kind == "attention" else heads
            grouped = replace(site, heads=(kv_heads, heads // kv_heads))
            found += _behind_rows(module, grouped, operation.operands[2], users, makers)
    return found


def _behind_rows(
    module: Module,
    site: Site,
    operand: str,
    users: Mapping[str, tuple[Operation, ...]],
    makers: Mapping[str, Operation],
) -> list[Site]:
    """Return the site if what it reads comes of rows of a product alone, through `operand`; else nothing."""
    maker = makers.get(operand)
    if maker is None or len(users[operand]) != 1 or users[operand][0].operands.count(operand) != 1:
        return []
    start, stop = 0, 0
    if maker.kind == "slice":
        start, stop = maker.integer("start"), maker.integer("stop")
        maker = makers.get(maker.operands[0])
    if maker is None or not _is_free(module, maker) or maker.weights[1]:
        return []
    rows = module.weights[maker.weights[0]].shape[0]
    parts = _parts(module.weights[maker.weights[0]])
    ends = np.cumsum([0, *(part.shape[0] for part in parts)]).tolist()
    stop = stop or rows
    if start not in ends or stop not in ends or any(start < end < stop for end in ends):
        return []
    return [replace(site, maker=maker, start=start, stop=stop)]


def _is_free(module: Module, operation: Operation) -> bool:
    """Whether an operation is a product of a matrix of its own that is quantized and not rounded yet."""
    if not _is_alone(module, operation):
        return False
    weight = module.weights[operation.weights[0]]
    return isinstance(stored_scheme(weight), Quantized) and not is_rounded(weight)


def _is_alone(module: Module, operation: Operation) -> bool:
    """Whether an operation is a product of a matrix of its own."""
    return operation.kind == "linear" and len(weight_readers(module.graph, operation.weights[0])) == 1


def _has_norm_sites(module: Module, function: Function) -> bool:
    """Whether products alone read some norm, whatever their schemes, which a goal may choose."""
    return any(site.maker.kind != "linear" for site in found_sites(module, function, _is_alone))


def _first_reader(site: Site, function: Function) -> int:
    return next(i for i, operation in enumerate(function.operations) if site.value in operation.operands)


def _size(expression: Expression) -> int:
    rows, columns = expression.shape
    return rows * columns


def _parts(expression: Expression) -> tuple[Expression, ...]:
    return expression.parts if isinstance(expression, Stacked) else (expression,)


def _exact_rows(module: Module, files: SourceFiles, name: str, start: int, stop: int) -> Floats:
    expression = module.weights[name]
    if isinstance(stored_scheme(expression), Dense) or is_rounded(expression):
        return stored_rows(name, expression, start, stop, files)
    return evaluate_rows(unstored(expression), start, stop, files)


class _Search:
    """Factors of a site, by its inputs."""

    def __init__(self, module: Module, files: SourceFiles, method: Method, strength: float) -> None:
        self._module, self._files, self._method, self._strength = module, files, method, strength

    def scales(self, site: Site, x: Floats) -> Floats:
        """Return factors f32 [K] for inputs x [tokens, K]."""
        weights = self._module.weights
        matrices = [
            (evaluate_rows(unstored(weights[name]), 0, weights[name].shape[0], self._files), weights[name])
            for name in site.matrices
        ]
        try:
            if self._method == "smoothquant":
                return smoothing_scales(np.abs(x).max(axis=0), [rows for rows, _ in matrices], self._strength)
            given = [(rows, quantized(stored_scheme(weight))) for rows, weight in matrices]
            return awq_scales(np.abs(x).mean(axis=0), x.T @ x, given, site.heads)
        except QuantizeError as error:
            raise QuantizeError(f"calibrate: {site.matrices[0]}: {error}") from error


def _scaled(module: Module, sites: list[Site], scales: Mapping[str, Floats], path: Path) -> tuple[Module, bytes]:
    """Return the module with these factors for its sites, and their numbers, which it reads from `path`."""
    weights = dict(module.weights)
    gains: dict[str, Operation] = {}
    written = bytearray()

    def vector(name: str, values: Floats) -> Source:
        offset = len(written)
        written.extend(values.astype("<f4").tobytes())
        return Source(str(path), name, "f32", (len(values),), offset, 4 * len(values))

    for site in sites:
        s = scales[site.value]
        factors, inverse = vector(f"{site.value}.scales", s), np.float32(1) / s
        for name in site.matrices:
            weights[name] = _with_columns(weights[name], factors)
        if site.maker.kind != "linear":
            less = vector(f"{site.value}.inverse", inverse)
            names = [name or f"{site.value}.gain" for name in site.maker.weights]
            for name, old in zip(names, site.maker.weights, strict=True):
                whole = ScaledRows(_base(weights[old]), less) if old else less
                weights[name] = Stored(whole, Dense("f32"))
            gains[site.value] = replace(site.maker, weights=tuple(names))
            continue
        less = vector(f"{site.value}.inverse", shared(inverse, *site.heads))
        name, rows = site.maker.weights[0], 0
        parts: list[Expression] = []
        for part in _parts(weights[name]):
            is_meant = site.start <= rows < site.stop
            parts.append(_stored(part, ScaledRows(_base(part), less)) if is_meant else part)
            rows += part.shape[0]
        weights[name] = Stacked(tuple(parts)) if isinstance(weights[name], Stacked) else parts[0]

    def with_gains(function: Function) -> Function:
        return with_operations(function, [gains.get(o.result.name, o) for o in function.operations], {})

    return module.with_graph(map_functions(module.graph, with_gains), weights), bytes(written)


def _base(expression: Expression) -> Expression:
    assert isinstance(expression, Stored), type(expression).__name__
    return expression.base


def _stored(expression: Expression, base: Expression) -> Stored:
    assert isinstance(expression, Stored), type(expression).__name__
    return replace(expression, base=base)


def _with_columns(expression: Expression, factors: Source) -> Expression:
    parts = tuple(_stored(part, ScaledColumns(_base(part), factors)) for part in _parts(expression))
    return Stacked(parts) if isinstance(expression, Stacked) else parts[0]
