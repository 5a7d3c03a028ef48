"""Which regular expressions of tokenizers may be run."""

import re
import time

import pytest

from pyc.runtime.text.regex_shape import RegexError, check_regex

# As the tokenizer.json of these models have them.
REAL = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen-2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek-3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[" + "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
    "deepseek-3 digits": r"\p{N}{1,3}",
    "deepseek-3 cjk": "[一-龥\u3040-ゟ゠-ヿ]+",
    "deepseek-coder": "[\r\n]",
    "deepseek-coder letters": r"\s?\p{L}+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "clip": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "falcon": "[0-9][0-9][0-9]",
    "t5 spaces": " {2,}",
    "thousands": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    "odd classes": r"[]a]+[^]b]*[[:alpha:]\]&&[^x]]",
    "braces": r"a{x}{,2}b{2}?\x{41}\u00e9\p{^L}",
    "atomic": r"(?>a+)+b",
    "comment": r"(?#(a+)a(?i)b",
}
HOSTILE = [
    "(a+)+b", "(a*)*", "(a?)*b", "(a|a)*b", "(a|b)+", r"(\w+\s?)*$", "((a+))+", "(?:(?:a+)b?)+", "(a+){2,}",
    "(a{1,100}){1,100}", "(?=(a+)+b)", "(?<!(a+)+b)", "(?i:(a+)+)b", "(?<n>a+)+", "([a-z]+)*x", "a**", "a{1,2}+",
    "a*{3}", "a*a*b", r"\s+\s+x", "[ab]*[ab]*c", "a*b*c*d*e", "a{0,5000}a{0,5000}", r"(x)\1", r"(?<n>a)\g<n>",
    r"(?<n>a)\k<n>", "(?(1)a)", "(?~ab)", "(?{x})", "(*FAIL)", "(", "a)", "[a", "\\", "*a",
    "(" * 40 + "a" + ")" * 40, "[" * 40, "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_expressions_of_real_models_are_taken(name: str) -> None:
    check_regex(REAL[name])


def test_hostile_expressions_are_refused_at_once() -> None:
    start = time.thread_time()
    for pattern in HOSTILE:
        with pytest.raises(RegexError, match="regular expression"):
            check_regex(pattern)
    assert time.thread_time() - start < 1.0


def test_a_refusal_shows_the_place() -> None:
    with pytest.raises(RegexError, match=r"a repeated group that itself.*near " + re.escape("'(a+)+b'")):
        check_regex("(a+)+b")
