"""runtime/generation/given_ids.py: long sequences are refused without being read."""

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, overload

import numpy as np
import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.model import Model

CONTEXT = 64


class Counted(Sequence[int]):
    """`length` ids, which counts those that are read, and whose length may be more than Python's `len` can say."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.reads = 0

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        assert isinstance(index, int)
        if index >= self._length:
            raise IndexError(index)
        self.reads += 1
        assert self.reads <= 1000, "read on and on"
        return 7


def texts_without_end() -> Iterator[str]:
    for count in range(1000):
        yield f"stop {count}"
    raise AssertionError("read on and on")


@pytest.fixture
def model(fake: ModuleType) -> Model:
    info = fake.decoder_info(context=CONTEXT)
    return Model(info, Generation(), fake.FakeDecoder(info, kv_blocks=16), None, kv_blocks=16)


USES: dict[str, tuple[Callable[[Model, Any], object], str]] = {
    "generate": (lambda model, ids: model.generate(ids), "context: the prompt's {} tokens leave no room"),
    "batch": (lambda model, ids: model.generate([[1], ids]), "prompt 1: context: the prompt's {} tokens leave no room"),
    "prompt_ids": (lambda model, ids: model.prompt_ids(ids), "context: the prompt's {} tokens leave no room"),
    "logits": (lambda model, ids: model.logits(ids), "context: 0 tokens and {} more exceed"),
    "prefill": (lambda model, ids: model.session.prefill(ids), "context: 0 tokens and {} more exceed"),
    "step": (lambda model, ids: model.session.step(ids), r"step: got {} tokens for slots \(0,\)"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("length", "shown"), [(10**9, "1000000000"), (10**20, "more than ..?"), (CONTEXT + 1, "65")])
def test_a_long_sequence_is_refused_unread(model: Model, use: str, length: int, shown: str) -> None:
    call, message = USES[use]
    ids = Counted(length)
    with pytest.raises(RunError, match=message.format(shown)):
        call(model, ids)
    assert ids.reads <= CONTEXT + 2  # one more than fits, and the first, which tells ids from messages
    assert model.session.length() == 0


def test_an_array_is_not_copied_whole(model: Model) -> None:
    ids = np.broadcast_to(np.int32(7), (10**12,))  # terabytes, as a copy
    with pytest.raises(RunError, match="0 tokens and 1000000000000 more exceed"):
        model.logits(ids)
    with pytest.raises(RunError, match="the prompt's 1000000000000 tokens leave no room"):
        model.generate(ids)  # type: ignore[arg-type]


def test_behind_what_a_slot_has_there_is_less_room(model: Model) -> None:
    model.session.prefill([1] * 60)
    ids = Counted(10**9)
    with pytest.raises(RunError, match="60 tokens and 1000000000 more exceed"):
        model.session.prefill(ids)
    assert ids.reads <= 5
    assert model.session.length() == 60


def test_ids_that_fill_the_context_are_read(model: Model) -> None:
    assert model.logits(Counted(CONTEXT)).shape[0] == CONTEXT
    assert len(list(model.generate(Counted(CONTEXT - 1)))) == 1
    assert model.prompt_ids(Counted(CONTEXT)) == [7] * CONTEXT


def test_stop_strings_are_read_as_far_as_there_may_be_some(model: Model) -> None:
    with pytest.raises(RunError, match=r"^stop: got more than 64 strings, expected at most 64$"):
        model.generate([1], stop=texts_without_end())  # type: ignore[arg-type]


def test_tensors_of_torch_are_ids(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    ids = torch.tensor([3, 1, 4], dtype=torch.int32)
    assert model.prompt_ids(ids) == [3, 1, 4]
    assert list(model.generate(ids, max_tokens=2)) == list(model.generate([3, 1, 4], max_tokens=2))
    with pytest.raises(RunError, match="prompt: got an array of 2 dimensions, expected the token ids of one prompt"):
        model.generate(ids[None])
    with pytest.raises(RunError, match="prompt: got an array of 2 dimensions"):
        model.prompt_ids(ids.numpy()[None])
    with pytest.raises(RunError, match=r"prompt\[0\]: got 3.0, expected an integer"):
        model.prompt_ids(ids.float())
    for odd in (ids.to("meta"), ids.to_sparse()):
        with pytest.raises(RunError, match=r"^token ids: a Tensor gives no list: "):
            model.prompt_ids(odd)
    monkeypatch.setattr(torch.Tensor, "__iter__", lambda tensor: pytest.fail("all of its items were made"))
    with pytest.raises(RunError, match="leave no room"):
        model.prompt_ids(torch.zeros(1 << 20, dtype=torch.uint8))
