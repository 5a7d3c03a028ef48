"""runtime/model.py: a model that another thread closes at any moment."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from types import FrameType, ModuleType

import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.model import CLOSED, Model
from pyc.runtime.text.tokenizer import Tokenizer

KV_BLOCKS = 9
Use = Callable[[Model], object]


class ClosedAt:
    """A trace function: closes a model before the n-th byte code of its module, as a thread may."""

    def __init__(self, model: Model, countdown: int) -> None:
        self.model, self.countdown = model, countdown

    def __call__(self, frame: FrameType, event: str, argument: object) -> ClosedAt | None:
        if not frame.f_code.co_filename.endswith("runtime/model.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.countdown -= 1
            if self.countdown == 0:
                sys.settrace(None)
                self.model.close()
        return self


@pytest.fixture
def make(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> Callable[[str], Model]:
    """A model over a fake decoder or encoder."""
    tokenizer = tokenizers["byte_level_bpe"]

    def build(kind: str) -> Model:
        if kind == "encoder":
            info = fake.encoder_info(vocab_size=tokenizer.vocab_size)
            return Model(info, Generation(), fake.FakeEncoder(info), tokenizer)
        info = fake.decoder_info(vocab_size=tokenizer.vocab_size)
        executor = fake.FakeDecoder(info, kv_blocks=KV_BLOCKS)
        return Model(info, Generation(), executor, tokenizer, kv_blocks=KV_BLOCKS)

    return build


USES: list[tuple[str, Use]] = [
    ("decoder", lambda model: [token.id for token in model.generate([5], max_tokens=1)]),
    ("decoder", lambda model: [[token.id for token in one] for one in model.generate([[5], [6]], max_tokens=1)]),
    ("decoder", lambda model: model.logits([1, 2]).tolist()),
    ("decoder", lambda model: model.session.context),
    ("decoder", lambda model: model.executor.isa),
    ("encoder", lambda model: model.embed(["a"]).tolist()),
    ("encoder", lambda model: model.count_cut(["a b c d e f"])),
    ("encoder", lambda model: model.embed_max_tokens),
]


@pytest.mark.parametrize(("kind", "use"), USES)
def test_a_model_that_is_closed_at_any_moment_says_so(kind: str, use: Use, make: Callable[[str], Model]) -> None:
    expected, former = use(make(kind)), sys.gettrace()
    countdown, refusals, is_over = 0, set[str](), False
    while not is_over:
        countdown += 1
        model = make(kind)
        closing = ClosedAt(model, countdown)
        sys.settrace(closing)
        try:
            found = use(model)
            sys.settrace(former)
            assert found == expected
        except RunError as error:
            refusals.add(str(error).removeprefix("prompt 0: ").removeprefix("prompt 1: "))
        finally:
            sys.settrace(former)
        is_over = closing.countdown > 0
    assert refusals == {CLOSED}


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_a_model_that_is_closed_is_shown_as_such(kind: str, make: Callable[[str], Model]) -> None:
    open_one, former = repr(make(kind)), sys.gettrace()
    model = make(kind)
    model.close()
    shown, countdown, found = {open_one, repr(model)}, 0, ""
    assert "closed" in repr(model)
    assert "closed" not in open_one
    for countdown in range(1, 30):
        model = make(kind)
        sys.settrace(ClosedAt(model, countdown))
        try:
            found = repr(model)
        finally:
            sys.settrace(former)
        assert found in shown


HANDLES: list[tuple[str, str, Use]] = [
    ("decoder", "a Model cannot be pickled or copied; load the artifact in each process", lambda model: model),
    ("encoder", "a Model cannot be pickled or copied; load the artifact in each process", lambda model: model),
    ("decoder", "a Session cannot be ", lambda model: model.session),
    ("decoder", "a Scheduler cannot be ", lambda model: model.scheduler),
    ("decoder", "a TokenStream cannot be .* take its tokens", lambda model: model.generate([5], max_tokens=1)),
    ("decoder", "a Batch cannot be .* take its tokens", lambda model: model.generate([[5]], max_tokens=1)),
]


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(("kind", "said", "use"), HANDLES)
def test_what_belongs_to_a_process_is_neither_pickled_nor_copied(
    kind: str, said: str, use: Use, how: Callable[[object], object], make: Callable[[str], Model]
) -> None:
    """A copy of a model closed the first; the error is TypeError, as of whatever cannot be pickled."""
    with make(kind) as model:
        handle = use(model)
        for given in (handle, [handle]) if how is not copy.copy else (handle,):
            with pytest.raises(TypeError, match=f"^{said}"):
                how(given)
        assert model._open is not None
    with pytest.raises(TypeError, match=f"^{said}"):
        how(handle)


def test_what_a_model_gives_is_pickled(make: Callable[[str], Model], tokenizers: dict[str, Tokenizer]) -> None:
    with make("decoder") as model:
        tokens = list(model.generate([5], max_tokens=2, logprobs=1))
        for value in (*tokens, model.info, model.generation):
            assert pickle.loads(pickle.dumps(value)) == value
            assert copy.deepcopy(value) == value
        same = pickle.loads(pickle.dumps(model.tokenizer))
        assert same.encode("the cat") == tokenizers["byte_level_bpe"].encode("the cat")
