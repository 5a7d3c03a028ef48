"""Windows as llama.cpp cuts them, and models of numpy scored against a loop over their whole logits."""

import re

import numpy as np
import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.measure import scoring
from pyc.runtime.measure.scoring import (
    EXAMPLES,
    embed_texts,
    encode_text,
    kl_by_position,
    names_of,
    require_same_tokens,
    score_text,
    scored_positions,
    text_windows,
    texts_of,
)
from pyc.runtime.model import Model

CONTEXT = 12


@pytest.fixture
def decoder(fake):
    """`decoder(noise=0.0, **info)`: a model of numpy whose output head has noise in it.

    A row of logits a call: numpy's product of several rounds otherwise than its product of one.
    """

    def make(noise: float = 0.0, tokenizer=None, **info) -> Model:
        described = fake.decoder_info(context=32, **info)
        executor = fake.FakeDecoder(described, kv_blocks=12, logits=(1,))
        random = np.random.default_rng(3)
        executor._head = executor._head + noise * random.standard_normal(executor._head.shape).astype(np.float32)
        return Model(described, Generation(), executor, tokenizer, kv_blocks=12)

    return make


@pytest.fixture
def windows() -> np.ndarray:
    return text_windows(np.random.default_rng(0).integers(0, 50, 5 * CONTEXT + 3).tolist(), CONTEXT)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


@pytest.mark.parametrize("kind", ["byte_level_bpe", "byte_fallback_bpe", "word_piece"])
def test_a_limit_reads_the_same_tokens_and_no_more_of_the_text(tokenizers, kind, monkeypatch):
    """600 tokens of 60 MB took three minutes and 16 GB."""
    tokenizer = tokenizers[kind]
    text = "the quick brown fox jumps over the lazy dog; " * 2000 + "é🙂" * 5000
    whole, _ = encode_text(tokenizer, text)
    read: list[int] = []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: read.append(len(text)) or encode(text))
    monkeypatch.setattr(tokenizer, "encode_parts", lambda text: iter([tokenizer.encode(text)]))
    for limit in (1, 7, 600):
        read.clear()
        assert encode_text(tokenizer, text, limit)[0].tolist() == whole[:limit].tolist()
        assert sum(read) < len(text) / 2
    assert encode_text(tokenizer, text, 10**9)[0].tolist() == whole.tolist()


def test_a_text_of_any_length_is_read_in_parts(tokenizers, monkeypatch):
    """60 MB took three minutes and 16 GB."""
    tokenizer = tokenizers["byte_level_bpe"]
    text = "the quick brown fox\njumps over the lazy dog\n\n" * 20
    parts: list[list[int]] = []
    encode_parts = tokenizer.encode_parts
    monkeypatch.setattr(
        tokenizer, "encode_parts", lambda text: (parts.append(part) or part for part in encode_parts(text, 100))
    )
    ids, _ = encode_text(tokenizer, text)
    assert ids.tolist() == tokenizer.encode(text)
    assert len(parts) > 5
    assert list(encode_parts(text)) == [tokenizer.encode(text)]


def test_windows_are_whole_and_begin_as_texts_do():
    windows = text_windows(list(range(1, 27)), 8, beginning=99)
    assert windows.tolist() == [[99, 2, 3, 4, 5, 6, 7, 8], [99, *range(10, 17)], [99, *range(18, 25)]]
    assert text_windows(list(range(27)), 8, limit=17).shape == (2, 8)
    assert text_windows(list(range(8)), 8).shape == (1, 8)


@pytest.mark.parametrize(("ids", "context", "limit"), [([1] * 7, 8, None), ([], 8, None), ([1] * 100, 8, 7)])
def test_a_text_of_less_than_a_window(ids, context, limit):
    with pytest.raises(RunError, match=f"it has {min(len(ids), limit or 100)} tokens, expected at least 8, one window"):
        text_windows(ids, context, limit=limit)


def test_a_window_of_too_few_tokens():
    with pytest.raises(RunError, match="context: got 3, expected at least 4"):
        text_windows([1] * 9, 3)


@pytest.mark.parametrize(("context", "count"), [(512, 255), (4, 1), (7, 3)])
def test_the_second_half_counts_but_for_its_last_token(context, count):
    """What llama.cpp counts: n_ctx - n_ctx / 2 - 1."""
    assert scored_positions(context) == count


@pytest.mark.parametrize("rows_bytes", [1, 8 * 50 * 2, 1 << 20])
def test_scores_are_those_of_a_loop_over_whole_logits(decoder, windows, monkeypatch, rows_bytes):
    """How many rows of logits are held at a time changes nothing."""
    monkeypatch.setattr(scoring, "ROWS_BYTES", rows_bytes)
    own, base = decoder(0.3), decoder()
    done: list[int] = []
    (found,) = score_text([("own", own)], ("base", base), windows, done.append)
    nll, kl, same = [], [], []
    for window in windows:
        q, p = log_softmax(own.logits(window)), log_softmax(base.logits(window))
        for position in range(CONTEXT // 2, CONTEXT - 1):
            nll.append(-q[position, window[position + 1]])
            kl.append(float((np.exp(p[position]) * (p[position] - q[position])).sum()))
            same.append(bool(q[position].argmax() == p[position].argmax()))
    np.testing.assert_allclose(found.scores.nll, nll, rtol=1e-12)
    np.testing.assert_allclose(found.scores.kl, kl, rtol=1e-9, atol=1e-12)  # a difference of near numbers
    assert found.scores.same_top.tolist() == same
    assert found.quality.positions == 5 * scored_positions(CONTEXT) == len(nll)
    assert done == [1, 2, 3, 4, 5]
    worst = int(np.argmax(kl))
    first = found.examples[0]
    assert first.score == pytest.approx(max(kl), rel=1e-9)
    assert (first.window, first.position) == (worst // 5, CONTEXT // 2 + 1 + worst % 5)
    assert first.token == windows[first.window, first.position]
    shown = [example.score for example in found.examples]
    assert shown == sorted(found.scores.kl.tolist(), reverse=True)[:EXAMPLES]
    assert len(first.found) == len(first.wanted) == 5
    p = np.exp(log_softmax(base.logits(windows[first.window]))[first.position - 1])
    assert [guess.token for guess in first.wanted] == np.argsort(-p)[:5].tolist()
    assert first.wanted[0].probability == pytest.approx(p.max())


def test_models_are_scored_together_as_each_alone(decoder, windows):
    models = [("one", decoder(0.1)), ("two", decoder(0.4))]
    together = score_text(models, ("base", decoder()), windows)
    for named, result in zip(models, together, strict=True):
        (alone,) = score_text([named], ("base", decoder()), windows)
        assert alone.quality == result.quality
        assert alone.examples == result.examples
    assert together[0].quality.divergence.kl.value < together[1].quality.divergence.kl.value


def test_without_a_reference_examples_are_the_least_likely_tokens(decoder, windows):
    (found,) = score_text([("own", decoder())], None, windows)
    assert found.quality.divergence is None
    assert [example.score for example in found.examples] == sorted(found.scores.nll.tolist(), reverse=True)[:EXAMPLES]
    assert found.examples[0].wanted == ()


def test_sequences_are_given_back(decoder, windows):
    model = decoder(max_sequences=1)
    score_text([("own", model)], None, windows)
    assert model.session.acquire() == 0


def test_vocabularies_of_different_sizes(decoder, windows):
    with pytest.raises(RunError, match="own: its vocabulary has 60 tokens, that of base 50"):
        score_text([("own", decoder(vocab_size=60))], ("base", decoder()), windows)


def test_windows_longer_than_a_context(decoder):
    with pytest.raises(RunError, match="own: its context is 32, expected at least the 40 tokens of a window"):
        score_text([("own", decoder())], None, np.ones((1, 40), np.int32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_no_measurement(decoder, windows, value):
    broken = decoder()
    broken.executor._head[3, 7] = value
    with pytest.raises(RunError, match="broken: its logits at token 6 of window 0 are not finite"):
        score_text([("fine", decoder()), ("broken", broken)], None, windows)


def test_kl_by_position(decoder, windows):
    (found,) = score_text([("own", decoder(0.3))], ("base", decoder()), windows)
    rows = found.scores.kl.reshape(5, 5).mean(0)
    assert kl_by_position(found.scores, CONTEXT) == [(7 + index, float(rows[index])) for index in range(5)]
    two = kl_by_position(found.scores, CONTEXT, bins=2)
    assert [position for position, _ in two] == [7, 10]
    assert [value for _, value in two] == pytest.approx([rows[:2].mean(), rows[2:].mean()])


def test_the_token_that_texts_begin_with(tokenizers):
    ids, beginning = encode_text(tokenizers["byte_fallback_bpe"], "the quick fox")
    assert beginning == 0 == ids[0]
    assert encode_text(tokenizers["byte_level_bpe"], "the quick fox")[1] is None


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_no_text(tokenizers, text):
    with pytest.raises(RunError, match="the text: it is empty"):
        encode_text(tokenizers["byte_level_bpe"], text)


def test_tokenizers_that_differ_somewhere_in_the_text(decoder, tokenizers):
    one, other = tokenizers["byte_level_bpe"], tokenizers["byte_fallback_bpe"]
    text = "the quick brown fox"
    ids, _ = encode_text(one, text)
    require_same_tokens(ids, "one", decoder(tokenizer=one), "same", text)
    with pytest.raises(RunError, match=rf"other: its tokenizer makes \d+ tokens of the text, that of one {len(ids)}, "):
        require_same_tokens(ids, "one", decoder(tokenizer=other), "other", text)


def test_texts_are_embedded_in_parts(fake, tokenizers):
    info = fake.encoder_info(vocab_size=400)
    model = Model(info, Generation(), fake.FakeEncoder(info), tokenizers["word_piece"])
    texts = [f"the fox {index}" for index in range(7)]
    done: list[int] = []
    vectors, speed = embed_texts(model, texts, done.append, batch=3)
    np.testing.assert_array_equal(vectors, model.embed(texts))
    assert done == [3, 6, 7]
    assert speed > 0


def test_a_vector_that_is_not_finite(fake, tokenizers):
    info = fake.encoder_info(vocab_size=400)
    model = Model(info, Generation(), fake.FakeEncoder(info), tokenizers["word_piece"])
    whole = model.embed

    def broken(texts):
        vectors = whole(texts)
        vectors[1, 0] = np.nan
        return vectors

    model.embed = broken
    with pytest.raises(RunError, match=re.escape("the vector of text 1 is not finite")):
        embed_texts(model, ["the", "fox", "dog"])


def test_texts_to_embed_are_the_lines_that_are_not_blank():
    assert texts_of("one\n\n  two \r\n\t\n\u2028\nthree") == ["one", "  two ", "three"]


def test_names_are_as_short_as_they_can_be():
    assert names_of(["a/x.pyca", "b/y.pyca"]) == ["x.pyca", "y.pyca"]
    assert names_of(["a/x.pyca", "b/x.pyca"]) == ["a/x.pyca", "b/x.pyca"]
    assert names_of(["models/demo/checkpoint/"]) == ["checkpoint"]
    assert names_of(["x.pyca", "x.pyca"]) == ["x.pyca", "x.pyca"], "the same one twice"
