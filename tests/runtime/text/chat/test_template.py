"""Chat templates render as transformers renders them."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.text.chat.template import ChatTemplate

TEMPLATES = {path.stem: path.read_text() for path in Path(__file__).with_name("chat_templates").glob("*.jinja")}
FAMILIES = ("chatml", "llama_3", "mistral", "qwen_3")

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather, "now" <b>&amp;</b> Größe',
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2]}},
                "required": ["place"],
            },
        },
    }
]
PLAIN = [
    {"role": "system", "content": "You are terse.  "},
    {"role": "user", "content": "  hi\nthere 😀 "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello"},
    {"role": "user", "content": "<b>more</b> & 'quotes' {{ messages }}"},
]
CALLS = [
    {"role": "user", "content": "Weather in Ålesund?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"place": "Ålesund", "n": 1.5}}}
        ],
    },
    {"role": "tool", "content": '{"rain": true}'},
    {"role": "assistant", "content": "It rains.", "reasoning_content": "look"},
    {"role": "user", "content": "Thanks"},
]
REASONED = [
    *CALLS[:2],
    {"role": "tool", "content": "dry"},
    {"role": "assistant", "content": "Dry.", "reasoning": "hm", "thinking": None},
    {"role": "user", "content": "And now?"},
    {**CALLS[1], "content": "Rain.", "thinking": "ah", "reasoning": "no"},
    {"role": "tool", "content": "wet"},
]
CONVERSATIONS = {"plain": PLAIN, "calls": CALLS, "no system": PLAIN[1:], "one": PLAIN[1:2], "reasoned": REASONED}

Message = Mapping[str, Any]


def transformers_renders(
    source: str,
    messages: Sequence[Message],
    tools: Sequence[Message] | None,
    prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [messages], tools=tools, chat_template=source, add_generation_prompt=prompt, **SPECIAL, **variables
    )
    return rendered[0]


def outcome(render: Callable[[], str]) -> str:
    """What came out, or what the template raised."""
    try:
        return render()
    except (jinja2.TemplateError, RunError) as error:
        return "raised " + re.sub(r"^chat template: | in line \d+| \(\w+\)$", "", str(error))


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_renders_as_transformers_does(
    name: str, conversation: str, tools: Sequence[Message] | None, prompt: bool
) -> None:
    pytest.importorskip("transformers")
    messages = CONVERSATIONS[conversation]
    source = TEMPLATES[name]
    template = ChatTemplate(source, SPECIAL)
    for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        expected = outcome(lambda v=variables: transformers_renders(source, messages, tools, prompt, v))
        got = outcome(
            lambda v=variables: template.render(messages, tools=tools, add_generation_prompt=prompt, variables=v)
        )
        assert got == expected


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_template_knows_a_plain_conversation(name: str) -> None:
    assert "there 😀" in ChatTemplate(TEMPLATES[name], SPECIAL).render(PLAIN)


def test_raise_exception_gives_the_template_its_say() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RunError, match="chat template: roles must alternate"):
        template.render([])


def test_strftime_now_is_the_date_of_today() -> None:
    from datetime import datetime

    before = datetime.now().strftime("%d %B %Y")
    rendered = ChatTemplate("{{ strftime_now('%d %B %Y') }}").render([])
    assert rendered in (before, datetime.now().strftime("%d %B %Y"))


def test_the_conversation_is_data_and_stays_as_it_is() -> None:
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% for %}"}]
    assert ChatTemplate("{{ messages[0].content }}").render(messages) == "{{ 7 * 7 }}{% for %}"
    assert messages == [{"role": "user", "content": "{{ 7 * 7 }}{% for %}"}]


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}, print])
def test_only_json_types_reach_a_template(value: Any) -> None:
    with pytest.raises(RunError, match="JSON types"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": value}])


def test_deep_conversations_are_refused() -> None:
    value: Any = "x"
    for _ in range(60):
        value = [value]
    with pytest.raises(RunError, match="nested more than"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": value}])


def test_long_conversations_are_not_mistaken_for_bombs() -> None:
    turns = [{"role": role, "content": "word " * 400} for _ in range(400) for role in ("user", "assistant")]
    for source in (TEMPLATES[name] for name in FAMILIES):
        rendered = ChatTemplate(source, SPECIAL).render(turns)
        assert rendered.count("word") == 400 * 800


def test_one_very_long_message() -> None:
    messages = [{"role": "user", "content": "x" * 5_000_000}]
    for source in (TEMPLATES[name] for name in FAMILIES):
        assert ChatTemplate(source, SPECIAL).render(messages).count("x") >= 5_000_000


@pytest.mark.parametrize("letters", [40, 5_000, 60_000])
@pytest.mark.parametrize(
    "said",
    [
        "m.content.split('x') | join('|')", "m.content.rsplit('x', 1) | join('|')", "m.content.split() | length",
        "m.content.splitlines() | join", "m.content.strip().rstrip('o').lstrip('a') | trim",
        "m.content.partition('x') | join", "m.content.rpartition('x')[0]", "m.content.replace('x', 'yy')",
        "m.content.find('o') ~ m.content.rfind('o')", "m.content.startswith('a') ~ m.content.count('x')",
        "m.content.title().lower()", "m.content | indent | replace('x', '')", "m.content | tojson",
        "(m.content, 'b') | sort | join", "'%s|%s' % (m.content, m.role)", "'{}|{}'.format(m.content, m.role)",
        "m.content.center(8).upper() | escape", "m.content | wordcount", "m == messages[0] == m",
    ],
)  # fmt: skip
def test_long_messages_pass_as_through_jinja2(said: str, letters: int) -> None:
    """Within a loop, a macro, a block and none: jinja2 calls methods there with more than a template gave."""
    messages = [{"role": "user", "content": "a x\nb " * (letters // 6) + "ok"}]
    for source in (
        f"{{% for m in messages %}}{{{{ {said} }}}}{{% endfor %}}",
        f"{{% macro f(m) %}}{{% for n in [1] %}}{{{{ {said} }}}}{{% endfor %}}{{% endmacro %}}{{{{ f(messages[0]) }}}}",
        f"{{% set m = messages[0] %}}{{% if m %}}{{{{ {said} }}}}{{% endif %}}",
    ):
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        wanted = environment.from_string(source).render(messages=messages)
        assert str.__str__(ChatTemplate(source).render(messages)) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "{% for t in tools %}{% set ns.x = ns.x + t.name %}{% set ns.x = ns.x + ': ' + t.text + '\n' %}{% endfor %}",
        "{% for t in tools %}{% set ns.x = ns.x ~ t.name ~ ': ' ~ t.text ~ '\n' %}{% endfor %}",
        "{% for t in tools %}{% set ns.x = [ns.x, t.name, ': ', t.text, '\n']|join %}{% endfor %}",
        "{% for t in tools %}{% set x %}{{ ns.x }}{{ t.name }}: {{ t.text }}{{ '\n' }}{% endset %}{% set ns.x = x %}"
        "{% endfor %}",
    ],
)
def test_a_text_that_is_put_together_of_many_pieces_is_no_bomb(source: str) -> None:
    """DeepSeek V3.1's and LFM2's templates do so with each tool. What is dropped at once takes no memory."""
    tools = [{"name": f"tool{index}", "text": "what it is for " * 130} for index in range(200)]
    wanted = "".join(f"{tool['name']}: {tool['text']}\n" for tool in tools)
    template = ChatTemplate("{% set ns = namespace(x='') %}" + source + "{{ ns.x }}")
    assert str.__str__(template.render([{"role": "user", "content": "hi"}], tools=tools)) == wanted


@pytest.mark.parametrize(
    "parted", ["split('<|tools|>')[0]", "rsplit('\\n', 1)[0]", "partition('\\n')[0]", "split('\\n')[0]"]
)
def test_a_template_may_part_one_long_text_at_each_message(parted: str) -> None:
    """As those do that look into the system text again."""
    source = "{% for m in messages %}{{ messages[0].content." + parted + " | length }}{{ m.role }}{% endfor %}"
    system = "a line of the system text\n" * 4_000
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": "hi"} for _ in range(400))]
    wanted = jinja2.Environment().from_string(source).render(messages=messages)
    assert str.__str__(ChatTemplate(source).render(messages)) == wanted


@pytest.mark.slow
def test_a_template_may_look_at_each_letter_of_a_long_message() -> None:
    """Llama 3.2 Vision's looks for images so."""
    source = (
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'image' %}!{% endif %}{% endfor %}"
        "{{ m.content }}{% endfor %}"
    )
    said = "word " * 200_000
    assert str.__str__(ChatTemplate(source).render([{"role": "user", "content": said}])) == said


@pytest.mark.parametrize("name", ["list", "length", "split", "wordcount", "first | list"])
def test_a_filter_of_a_block_that_gives_no_text_is_refused(name: str) -> None:
    source = f"{{% filter {name} %}}{{{{ messages[0].content }}}}{{% endfilter %}}"
    with pytest.raises(RunError, match=r"^chat template: "):
        ChatTemplate(source).render([{"role": "user", "content": "boom"}])


def test_threads_share_a_template() -> None:
    template = ChatTemplate(TEMPLATES["chatml"])
    wrong: list[str] = []

    def work(name: str) -> None:
        messages = [{"role": name, "content": name * 50}] * 20
        expected = f"<|im_start|>{name}\n{name * 50}<|im_end|>\n" * 20
        wrong.extend(name for _ in range(20) if template.render(messages, add_generation_prompt=False) != expected)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class OutOfTimeError(Exception):
    """What a program's handler of SIGALRM raises."""


def interrupt(monkeypatch: pytest.MonkeyPatch, handler: Callable[[int, object], None]) -> None:
    """Have the signal arrive while a template asks for the date."""

    class Clock:
        @staticmethod
        def now() -> datetime:
            signal.raise_signal(signal.SIGUSR1)
            return datetime(2026, 1, 2)

    monkeypatch.setattr("pyc.runtime.text.chat.template.datetime", Clock)
    signal.signal(signal.SIGUSR1, handler)


@pytest.fixture
def alarm() -> Iterator[None]:
    former = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, former)


DATED = "{% for message in messages %}{{ message.content }}{% endfor %}{{ strftime_now('%Y') }}{{ 'x' * 3 }}"


def test_a_signal_handler_may_render_in_the_middle(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(DATED)
    inner: list[str] = []

    def handle(number: int, frame: object) -> None:
        if not inner:
            inner.append("")
            inner.append(template.render([{"role": "user", "content": "in"}]))

    interrupt(monkeypatch, handle)
    assert template.render([{"role": "user", "content": "out" * 1000}]) == "out" * 1000 + "2026xxx"
    assert inner[1] == "in2026xxx"


def test_what_a_signal_handler_raises_passes(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(number: int, frame: object) -> None:
        raise OutOfTimeError

    template = ChatTemplate(DATED)
    interrupt(monkeypatch, handle)
    with pytest.raises(OutOfTimeError):
        template.render([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, r"\(TypeError\); messages\[1\] has no content, which may be why$"),
        ({"content": [{"type": "text"}]}, r"; the content of messages\[1\] is list and not text, which may be why$"),
        ({"content": 5}, r"; the content of messages\[1\] is int and not text, which may be why$"),
    ],
)
def test_a_message_that_a_template_cannot_take_is_named(content: dict[str, Any], said: str) -> None:
    template = ChatTemplate("{% for message in messages %}{{ message.role + message.content }}{% endfor %}")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", **content}]
    with pytest.raises(RunError, match=said):
        template.render(messages)


def test_a_message_without_a_role_is_named() -> None:
    template = ChatTemplate("{% for message in messages %}{{ '<' + message.role + '>' }}{% endfor %}")
    with pytest.raises(RunError, match=r"; messages\[1\] has no role, which may be why$"):
        template.render([{"role": "user", "content": "hi"}, {"content": "there"}])


def test_a_message_is_not_blamed_for_another_ones_fault() -> None:
    """Arguments of a call as a string, where this template has a mapping's pairs."""
    calls = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% for k, v in c.arguments | items %}"
    template = ChatTemplate(calls + "{{ k }}{% endfor %}{% endfor %}{% endfor %}")
    messages = [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}]
    with pytest.raises(RunError, match=r"Can only get item pairs from a mapping\. \(TypeError\)$"):
        template.render(messages)
