"""Generation and the Model over a fake decoder."""

import asyncio
import json
import threading
import weakref
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from text_models import CONTEXT, Make, greedy, ids_of, make

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.generation.request import Token
from pyc.runtime.generation.sampling import SamplingParams
from pyc.runtime.generation.sampling_defaults import resolve_sampling
from pyc.runtime.generation.settings import GenerateSettings
from pyc.runtime.text.tokenizer import Tokenizer

__all__ = ["make"]


def test_greedy_equals_the_reference(fake: ModuleType, make: Make) -> None:
    model = make()
    tokens = list(model.generate([5, 6, 7], max_tokens=40))
    assert ids_of(tokens) == greedy(fake, model, [5, 6, 7], 40)
    assert [token.finish_reason for token in tokens] == [None] * 39 + ["length"]
    assert all(token.logprob is None and token.top_logprobs == () for token in tokens)


def test_logits_of_all_rows(fake: ModuleType, make: Make) -> None:
    model = make()
    ids = list(range(40))
    logits = model.logits(ids)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, fake.reference_logits(model.info, ids), atol=1e-4)
    np.testing.assert_array_equal(model.logits(np.array(ids)), logits)
    first = model.logits([1])
    model.logits([2])
    np.testing.assert_allclose(first, fake.reference_logits(model.info, [1]), atol=1e-4)


def test_text_is_the_text_of_the_tokens(make: Make) -> None:
    model = make()
    prompt = "hello world"
    tokens = list(model.generate(prompt, max_tokens=30, temperature=1.0, seed=1))
    ids = model.tokenizer.encode(prompt)
    whole = model.tokenizer.decode(ids + ids_of(tokens))
    assert prompt + "".join(token.text for token in tokens) == whole


def test_logprobs_belong_to_their_tokens(fake: ModuleType, make: Make) -> None:
    model = make()
    tokens = list(model.generate([5, 6], max_tokens=5, logprobs=3))
    logits = fake.reference_logits(model.info, [5, 6, *ids_of(tokens)])[1:-1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, token in enumerate(tokens):
        assert token.logprob == pytest.approx(expected[row, token.id], abs=1e-4)
        assert token.top_logprobs[0].id == token.id
        assert len(token.top_logprobs) == 3


def test_eos_ends_without_text(fake: ModuleType, make: Make) -> None:
    plain = make()
    expected = greedy(fake, plain, [5, 6, 7], 30)
    end = expected[-1]
    model = make(Generation(eos_token_ids=(399, end)))
    tokens = list(model.generate([5, 6, 7], max_tokens=100))
    assert ids_of(tokens) == expected[: expected.index(end) + 1]
    assert tokens[-1].finish_reason == "stop"
    without = list(model.generate([5, 6, 7], max_tokens=len(tokens) - 1))
    assert "".join(token.text for token in tokens) == "".join(token.text for token in without)
    ignoring = list(model.generate([5, 6, 7], max_tokens=30, ignore_eos=True))
    assert ids_of(ignoring) == expected


def test_a_stop_string_ends_before_itself(make: Make) -> None:
    model = make()
    free = "".join(token.text for token in model.generate("hello", max_tokens=30, temperature=1.0, seed=3))
    stop = free[8:11]
    tokens = list(model.generate("hello", max_tokens=30, temperature=1.0, seed=3, stop=stop))
    assert "".join(token.text for token in tokens) == free[: free.index(stop)]
    assert tokens[-1].finish_reason == "stop"


def test_stop_none_is_no_stop_string(make: Make) -> None:
    model = make()
    texts = [token.text for token in model.generate("hello", max_tokens=5, temperature=0)]
    assert [token.text for token in model.generate("hello", max_tokens=5, temperature=0, stop=None)] == texts


@pytest.mark.parametrize("kind", ["byte_level_bpe", "metaspace_unigram", "byte_fallback_bpe"])
def test_a_stop_string_that_is_a_special_token_ends_at_the_token(
    kind: str, fake: ModuleType, make: Make, tokenizers: dict[str, Tokenizer]
) -> None:
    """Alone and in a batch, beside other strings, and where ends of sequences are passed over."""
    plain = make(tokenizer=tokenizers[kind])
    prompts = [[5, 6, 7], [8, 9]]
    expected = [greedy(fake, plain, prompt, 20) for prompt in prompts]
    ids = expected[0]
    end = next(token for place, token in enumerate(ids) if place and token not in ids[:place])
    content = str(tokenizers[kind].token(end))
    document = with_special_token(tokenizers[kind].backend.to_str(), content, end)
    model = make(tokenizer=Tokenizer(document))
    length = [ids.index(end) + 1 if end in ids else 20 for ids in expected]
    free = "".join(token.text for token in model.generate(prompts[0], max_tokens=20))
    for stop in (content, ["never", content], [content, content + "never"]):
        for settings in ({}, {"ignore_eos": True}):
            tokens = list(model.generate(prompts[0], max_tokens=20, stop=stop, **settings))
            assert ids_of(tokens) == expected[0][: length[0]]
            assert tokens[-1].finish_reason == "stop"
            text = "".join(token.text for token in tokens)
            assert text == "".join(token.text for token in model.generate(prompts[0], max_tokens=length[0] - 1))
            assert free.startswith(text)
    batch = model.generate(prompts, max_tokens=20, stop=content)
    assert [ids_of(list(stream)) for stream in batch] == [e[:n] for e, n in zip(expected, length, strict=True)]
    assert len(list(model.generate(prompts[0], max_tokens=20, stop=content + "\n"))) == 20


def with_special_token(document: str, content: str, token_id: int) -> bytes:
    parsed = json.loads(document)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    kept = [token for token in parsed["added_tokens"] if token["id"] != token_id]
    added = [*kept, {"id": token_id, "content": content, **flags, "special": True}]
    return json.dumps(parsed | {"added_tokens": sorted(added, key=lambda token: int(token["id"]))}).encode()


def test_an_added_token_that_is_not_special_is_text(tokenizers: dict[str, Tokenizer]) -> None:
    document = json.loads(tokenizers["byte_level_bpe"].backend.to_str())
    document["added_tokens"][-1]["special"] = False
    tokenizer = Tokenizer(json.dumps(document).encode())
    assert tokenizer.special_ids(["<|im_end|>", "<|im_start|>", "<|im_start|> ", "x"]) == {4}
    assert tokenizers["byte_level_bpe"].special_ids(["<|im_end|>", "<|im_start|>"]) == {4, 5}


def test_held_back_text_comes_with_the_last_token(make: Make) -> None:
    model = make()
    free = "".join(token.text for token in model.generate("hello", max_tokens=10, temperature=1.0, seed=3))
    tokens = list(model.generate("hello", max_tokens=10, temperature=1.0, seed=3, stop=[free + "never"]))
    assert [token.text for token in tokens] == [""] * 9 + [free]
    assert tokens[-1].finish_reason == "length"


def test_generation_ends_with_the_context(make: Make) -> None:
    model = make()
    tokens = list(model.generate(list(range(CONTEXT - 3)), max_tokens=None))
    assert len(tokens) == 3
    assert tokens[-1].finish_reason == "length"
    with pytest.raises(RunError, match="leave no room"):
        next(model.generate(list(range(CONTEXT))))


def test_interleaved_generations_do_not_disturb_each_other(fake: ModuleType, make: Make) -> None:
    model = make()
    prompts = ([5, 6, 7], [8, 9], [10, 11, 12, 13])
    streams = [model.generate(list(prompt), max_tokens=20) for prompt in prompts]
    results = list(zip(*streams, strict=True))
    for column, prompt in enumerate(prompts):
        assert [row[column].id for row in results] == greedy(fake, model, list(prompt), 20)


def test_an_abandoned_generation_gives_its_slot_back(make: Make) -> None:
    model = make()
    for _ in range(10):
        stream = model.generate([1, 2], max_tokens=20)
        next(stream)
        stream.close()
    assert model.session.acquire() == 0


def test_a_failing_executor_gives_the_slot_back(make: Make) -> None:
    model = make()
    model.executor.fail_after = 0
    for _ in range(10):
        with pytest.raises(RunError, match="told to fail"):
            next(model.generate([1, 2]))
    model.executor.fail_after = None
    assert next(model.generate([1, 2])).id >= 0


def test_prefix_reuse_feeds_only_what_is_new(fake: ModuleType, make: Make) -> None:
    model = make()
    first = [*range(40)]
    answer = ids_of(list(model.generate(first, max_tokens=8, reuse_prefix=True)))
    follow_up = [*first, *answer, 50, 51, 52]
    model.executor.calls.clear()
    tokens = list(model.generate(follow_up, max_tokens=5, reuse_prefix=True))
    assert ids_of(tokens) == greedy(fake, model, follow_up, 5)
    fed = sum(bucket for name, bucket in model.executor.calls if name == "forward")
    assert fed <= 4 + 4  # the last answer token, three new ones, then four steps
    model.executor.calls.clear()
    list(model.generate(follow_up, max_tokens=1, reuse_prefix=True))
    assert model.executor.calls == [("forward", 1), ("logits", 1)], "the last token is always fed"


def test_the_same_seed_gives_the_same_tokens(make: Make) -> None:
    model = make()

    def run(seed: int) -> list[int]:
        return ids_of(list(model.generate([3, 4], max_tokens=20, temperature=1.0, top_p=0.9, seed=seed)))

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_messages_go_through_the_chat_template(make: Make, tokenizer_documents: dict[str, bytes]) -> None:
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"
    template = "{% for m in messages %}" + turn + "{% endfor %}{{ bos_token }}"
    named = Tokenizer(tokenizer_documents["byte_level_bpe"], b'{"bos_token": "<s>"}')
    model = make(Generation(bos_token_id=1), template=template, tokenizer=named)
    messages = [{"role": "user", "content": "hello"}]
    text = "<|im_start|>user\nhello<|im_end|><s>"
    assert model.prompt_ids(messages) == model.tokenizer.encode(text, add_special_tokens=False)
    assert ids_of(list(model.generate(messages, max_tokens=4))) == ids_of(list(model.generate(text, max_tokens=4)))


def test_tools_and_variables_reach_the_chat_template(make: Make) -> None:
    model = make(template="{{ tools[0].name }}{{ enable_thinking }}{{ add_generation_prompt }}")
    ids = model.prompt_ids(
        [{"role": "user", "content": "x"}], tools=[{"name": "f"}], chat_variables={"enable_thinking": False}
    )
    assert model.tokenizer.decode(ids) == "fFalseTrue"


def test_no_chat_template_is_an_error(make: Make) -> None:
    with pytest.raises(RunError, match=r"no chat template.*without --chat"):
        make().generate([{"role": "user", "content": "hello"}])


def test_without_a_tokenizer_ids_still_work(make: Make) -> None:
    model = make(text=False)
    assert [token.text for token in model.generate([1, 2], max_tokens=3)] == ["", "", ""]
    with pytest.raises(RunError, match=r"no tokenizer.*tokenizer.json; put one there and build again"):
        model.generate("text")


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ([], {}, "no tokens"),
        ("", {}, "no tokens"),
        ([1, "a"], {}, r"prompt\[1\]: got 'a', expected"),
        ([True], {}, r"prompt\[0\]: got True, expected"),
        ([1, {"role": "user"}], {}, r"prompt\[1\]: got dict, expected"),
        ([SimpleNamespace(role="user", content="a")], {}, r"prompt\[0\]: .*, expected a mapping .*model_dump\(\)"),
        ([1], {"max_tokens": 0}, "max_tokens: got 0"),
        ([1], {"temperature": -1}, "temperature: got -1"),
        ([1], {"stop": [""]}, "stop: got"),
        ([1], {"top_p": 2.0}, "top_p: got 2.0"),
        ([1, 10**6], {}, "id 1000000 at position 1 is outside the vocabulary"),
        ([[1], [10**6]], {}, "prompt 1: token ids: id 1000000 at position 0 is outside the vocabulary"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    make: Make, prompt: list[int], arguments: dict[str, object], message: str
) -> None:
    model = make()
    with pytest.raises(RunError, match=message):
        model.generate(prompt, **arguments)
    assert model.executor.calls == []


def test_a_stream_says_how_far_it_is(make: Make) -> None:
    stream = make().generate([5, 6], max_tokens=2)
    assert repr(stream) == "<pyc.TokenStream: 0 tokens after 2 of the prompt, not begun>"
    next(stream)
    assert repr(stream) == "<pyc.TokenStream: 1 token after 2 of the prompt>"
    assert len(list(stream)) == 1
    assert repr(stream) == "<pyc.TokenStream: 2 tokens after 2 of the prompt, at its end>"


def test_a_closed_model_refuses(make: Make) -> None:
    with make() as model:
        assert model.logits([1]).shape[0] == 1
    for use in (lambda: model.logits([1]), lambda: model.generate([1]), lambda: model.embed(["a"])):
        with pytest.raises(RunError, match="closed"):
            use()


def test_closing_ends_streams_with_the_error_of_a_closed_model(make: Make) -> None:
    model = make()
    running, waiting, later = (model.generate([5], max_tokens=20) for _ in range(3))
    ended = model.generate([5], max_tokens=1)
    last = next(ended)
    other = model.generate([5], max_tokens=20)
    assert next(running).id == next(other).id == last.id
    ready = len(other._request.ready)
    held = weakref.ref(model.executor)
    model.close()
    assert held() is None, "weights and cache are held by streams"
    for _ in range(ready):
        next(other)
    for stream in (other, running):
        stream.take_ready()
        with pytest.raises(RunError, match="this model is closed; load the artifact again"):
            next(stream)
        assert list(stream) == []
    with pytest.raises(RunError, match="this model is closed"):
        next(waiting)
    with pytest.raises(RunError, match="this model is closed"):
        asyncio.run(later.__anext__())
    assert list(ended) == []


def test_a_model_may_be_closed_in_the_middle_of_a_step(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    stream = model.generate([5], max_tokens=20)
    next(stream)
    run = model.executor.run

    def close_and_run(name: str, bucket: int, inputs: Mapping[str, Any]) -> Any:
        closer = threading.Thread(target=model.close)
        closer.start()
        closer.join()
        return run(name, bucket, inputs)

    monkeypatch.setattr(model.executor, "run", close_and_run)
    with pytest.raises(RunError, match="this model is closed"):
        list(stream)


def test_a_decoder_does_not_embed(make: Make) -> None:
    with pytest.raises(RunError, match="is a decoder"):
        make().embed(["a"])


def test_defaults_come_from_the_model_and_arguments_go_before_them() -> None:
    sampling = Generation(
        do_sample=True, temperature="0.6", top_k=20, top_p="0.95", min_p="0.1", repetition_penalty="1.1"
    )
    assert resolve_sampling(Generation(), GenerateSettings()) == SamplingParams(temperature=0.0)
    assert resolve_sampling(sampling, GenerateSettings()) == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
    )
    mine = GenerateSettings(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=4, logprobs=1)
    assert resolve_sampling(sampling, mine) == SamplingParams(temperature=0.0, seed=4, logprobs=1)
    assert resolve_sampling(Generation(), GenerateSettings(top_p=0.5)).temperature == 1.0
    greedy_model = Generation(temperature="0.6", repetition_penalty="1.2")
    assert resolve_sampling(greedy_model, GenerateSettings()).temperature == 0.0
    assert resolve_sampling(greedy_model, GenerateSettings()).repetition_penalty == 1.2
    assert resolve_sampling(greedy_model, GenerateSettings(top_k=5)).temperature == 0.6


def test_models_and_tokens_say_what_they_are(make: Make) -> None:
    model = make()
    assert repr(model) == f"<pyc.Model fake decoder, vocabulary {model.info.vocab_size}, context 128, numpy, 1 thread>"
    model.close()
    assert repr(model) == f"<pyc.Model fake decoder, vocabulary {model.info.vocab_size}, closed>"
    assert repr(Token(17, " cat", None, (), None)) == "Token(17, ' cat')"
    assert repr(Token(17, "", -0.25, (), "stop")) == "Token(17, '', logprob=-0.25, finish_reason='stop')"


@pytest.mark.parametrize("prompt", [[], ""])
def test_a_prompt_without_tokens(make: Make, prompt: list[int] | str) -> None:
    with pytest.raises(RunError, match=r"prompt: got no tokens, expected at least one; give a character of text, a t"):
        make().generate(prompt)
