"""A calibration text that the model generates itself, for who has none: windows of tokens drawn from its predictions.

Every window begins with the token that texts begin with, or, where the model has none, with one of the vocabulary, each
as likely; the next is drawn from the model's distribution, temperature 1, by an inverse CDF in f64 with one uniform
number of PCG64 a token. Behind a token that ends texts another text begins; where texts begin with the very token that
ends them, as in Qwen3 and GPT-2, one token does both. The graph of logical operators is interpreted in f32 with exact
weights, some windows side by side, a position a step: all weights are in memory, and are read once a position. The seed
and the weights decide what is drawn, but for the last bits of sums: another CPU may draw another token here and there.
Tokens are kept in the build cache.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.compiler.digest import expression_digest
from pyc.compiler.evaluate import evaluate_rows, unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.interpret import Interpreter
from pyc.compiler.ir import Module
from pyc.compiler.operands import sources
from pyc.compiler.recipe.types import Recipe
from pyc.compiler.scales import Floats
from pyc.compiler.text import print_graph
from pyc.compiler.weights import Stacked, Stored
from pyc.passes.interpretation.interpret_text import Windows
from pyc.runtime.errors import QuantizeError
from pyc.runtime.text.counted import counted

VERSION = 2
"""Changes when the same weights and seed would give other tokens."""

MOST_CACHE_BYTES = 1 << 30
"""Of keys and values of the windows that are generated side by side."""

LEAST_SHARE = 8
"""A model whose tokens within its texts are fewer than one in so many ends its texts at once."""

FEWEST_DIFFERENT = 4
"""Fewer different tokens within texts are no text: models of DNA have four."""

Ids = NDArray[np.int32]


def generated_windows(recipe: Recipe, module: Module, files: SourceFiles, cache: Cache | None) -> Windows:
    """Return the tokens that a decoder generates for a recipe whose calibration says so, the same for the same weights.

    Without a `cache` they are zeros, for who asks what would be recorded. Raises QuantizeError for an encoder, for
    virtual tokens, where there are fewer tokens than a window has, and where what was drawn is hardly a text.
    """
    wanted = recipe.quantize.calibration
    assert wanted.generate is not None
    window = min(wanted.window, module.usable_context)
    where = "quantize.calibration.generate"
    if module.info.kv_cache is None:
        raise QuantizeError(f"{where}: an encoder generates nothing; give a text")
    if module.prefix is not None:
        raise QuantizeError(f"{where}: not behind virtual tokens; give a text")
    if wanted.generate < window:
        raise QuantizeError(
            f"{where}: got {wanted.generate}, expected at least {window}, one window; raise it, or lower "
            "quantize.calibration.window"
        )
    count = wanted.generate // window
    first = module.info.vocab_size if module.generation.bos_token_id is None else (module.generation.bos_token_id,)
    drawn = VERSION, count, window, wanted.seed, first, _ends(module)
    digest = blake3(f"generated {drawn}".encode()).hexdigest()
    if cache is None:
        return Windows(np.zeros((count, window), np.int32), digest)
    key = blake3(repr((digest, *_weights_key(module, files))).encode()).hexdigest()
    data = cache.get(key, counts=False)
    if data is None:
        data = _generated(module, files, count, window, wanted.seed).astype("<i4").tobytes()
        files.check()
        cache.put(key, data)
    ids = np.frombuffer(data, "<i4").reshape(count, window).astype(np.int32)
    _require_text(ids, module)
    return Windows(ids, digest)


def _ends(module: Module) -> tuple[int, ...]:
    """The tokens behind which a start is put: those that end texts, but for the start itself, which would follow itself
    for ever."""
    return tuple(end for end in module.generation.eos_token_ids if end != module.generation.bos_token_id)


def _require_text(ids: Ids, module: Module) -> None:
    """Raise QuantizeError for tokens that round a model worse than no calibration at all."""
    marks = {*module.generation.eos_token_ids, module.generation.bos_token_id} - {None}
    within = ids[~np.isin(ids, sorted(marks))]
    different = len(np.unique(within))
    if within.size * LEAST_SHARE < ids.size:
        found = f"only {within.size:,} of {ids.size:,} tokens are not its starts and ends: it ends its texts at once"
    elif different < FEWEST_DIFFERENT:
        found = f"it has {counted(different, 'different token')} in {ids.size:,}"
    else:
        return
    raise QuantizeError(f"quantize.calibration.generate: what the model writes is hardly a text: {found}; give a text")


def _weights_key(module: Module, files: SourceFiles) -> tuple[object, ...]:
    """What stands for the model, whatever its schemes."""
    paths = {source.path for weight in module.weights.values() for source in sources(weight)}
    digests = {path: files.digest(path) for path in sorted(paths)}
    exact = [(name, expression_digest(_exact(module, name), digests)) for name in module.weights]
    return print_graph(module.graph), exact


def _exact(module: Module, name: str) -> Stored | Stacked:
    """A weight without its scheme."""
    weight = module.weights[name]
    found = unstored(weight) if isinstance(weight, Stored | Stacked) else weight
    return found  # type: ignore[return-value]


def _generated(module: Module, files: SourceFiles, count: int, window: int, seed: int) -> Ids:
    cache = module.info.kv_cache
    assert cache is not None
    weights: dict[str, Floats] = {
        name: evaluate_rows(_exact(module, name), 0, weight.shape[0], files) for name, weight in module.weights.items()
    }
    draw = np.random.Generator(np.random.PCG64(seed))
    a_window = 2 * 4 * cache.layers * cache.heads * cache.head_dim * window
    together = max(1, min(count, MOST_CACHE_BYTES // a_window))
    parts: list[Ids] = []
    for at in range(0, count, together):
        model = Interpreter(module.graph, weights, is_float32=True)
        parts.append(_side_by_side(model, module, min(together, count - at), window, draw))
    return np.concatenate(parts)


def _side_by_side(model: Interpreter, module: Module, count: int, window: int, draw: np.random.Generator) -> Ids:
    """Return so many windows, a position of all of them at a time."""
    ids, sequences = np.zeros((count, window), np.int32), np.arange(count, dtype=np.int32)
    ends = np.array(_ends(module), np.int32)
    blocks = -(-window // 64)
    table = np.arange(count * blocks, dtype=np.int32).reshape(count, blocks)
    ids[:, 0] = _first(module, count, draw)
    for position in range(window - 1):
        given = {"token_ids": ids[:, position], "positions": np.full(count, position, np.int32)}
        hidden = model.run("forward", {**given, "sequences": sequences, "block_table": table})
        drawn = _drawn(model.run("logits", {"hidden": hidden}), draw)
        first = _first(module, count, draw)  # as many numbers are drawn whatever ends
        ids[:, position + 1] = np.where(np.isin(ids[:, position], ends), first, drawn)
    return ids


def _first(module: Module, count: int, draw: np.random.Generator) -> Ids:
    found = draw.integers(module.info.vocab_size, size=count).astype(np.int32)
    start = module.generation.bos_token_id
    return found if start is None else np.full(count, start, np.int32)


def _drawn(logits: NDArray[np.floating], draw: np.random.Generator) -> Ids:
    """Return a token for each row of logits [windows, vocabulary]."""
    wide = logits.astype(np.float64)
    masses = np.cumsum(np.exp(wide - wide.max(axis=1, keepdims=True)), axis=1)
    numbers = draw.random(len(wide)) * masses[:, -1]
    found: Ids = (masses <= numbers[:, None]).sum(axis=1).clip(max=wide.shape[1] - 1).astype(np.int32)
    return found
