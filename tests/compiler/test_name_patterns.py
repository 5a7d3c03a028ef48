"""compiler/name_patterns.py: what `re.match` says, in time linear in the name, for patterns of anybody."""

import contextlib
import random
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyc.compiler.name_patterns import MAX_CHARACTERS, NamePattern, PatternError, name_pattern

LONG = "model.layers.11.self_attn." + "a" * 480
NAMES = ("", "a", "ab", "aab.b", "lm_head", "model.layers.0.mlp.up_proj.weight", "layers.2.self_attn.q_proj", LONG)

ORDINARY = (
    "lm_head",
    r".*lm_head",
    r".*self_attn\.(q|k|v)_proj",
    r"model\.layers\.(1[0-9]|2[0-3])\..*",
    r".*\.layers\.\d+\.mlp\.(gate|up|down)_proj$",
    r"(?:.*\.)?up_proj\Z",
    r"(.*\.)?(q_proj|v_proj)$",
    r"^(model)(?=\.).*\.(o_proj|q_proj)$",
    r"^(?!.*self_attn).*$",
    r"(?!lm_head).*_proj\b",
    r"[^.]+\.[a-z_]{3,9}?\.\w+",
    r"model\.layers\.[0-9]{1,2}\.[\w.]*",
    r"a{2}b|a*?\.?b{,1}$",
    r"\bmodel\b.\Blayers",
    r"(?P<kind>q|k)_proj|x{|[]a]|[^]a]+",
    r"",
    r"()*|a",
)

EVIL = (
    r"(a|a)*$",
    r"(a+)+$",
    r"(.*)*x",
    r"(\w|_)+!",
    r"(([a-z._0-9]+)+)+!",
    r"x*x*x*x*x*y",
    r".*.*.*.*.*.*.*.*!",
    r"(a?){60}a{60}!",
    r"(.*a){9}!",
    r"(a*)*(a*)*(a*)*!",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(?=(.*a)*!)|(?=.*(?=.*(?=.*(?=.*!))))",
    r"(?!.*(?!.*(?!.*(?!.*!))))!",
    r"(a|b|ab)*(a|bb)*(.*)*!",
    r"([a-z]|[a-c]|[b-x])*_{0,200}!",
)

REFUSED = {
    r"(": "unterminated subpattern",
    r"a**": "multiple repeat",
    r"a{1,5000}": "it repeats more than 1000 times",
    r"(a{1,900}){1,900}": "it needs more than 1000 states",
    r"((){1000}){1000}": "it needs more than 1000 states",
    r"(a)\1": "is not supported",
    r"(?P<x>a)(?P=x)": "is not supported",
    r"(?<=a)b": "is not supported",
    r"(?<!a)b": "is not supported",
    r"(?i)a": "is not supported",
    r"(?i:a)": "is not supported",
    r"(a)?(?(1)b|c)": "is not supported",
    r"(?>a+)b": "is not supported",
    r"a++b": "possessive repetition is not supported",
    r"\x41": "is not supported",
    r"[[:alpha:]]": r"possible nested set at position 1; put \ before the letter that is meant",
    r"[a--b]": "possible set difference",
    "(?=a)" * 9: "it looks ahead more than 8 times",
    "a" * (MAX_CHARACTERS + 1): "it has 1025 characters, expected at most 1024",
    "(" * 500 + "a" + ")" * 500: "nested too deeply",
}


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_mean_what_they_mean_to_re(pattern):
    for name in NAMES:
        assert name_pattern(pattern).matches(name) == (re.match(pattern, name) is not None), name


@pytest.mark.parametrize("pattern", EVIL)
def test_evil_patterns_are_fast(pattern):
    began = time.process_time()
    compiled = NamePattern(pattern)
    names = (*(f"model.layers.{layer}.self_attn.q_proj" for layer in range(50)), LONG, "x" * 500, "ab" * 250)
    with contextlib.suppress(PatternError):
        for name in names:
            compiled.matches(name)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_refused(pattern):
    began = time.process_time()
    with pytest.raises(PatternError, match=re.escape(REFUSED[pattern])):
        name_pattern(pattern)
    assert time.process_time() - began < 0.5


def test_a_pattern_with_ever_new_states_gives_up():
    """2^n sets of states: the last n letters decide; names of random letters meet a new set at each letter."""
    pattern = NamePattern("(a|b)*a(a|b){200}!")
    draw = random.Random(0)
    began = time.process_time()
    names = ["".join(draw.choices("ab", k=500)) for _ in range(1000)]
    with pytest.raises(PatternError, match="takes too many steps"):
        [pattern.matches(name) for name in names]
    assert time.process_time() - began < 2


ATOMS = st.sampled_from(
    [*"ab.", r"\.", r"\w", r"\d", "[ab]", "[^a]", "^", "$", r"\b", r"\B", r"\A", r"\Z", "(?=a)", "(?!b)", "[.-b]", "_"]
)


def combined(inner):
    repeat = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{,2}", "{2,}?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
        st.tuples(inner, repeat).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda text: f"(?={text})"),
        inner.map(lambda text: f"(?!{text})"),
    )


@pytest.mark.slow
@settings(max_examples=400)
@given(pattern=st.recursive(ATOMS, combined, max_leaves=8), name=st.text("ab._1", max_size=8))
@example(pattern="(?:(?:a|b)*){2,}?$", name="abab")
def test_any_pattern_agrees_with_re(pattern, name):
    try:
        compiled = name_pattern(pattern)
    except PatternError as error:
        assert "looks ahead" in str(error) or "too large" in str(error)  # noqa: PT017 -- what may be refused
        return
    assert compiled.matches(name) == (re.match(pattern, name) is not None)
