"""runtime/text/json_text.py: what is written, a parser that knows nothing but RFC 8259 reads as it was meant."""

import json
import math

import msgspec
import pytest

from pyc.runtime.text.json_text import MAX_DEPTH, json_text, parse_json

WORDS = ("plain", 'quote " \\ back', "\x00\x1b\x7f\x9b\u2028\u2029", "é漢\U0001f600", "\\ud800", "")
HALVES = {"mod\udce8le": "mod\\udce8le", "\ud800": "\\ud800", "\ude00\ud83d": "\\ude00\\ud83d"}


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_every_document_is_read_by_a_strict_parser(ensure_ascii, indent):
    document = {
        **{word: word for word in WORDS},
        **{word: [word] for word in HALVES},
        "numbers": (1, -0.5, 1e300, math.nan, {"deep": [math.inf, -math.inf]}),
        "others": [True, None, {}],
    }
    text = json_text(document, ensure_ascii=ensure_ascii, indent=indent)
    assert msgspec.json.decode(text.encode()) == {
        **{word: word for word in WORDS},
        **{spelt: [spelt] for spelt in HALVES.values()},
        "numbers": [1, -0.5, 1e300, None, {"deep": [None, None]}],
        "others": [True, None, {}],
    } | {"\\ud800": ["\\ud800"]}
    assert text.isascii() == ensure_ascii
    assert not set(text) & set("\x1b\x7f\x9b\u2028\u2029")


def test_otherwise_it_is_what_json_writes():
    document = {"b": ["é", "\U0001f600", "\x1f"], "a": {"x": 0.1}}
    for options in ({}, {"indent": 2}, {"sort_keys": True, "separators": (",", ":")}):
        assert json_text(document, **options) == json.dumps(document, **options)


@pytest.mark.parametrize(
    "text", ["NaN", "[-Infinity]", '{"a": 1e999}', "[" * (MAX_DEPTH + 1) + "0" + "]" * (MAX_DEPTH + 1), "{", ""]
)
def test_what_json_lacks_is_no_json(text):
    with pytest.raises(ValueError, match=r"JSON|float64|levels|Expect"):
        parse_json(text)


def test_what_is_read():
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.loads(deepest) == parse_json(deepest)
    assert parse_json('{"a": [1, 0.5, "\\ud800"]}') == {"a": [1, 0.5, "\ud800"]}
    assert parse_json('{"a": 1}', list) == [("a", 1)]
