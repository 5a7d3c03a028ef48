"""A tokenizer and a chat template beside an adapter: named where they are not the checkpoint's, taken when asked."""

import json
import logging
import shutil

import pytest

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.adapter_tokenizers import own_tokenizers
from pyc.models.catalog import load_model
from pyc.models.files import Directory
from pyc.models.model_source import ModelSource
from pyc.passes.comparison.check_artifact import check_artifact
from pyc.passes.driver.build import build, parse
from pyc.runtime.errors import IngestError
from pyc.runtime.text.tokenizer import Tokenizer

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TEMPLATE = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"


@pytest.fixture(scope="module")
def base(tiny_checkpoint):
    """As in Qwen, the embedding has rows beyond the tokens."""
    return tiny_checkpoint("llama", vocab_size=280)


@pytest.fixture(scope="module")
def lora(base, tiny_adapter):
    return tiny_adapter(base, r=2, target_modules=["q_proj"])


@pytest.fixture
def adapter(base, lora, tmp_path):
    """An adapter with a copy of the checkpoint's tokenizer and chat template, as most trainers leave it."""
    folder = shutil.copytree(lora, tmp_path / "adapter")
    for name in FILES:
        shutil.copy(base / name, folder)
    return folder


def edit(folder, name, change):
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document, indent=1))


def add_token(text, number):
    def change(document):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        document["added_tokens"].append({"id": number, "content": text, "special": True, **flags})

    return lambda folder: edit(folder, "tokenizer.json", change)


def said_of(base, caplog, *adapters, tokenizer=None):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_model(ModelSource(str(base), base, tuple(map(str, adapters)), tokenizer))
    return [record.getMessage() for record in caplog.records]


def template_in_configuration(folder):
    text = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    edit(folder, "tokenizer_config.json", lambda document: document.update(chat_template=text + "\n"))


SAME = {
    "a copy": lambda folder: None,
    "written again": lambda folder: edit(folder, "tokenizer.json", lambda document: document.update(truncation=None)),
    "template in the configuration": template_in_configuration,
    "another padding": lambda folder: edit(folder, "tokenizer_config.json", lambda d: d.update(pad_token="</s>")),
    "a padding of its own": lambda folder: [
        add_token("<|PAD|>", 263)(folder),
        edit(folder, "tokenizer_config.json", lambda document: document.update(pad_token="<|PAD|>")),
    ],
    "a token without a row": add_token("[PAD]", 280),
    "no template": lambda folder: (folder / "chat_template.jinja").unlink(),
    "nothing": lambda folder: [(folder / name).unlink() for name in FILES],
}
OTHER = {
    "more tokens": (add_token("<|user|>", 263), "it has more tokens ('<|user|>')"),
    "another template": (
        lambda folder: (folder / "chat_template.jinja").write_text(TEMPLATE),
        "chat_template.jinja is another",
    ),
    "one more template": (
        lambda folder: [
            (folder / "additional_chat_templates").mkdir(),
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE),
        ],
        "the model has no chat template 'tool_use'",
    ),
    "another end": (
        lambda folder: edit(folder, "tokenizer_config.json", lambda document: document.update(eos_token="<pad>")),
        "its eos_token is '<pad>' and not '</s>'",
    ),
    "other ids": (
        lambda folder: edit(folder, "tokenizer.json", lambda d: d["model"]["vocab"].update({"a": 68, "b": 67})),
        "tokens have other ids (",
    ),
    "not JSON": (lambda folder: (folder / "tokenizer.json").write_text("{"), "it cannot be read (tokenizer.json: "),
}


@pytest.mark.parametrize("case", SAME)
def test_the_checkpoints_tokenizer_in_another_form_is_not_worth_a_word(case, base, adapter, caplog):
    SAME[case](adapter)
    assert said_of(base, caplog, adapter) == []


@pytest.mark.parametrize("case", OTHER)
def test_another_tokenizer_or_template_is_named_with_the_remedy(case, base, adapter, caplog):
    change, said = OTHER[case]
    change(adapter)
    (warning,) = said_of(base, caplog, adapter)
    assert said in warning and f"if it was trained with that, write `tokenizer: {adapter}` in the recipe" in warning
    assert said_of(base, caplog, adapter, tokenizer=str(base)) == []  # chosen


def test_a_template_alone_goes_with_a_tokenizer(base, adapter, caplog):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (adapter / name).unlink()
    (adapter / "chat_template.jinja").write_text(TEMPLATE)
    (warning,) = said_of(base, caplog, adapter)
    assert "copy tokenizer.json and the files that go with it there, and write `tokenizer: " in warning


def test_the_tokenizer_that_is_named_is_taken_whole(base, adapter):
    add_token("<|user|>", 263)(adapter)
    (adapter / "chat_template.jinja").write_text(TEMPLATE)
    module = load_model(ModelSource(str(base), adapter.parent, ("adapter",), tokenizer="adapter"))
    carried = dict(module.files)
    assert carried["chat_template.jinja"].decode() == TEMPLATE
    assert Tokenizer(carried["tokenizer.json"]).token_id("<|user|>") == 263
    paths = {source.name: source.path for source in module.sources}
    assert [paths[name] for name in FILES] == [str(adapter / name) for name in FILES]
    assert paths["config.json"] == str(base / "config.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer: adapter: no tokenizer.json; name a folder"),
        (
            lambda folder: edit(folder, "tokenizer.json", lambda d: d["model"]["vocab"].update({"a": 280})),
            "adapter: tokenizer.json: the token 'a' has id 280, expected ids below 280, the rows of the embedding",
        ),
    ],
)
def test_it_is_checked_as_the_checkpoints_own(change, said, base, adapter):
    change(adapter)
    with pytest.raises(IngestError) as caught:
        load_model(ModelSource(str(base), adapter.parent, tokenizer="adapter"))
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_build_follows_the_key_and_its_files(base, adapter, tmp_path):
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    recipe = tmp_path / "model.yaml"
    document = {"model": str(base), "adapters": [{"path": "adapter"}], "targets": [{"backend": "onnx"}]}
    recipe.write_text(json.dumps({**document, "tokenizer": "./adapter"}))
    artifact = build(str(recipe)).path
    assert check_artifact(parse(str(recipe)), artifact).is_up_to_date
    (adapter / "chat_template.jinja").write_text(TEMPLATE)
    groups = check_artifact(parse(str(recipe)), artifact).groups
    assert [change.name for change in groups["sources"]] == ["chat_template.jinja"]
    recipe.write_text(json.dumps(document))
    assert "tokenizer" in [change.name for change in check_artifact(parse(str(recipe)), artifact).groups["recipe"]]


def test_a_tokenizer_that_is_a_link_is_named_and_no_reason_to_refuse_the_adapter(base, lora, tmp_path, caplog):
    folder = shutil.copytree(lora, tmp_path / "linked")
    (folder / "tokenizer.json").symlink_to(base / "tokenizer.json")
    (said,) = said_of(base, caplog, folder)
    assert "it cannot be read (tokenizer.json is a symbolic link that leads out" in said


@pytest.mark.parametrize("renamed", [False, True])
def test_a_padding_that_the_base_alone_has_is_not_worth_a_word(renamed, base, adapter, tmp_path, caplog):
    """Bases get one before a training, and the adapter's tokenizer may have another."""
    padded = shutil.copytree(base, tmp_path / "padded")
    for folder, text in ((padded, "<|PAD_TOKEN|>"), *([(adapter, "[PADDING]")] if renamed else [])):
        add_token(text, 263)(folder)
        edit(folder, "tokenizer_config.json", lambda document, text=text: document.update(pad_token=text))
    assert said_of(padded, caplog, adapter) == []
    add_token("<|tool|>", 264)(padded)
    (said,) = said_of(padded, caplog, adapter)
    assert "it lacks tokens ('<|tool|>')" in said


@pytest.mark.parametrize("reference", ["./nowhere", "org/nowhere", "tokenizer.json"])
def test_a_tokenizer_that_is_not_there_is_told_from_the_model(reference, base):
    with pytest.raises(IngestError, match=rf"^tokenizer: .*{reference}: "):
        load_model(ModelSource(str(base), base, tokenizer=reference))


@pytest.mark.parametrize(("text", "fits"), [("<|im_end|>", False), ("[PADDING]", True)])
def test_a_tokenizer_with_tokens_that_have_no_row_does_not_fit(text, fits, base, adapter):
    """They are left out where it is read, and its template has them; padding is in no text."""
    add_token(text, 280)(adapter)
    edit(adapter, "tokenizer_config.json", lambda document: document.update(pad_token="[PADDING]"))
    (adapter / "chat_template.jinja").write_text(TEMPLATE + text)
    carried = {name: (base / name).read_bytes() for name in (*FILES, "config.json")}
    with SourceFiles() as files:
        (own,) = own_tokenizers([Directory(adapter, "adapter", files)], carried, 280)
    assert (own.is_whole, own.fits) == (True, fits)
