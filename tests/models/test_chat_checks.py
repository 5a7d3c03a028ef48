"""models/chat_checks.py: a chat template that does not work is found while building, and said once."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from pyc.cli import main
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource

WORKS = "{% for message in messages %}{{ message.content }}{% endfor %}"
BROKEN = {
    "does not compile": ("{% for message in messages %}{{ message.content }}", "default", "TemplateSyntaxError"),
    "fails": ("{{ messages[0].content + 1 }}", "default", "TypeError"),
    "refuses a question": ("{{ raise_exception('only images') }}", "default", "only images"),
    "never ends": ("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", "default", ": "),
    "with tools": ("{% if tools %}{{ tools.nothing.here }}{% endif %}", "tool_use", "with tools"),
}


def warnings(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING, "pyc"):
        load_model(ModelSource(str(path), path))
    return caplog.messages


@pytest.mark.parametrize("case", BROKEN)
def test_a_template_that_does_not_work_is_a_warning(
    case: str, tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    source, name, words = BROKEN[case]
    path = tiny_copy("llama")
    (path / "chat_template.jinja").write_text(source if name == "default" else WORKS)
    if name != "default":
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / f"{name}.jinja").write_text(source)
    (warning,) = warnings(path, caplog)
    assert f"the chat template {name!r} does not work: " in warning
    assert words in warning
    assert "; mend the template" in warning
    assert ("only texts to continue" in warning) == (name == "default")
    assert "\n" not in warning


def test_one_in_tokenizer_config_json(tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_copy("llama")
    (path / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "{{ messages"}))
    (warning,) = warnings(path, caplog)
    assert "the chat template 'default' does not work: " in warning


def test_one_that_works_is_no_warning(tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_copy("llama")
    (path / "chat_template.jinja").write_text(WORKS)
    assert warnings(path, caplog) == []


@pytest.mark.parametrize("given", ["recipe", "recipe with a goal", "folder"])
def test_a_warning_about_a_checkpoint_is_said_once_for_each(
    given: str, tiny_checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan reads a model up to four times; one of the next command, or of another model, is said again."""
    checkpoint = tiny_checkpoint("llama", tokenizer=False)
    source = checkpoint
    if given != "folder":
        source = tmp_path / "model.yaml"
        goal = "quantize: {bits_per_weight: 9}\n" if given != "recipe" else ""
        source.write_text(f"model: {checkpoint}\n{goal}")
    main(["plan", str(source)])
    said = [text for text in caplog.messages if "there is no tokenizer.json" in text]
    assert len(said) == 1
    main(["plan", str(source)])
    assert len([text for text in caplog.messages if "there is no tokenizer.json" in text]) == 2
