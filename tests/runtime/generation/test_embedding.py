"""Vectors: the Model over a fake encoder."""

import threading
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interruptions import interrupted
from msgspec.structs import replace
from numpy.typing import NDArray

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.model import Model
from pyc.runtime.text.tokenizer import Tokenizer


@pytest.mark.slow
@given(lengths=st.lists(st.integers(1, 32), max_size=25), buckets=st.sampled_from([(32,), (8, 32), (8, 16, 64)]))
def test_embeddings_do_not_depend_on_the_packing(
    fake: ModuleType, lengths: list[int], buckets: tuple[int, ...]
) -> None:
    from pyc.runtime.generation.embedding import Embedder

    info = fake.encoder_info()
    executor = fake.FakeEncoder(info, embed=buckets)
    random = np.random.default_rng(sum(lengths))
    sequences = [random.integers(0, info.vocab_size, length).tolist() for length in lengths]
    vectors = Embedder(executor, info).embed(sequences)
    assert vectors.shape == (len(lengths), info.hidden_size)
    assert vectors.dtype == np.float32
    for ids, vector in zip(sequences, vectors, strict=True):
        np.testing.assert_allclose(vector, fake.context_hidden(info, ids), atol=1e-5)
    assert len(executor.calls) <= max(1, len(lengths))


def test_a_header_with_more_sequences_than_rows_makes_no_buffers(fake: ModuleType) -> None:
    from pyc.runtime.generation.embedding import Embedder

    info = replace(fake.encoder_info(), max_sequences=2**31 - 1)
    with pytest.raises(ArtifactError, match="its header has 2147483647 sequences in a step of 32 rows at most"):
        Embedder(fake.FakeEncoder(info, embed=(8, 32)), info)


def encoder(fake: ModuleType, tokenizers: dict[str, Tokenizer], context: int = 32) -> Model:
    tokenizer = tokenizers["word_piece"]
    info = fake.encoder_info(vocab_size=tokenizer.vocab_size, context=context)
    return Model(info, Generation(), fake.FakeEncoder(info), tokenizer)


def test_texts_are_embedded_in_order_and_cut_at_the_context(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> None:
    model = encoder(fake, tokenizers, context=10)
    texts = ["hello world", "fox", "", "the quick brown fox jumps over the lazy dog " * 5, "dog"]
    vectors = model.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        ids = model.tokenizer.encode(text)
        cut = ids if len(ids) <= 10 else [*ids[:9], ids[-1]]
        np.testing.assert_allclose(vector, fake.context_hidden(model.info, cut), atol=1e-5)
    assert model.embed([]).shape == (0, model.info.hidden_size)


def test_threads_that_share_an_encoder_take_turns(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> None:
    model = encoder(fake, tokenizers)
    texts, others = ["hello world", "fox"], ["brown fox", "dog"]
    expected, of_others = model.embed(texts), model.embed(others)
    run, found = model.executor.run, []
    thread = threading.Thread(target=lambda: found.append(model.embed(others)))

    def run_while_another_comes(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        if thread.ident is None:
            thread.start()
            thread.join(timeout=0.3)  # as long as a thread that does not wait for its turn may take to spoil this
        return run(name, bucket, inputs)

    model.executor.run = run_while_another_comes  # type: ignore[method-assign]
    np.testing.assert_array_equal(model.embed(texts), expected)
    thread.join()
    np.testing.assert_array_equal(found[0], of_others)


def test_a_signal_handler_that_embeds_is_refused_and_spoils_nothing(
    fake: ModuleType, tokenizers: dict[str, Tokenizer]
) -> None:
    model = encoder(fake, tokenizers)
    texts = ["hello world", "fox"]
    expected, run, said = model.embed(texts), model.executor.run, []

    def run_and_be_interrupted(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        with pytest.raises(RunError, match=r"^embed: this thread is in the middle of it") as caught:
            model.embed(["brown fox", "dog"])
        said.append(caught.value)
        return run(name, bucket, inputs)

    model.executor.run = run_and_be_interrupted  # type: ignore[method-assign]
    np.testing.assert_array_equal(model.embed(texts), expected)
    assert len(said) == 1


def test_an_encoder_does_not_generate_and_wants_a_list(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> None:
    model = encoder(fake, tokenizers)
    with pytest.raises(RunError, match="is an encoder"):
        model.generate("hello")
    with pytest.raises(RunError, match="expected a sequence of texts"):
        model.embed("hello")


def test_who_catches_an_interruption_may_embed_again_at_once(fake: ModuleType) -> None:
    from pyc.runtime.generation.embedding import Embedder

    info = fake.encoder_info()
    embedder = Embedder(fake.FakeEncoder(info, embed=(8, 32)), info)
    sequences = [[5, 6, 7], [8], [9] * 6]
    wanted, moment = embedder.embed(sequences), 0
    for moment in interrupted(lambda: embedder.embed(sequences), "/runtime/"):
        assert np.array_equal(embedder.embed(sequences), wanted), moment
    assert moment > 20
