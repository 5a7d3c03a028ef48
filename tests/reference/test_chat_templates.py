"""Prompts of messages, against AutoTokenizer.apply_chat_template of transformers."""

import itertools
import json

import pytest
from built_models import recipe_for

from pyc.passes.export.checkpoint import export_checkpoint
from pyc.passes.export.compressed import export_compressed
from pyc.passes.export.onnx import export_onnx
from pyc.passes.export.source import exportable
from pyc.runtime.text.chat.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "the cat"}]
TOOLS = [{"type": "function", "function": {"name": "sit"}}]
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ tools is none }}"
WITH_TOOLS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[0].content }}!"
RAG = "{{ documents }}"
NAMED = {"default": PLAIN, "tool_use": WITH_TOOLS, "rag": RAG}


def in_config(path, value):
    """The only templates are in tokenizer_config.json."""
    (path / "chat_template.jinja").unlink()
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": value}))


def in_files(path, named):
    (path / "additional_chat_templates").mkdir()
    for name, template in named.items():
        file = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
        (path / file).write_text(template)


def in_list(path):
    in_config(path, [{"name": name, "template": template} for name, template in NAMED.items()])


def in_list_behind_a_file(path):
    """chat_template.jinja hides every template of tokenizer_config.json."""
    template = (path / "chat_template.jinja").read_text()
    in_list(path)
    (path / "chat_template.jinja").write_text(template)


LAYOUTS = {
    "list": in_list,
    "mapping": lambda path: in_config(path, NAMED),
    "files": lambda path: in_files(path, NAMED),
    "list behind a file": in_list_behind_a_file,
    "one text": lambda path: in_config(path, PLAIN),
}


def prompts(folder):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [
        tokenizer.apply_chat_template(MESSAGES, tools=tools, add_generation_prompt=True, return_dict=False)
        for tools in (None, [], TOOLS)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_with_and_without_tools_take_the_template_that_transformers_takes(layout, tiny_copy, built):
    path = tiny_copy("llama")
    LAYOUTS[layout](path)
    model = built(path)
    expected = prompts(path)
    assert [model.prompt_ids(MESSAGES, tools=tools) for tools in (None, [], TOOLS)] == expected
    assert (expected[0] == expected[2]) == (layout == "list behind a file")


@pytest.mark.parametrize("layout", ["list", "files"])
def test_exports_have_every_template(layout, tiny_copy, tmp_path):
    path = tiny_copy("llama", hidden_size=64, intermediate_size=96)
    LAYOUTS[layout](path)
    recipe = tmp_path / "model.yaml"
    for name, export, scheme in (
        ("hf", export_checkpoint, "none"),
        ("compressed", export_compressed, "int4-g32"),
        ("onnx", export_onnx, "none"),
    ):
        recipe.write_text(json.dumps(recipe_for(path, quantize={"scheme": scheme, "activations": "f32"})))
        with exportable(recipe) as source:
            folder = export(source, tmp_path / name)
        assert prompts(folder) == prompts(path)
        assert (folder / "additional_chat_templates" / "rag.jinja").read_text() == RAG


@pytest.fixture(scope="module")
def said_by_transformers():
    """Text of messages by a template, from apply_chat_template: what it changes before it renders counts, too."""
    import transformers
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))

    def say(template, messages):
        return tokenizer.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=True, tokenize=False
        )

    return say


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_reasoning_has_the_names_that_transformers_gives_it(role, said_by_transformers):
    template = "{% for m in messages %}{{ m | tojson }}{{ m.reasoning_content }}|{{ m.thinking }}\n{% endfor %}"
    names = ("reasoning_content", "thinking", "reasoning")
    values = (None, "", "because", "why")
    for given in itertools.product((*values, "left out"), repeat=3):
        said = {name: value for name, value in zip(names, given, strict=True) if value != "left out"}
        messages = [{"role": "user", "content": "a"}, {"role": role, **said, "content": "b"}]
        assert str(ChatTemplate(template).render(messages)) == said_by_transformers(template, messages)


CALLS = [{"type": "function", "id": None, "function": {"name": "sit", "arguments": {"where": None}}}]
NULLS = {
    "content beside calls": {"role": "assistant", "content": None, "tool_calls": CALLS},
    "content": {"role": "assistant", "content": None},
    "calls": {"role": "assistant", "content": "b", "tool_calls": None},
    "what other programs write": {
        "role": "assistant", "content": "b", "refusal": None, "audio": None, "reasoning_content": None,
    },
    "name of a tool": {"role": "tool", "name": None, "content": [{"type": "text", "text": None}]},
    "role": {"role": None, "content": "b"},
}  # fmt: skip
ASKS_FOR_CALLS = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{{ m.tool_calls | tojson }}"
    "{% else %}{{ '<' + m.role | string + '>' }}{{ m['content'] | trim }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template", ["{{ messages }}", ASKS_FOR_CALLS], ids=["all", "asks for calls"])
@pytest.mark.parametrize("case", NULLS)
def test_a_key_that_is_null_is_left_out_as_in_transformers(case, template, said_by_transformers):
    messages = [{"role": "user", "content": "a", "name": None}, NULLS[case], {"role": "user", "content": "c"}]
    said = said_by_transformers(template, messages)
    assert str(ChatTemplate(template).render(messages)) == said
