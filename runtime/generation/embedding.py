"""Texts to vectors: several sequences, packed without gaps into one batch of an encoder.

Row t of a batch is a token of some text; it attends to rows [span_start[t], span_end[t]), which are that
text's. Padding rows have position -1 and an empty span. Text i of the batch is rows [seq_start[i],
seq_end[i]).
"""

from collections.abc import Sequence

import numpy as np

from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.protocol import Executor, FloatArray, InputArray
from pyc.runtime.generation.buckets import smallest_bucket
from pyc.runtime.host.aligned import aligned_zeros
from pyc.runtime.host.turns import Turns
from pyc.runtime.text.text_cut import TextCut


class _EmbedBuffers:
    """The persistent input arrays of one `embed` bucket."""

    def __init__(self, bucket: int, max_sequences: int) -> None:
        self.token_ids = aligned_zeros((bucket,), np.int32)
        self.positions = aligned_zeros((bucket,), np.int32)
        self.span_start = aligned_zeros((bucket,), np.int32)
        self.span_end = aligned_zeros((bucket,), np.int32)
        self.seq_start = aligned_zeros((max_sequences,), np.int32)
        self.seq_end = aligned_zeros((max_sequences,), np.int32)
        self.inputs: dict[str, InputArray] = {
            "token_ids": self.token_ids,
            "positions": self.positions,
            "span_start": self.span_start,
            "span_end": self.span_end,
            "seq_start": self.seq_start,
            "seq_end": self.seq_end,
        }

    def fill(self, batch: Sequence[Sequence[int]]) -> None:
        """Lay the sequences out one after another and mark the rest as padding."""
        for array in (self.token_ids, self.span_start, self.span_end, self.seq_start, self.seq_end):
            array[:] = 0
        self.positions[:] = -1
        row = 0
        for index, ids in enumerate(batch):
            end = row + len(ids)
            self.token_ids[row:end] = ids
            self.positions[row:end] = np.arange(len(ids), dtype=np.int32)
            self.span_start[row:end] = self.seq_start[index] = row
            self.span_end[row:end] = self.seq_end[index] = end
            row = end


class Embedder:
    """Runs an encoder over any number of sequences of at most `max_tokens` tokens each.

    Threads may share it: their batches take turns, since executor and buffers serve one at a time.
    """

    def __init__(self, executor: Executor, info: ModelInfo, cut: TextCut | None = None) -> None:
        """`cut` may leave fewer tokens of a text than the program takes. Raises RunError for a program without an
        encoder, ArtifactError for one that has more sequences than rows, which buffers would be made for."""
        self._executor = executor
        self._buckets = executor.functions("embed")
        if not self._buckets:
            raise RunError(f"{info.architecture}: this artifact has no encoder; use generate")
        if info.max_sequences > self._buckets[-1]:
            raise ArtifactError(
                f"the artifact is not valid: its header has {info.max_sequences} sequences in a step of "
                f"{self._buckets[-1]} rows at most, and each takes a row"
            )
        self._vocab_size = info.vocab_size
        self._hidden_size = info.hidden_size
        self._least = 0 if info.pooling is not None and info.pooling.mode == "mean" else 1
        self._max_sequences = info.max_sequences
        self.max_tokens = min(info.context, self._buckets[-1])
        if cut is not None:
            self.max_tokens = min(self.max_tokens, cut.max_length)
        self._buffers: dict[int, _EmbedBuffers] = {}
        self._turns = Turns()
        self._is_running = False

    def embed(self, sequences: Sequence[Sequence[int]]) -> FloatArray:
        """Vectors f32[sequences, hidden], in the order given. The mean of no rows is zero, as in sentence-transformers.

        Raises RunError for a sequence that is too long, has ids outside the vocabulary, or is empty where a vector is
        the first row, and ArtifactError when the artifact's file was written to meanwhile.
        """
        self._executor.check_file()
        for index, ids in enumerate(sequences):
            self._check(index, ids)
        result = np.zeros((len(sequences), self._hidden_size), dtype=np.float32)
        for members in self._batches([len(ids) for ids in sequences]):
            batch = [sequences[member] for member in members]
            with self._turns.lock:
                if self._is_running:
                    raise RunError("embed: this thread is in the middle of it; a signal handler cannot embed, too")
                self._is_running = True
                try:
                    result[members] = self._run(batch)
                finally:
                    self._is_running = False
        self._executor.check_file()
        return result

    def _run(self, batch: Sequence[Sequence[int]]) -> FloatArray:
        """The vectors of one batch, valid until the next run."""
        bucket = smallest_bucket(sum(len(ids) for ids in batch), self._buckets)
        buffers = self._buffers.get(bucket)
        if buffers is None:
            buffers = self._buffers[bucket] = _EmbedBuffers(bucket, self._max_sequences)
        buffers.fill(batch)
        return self._executor.run("embed", bucket, buffers.inputs)[: len(batch)]

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of sequences that are not empty, by batch: longest first, as many as the largest bucket and the slots
        hold."""
        batches: list[list[int]] = []
        rows = self._buckets[-1]
        filled = (index for index, length in enumerate(lengths) if length)
        for index in sorted(filled, key=lambda item: -lengths[item]):
            if rows + lengths[index] > self._buckets[-1] or len(batches[-1]) == self._max_sequences:
                batches.append([])
                rows = 0
            batches[-1].append(index)
            rows += lengths[index]
        return batches

    def _check(self, index: int, ids: Sequence[int]) -> None:
        if not self._least <= len(ids) <= self.max_tokens:
            raise RunError(
                f"embed: text {index} has {len(ids)} tokens, expected {self._least} to {self.max_tokens}; leave it out",
                prompt=index,
            )
        if len(ids) and (min(ids) < 0 or max(ids) >= self._vocab_size):
            raise RunError(
                f"embed: text {index} has a token id outside the vocabulary of {self._vocab_size}; "
                "the artifact's tokenizer does not fit its model",
                prompt=index,
            )
