"""The tokenizer out of an artifact's blobs."""

import json
import sys
import threading
from collections.abc import Callable

import pytest
from interruptions import InterruptedAt

from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.text.authored_text import TEMPLATE, AuthoredText
from pyc.runtime.text.tokenizer import Tokenizer, _has_threads


def test_round_trip(tokenizers: dict[str, Tokenizer]) -> None:
    text = "the quick 😀 fox\n"
    tokenizer = tokenizers["byte_level_bpe"]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert [tokenizer.token_id(tokenizer.token(token) or "") for token in ids] == ids


NO_IDS = [([5, True], "ids[1]: got True"), ([1.5], "ids[0]: got 1.5"), ([-1], "ids[0]")]


@pytest.mark.parametrize(("ids", "says"), NO_IDS)
def test_what_is_no_id_has_no_text(ids: list[int], says: str, tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(RunError) as caught:
        tokenizers["byte_level_bpe"].decode(ids)
    assert says in str(caught.value) and "expected an integer" in str(caught.value)


def test_special_tokens_are_added_when_asked(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_fallback_bpe"]
    bare = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("the") == [0, *bare]


def test_truncation_and_padding_of_the_file_are_off(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["word_piece"]
    assert len(tokenizer.encode("hello " * 20)) == 22
    assert len(tokenizer.encode("hello")) == 3


def test_batches_are_cut_but_keep_their_special_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["word_piece"]
    long, short = tokenizer.encode_batch(["hello " * 20, "hello"], max_tokens=10)
    hello = tokenizer.encode("hello", add_special_tokens=False)
    assert long == [2, *hello * 8, 3]
    assert short == [2, *hello, 3]
    assert len(tokenizer.encode("hello " * 20)) == 22, "the cut does not outlive the call"


@pytest.mark.parametrize("max_tokens", [3, 7, 22])
@pytest.mark.parametrize("kind", ["byte_level_bpe", "metaspace_unigram", "byte_fallback_bpe", "word_piece"])
def test_batches_are_cut_as_the_library_cuts(tokenizers: dict[str, Tokenizer], kind: str, max_tokens: int) -> None:
    tokenizer = tokenizers[kind]
    texts = ["", "the", "the quick 😀 fox </s> <s>\n" * 6]
    cut = tokenizer.encode_batch(texts, max_tokens=max_tokens)
    try:
        tokenizer.backend.enable_truncation(max_length=max_tokens)
        assert cut == [list(encoding.ids) for encoding in tokenizer.backend.encode_batch(texts)]
    finally:
        tokenizer.backend.no_truncation()


class Meanwhile:
    """A backend that calls a function while it encodes a batch."""

    def __init__(self, backend: object, function: Callable[[], object]) -> None:
        self._backend, self._function = backend, function

    def __getattr__(self, name: str) -> object:
        if name == "encode_batch":
            self._function()
        return getattr(self._backend, name)


def test_what_others_encode_while_a_batch_is_cut_is_whole(tokenizer_documents: dict[str, bytes]) -> None:
    tokenizer = Tokenizer(tokenizer_documents["word_piece"])
    text = "hello " * 20
    whole, chat = tokenizer.encode(text), tokenizer.encode_chat(AuthoredText(text, TEMPLATE))
    met: list[list[int]] = []

    def encode() -> None:
        met.append(tokenizer.encode_chat(AuthoredText(text, TEMPLATE)))
        met.append(tokenizer.encode(text))

    def of_another_thread_and_of_a_signal_handler() -> None:
        thread = threading.Thread(target=encode)
        thread.start()
        thread.join(timeout=30)
        encode()

    vars(tokenizer)["_backend"] = Meanwhile(tokenizer.backend, of_another_thread_and_of_a_signal_handler)
    tokenizer.encode_batch(["hello"], max_tokens=5)
    assert met == [chat, whole] * 2


def test_an_interrupted_batch_does_not_cut_what_is_encoded_later(tokenizer_documents: dict[str, bytes]) -> None:
    tokenizer = Tokenizer(tokenizer_documents["word_piece"])
    text = "hello " * 20
    whole = tokenizer.encode(text)
    former, interruptions = sys.gettrace(), 0
    while True:
        sys.settrace(InterruptedAt(interruptions + 1, {"encode_batch"}, "tokenizer"))
        try:
            tokenizer.encode_batch([text], max_tokens=5)
        except KeyboardInterrupt:
            interruptions += 1
        else:
            break
        finally:
            sys.settrace(former)
        assert tokenizer.encode(text) == whole
    assert interruptions > 20


@pytest.mark.parametrize("written", ["<s>", {"content": "<s>", "lstrip": False, "__type": "AddedToken"}])
def test_special_tokens_in_either_form(tokenizer_documents: dict[str, bytes], written: object) -> None:
    config = json.dumps({"bos_token": written, "eos_token": None, "model_max_length": 1e30})
    tokenizer = Tokenizer(tokenizer_documents["byte_level_bpe"], config.encode())
    assert tokenizer.special_tokens == {"bos_token": "<s>"}


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("kind", ["byte_level_bpe", "byte_fallback_bpe", "word_piece"])
def test_the_post_processor_alone_adds_ids(tokenizer_documents: dict[str, bytes], kind: str, flag: bool | None) -> None:
    # Not the flags: transformers 5 drops them (tests/reference/test_tokenizers.py). An end token that add_eos_token
    # put behind every prompt ended the answer at once.
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": flag, "add_eos_token": flag}
    plain = Tokenizer(tokenizer_documents[kind])
    flagged = Tokenizer(tokenizer_documents[kind], json.dumps(config).encode())
    assert flagged.encode("the") == plain.encode("the")
    assert flagged.encode("the", add_special_tokens=False) == plain.encode("the", add_special_tokens=False)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{ messages }}", {"default": "{{ messages }}"}),
        ([{"name": "rag", "template": "t"}, {"name": "default", "template": "d"}], {"default": "d", "rag": "t"}),
        ({"tool_use": "t", "default": "d"}, {"default": "d", "tool_use": "t"}),
        (None, {}),
    ],
)
def test_chat_templates_of_the_config(
    tokenizer_documents: dict[str, bytes], written: object, expected: dict[str, str]
) -> None:
    config = json.dumps({"chat_template": written}).encode()
    assert Tokenizer(tokenizer_documents["byte_level_bpe"], config).chat_templates == expected


@pytest.mark.parametrize(
    "document",
    [b"", b"{}", b"\xff", b'{"model": {"type": "BP\xe0E"}}', b"[1, 2]", b'{"model": {"type": "None such"}}'],
)
def test_a_broken_tokenizer_is_an_artifact_error(document: bytes) -> None:
    tokenizer = Tokenizer(document)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        tokenizer.encode("x")


@pytest.mark.parametrize("config", [b"[]", b'{"bos_token": 3}', b"{", b"\xff", b'{"bos_token": "\xe0x"}'])
def test_a_broken_config_is_an_artifact_error(tokenizer_documents: dict[str, bytes], config: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json"):
        Tokenizer(tokenizer_documents["byte_level_bpe"], config)


def test_a_lone_surrogate_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(RunError, match="character 1 is a lone surrogate"):
        tokenizers["byte_level_bpe"].encode("a\ud800b")


def test_texts_are_encoded_where_no_thread_is_to_be_had(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library panics where it cannot start its threads."""
    tokenizer = tokenizers["word_piece"]
    texts = ["hello world", "the quick fox", ""]
    expected = tokenizer.encode_batch(texts, max_tokens=4), tokenizer.count_longer(texts, 4)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    class Watched:
        def __getattr__(self, name: str) -> object:
            assert name != "encode_batch"
            return getattr(tokenizer.backend, name)

    bare = Tokenizer(tokenizer.backend.to_str().encode())
    monkeypatch.setitem(vars(bare), "_backend", Watched())
    _has_threads.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert (bare.encode_batch(texts, max_tokens=4), bare.count_longer(texts, 4)) == expected
    _has_threads.cache_clear()


def test_many_texts_are_encoded_a_portion_at_a_time(
    tokenizer_documents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption waits for the library, which does not look for one."""
    tokenizer, portions = Tokenizer(tokenizer_documents["word_piece"]), []
    texts = ["hello world", "", "the quick fox " * 9, "hello"] * 5
    expected = tokenizer.encode_batch(texts, max_tokens=6), tokenizer.count_longer(texts, 6)
    monkeypatch.setattr("pyc.runtime.text.tokenizer.PORTION", 100)
    vars(tokenizer)["_backend"] = Meanwhile(tokenizer.backend, lambda: portions.append(1))
    assert (tokenizer.encode_batch(texts, max_tokens=6), tokenizer.count_longer(texts, 6)) == expected
    assert len(portions) > 10
    assert tokenizer.encode_batch([], max_tokens=6) == []
