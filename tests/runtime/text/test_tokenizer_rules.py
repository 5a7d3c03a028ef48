"""What a tokenizer.json may ask for, and that one is tried in a process that may be stopped."""

import base64
import errno
import json
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from pyc.runtime.errors import ArtifactError, IngestError, RunError
from pyc.runtime.text import tokenizer_trial
from pyc.runtime.text.foreign_code import contained
from pyc.runtime.text.tokenizer import Tokenizer
from pyc.runtime.text.tokenizer_rules import TokenizerRuleError, check_tokenizer_json
from pyc.runtime.text.tokenizer_trial import examine, interpreter, try_tokenizer

Document = dict[str, Any]


@pytest.fixture
def document(tokenizer_documents: dict[str, bytes]) -> Document:
    """A byte-level tokenizer.json, to be damaged."""
    return json.loads(tokenizer_documents["byte_level_bpe"])


def replace(content: str, pattern: object = None) -> Document:
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


def split(regex: str) -> Document:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def sequence(members: str, *steps: object) -> Document:
    return {"type": "Sequence", members: list(steps)}


def nested(members: str, step: object, depth: int) -> object:
    for _ in range(depth):
        step = sequence(members, step)
    return step


def charsmap(text: bytes) -> Document:
    table = struct.pack("<I", 4) + b"\0" * 4 + text
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def template(pieces: object, tokens: object) -> Document:
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": tokens}


def special(token: str) -> Document:
    return {"SpecialToken": {"id": token, "type_id": 0}}


BEGIN = {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
HOSTILE: list[tuple[str, object, str]] = [
    ("normalizer", replace("a" * 1_000_000), "content has 1000000 characters"),
    ("normalizer", sequence("normalizers", *[replace("a" * 60)] * 5), "more than 256 times as long"),
    ("normalizer", replace("x", {"Regex": "(a+)+b"}), "regular expression"),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 100}, "prepend has 100"),
    ("normalizer", sequence("normalizers", *[{"type": "NFKC"}] * 3), "more than 256 times"),
    ("normalizer", sequence("normalizers", *[{"type": "Lowercase"}] * 40), "more than 32 steps|times as long"),
    ("normalizer", nested("normalizers", {"type": "NFC"}, 8), "nested more than 6"),
    ("normalizer", {"type": "Python"}, "type 'Python' is not known"),
    ("normalizer", [], "got list, expected a mapping"),
    ("normalizer", {"type": "Sequence"}, "without its list"),
    ("normalizer", charsmap(b"x" * 1000), "a text of 1000 bytes"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "////"}, "a table of"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AA*A"}, "not base64"),
    ("pre_tokenizer", split("(a+)+b"), "regular expression"),
    ("pre_tokenizer", sequence("pretokenizers", split("a"), split(r"(\w+\s?)*$")), "regular expression"),
    ("pre_tokenizer", nested("pretokenizers", split("a"), 40), "nested more than 6"),
    ("decoder", replace("b" * 1_000_000), "content has 1000000"),
    ("decoder", sequence("decoders", *[replace("b" * 60, {"String": "b"})] * 4), "more than 256 times"),
    ("post_processor", template([special("<no>")], {}), "adds '<no>'"),
    ("post_processor", template([special("<s>")] * 1000, BEGIN), "single has more than 64 pieces"),
    ("post_processor", template([special("<s>")], {"<s>": {"id": "<s>", "ids": [0] * 100}}), "at most 64 ids"),
    ("added_tokens", [{"id": 1, "content": ""}], "token 1 has 0 characters"),
    ("added_tokens", [{"id": 1, "content": "x" * 5000}], "has 5000 characters"),
    ("added_tokens", {}, "not a tokenizer"),
    ("model", {"type": "Evil"}, "type 'Evil' is not known"),
    ("model", {"type": "WordPiece", "max_input_chars_per_word": 10**9}, "max_input_chars_per_word"),
    ("model", None, "not a tokenizer"),
]  # fmt: skip


def test_hostile_parts_are_refused_before_the_library_sees_them(document: Document) -> None:
    for part, value, message in HOSTILE:
        content = json.dumps(document | {part: value}).encode()
        with pytest.raises(TokenizerRuleError, match=message):
            check_tokenizer_json(content)
        with pytest.raises(ArtifactError, match=r"^tokenizer\.json: .*; build the artifact again$"):
            Tokenizer(content).encode("x")
    for content in (b"hello", b"", b"[]", b"\xff", b"[" * 10_000, b"{}"):
        with pytest.raises(TokenizerRuleError, match="not a tokenizer"):
            check_tokenizer_json(content)


def as_albert(backend: Backend) -> None:
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps = [*quotes, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    backend.normalizer = normalizers.Sequence(steps)


def as_deepseek(backend: Backend) -> None:
    digits = pre_tokenizers.Split(r"\p{N}{1,3}", "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False, use_regex=False)])


def as_bert(backend: Backend) -> None:
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def as_gemma(backend: Backend) -> None:
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte_level_bpe", "metaspace_unigram", "byte_fallback_bpe", "word_piece"])
def test_real_kinds_pass(tokenizer_documents: dict[str, bytes], kind: str) -> None:
    check_tokenizer_json(tokenizer_documents[kind])
    assert examine(tokenizer_documents[kind]).fault is None
    for change in (as_albert, as_deepseek, as_bert, as_gemma):
        backend = Backend.from_buffer(tokenizer_documents[kind])
        change(backend)
        check_tokenizer_json(backend.to_str().encode())


def test_precompiled_as_t5_has_it(document: Document) -> None:
    """Its longest text is what NFKC makes of U+FDFA: 33 bytes."""
    table = charsmap("صلى الله عليه وسلم".encode() + b"\0x\0")
    value = sequence("normalizers", table, replace(" ", {"Regex": " {2,}"}))
    check_tokenizer_json(json.dumps(document | {"normalizer": value}).encode())


@pytest.mark.slow
def test_a_trial_finds_the_largest_id(tokenizer_documents: dict[str, bytes]) -> None:
    content = tokenizer_documents["byte_level_bpe"]
    findings = try_tokenizer(content)
    assert findings.largest_id == Tokenizer(content).vocab_size - 1
    assert findings == examine(content)


@pytest.mark.slow
def test_what_never_ends_is_stopped(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step a pair of letters: its shape is fine, and a long word takes minutes."""
    monkeypatch.setattr(tokenizer_trial, "MAX_CPU_S", 1)
    slow = document | {"pre_tokenizer": split(r"\w+\d")}
    check_tokenizer_json(json.dumps(slow).encode())
    with pytest.raises(TokenizerRuleError, match=r"ended with signal \d+, after at most 1 s of processor time"):
        try_tokenizer(json.dumps(slow).encode())


@pytest.mark.slow
def test_what_takes_all_memory_is_stopped(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's steps would be refused; here the trial itself must end."""
    monkeypatch.setattr(tokenizer_trial, "MAX_MEMORY_BYTES", 1 << 29)
    bombs = sequence("normalizers", *[replace("a" * 64)] * 6)
    with pytest.raises(TokenizerRuleError, match=r"trying it ended with (signal|exit)|too much memory|cannot be used"):
        try_tokenizer(json.dumps(document | {"normalizer": bombs}).encode())


def test_what_grows_is_found(document: Document) -> None:
    bombs = sequence("normalizers", *[replace("a" * 60)] * 3)
    with pytest.raises(TokenizerRuleError, match=r"it makes 216000 tokens of 1 characters \(one letter\)"):
        try_tokenizer(json.dumps(document | {"normalizer": bombs}).encode())


def test_a_panic_is_a_finding(document: Document) -> None:
    """A backtracking expression passes the engine's limit, and the library panics."""
    content = json.dumps(document | {"pre_tokenizer": split("(a+)+b")}).encode()
    with pytest.raises(TokenizerRuleError, match="the tokenizers library failed"):
        try_tokenizer(content)


def test_ids_beyond_the_vocabulary_are_found(document: Document) -> None:
    entry = {"<s>": {"id": "<s>", "ids": [9_999], "tokens": ["<s>"]}}
    pieces = [special("<s>"), {"Sequence": {"id": "A", "type_id": 0}}]
    content = json.dumps(document | {"post_processor": template(pieces, entry)}).encode()
    with pytest.raises(TokenizerRuleError, match="gives token id 9999, and its largest is 399"):
        try_tokenizer(content)


def test_an_empty_vocabulary() -> None:
    with pytest.raises(TokenizerRuleError, match="vocabulary is empty"):
        try_tokenizer(b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}')


def test_a_trial_without_an_interpreter(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that embeds Python is sys.executable, and must not be started."""
    assert interpreter() is not None
    monkeypatch.setattr(sys, "executable", "/usr/bin/an-application")
    monkeypatch.setattr(sys, "base_prefix", "/nowhere")
    assert interpreter() is None
    content = json.dumps(document).encode() + b" "
    assert try_tokenizer(content).largest_id == 399


class PanicException(BaseException):
    """As pyo3's."""


def test_a_panic_is_an_error_and_ctrl_c_is_not() -> None:
    broken = OSError(errno.EILSEQ, "index out of bounds")
    for problem in (PanicException("index out\nof bounds"), ValueError("index out of bounds"), broken):
        with pytest.raises(RunError, match=r"^text: .*index out of bounds$"), contained(RunError, "text"):
            raise problem
    system = OSError(errno.EMFILE, "Too many open files")
    unloadable = ImportError("tokenizers.abi3.so: failed to map segment from shared object")
    of_the_program = (KeyboardInterrupt(), SystemExit(3), GeneratorExit(), MemoryError(), IngestError("x"))
    for passing in (*of_the_program, system, unloadable):
        with pytest.raises(type(passing)), contained(RunError, "text"):
            raise passing


class OutOfTimeError(Exception):
    """What a program's handler of SIGALRM raises."""


def end_in_time(number: int, frame: object) -> None:
    raise OutOfTimeError


class Alarm:
    def __call__(self, number: int, frame: object) -> None:
        raise OutOfTimeError

    method = __call__


@pytest.mark.parametrize(
    "handler", [end_in_time, Alarm(), Alarm().method, partial(end_in_time), lambda *given: end_in_time(*given)]
)
def test_what_a_signal_handler_raises_is_not_the_library_s(handler: Callable[[int, object], None]) -> None:
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(OutOfTimeError), contained(RunError, "text"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    with pytest.raises(RunError, match=r"^text: OutOfTimeError$"), contained(RunError, "text"):
        raise OutOfTimeError


@pytest.mark.slow
def test_a_panic_while_running_is_a_run_error(document: Document) -> None:
    """The pattern is refused when a tokenizer is loaded, so the library's tokenizer is put in place here."""
    tokenizer = Tokenizer(json.dumps(document).encode())
    tokenizer.__dict__["_backend"] = Backend.from_buffer(
        json.dumps(document | {"pre_tokenizer": split("(a+)+b")}).encode()
    )
    with pytest.raises(RunError, match="text: the tokenizer failed: the tokenizers library failed: Onig"):
        tokenizer.encode("a" * 40)
    with pytest.raises(RunError, match="texts: the tokenizer failed"):
        tokenizer.encode_batch(["a" * 40], max_tokens=10)


def test_dropout_is_off(document: Document) -> None:
    document["model"]["dropout"] = 0.9
    tokenizer = Tokenizer(json.dumps(document).encode())
    assert len({tuple(tokenizer.encode("the quick brown fox")) for _ in range(20)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "\0", "a\0b", " " * 100_000, "\n" * 1000, "a" * 100_000, "\ufdfa" * 1000])
def test_odd_texts(tokenizers: dict[str, Tokenizer], text: str) -> None:
    for tokenizer in tokenizers.values():
        ids = tokenizer.encode(text)
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizers["byte_level_bpe"].decode(tokenizers["byte_level_bpe"].encode(text)) == text


def test_where_the_other_process_finds_no_pyc_it_is_tried_here(
    document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a program that finds its modules by means of its own; the tokenizer is not to blame."""
    monkeypatch.setattr(tokenizer_trial, "_PROGRAM", "import nothing_of_that_name")
    content = json.dumps(document, indent=5).encode()  # in no cache of this process
    assert try_tokenizer(content, ()) == examine(content)
