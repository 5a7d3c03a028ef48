"""What fits a context stays, whole turns and the latest first; what was said is never lost; files give it back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.errors import RunError
from pyc.runtime.text.chat.conversation import Conversation, Turn
from pyc.runtime.text.tokenizer import MAX_TEXT_CHARACTERS

CONTEXT = 100


def count(messages):
    """A token a letter, and one a message."""
    return sum(1 + len(message["content"]) for message in messages)


def fit(conversation, question, answer_tokens=10):
    return conversation.fit(question, count, context=CONTEXT, answer_tokens=answer_tokens)


def test_the_oldest_turns_go_and_the_system_text_stays():
    conversation = Conversation("sys", [Turn(f"q{index}", "a" * 15) for index in range(4)])
    prompt = fit(conversation, "next")
    assert (prompt.left_out, prompt.tokens) == (0, 4 + 4 * 19 + 5)
    conversation.turns.append(Turn("next", "b" * 12))
    prompt = fit(conversation, "more")
    assert prompt.left_out == 2
    contents = [message["content"] for message in prompt.messages]
    assert contents == ["sys", "q2", "a" * 15, "q3", "a" * 15, "next", "b" * 12, "more"]
    assert prompt.tokens == count(prompt.messages) <= CONTEXT - CONTEXT // 4
    assert fit(conversation, "more").left_out == 2, "nothing has changed yet"
    conversation.keep(prompt, "c")
    assert len(conversation.turns) == 6, "what the model no longer sees is still there to be saved"
    assert fit(conversation, "last").left_out == 0


def test_a_question_without_an_answer_pushes_no_turn_out():
    conversation = Conversation(None, [Turn("q", "a" * 40), Turn("r", "b" * 20)])
    assert fit(conversation, "s" * 40).left_out == 1
    assert conversation.first_seen == 0
    assert [message["content"] for message in fit(conversation, "t").messages] == ["q", "a" * 40, "r", "b" * 20, "t"]


def test_a_question_that_does_not_fit_alone_changes_nothing():
    conversation = Conversation("sys", [Turn("q", "a")])
    with pytest.raises(RunError, match="takes 105 tokens with the system text, expected at most 99"):
        fit(conversation, "x" * 100)
    assert (conversation.first_seen, len(conversation.turns)) == (0, 1)
    assert fit(conversation, "x" * 94).tokens == 99, "an answer of one token is better than a refusal"


def test_turns_that_are_more_than_is_read_as_one_text_are_left_out():
    """As of a conversation that was loaded: the question is short."""

    def count(messages):
        text = "".join(f"<|user|>{each['content']}<|end|>" for each in messages)
        if len(text) > MAX_TEXT_CHARACTERS:
            raise RunError("prompt: its text has too many characters")
        return len(text) // 1000 + 1

    long = Conversation(turns=[Turn("q" * 60_000, "a" * 60_000)] * 30)
    prompt = long.fit("hello", count, context=1024, answer_tokens=10)
    assert 20 <= prompt.first < 30 and prompt.tokens <= 1014
    many = Conversation(turns=[Turn("q" * 40, "a" * 40)] * 20_000)
    assert many.fit("hello", count, context=1024, answer_tokens=10).tokens <= 1014
    with pytest.raises(RunError, match="too many characters"):
        long.fit("h" * 2_000_000, count, context=1024, answer_tokens=10)


def test_undo_and_reset():
    conversation = Conversation("sys", [Turn("q", "a" * 80), Turn("r", "b")])
    conversation.keep(fit(conversation, "s" * 30), "c", "context")
    assert conversation.first_seen == 1
    undone = [conversation.undo() for _ in range(3)]
    assert undone == [Turn("s" * 30, "c", "context"), Turn("r", "b"), Turn("q", "a" * 80)]
    assert conversation.undo() is None
    assert [message["role"] for message in fit(conversation, "s").messages] == ["system", "user"]
    conversation.turns.append(Turn("q", "a"))
    conversation.reset()
    assert conversation.messages() == [{"role": "system", "content": "sys"}]


def test_undo_brings_back_the_turns_that_its_question_pushed_out():
    conversation = Conversation(None, [Turn("q", "a" * 20), Turn("r", "b" * 20)])
    long = "s" * 60
    prompt = fit(conversation, long)
    assert prompt.left_out == 2
    conversation.keep(prompt, "c")
    prompt = fit(conversation, "t")
    assert prompt.left_out == 0
    conversation.keep(prompt, "d")
    conversation.undo()
    assert conversation.first_seen == 2  # the long one is still there
    conversation.undo()
    assert [message["content"] for message in conversation.messages()] == ["q", "a" * 20, "r", "b" * 20]
    assert fit(conversation, long).left_out == 2  # and is told again


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
cuts = st.sampled_from([None, "interrupted", "max_tokens", "context"])
turns = st.lists(st.builds(Turn, texts, texts, cuts), max_size=12)


@pytest.mark.slow
@given(turns, texts, st.integers(1, CONTEXT))
def test_every_prompt_fits_and_drops_no_more_than_it_must(said, question, answer_tokens):
    conversation = Conversation(None, said)
    prompt = fit(conversation, question, answer_tokens)
    assert prompt.tokens == count(prompt.messages) < CONTEXT
    roles = [message["role"] for message in prompt.messages]
    assert roles == ["user", "assistant"] * (len(said) - prompt.left_out) + ["user"]
    if prompt.left_out:
        one_more = count(conversation.messages(question, prompt.left_out - 1))
        assert one_more > CONTEXT - max(answer_tokens, CONTEXT // 4)


@pytest.mark.slow
@given(turns, st.none() | texts)
def test_what_was_saved_is_loaded(said, system):
    loaded = Conversation.from_json(Conversation(system, said).as_json().encode())
    assert (loaded.system, loaded.turns) == (system, said)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"messages": 1}',
        b'{"messages": [], "more": 1}',
        b'{"messages": [{"role": "tool", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": 1}]}',
        b'{"messages": [{"role": "user", "content": "x", "cut": "perhaps"}]}',
        b'{"messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]}',
        b'{"messages": ' + b"[" * 100_000,
    ],
)
def test_other_documents_are_refused(document):
    with pytest.raises(RunError, match="conversation: "):
        Conversation.from_json(document)


def test_markdown():
    text = Conversation("sys", [Turn("q", "a", "max_tokens"), Turn("r", "b")]).as_markdown()
    assert text == (
        "## System\n\nsys\n\n## User\n\nq\n\n## Assistant\n\na\n\n*cut: max_tokens*\n\n"
        "## User\n\nr\n\n## Assistant\n\nb\n"
    )
    assert json.loads(Conversation().as_json()) == {"messages": []}
