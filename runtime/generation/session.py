"""Sequences of tokens over one executor: positions, cache blocks and buckets.

Every call feeds a flattened batch: row t is a token of sequence `sequences[t]` at position `positions[t]`.
A prompt's chunk and one step of several sequences are the same call. Padding rows have position -1.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import Executor, FloatArray, InputArray, RowSampling
from pyc.runtime.generation.buckets import plan_chunks, smallest_bucket
from pyc.runtime.generation.closed_executor import ClosedExecutor
from pyc.runtime.generation.forward_buffers import ForwardBuffers
from pyc.runtime.generation.given_ids import TokenIds, checked_array, shown_count
from pyc.runtime.generation.slots import SlotOwner, Slots
from pyc.runtime.host.aligned import aligned_zeros
from pyc.runtime.host.handle import Handle
from pyc.runtime.host.turns import Turns
from pyc.runtime.text.counted import counted

_Found = TypeVar("_Found")


class Session(Handle):
    """Up to `max_sequences` token sequences, their cache blocks and the executor that extends them.

    A slot is a sequence's row in the block table. `acquire` hands out a slot, `release` gives it back but
    keeps its tokens cached until the slot or its blocks are needed. Threads that share a session take turns (`turns`),
    or hold `lock`, around its methods, except `release`, and as long as they read what those return. A signal handler
    or a finalizer gets the lock that its thread holds already, so what runs says so (`begin`).
    """

    def __init__(
        self,
        executor: Executor,
        info: ModelInfo,
        *,
        kv_blocks: int,
        context: int | None = None,
        virtual_tokens: int = 0,
    ) -> None:
        """`kv_blocks` is the number of blocks the executor has; `context` (tokens) may lower the model's. Behind
        `virtual_tokens`, which the executor writes to the cache and nobody sees, a sequence's own begin."""
        if info.kv_cache is None or not executor.functions("forward"):
            raise RunError(f"{info.architecture}: this artifact has no decoder; use embed")
        most = info.context - virtual_tokens
        self.context = most if context is None else min(context, most)
        self.virtual_tokens = virtual_tokens
        self.vocab_size = info.vocab_size
        self.hidden_size = info.hidden_size
        self.turns = Turns()
        self._runner: Callable[[], SlotOwner | None] | None = None
        self._executor: Executor = executor
        self._forward_buckets = executor.functions("forward")
        self._prompt_buckets = executor.functions("prompt")
        self._logits_buckets = executor.functions("logits")
        self.slots = Slots(
            info.max_sequences,
            info.context,
            kv_blocks=kv_blocks,
            block_tokens=info.kv_cache.block_tokens,
            before=virtual_tokens,
        )
        self._slots = self.slots.all
        self._forward_buffers: dict[int, ForwardBuffers] = {}
        self._hidden_buffers: dict[int, FloatArray] = {}

    @property
    def lock(self) -> AbstractContextManager[object]:
        """See the class. Raises RunError in a process that was forked while another thread held it."""
        return self.turns.lock

    def begin(self, owner: SlotOwner) -> None:
        """Begins a run: until `owner` has left, and no longer than it lives, there is no other.

        Raises RunError when this thread is in the middle of one.
        """
        running = None if self._runner is None else self._runner()
        if running is not None and not running.has_left:
            raise RunError(
                "this thread is in the middle of a run of this model; a signal handler or finalizer cannot use it, too"
            )
        self._runner = weakref.ref(owner)

    def close(self, reason: str) -> None:
        """Lets the executor go; what would run raises RunError with this reason from now on."""
        self._executor = ClosedExecutor(reason)

    # --- slots

    def acquire(self, prefix: Sequence[int] = (), *, owner: SlotOwner | None = None) -> int:
        """A slot nobody uses, empty or holding a prefix of `prefix` (the longest that a slot has cached).

        It is in use until `release`, and no longer than until `owner` has left: Ctrl-C may strike where nobody releases
        any more. Raises RunError when every slot is in use, or as `begin` does.
        """
        runner = SlotOwner()
        try:
            self.begin(runner)
            slot = self.take_slot(prefix, owner=owner)
        finally:
            runner.has_left = True
        if slot is None:
            raise self.all_in_use()
        return slot

    def all_in_use(self) -> RunError:
        """The error of whoever finds no slot."""
        return RunError(
            f"all {len(self._slots)} sequences of this model are in use; finish or close one first, "
            "or build with a larger shapes.batch"
        )

    def take_slot(self, prefix: Sequence[int] = (), *, owner: SlotOwner | None = None) -> int | None:
        """As `acquire`, in a run that the caller began; None when every slot is in use.

        A slot that the owner has already, and lost the number of to an interruption, is free again.
        """
        return self.slots.take(prefix, owner)

    def release(self, slot: int) -> None:
        """Gives the slot back. Its tokens stay cached for a later `acquire` with the same prefix."""
        self._slots[slot].holder = None

    def length(self, slot: int = 0) -> int:
        """Tokens in the slot."""
        return len(self._slots[slot].tokens)

    def tokens(self, slot: int = 0) -> tuple[int, ...]:
        """The slot's tokens."""
        return tuple(self._slots[slot].tokens)

    def rewind(self, count: int, slot: int = 0) -> None:
        """Forgets the slot's last `count` tokens. Raises RunError when it has fewer."""
        length = self.length(slot)
        if not 0 <= count <= length:
            raise RunError(f"rewind: the sequence has {counted(length, 'token')}, cannot take back {count}")
        self._slots[slot].truncate(length - count)

    # --- execution

    @property
    def samples(self) -> bool:
        """Whether the executor chooses tokens, so that `next_tokens` and `prefill_next` hand no logits over."""
        return self._executor.sampler is not None

    def check_file(self) -> None:
        """Raises ArtifactError when the artifact's file was written to since it was opened."""
        self._executor.check_file()

    def prefill(self, ids: TokenIds, slot: int = 0, *, keep: Literal["last", "all"] = "last") -> FloatArray:
        """Appends `ids` to the slot and returns hidden rows: f32[1, hidden] of the last, or f32[tokens,
        hidden].

        Raises RunError for no tokens, an id outside the vocabulary, or more tokens than the context holds;
        the slot is then as it was. Raises ArtifactError when the artifact's file was written to meanwhile.
        """
        self.check_file()
        checked = self.check_ids(ids, slot)
        self.reserve(slot, checked.size)
        kept = np.empty((checked.size if keep == "all" else 1, self.hidden_size), dtype=np.float32)
        done = 0
        for bucket in self.plan(checked.size):
            rows = min(bucket, checked.size - done)
            hidden = self.prefill_chunk(checked[done : done + rows], slot, bucket, keep=keep)
            if keep == "all":
                kept[done : done + rows] = hidden
            else:
                kept[:] = hidden
            done += rows
        return kept

    def plan(self, count: int) -> tuple[int, ...]:
        """The buckets that `count` tokens of a prompt are fed through, in turn.

        While weights arrive slowly, one that holds them all, where half of it is used: then all of the prompt, and not
        its first part alone, goes through a layer as soon as that is there.
        """
        if self._executor.is_arriving and count <= self._forward_buckets[-1]:
            bucket = smallest_bucket(count, self._forward_buckets)
            if bucket <= 2 * count:
                return (bucket,)
        return plan_chunks(count, self._forward_buckets)

    def prefill_chunk(
        self, ids: NDArray[np.int64], slot: int, bucket: int, *, keep: Literal["last", "all"] = "last"
    ) -> FloatArray:
        """Appends `ids`, which were checked, in one run of `bucket` rows.

        Returns hidden f32[1, hidden] of the last, or f32[ids, hidden], valid until the next run. Raises RunError when
        they exceed the context or the cache.
        """

        def run(inputs: Mapping[str, InputArray]) -> FloatArray:
            if keep == "all" or bucket not in self._prompt_buckets:
                hidden = self._executor.run("forward", bucket, inputs)
                return hidden[: len(ids)] if keep == "all" else hidden[len(ids) - 1 : len(ids)]
            return self._executor.run("prompt", bucket, inputs)

        return self._prefill(ids, slot, bucket, run)

    def prefill_next(
        self, ids: NDArray[np.int64], slot: int, bucket: int, row: RowSampling | None
    ) -> int | FloatArray:
        """`prefill_chunk`, and the token that follows, chosen by `row`; its logits f32[vocab], valid until the next
        run, where that is None, or where the executor does not choose it."""
        sampler, name = self._executor.sampler, "prompt" if bucket in self._prompt_buckets else "forward"
        is_first = name == "prompt" or len(ids) == 1  # of the rows that it returns
        if sampler is None or row is None or not is_first or bucket not in sampler.buckets(name):
            logits: FloatArray = self.logits(self.prefill_chunk(ids, slot, bucket))[0]
            return logits
        (found,) = self._prefill(ids, slot, bucket, lambda inputs: sampler.run(name, bucket, inputs, [row]))
        self._executor.check_file()
        return found

    def _prefill(
        self, ids: NDArray[np.int64], slot: int, bucket: int, run: Callable[[Mapping[str, InputArray]], _Found]
    ) -> _Found:
        """Append `ids` to the slot by what runs them."""
        self.reserve(slot, len(ids))
        rows, tokens, first = len(ids), self._slots[slot].tokens, self._slots[slot].position
        if self.virtual_tokens and not tokens:
            self._executor.write_prefix(slot, self.slots.block_table[slot])
        buffers = self._buffers(bucket)
        buffers.token_ids[:rows] = ids
        buffers.positions[:rows] = np.arange(first, first + rows, dtype=np.int32)
        buffers.sequences[:rows] = slot
        buffers.clear_padding(rows)
        buffers.row[0] = rows - 1
        found = run(buffers.inputs)
        tokens.extend(buffers.token_ids[:rows].tolist())
        return found

    def step(self, ids: TokenIds, slots: Sequence[int] = (0,)) -> FloatArray:
        """Appends one token to each of the distinct `slots`: hidden f32[slots, hidden], valid until the next
        run.

        Raises RunError as `prefill` does, with no slot changed.
        """
        return self._step(ids, slots, partial(self._executor.run, "forward"))[: len(slots)]

    def decode(self, ids: TokenIds, slots: Sequence[int] = (0,)) -> FloatArray:
        """`step` and its `logits` f32[slots, vocab], valid until the next run: what lies between is not copied."""
        hidden, rows = self._step(ids, slots, partial(self._executor.run, "forward")), len(slots)
        if hidden.shape[0] not in self._logits_buckets:
            return self.logits(hidden[:rows])
        logits = self._executor.run("logits", hidden.shape[0], {"hidden": hidden})
        self._executor.check_file()
        return logits[:rows]

    def next_tokens(
        self, ids: TokenIds, slots: Sequence[int], rows: Sequence[RowSampling | None]
    ) -> Sequence[int | FloatArray]:
        """`step`, and of each slot the token that follows, chosen by its row; its logits f32[vocab], valid until the
        next run, where that is None, or where the executor does not choose it."""
        sampler = self._executor.sampler
        bucket = smallest_bucket(min(len(slots), self._forward_buckets[-1]), self._forward_buckets)
        if sampler is None or bucket not in sampler.buckets("forward") or all(row is None for row in rows):
            return list(self.decode(ids, slots))
        found = self._step(ids, slots, lambda bucket, inputs: sampler.run("forward", bucket, inputs, rows))
        self._executor.check_file()
        return found

    def _step(
        self, ids: TokenIds, slots: Sequence[int], run: Callable[[int, Mapping[str, InputArray]], _Found]
    ) -> _Found:
        """What `run` makes of a step's bucket and inputs."""
        tokens = self._check_few(ids, len(slots))
        rows = len(tokens)
        if len(slots) != rows or (rows > 1 and len(set(slots)) != rows):
            count = shown_count(ids, len(slots)) if rows > len(slots) else rows
            raise RunError(f"step: got {count} tokens for slots {tuple(slots)}; expected one token a slot")
        if rows > self._forward_buckets[-1]:
            raise RunError(f"step: {rows} sequences exceed the largest bucket, {self._forward_buckets[-1]} rows")
        known = self._slots
        for slot in slots:
            if len(known[slot].tokens) >= self.context:
                raise self.no_room(len(known[slot].tokens), "1")
        for slot in slots:
            length = len(known[slot].tokens) + 1
            if not known[slot].holds(length):
                self.slots.reserve(slot, length)
            if self.virtual_tokens and length == 1:
                self._executor.write_prefix(slot, self.slots.block_table[slot])
        bucket = smallest_bucket(rows, self._forward_buckets)
        buffers = self._forward_buffers.get(bucket) or self._buffers(bucket)
        for row, slot in enumerate(slots):
            buffers.token_ids[row] = tokens[row]
            buffers.positions[row] = known[slot].position
            buffers.sequences[row] = slot
        if rows < bucket:
            buffers.clear_padding(rows)
        found = run(bucket, buffers.inputs)
        for row, slot in enumerate(slots):
            known[slot].tokens.append(tokens[row])
        return found

    def logits(self, hidden: FloatArray) -> FloatArray:
        """Logits f32[rows, vocab] of `hidden` f32[rows, hidden]; rows that fit one bucket are not copied and
        are valid until the next run.

        Raises ArtifactError when the artifact's file was written to before they were all there: no token is chosen by
        weights that are not those that were verified.
        """
        logits = self._compute_logits(hidden)
        self._executor.check_file()
        return logits

    def _compute_logits(self, hidden: FloatArray) -> FloatArray:
        rows = hidden.shape[0]
        plan = plan_chunks(rows, self._logits_buckets)
        if len(plan) == 1:
            return self._run_logits(hidden, plan[0])
        result = np.empty((rows, self.vocab_size), dtype=np.float32)
        done = 0
        for bucket in plan:
            chunk = hidden[done : done + bucket]
            result[done : done + bucket] = self._run_logits(chunk, bucket)
            done += bucket
        return result

    def _run_logits(self, hidden: FloatArray, bucket: int) -> FloatArray:
        rows = hidden.shape[0]
        buffer = self._hidden_buffers.get(bucket)
        if buffer is None:
            buffer = self._hidden_buffers[bucket] = aligned_zeros((bucket, self.hidden_size), np.float32)
        buffer[:rows] = hidden
        buffer[rows:] = 0
        return self._executor.run("logits", bucket, {"hidden": buffer})[:rows]

    def _buffers(self, bucket: int) -> ForwardBuffers:
        buffers = self._forward_buffers.get(bucket)
        if buffers is None:
            buffers = self._forward_buffers[bucket] = ForwardBuffers(bucket, self.slots.block_table)
        return buffers

    def check_ids(self, ids: TokenIds, slot: int | None = None) -> NDArray[np.int64]:
        """`ids` as an array. Raises RunError for none, for one outside the vocabulary, and for more than the context
        has room for, behind what is in `slot`."""
        length = 0 if slot is None else self.length(slot)
        room = max(self.context - length, 0)
        checked = checked_array(ids, self.vocab_size, room)
        if checked.size > room:
            raise self.no_room(length, shown_count(ids, room))
        return checked

    def _check_few(self, ids: TokenIds, most: int) -> Sequence[int]:
        """The first `most` + 1 of a step's tokens, checked as `check_ids` does, without numpy for plain integers: a
        step begins with cold caches, in which each of its calls takes microseconds."""
        if isinstance(ids, (list, tuple)) and ids:
            for token in ids:
                if type(token) is not int or not 0 <= token < self.vocab_size:
                    break
            else:
                return ids
        return [int(token) for token in checked_array(ids, self.vocab_size, most)]

    def reserve(self, slot: int, count: int) -> None:
        """Takes the cache blocks of `count` more tokens. Raises RunError where they exceed the context or the cache."""
        length = len(self._slots[slot].tokens)
        if length + count > self.context:
            raise self.no_room(length, str(count))
        self.slots.reserve(slot, length + count)

    def no_room(self, length: int, count: str) -> RunError:
        """Return the error of `count` more tokens behind `length` that the context has no room for."""
        return RunError(
            f"context: {length} tokens and {count} more exceed this model's context of "
            f"{self.context}; shorten the prompt, or build or load with a larger context"
        )
