"""A small language model in numpy behind the Executor protocol, for tests of what lies above the executor.

It keeps a paged cache as compiled code does: `forward` writes each row's token into the block that the
block table names, then reads the row's whole context back through the table. The hidden row depends on every
visible token and its position, so a wrong position, block, order or bucket changes the logits.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pyc.runtime.artifact.format import KvCache, ModelInfo, Pooling
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu.prefetch import ZEN4, Distances
from pyc.runtime.executors.protocol import (
    IN_PROMPT,
    DeviceSampler,
    FloatArray,
    InputArray,
    IntArray,
    RowSampling,
    TokenCounts,
)
from pyc.runtime.generation.sampling import SamplingParams, apply_penalties, choose
from pyc.runtime.host.aligned import aligned_zeros, is_aligned

BLOCK_TOKENS = 16


def decoder_info(
    *, vocab_size: int = 50, hidden_size: int = 12, context: int = 64, max_sequences: int = 3
) -> ModelInfo:
    """The header of a FakeDecoder."""
    cache = KvCache(layers=1, heads=1, head_dim=1, dtype="f32", block_tokens=BLOCK_TOKENS)
    return ModelInfo(
        architecture="fake",
        kind="decoder",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        context=context,
        max_sequences=max_sequences,
        kv_cache=cache,
        pooling=None,
    )


def encoder_info(
    *, vocab_size: int = 50, hidden_size: int = 12, context: int = 32, max_sequences: int = 4
) -> ModelInfo:
    """The header of a FakeEncoder."""
    return ModelInfo(
        architecture="fake-encoder",
        kind="encoder",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        context=context,
        max_sequences=max_sequences,
        kv_cache=None,
        pooling=Pooling("mean", normalize=False),
    )


def _weights(info: ModelInfo) -> tuple[FloatArray, FloatArray]:
    random = np.random.default_rng(7)
    embedding = random.standard_normal((info.vocab_size, info.hidden_size)).astype(np.float32)
    head = random.standard_normal((info.hidden_size, info.vocab_size)).astype(np.float32)
    return embedding, head


def context_hidden(info: ModelInfo, tokens: list[int]) -> FloatArray:
    """The hidden row f32[hidden] of the last of `tokens`, computed directly: the reference."""
    embedding, _ = _weights(info)
    positions = np.arange(len(tokens), dtype=np.float32)[:, None]
    weight = np.cos(0.3 * positions + np.arange(info.hidden_size)) + 0.1
    row: FloatArray = (embedding[tokens] * weight).sum(axis=0).astype(np.float32) / np.float32(len(tokens))
    return row


def reference_logits(info: ModelInfo, tokens: list[int]) -> FloatArray:
    """Logits f32[tokens, vocab] of a whole sequence, computed directly."""
    _, head = _weights(info)
    return np.stack([context_hidden(info, tokens[: end + 1]) @ head * 2 for end in range(len(tokens))])


class FakeDecoder:
    """Executes `forward` and `logits` and notes every call."""

    isa = "numpy"
    threads = 1
    is_arriving = False
    sampler: DeviceSampler | None = None

    def __init__(
        self,
        info: ModelInfo,
        *,
        kv_blocks: int,
        forward: tuple[int, ...] = (1, 4, 16),
        prompt: tuple[int, ...] = (),
        logits: tuple[int, ...] = (1, 4),
        virtual: tuple[int, ...] = (),
    ) -> None:
        """`virtual` are the tokens of a prefix."""
        self.info, self.virtual = info, virtual
        self.calls: list[tuple[str, int]] = []
        self.fail_after: int | None = None
        self.distances = ZEN4
        self._buckets = {"forward": forward, "prompt": prompt, "logits": logits}
        self._cache = np.full((kv_blocks, BLOCK_TOKENS), -1, dtype=np.int64)
        self._head = _weights(info)[1]

    def functions(self, name: str) -> tuple[int, ...]:
        return self._buckets.get(name, ())

    def set_distances(self, distances: Distances) -> None:
        self.distances = distances

    def check_file(self) -> None:
        """Weights are in no file."""

    def stop_arriving(self) -> None:
        """Nothing arrives."""

    def write_prefix(self, sequence: int, blocks: IntArray) -> None:
        for position, token in enumerate(self.virtual):
            self._cache[blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        if self.fail_after is not None and len(self.calls) >= self.fail_after:
            raise RunError("fake: told to fail")
        assert bucket in self._buckets[name]
        assert all(is_aligned(array) for array in inputs.values())
        self.calls.append((name, bucket))
        if name == "logits":
            hidden = inputs["hidden"]
            assert hidden.shape == (bucket, self.info.hidden_size)
            assert hidden.dtype == np.float32
            return (hidden.astype(np.float32) @ self._head * 2).astype(np.float32)
        hidden = self._forward(bucket, inputs)
        return hidden[inputs["row"]] if name == "prompt" else hidden

    def _forward(self, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        ids, positions, sequences = (inputs[name] for name in ("token_ids", "positions", "sequences"))
        table = inputs["block_table"]
        assert ids.shape == positions.shape == sequences.shape == (bucket,)
        assert all(array.dtype == np.int32 for array in (ids, positions, sequences, table))
        live = [row for row in range(bucket) if positions[row] >= 0]
        for row in live:
            block, slot = self._place(table, int(sequences[row]), int(positions[row]))
            self._cache[block, slot] = ids[row]
        hidden = aligned_zeros((bucket, self.info.hidden_size), np.float32)
        hidden[:] = np.nan
        for row in live:
            places = [self._place(table, int(sequences[row]), at) for at in range(int(positions[row]) + 1)]
            hidden[row] = context_hidden(self.info, [int(self._cache[place]) for place in places])
        return hidden

    def _place(self, table: InputArray | IntArray, sequence: int, position: int) -> tuple[int, int]:
        return int(table[sequence, position // BLOCK_TOKENS]), position % BLOCK_TOKENS


class FakeSampler:
    """Chooses a FakeDecoder's tokens behind its logits, and keeps the counts of sequences as a device does: those that
    it was given, and the tokens that it chose since."""

    def __init__(self, decoder: FakeDecoder) -> None:
        self.decoder = decoder
        self.chosen: list[int] = []
        self._held: dict[int, tuple[TokenCounts, int, IntArray]] = {}

    def buckets(self, name: str) -> tuple[int, ...]:
        logits = self.decoder.functions("logits")
        return tuple(rows for rows in self.decoder.functions(name) if (1 if name == "prompt" else rows) in logits)

    def run(
        self, name: str, bucket: int, inputs: Mapping[str, InputArray], rows: Sequence[RowSampling | None]
    ) -> list[int | FloatArray]:
        result = self.decoder.run(name, bucket, inputs)
        hidden = aligned_zeros(result.shape, np.float32)
        hidden[:] = result
        logits = self.decoder.run("logits", len(hidden), {"hidden": hidden})
        found: list[int | FloatArray] = []
        for row, scores in zip(rows, logits, strict=False):
            if row is None or not np.isfinite(scores.max()):
                found.append(scores)
                continue
            self.chosen.append(self._choose(row, scores))
            found.append(self.chosen[-1])
        return found

    def _choose(self, row: RowSampling, scores: FloatArray) -> int:
        if row.counts is None:
            return choose(scores, _params(row), row.uniform)
        held, known, counts = self._held.get(row.sequence, (None, 0, np.zeros(0, np.int32)))
        if held is not row.counts or known != row.counts.tokens:
            counts = row.counts.array()
        output = np.flatnonzero(counts & (IN_PROMPT - 1))
        strengths = row.repetition, row.frequency, row.presence
        times = counts[output] & (IN_PROMPT - 1)
        token = choose(
            apply_penalties(scores, np.flatnonzero(counts), output, times, *strengths), _params(row), row.uniform
        )
        counts[token] += 1
        self._held[row.sequence] = (row.counts, row.counts.tokens + 1, counts)
        return token


def _params(row: RowSampling) -> SamplingParams:
    return SamplingParams(row.temperature, row.top_k, row.top_p, row.min_p)


class FakeEncoder:
    """Executes `embed`: the mean over a sequence of what each token sees."""

    isa = "numpy"
    threads = 1
    is_arriving = False
    sampler: DeviceSampler | None = None

    def __init__(self, info: ModelInfo, *, embed: tuple[int, ...] = (8, 32)) -> None:
        self.info = info
        self.calls: list[int] = []
        self._buckets = embed

    def functions(self, name: str) -> tuple[int, ...]:
        return self._buckets if name == "embed" else ()

    def check_file(self) -> None:
        """Weights are in no file."""

    def stop_arriving(self) -> None:
        """Nothing arrives."""

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        assert name == "embed"
        assert all(is_aligned(array) for array in inputs.values())
        self.calls.append(bucket)
        result = np.full((self.info.max_sequences, self.info.hidden_size), np.nan, dtype=np.float32)
        for index in range(self.info.max_sequences):
            start, end = int(inputs["seq_start"][index]), int(inputs["seq_end"][index])
            if start == end:
                continue
            assert (inputs["span_start"][start:end] == start).all()
            assert (inputs["span_end"][start:end] == end).all()
            assert inputs["positions"][start:end].tolist() == list(range(end - start))
            result[index] = context_hidden(self.info, inputs["token_ids"][start:end].tolist())
        padding = inputs["positions"] < 0
        assert (inputs["span_start"][padding] == inputs["span_end"][padding]).all()
        return result
