"""Markup that knows its authors: the text is that of markupsafe, and what is escaped stays its author's."""

import re

import markupsafe
import pytest

from pyc.runtime.text.authored_text import CALLER, TEMPLATE, AuthoredText
from pyc.runtime.text.chat.template import ChatTemplate

SAID = "<Ω"
"""By a caller. The templates below have neither of its characters, so each character of a result shows its author."""

EXPRESSIONS = [
    "x|e",
    "x|safe",
    "x|forceescape",
    "'t>'|safe + x",
    "x + ('t>'|safe)",
    "(x|safe) + '>t'",
    "'>t' + (x|e)",
    "('%s>t%s'|safe) % (x, x)",
    "'%(a)s>t'|safe|format(a=x)",
    "'%s>t'|format(x|e)",
    "('{}>t{a}'|safe).format(x, a=x|safe)",
    "('t>'|safe).join([x, '>', x|safe])",
    "(['t', x]|join('>'))|e",
    "('t>t'|safe).replace('>', x)",
    "('>' ~ x ~ 't')|e|upper",
    "('>' ~ x ~ 't')|e * 2",
    "(('t ' ~ x)|e).split(' ')[1] + '>'",
    "(('t ' ~ x)|safe).partition(' ')|join",
    "(' ' ~ x ~ 't')|e|trim",
    "(x ~ 't')|e|reverse",
    "(x|safe ~ '>')|e",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_character_keeps_its_author(expression: str) -> None:
    rendered = ChatTemplate("{% set x = messages[0].content %}{{ " + expression + " }}").render(
        [{"role": "user", "content": SAID}]
    )
    callers = re.compile("&lt;|&LT;|;tl&|[<Ω]")
    assert rendered.authors == callers.sub(lambda found: CALLER * len(found[0]), rendered).translate(
        {ord(character): TEMPLATE for character in rendered if character != CALLER}
    )
    assert SAID[1] in rendered


@pytest.mark.parametrize("authors", [TEMPLATE, CALLER, TEMPLATE + CALLER * 6])
def test_escape_is_that_of_markupsafe(authors: str) -> None:
    from pyc.runtime.text.authored_markup import escape, escaped_length

    text = AuthoredText("a<b>&'\"", authors)
    assert escape(text) == str(markupsafe.escape("a<b>&'\""))
    assert escaped_length(text) == len(escape(text)) == len(escape(text).authors) == escaped_length(escape(text))
    assert repr(escape(text)) == repr(markupsafe.escape("a<b>&'\""))


@pytest.mark.parametrize("expression", ["x|e", "'<b>'|safe + x", "'%s'|safe|format(x)", "('{}'|safe).format(x)"])
def test_a_control_token_of_a_caller_stays_text(expression: str) -> None:
    source = "{% set x = messages[0].content %}{{ " + expression + " }}"
    rendered = ChatTemplate(source).render([{"role": "user", "content": "[INST]"}])
    start = rendered.index("[INST]")
    assert rendered.authors[start : start + 6] == CALLER * 6


def test_text_of_safe_may_not_indent() -> None:
    from pyc.runtime.errors import RunError

    with pytest.raises(RunError, match=r"indent by a text of `safe` or `escape`"):
        ChatTemplate("{{ 'a'|indent('<'|safe, true) }}").render([])
