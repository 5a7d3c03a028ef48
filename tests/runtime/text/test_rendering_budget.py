"""Every text that is there while a template is rendered counts, until it is no more."""

import gc
import signal
import sys
import threading

import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import escape, mark
from pyc.runtime.text.authored_text import CALLER, TEMPLATE, AuthoredText
from pyc.runtime.text.chat.limits import Meter
from pyc.runtime.text.chat.template import ChatTemplate
from pyc.runtime.text.rendering_budget import RenderingBudget, rendering

MOST = 1 << 30
OPERATIONS = {
    "slices": lambda text: [text[start:] for start in range(20)],
    "parts": lambda text: text.split(","),
    "lines": lambda text: text.splitlines(),
    "letters": lambda text: list(text[:50]),
    "marked": mark,
    "parts of marked": lambda text: mark(text).split(","),
    "escaped": escape,
    "joined": lambda text: text.join(["a", text, "b"]),
    "formatted": lambda text: text.replace("%", "") + AuthoredText("%s%s", TEMPLATE) % (text, 5),
    "spelt": lambda text: (text.upper(), text.title(), text.center(5000), text * 3, text.replace(",", "<>")),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("letters", ["some words,\n", "😀,é\n"])
def test_what_is_taken_is_given_back(operation, letters):
    text = AuthoredText(letters * 200, CALLER)
    budget = RenderingBudget(MOST, 60.0)
    with budget.counting():
        made = operation(text)
        taken = budget.text_bytes()
    kept = {id(each): len(each) for each in ([made] if isinstance(made, str) else made)}
    # at least the characters and their authors, and not many times what Python keeps
    assert 2 * sum(kept.values()) < taken <= 1.25 * (5 * sum(kept.values()) + 200 * len(kept))
    del made
    gc.collect()
    assert budget.text_bytes() == 0


def test_texts_from_before_and_of_others_do_not_count():
    budget, other = RenderingBudget(MOST, 60.0), RenderingBudget(MOST, 60.0)
    before = AuthoredText("before", CALLER)
    with budget.counting():
        del before
        thread = threading.Thread(target=lambda: AuthoredText("thread", CALLER).upper())
        thread.start()
        thread.join()
        assert budget.text_bytes() == 0
        with other.counting():  # a signal handler that renders, too
            inner = AuthoredText("inner", CALLER)
        outer = AuthoredText("outer", CALLER)
    after = AuthoredText("after", CALLER)
    assert rendering.budget is None and after
    for text, counting in ((inner, other), (outer, budget)):
        assert 2 * len(text) + 200 <= counting.text_bytes() <= 1.25 * (2 * len(text) + 200)


@pytest.mark.parametrize("length", [*range(60), *(1 << bits for bits in range(6, 24)), 10**6, 3 * 10**6 + 1])
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_a_text_counts_as_much_as_python_keeps(letter, length):
    budget = RenderingBudget(MOST, 60.0)
    with budget.counting():
        text = AuthoredText(letter * length, CALLER)
    kept = sys.getsizeof(str.__str__(text)) + sys.getsizeof(text.authors)
    assert kept <= budget.text_bytes() <= 1.25 * (5 * length + 200)


def test_a_text_that_is_too_much_is_refused_and_gives_back():
    budget = RenderingBudget(1 << 20, 60.0)
    with budget.counting():
        kept = [AuthoredText("x" * 100_000, CALLER) for _ in range(4)]
        with pytest.raises(RunError, match=r"^chat template: it builds too much text; it may be meant to exhaust"):
            kept += [AuthoredText("x" * 100_000, CALLER) for _ in range(4)]  # two more than there is room for
        kept.clear()
        assert budget.text_bytes() == 0
        budget.require(1 << 20)
        budget.charge(600_000)
        with pytest.raises(RunError, match="it builds too much text"):
            budget.require(1 << 19)
    with RenderingBudget(MOST, 0.0).counting(), pytest.raises(RunError, match="it takes too long"):
        AuthoredText("x" * (3 << 20), CALLER)


def render_until(after_s, template, messages):
    signal.setitimer(signal.ITIMER_REAL, after_s)
    for _ in range(2000):  # for seconds
        template.render(messages)


def test_an_interruption_is_not_lost_where_texts_are_no_more():
    """Python looks for signals where a function begins: a destructor of ours would swallow what a handler raises."""

    class Alarm(BaseException):
        pass

    def handler(number, frame):
        raise Alarm

    template = ChatTemplate("{% for m in messages %}{{ m.content.split(' ') | join('+') }}{% endfor %}")
    messages = [{"role": "user", "content": "a b c d e " * 20}] * 100
    former = signal.signal(signal.SIGALRM, handler)
    try:
        for tenths_ms in range(1, 200):
            with pytest.raises(Alarm):  # wherever it strikes
                render_until(tenths_ms / 1e4, template, messages)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.fixture
def budgets(monkeypatch):
    """Those of the renderings of a test, in their order."""
    found = []
    make = Meter.__init__

    def seen(self, *args):
        make(self, *args)
        found.append(self.budget)

    monkeypatch.setattr(Meter, "__init__", seen)
    return found


def test_a_rendering_leaves_its_output_alone(budgets):
    """What it made on the way is no more, but for what the meter knows the size of."""
    template = ChatTemplate(
        "{% for m in messages %}{% set parts = m.content.split(',') %}{{ parts | map('upper') | join('|') | trim }}"
        "{{ m.content | replace('a', 'b') }}{{ (m.content | safe)[1:] ~ '!' }}{% endfor %}"
    )
    text = template.render([{"role": "user", "content": "a,b,c é" * 500}] * 20)
    gc.collect()
    assert budgets[-1].text_bytes() <= 1.25 * (5 * len(text) + 200)
    del text
    assert budgets[-1].text_bytes() == 0


def test_a_refusal_keeps_nothing(budgets):
    """Not until the next collection of garbage either: a server may refuse many conversations."""
    template = ChatTemplate(
        "{% set ns = namespace(l=0) %}{% for i in range(99999) %}"
        "{% set ns.l = namespace(n=ns.l, x=messages[0].content.upper()) %}{% endfor %}"
    )
    gc.disable()
    try:
        with pytest.raises(RunError, match="it builds too much text"):
            template.render([{"role": "user", "content": "a" * 100_000}])
        assert budgets[-1].text_bytes() == 0
    finally:
        gc.enable()
