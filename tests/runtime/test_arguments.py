"""Every argument of the Python API: what is not usable is a RunError that names it, never an error from the inside."""

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import PycError, RunError
from pyc.runtime.generation.sampling import SamplingParams
from pyc.runtime.model import Model, load
from pyc.runtime.text.chat.template import ChatTemplate
from pyc.runtime.text.tokenizer import Tokenizer, longest_text

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@dataclass
class Point:
    x: int = 1


class Odd:
    """As a mock has them."""

    columns, shape = 3, None


class Table:
    """As pandas and polars have them: to iterate over one gives the names of its columns, to index it a column."""

    columns, shape, ndim = ("a",), (2, 1), 2

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, key: object) -> Any:
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([["x"], ["y"]], dtype=object)


def generator() -> Iterator[int]:
    yield 1


cyclic: list[Any] = []
cyclic.append(cyclic)
shared: Any = "x"
for _ in range(40):
    shared = [shared, shared]

# Values that are wrong nearly everywhere, and those that are right somewhere.
NOTHING_USES = [Point(), b"bytes", object(), print, {1, 2}, 1j, Path("x"), Table(), np.zeros((2, 2))]
NOTHING_USES += [{"a": 1}, generator()]
TEXT = ["x", "\ud800", ""]
NUMBERS = [-1, 1.5, float("nan"), float("inf"), True, 10**400, Fraction(10**400), np.float32(-3), np.float64("nan")]
NUMBERS += [np.array(5), np.timedelta64(1, "s")]
LISTS = [[], [5], ["x"], [None], [[1]], (b"x",)]


@pytest.fixture(scope="module")
def decoder(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> Model:
    tokenizer = tokenizers["byte_level_bpe"]
    info = fake.decoder_info(vocab_size=tokenizer.vocab_size, context=128)
    return Model(info, Generation(), fake.FakeDecoder(info, kv_blocks=30), tokenizer, TEMPLATE, kv_blocks=30)


@pytest.fixture(scope="module")
def encoder(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> Model:
    tokenizer = tokenizers["word_piece"]
    info = fake.encoder_info(vocab_size=tokenizer.vocab_size, context=32)
    return Model(info, Generation(), fake.FakeEncoder(info), tokenizer)


def refused(name: str, value: object, call: Callable[[], object]) -> None:
    """`call` raises a RunError on one line that begins with the argument's name."""
    raised: Exception | None = None
    try:
        call()
    except Exception as error:  # noqa: BLE001  # the test is which one it is
        raised = error
    seen = f"{name}={value!r:.60}: {type(raised).__name__}: {raised}"
    assert isinstance(raised, RunError), seen
    assert str(raised).startswith(name), seen
    assert "\n" not in str(raised) and len(str(raised)) < 600, seen


def test_generate_names_the_argument(decoder: Model) -> None:
    for value in [5, None, *NOTHING_USES, *NUMBERS, "\ud800", "", [], [None], (b"x",)]:
        name = "text" if isinstance(value, str) and value else "prompt"
        refused(name, value, lambda v=value: decoder.generate(v))
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "logprobs", "max_tokens"):
        bad = [value for value in NUMBERS if value != 1.5 or name not in ("temperature", "repetition_penalty")]
        if name == "max_tokens":
            bad.remove(10**400)  # as many as there is room for
        for value in [*NOTHING_USES, *TEXT, *LISTS, *bad]:
            refused(name, value, lambda n=name, v=value: decoder.generate([1], **{n: v}))
    for name in ("frequency_penalty", "presence_penalty"):
        for value in [None, *NOTHING_USES, *TEXT, *LISTS, float("nan"), True, 10**400]:
            refused(name, value, lambda n=name, v=value: decoder.generate([1], **{n: v}))
    for value in [5, *NOTHING_USES[:-4], *NUMBERS, "\ud800", "", [""], [5], ["x", b"x"], [None], ["x"] * 65]:
        if not isinstance(value, set):
            refused("stop", value, lambda v=value: decoder.generate([1], stop=v))
    for name in ("ignore_eos", "reuse_prefix"):
        for value in [None, 1, 0, *NOTHING_USES, *TEXT, *LISTS]:
            refused(name, value, lambda n=name, v=value: decoder.generate([1], **{n: v}))
    messages = [{"role": "user", "content": "x"}]
    for name in ("tools", "chat_variables"):
        for value in [5, *NOTHING_USES[:-2], *TEXT, *NUMBERS, *LISTS[1:]]:
            refused(name, value, lambda n=name, v=value: decoder.generate(messages, **{n: v}))
        refused(name, value, lambda n=name: decoder.generate("text", **{n: messages if n == "tools" else {"a": 1}}))
    assert decoder.generate("text", tools=[], chat_variables={}), "nothing is asked for"


@pytest.mark.slow
def test_messages_name_the_place(decoder: Model) -> None:
    first = [{"role": "user", "content": "x"}]
    numbers = [np.int64(5), np.float32(1), float("nan"), -float("inf")]
    for value in [*NOTHING_USES[:7], *numbers, bytearray(b"x"), "\ud800"]:
        messages = [*first, {"role": "assistant", "content": [{"text": value}]}]
        refused("messages[1].content[0].text: ", value, lambda m=messages: decoder.generate(m))
        refused("messages[0].role: ", value, lambda v=value: decoder.generate([{"role": v}]))
        refused("tools[0].x.y: ", value, lambda v=value: decoder.generate(first, tools=[{"x": {"y": v}}]))
        refused("chat_variables.x: ", value, lambda v=value: decoder.generate(first, chat_variables={"x": v}))
    for value in (cyclic, shared, {"a": cyclic}):
        refused("messages[0].content", "cyclic", lambda v=value: decoder.generate([{"role": "user", "content": v}]))
    refused("messages[0]: the name 5 is int", 5, lambda: decoder.generate([{5: "x"}]))
    refused("prompt[1]: got 7", 7, lambda: decoder.generate([{"role": "user"}, 7]))  # type: ignore[list-item]
    refused("prompt[1]: got None", None, lambda: decoder.generate([1, None]))  # type: ignore[list-item]
    refused("messages[0].content: character 1", "", lambda: decoder.generate([{"content": "a\udcff"}]))


def test_what_the_message_says(decoder: Model) -> None:
    with pytest.raises(RunError, match=r"^messages\[0\]\.content: got int64, expected text, a number, true, "):
        decoder.generate([{"role": "user", "content": np.int64(3)}])  # type: ignore[dict-item]
    with pytest.raises(RunError, match=r"^prompt: got PosixPath, expected text, token ids, or messages$"):
        decoder.generate(Path("x"))  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"^max_tokens: got 1\.5, expected an integer \(tokens at most; Python's None"):
        decoder.generate("x", max_tokens=1.5)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"^temperature: got 'x', expected a number \(0 is greedy"):
        decoder.generate("x", temperature="x")  # type: ignore[arg-type]


def test_ids_of_a_list_of_texts_are_asked_for_one_by_one(decoder: Model) -> None:
    for texts in (["a", "b"], ("a",)):
        with pytest.raises(RunError, match=r"^prompt: got a list of texts, expected one text; ask for each by itself$"):
            decoder.prompt_ids(texts)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers(decoder: Model) -> None:
    plain = list(decoder.generate([1, 2], max_tokens=3, temperature=0.5, seed=7, top_k=5, top_p=0.5, logprobs=1))
    numpy = decoder.generate(
        np.array([1, 2]),  # type: ignore[arg-type]
        max_tokens=np.int64(3),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        seed=np.uint64(7),  # type: ignore[arg-type]
        top_k=np.int8(5),  # type: ignore[arg-type]
        top_p=np.float64(0.5),
        logprobs=np.int32(1),  # type: ignore[arg-type]
        ignore_eos=np.bool_(False),  # type: ignore[arg-type]
    )
    assert list(numpy) == plain
    assert type(SamplingParams(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    expected = list(decoder.generate((1, 2), max_tokens=3))
    assert list(decoder.generate([np.int64(1), np.uint8(2)], max_tokens=3)) == expected  # type: ignore[list-item]


class Tensor:
    """What other libraries have for an array, such as torch, some of which numpy may not read."""

    def __init__(self, values: list[int] | None) -> None:
        self._values = values

    def __array__(self, dtype: object = None, copy: object = None) -> object:
        if self._values is None:
            raise RuntimeError("it requires grad")
        return np.array(self._values)

    def __len__(self) -> int:
        return len(self._values or ())

    def __getitem__(self, index: int) -> int:
        return (self._values or [])[index]


def test_logits_take_the_ids_that_generate_takes(decoder: Model) -> None:
    """Kinds of integers that numpy has no common integer for, too."""
    expected = decoder.logits([1, 2])
    same: list[object] = [(1, 2), range(1, 3), deque([1, 2]), array("i", [1, 2]), [np.int64(1), np.uint8(2)]]
    same += [[np.uint64(1), 2], [np.uint64(1), np.int64(2)], np.array([1, 2], object)]
    same += [np.array([1, 2], kind) for kind in ("i1", "u2", "i4", ">i4", "i8", "u8")]
    np.testing.assert_array_equal(decoder.logits(Tensor([1, 2])), expected)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="expected a sequence of integers, got"):
        decoder.logits(Tensor(None))  # type: ignore[arg-type]
    for ids in same:
        assert len(list(decoder.generate(ids, max_tokens=1))) == 1  # type: ignore[arg-type]
        np.testing.assert_array_equal(decoder.logits(ids), expected)  # type: ignore[arg-type]
    for ids in ([True, 2], [1, 2.0], np.array([1.0]), np.int64(3), {1, 2}, [[1]], [np.array(1)]):
        with pytest.raises(RunError, match=r"^token_ids(\[\d\])?: got "):
            decoder.logits(ids)  # type: ignore[arg-type]
    for ids in ([1 << 70], np.array([2**64 - 1], np.uint64), [np.uint64(2**64 - 1), 1], [decoder.info.vocab_size]):
        with pytest.raises(RunError, match=r"^token ids: id .* at position 0 is outside the vocabulary of"):
            decoder.logits(ids)  # type: ignore[arg-type]


def test_logits_and_embed(decoder: Model, encoder: Model) -> None:
    for value in [5, None, *NOTHING_USES, *TEXT, *NUMBERS, *(value for value in LISTS if value != [5])]:
        refused("token", value, lambda v=value: decoder.logits(v))
    for use in (decoder.logits, decoder.generate, encoder.embed):
        refused("", Odd(), lambda use=use: use(Odd()))
    lists = [[5], [None], [["x"]], (b"x",), ["\ud800"]]
    for value in [5, None, *NOTHING_USES[:4], *NOTHING_USES[5:], *TEXT, *NUMBERS, *lists]:
        refused("texts", value, lambda v=value: encoder.embed(v))
    assert encoder.embed([]).shape == (0, encoder.info.hidden_size)
    np.testing.assert_array_equal(encoder.embed(("a", "b")), encoder.embed(["a", "b"]))


def test_the_tokenizer_and_the_template(decoder: Model) -> None:
    tokenizer = decoder.tokenizer
    for value in [5, None, *NOTHING_USES, *NUMBERS, *LISTS, "\ud800"]:
        refused("text", value, lambda v=value: tokenizer.encode(v))
        refused("chat", value, lambda v=value: tokenizer.encode_chat(v))
        refused("token", value, lambda v=value: tokenizer.token_id(v))
        refused("chat template", value, lambda v=value: ChatTemplate(v))
    for value in [None, *NOTHING_USES, *TEXT, float("nan"), True, 1.5, *LISTS]:
        refused("token_id", value, lambda v=value: tokenizer.token(v))
    assert tokenizer.token(10**9) is None and tokenizer.token(1 << 40) is None
    for value in [5, None, *NOTHING_USES, *TEXT, ["x"], [None], [[1]], [-1], [1 << 40], [1.5]]:
        refused("token ids", value, lambda v=value: tokenizer.decode(v))
    template = decoder.chat_template
    for value in [5, None, *NOTHING_USES, *TEXT, *NUMBERS, *LISTS[1:]]:
        refused("messages", value, lambda v=value: template.render(v))
    refused("add_generation_prompt", 1, lambda: template.render([], add_generation_prompt=1))  # type: ignore[arg-type]


def test_load(tmp_path: Path) -> None:
    for value in [5, None, *NOTHING_USES[:6], *NOTHING_USES[7:], *NUMBERS, *LISTS]:
        refused("path", value, lambda v=value: load(v))
    for value in [0, *NOTHING_USES, *TEXT, *NUMBERS, *LISTS]:
        refused("threads", value, lambda v=value: load(tmp_path / "none", threads=v))
    for name in ("isa", "trust", "mode"):
        for value in [5, *NOTHING_USES, *NUMBERS, *LISTS]:
            if name != "trust" or not isinstance(value, Path):  # the file of a policy or of a key
                refused(name, value, lambda n=name, v=value: load(tmp_path / "none", **{n: v}))
    refused("mode", "x", lambda: load(tmp_path / "none", mode="x"))  # type: ignore[arg-type]


def test_a_text_that_no_context_holds_is_refused_before_it_is_encoded(decoder: Model) -> None:
    most = longest_text(decoder.session.context)
    assert most == 1 << 20 and longest_text(131_072) == 256 * 131_072
    refused("prompt: its text has 10000000 characters", "x", lambda: decoder.generate("x" * 10_000_000))
    long = [{"role": "user", "content": "x" * 2_000_000}]
    refused("prompt: its text has 20000", "x", lambda: decoder.generate(long))


def test_a_template_that_refuses(decoder: Model) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate, got ' + messages[0].role) }}")
    refused("chat template: roles must alternate, got user", "", lambda: template.render([{"role": "user"}]))
    for source in ("{{ messages[0].content + 5 }}", "{{ 1 / 0 }}", "{{ nope() }}", "{{ messages[9].role }}"):
        refused("chat template: ", source, lambda s=source: ChatTemplate(s).render([{"role": "user", "content": "x"}]))


def test_what_comes_from_outside_is_spelt_out(decoder: Model) -> None:
    hostile = "a\x1b]0;x\x07\u202e\x9b\nb"
    template = ChatTemplate("{{ raise_exception('no ' + messages[0].content) }}")
    for call in (
        lambda: template.render([{"content": hostile}]),
        lambda: decoder.generate([{hostile: object()}]),
        lambda: decoder.generate([{"role": "user"}], chat_variables={hostile: b""}),
        lambda: ChatTemplate("{{ messages[0].content + 5 }}" + hostile + "{% nope\x1b %}"),
        lambda: decoder.generate("x", stop=hostile * 1000),
        lambda: Tokenizer(b"{}", b'{"bos_token": {"content": 5, "\x1b": 1}}'),
        lambda: Tokenizer(('{"model": {"type": "' + "\\u001b\\u202e" + '"}}').encode()).encode("x"),
    ):
        with pytest.raises(PycError) as caught:
            call()
        assert str(caught.value).isprintable(), repr(str(caught.value))
