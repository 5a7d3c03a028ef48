"""Expressions of templates, against jinja2 with the environment of transformers."""

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from pyc.runtime.errors import RunError
from pyc.runtime.text.chat.template import ChatTemplate

MESSAGES = [
    {"role": "user", "content": "H\u00e9 llo  w\u00f6rld <b>&'\"\n x "},
    {"role": "assistant", "content": "a b a", "l": [3, 1, 2, 1], "d": {"b": 1, "a": "x", "c": None}},
]

# What jinja2's `safe` and `escape` return escapes what is joined to it, without automatic escaping, too.
MARKUP = [
    "'<a>'|safe + m.content",
    "m.content|e + '<b>'",
    "'<' + (m.content|e)",
    "'%s'|safe|format(m.content)",
    "('%s'|safe) % m.content",
    "'<a>'|safe ~ m.content",
    "('{}'|safe).format(m.content)",
    "(', '|safe).join([m.content,'<'])",
    "('<'|safe)|replace('<', m.content)",
    "('x'|safe)|indent + '<'",
    "m.content|e|e",
    "m.content|e|upper",
    "'a'|safe|trim + '&'",
    "m.content|tojson|safe + '<x>'",
    "'<x>' + (m.content|tojson|safe)",
    "'a'|safe * 2 + '<'",
    "[m.content|e]|string",
    "(m.content|e)[0:2] + '<'",
    "[m.content|e]|join + '<'",
    "(m.content|e).split(' ')[0] + '<'",
    "(m.content|e)|tojson",
    "m.content|e|forceescape",
    "('%s %d %5.2f %r'|safe) % (m.content, 3, 2.5, '<')",
    "('%(a)s|%(a)s'|safe) % {'a': m.content}",
    "'%(a)s'|safe|format(a='<')",
    "('%s'|safe) % [1,'<']",
    "('%s'|safe) % {'a':'<'}",
    "'%s' % ('<'|safe)",
    "'%s' % ('<'|e)",
    "'%5s|%-8s|%.2s'|safe|format('<','>','&')",
    "('%d%%'|safe) % 3",
    "('abc'|safe) % ()",
    "('{} {!r} {:>5} {a}'|safe).format('<', '<', '<', a='<'|safe)",
    "('{:>{w}}'|safe).format('<', w=8)",
    "('{0[a]}{0.a}'|safe).format({'a':'<'})",
    "'{}{!r}{:>4}'.format('<'|safe, '<'|safe, '<'|safe)",
    "('<'|safe).join('a&b')",
    "('<'|safe).join([1,none,'<'|safe])",
    "'<'.join(['a'|e,'&'])",
    "['a<'|e,'&']|join('<'|safe)",
    "['a<'|e,'&']|join('<') + '<'",
    "('a<b'|safe).replace('<','&') + '<'",
    "('a<b'|safe).replace('<','&'|safe,1)",
    "('a<b'|safe)|replace('<','&') + '<'",
    "('abc'|safe).center(9,'*') + '<'",
    "('abc'|safe).ljust(5)+'<'",
    "('abc'|safe).rjust(5,'-')+'<'",
    "('a<b'|safe).partition('<')[2]+'<'",
    "('a<b'|safe).rpartition('<')[0]+'<'",
    "('a b'|safe).split()[1]+'<'",
    "('a b'|safe).split()|join+'<'",
    "('a b'|safe).rsplit(' ',1)[0]+'<'",
    r"('a\nb'|safe).splitlines()[0]+'<'",
    "('a b'|safe).title()+'<'",
    "('a b'|safe).capitalize()+'<'",
    "('a b'|safe).swapcase()+'<'",
    "('a b'|safe).casefold()+'<'",
    "('a b'|safe).upper()+'<'",
    "('a b'|safe).zfill(9)+'<'",
    "(' a '|safe).strip()+'<'",
    "(' a '|safe).lstrip()+'<'",
    "(' a '|safe).rstrip(' ')+'<'",
    "('ab'|safe).removeprefix('a')+'<'",
    "('ab'|safe).removesuffix('b')+'<'",
    "('a b'|safe)|title + '<'",
    "('a b'|safe)|capitalize + '<'",
    "('a b'|safe)|upper + '<'",
    "('a b'|safe)|lower + '<'",
    "('a b'|safe)|trim + '<'",
    "('a b'|safe)|center(9) + '<'",
    "('a b'|safe)|reverse + '<'",
    "('a b'|safe)|first + '<'",
    "('a b'|safe)|last + '<'",
    "('a b'|safe)|list|first + '<'",
    "('a b'|safe)|list|last + '<'",
    "('a b'|safe)[0] + '<'",
    "('a b'|safe)[-1:] + '<'",
    "('a b'|safe)|string + '<'",
    "('a b'|safe)|default('x') + '<'",
    "zz|default('<'|safe) + '<'",
    "('a b c d e f g'|safe)|truncate(6,true,'<',0)",
    "('a b c d e f g'|safe)|truncate(60) + '<'",
    "'a b<c d e f g'|truncate(8,true,'<'|safe,0)",
    r"('a\n<b>'|safe)|indent(2) + '<'",
    r"('a\n<b>'|safe)|indent('<<',true)",
    r"('a\n\n<b>'|safe)|indent('<'|safe,true,true) + '<'",
    r"'a\nb'|e|indent(4,first=true)",
    "5|safe + '<'",
    "none|safe",
    "zz|safe + '<'",
    "zz|e + '<'",
    "[1,'<']|e",
    "[1,'<']|safe + '<'",
    "5|e + '<'",
    "m|e",
    "m.l|e",
    "{'a': m.content|e}",
    "[['<'|e]]",
    "'<'|e is escaped",
    "'<' is escaped",
    "'<'|e is string",
    "'<'|safe == '<'",
    "'<' in ('a<'|safe)",
    "{'<'|safe: 1}['<']",
    "{'<': 1}['<'|safe]",
    "('a'|safe) ~ '<' + '<'",
    "(('a'|safe) ~ 'b') + '<'",
    "2 * ('a'|safe) + '<'",
    "('a'|safe)|length",
    "('<'|e)|length",
    "('<'|e)|tojson + '<'",
    "[m.content|e]|tojson",
    "('3'|safe)|int + 1",
    "('a<'|e)|wordcount",
    "(['b'|safe,'a']|sort|first) + '<'",
    "(['b'|safe,'a']|max) + '<'",
    "(['b'|safe]|map('upper')|first) + '<'",
    "(['<','&']|map('e')|join(',')) + '<'",
    "(['<','&']|map('escape')|list)",
    "('a'|safe).find('a')",
    "('a'|safe).startswith('a')",
    "('a'|safe).count('a')",
    "('a'|safe).isalpha()",
    "'x'|safe|e|safe + '&'",
    "m.content|escape|escape",
    "('%s'|safe|format(m.content|e))",
    "('%s'|safe|format(m.content))|e",
    '''("<a href='" |safe) + m.content + "'>"''',
    """'"'|e""",
    """"'"|e + '"'""",
    "'%%'|safe|format",
    "'<'|forceescape|forceescape",
    "5|forceescape",
    "('a'|safe).replace('a','<',0)",
    "('a'|safe).replace('','<')",
    "'a'.replace('a','<'|safe)+'<'",
    "'a'.center(5,'<'|safe)",
    "'<'.ljust(3,'-'|safe)",
    "('a,b'|safe).split(sep=',')|join('<')",
    "('a,b'|safe).rsplit(',',maxsplit=1)[0] + '&'",
    "('a'|safe).join(zz)",
    "'x' if ('x'|safe) else 'y'",
    "('x'|safe) is sameas ('x'|safe)",
    "('b'|safe) > 'a'",
    "('1.5'|safe)|float",
    "'a' 'b'|safe + '<'",
    "'<'|safe|upper ~ '<'",
    "'%s'|format('<'|safe) + '<'",
    "('%s'|safe).format('<')",
    """("{a}"|safe).format(**{'a':'<'})""",
    """("{}"|safe).format(*['<'])""",
    """("{{}}"|safe).format('<')+'<'""",
    '("{0.role}"|safe).format(m)',
    """("{!s}{!a}"|safe).format('<'|safe, 'é<'|safe)""",
    "'a'|safe|replace('a','<')|e",
    "('a'|e) ~ ('<'|e)",
    "[('a'|safe) ~ 'b', 'a'|safe]",
    "(1,'<'|e)",
    "dict(a='<'|e)",
    "('a','<'|e)|string|e",
    "'ab'|safe|map('upper')|list",
    "'ab'|safe|select|list",
    "m.content|safe|e",
    '"%s"|safe|format("%s"|e)|format(1)',
]
REFUSED = [
    "('{:>5}'|safe).format('<'|safe)",
    "('abc'|safe).center(9, '<')",
    "('%x'|safe) % 'a'",
    "('%s %s'|safe) % 'a'",
    "('a'|safe) + 1",
    "1 + ('a'|safe)",
    "('a'|safe) + none",
    "('a'|safe) + zz",
    "('{1}'|safe).format('<')",
    "'a'.replace(old='a', new='b')",
    "'a'.center(width=5)",
]


def source_of(expression):
    return "{% set m, n = messages %}[{{ " + expression + " }}]"


def by_transformers(expression):
    (text,), _ = render_jinja_template([MESSAGES], chat_template=source_of(expression))
    return text


@pytest.mark.parametrize("expression", MARKUP)
def test_expressions_are_those_of_jinja2(expression):
    assert str(ChatTemplate(source_of(expression)).render(MESSAGES)) == by_transformers(expression)


@pytest.mark.parametrize("expression", REFUSED)
def test_what_jinja2_refuses_is_refused(expression):
    with pytest.raises((TemplateError, TypeError, ValueError, IndexError)):
        by_transformers(expression)
    with pytest.raises(RunError):
        ChatTemplate(source_of(expression)).render(MESSAGES)


BLOCKS = [
    "{% set x %}a<{{ m.content|e }}{% endset %}{{ x + '<' }}",
    "{% set x|e %}a<{% endset %}{{ x + '<' }}",
    "{% filter e %}<{{ '<'|safe }}{% endfilter %}",
    "{% macro f(x) %}{{ x }}<{% endmacro %}{{ f('<'|e) + '<' }}|{{ f('<')|e + '<' }}",
    "{% macro f() %}{{ caller() + '<' }}{% endmacro %}{% call f() %}<{{ '<'|e }}{% endcall %}",
    "{% for c in 'a<'|e %}{{ c + '<' }}{% endfor %}",
    "{% set ns = namespace(t=''|safe) %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}",
]


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_those_of_jinja2(block):
    source = "{% set m = messages[0] %}" + block
    (expected,), _ = render_jinja_template([MESSAGES], chat_template=source)
    assert str(ChatTemplate(source).render(MESSAGES)) == expected
