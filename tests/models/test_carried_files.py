"""What an artifact takes from the files beside a checkpoint's weights."""

import pytest
from checkpoint_damage import INDEX, edit_json

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource


def test_chat_template_json_is_behind_tokenizer_config(tiny_copy):
    path = tiny_copy("llama")
    (path / "chat_template.jinja").unlink()
    (path / "chat_template.json").write_text('{"chat_template": "of a processor"}')
    assert dict(load_model(ModelSource(str(path), path)).files)["chat_template.jinja"] == b"of a processor"
    edit_json(path / "tokenizer_config.json", lambda t: t.update(chat_template="of the tokenizer"))
    assert dict(load_model(ModelSource(str(path), path)).files)["chat_template.jinja"] == b"of the tokenizer"


def test_what_the_artifact_carries(tiny_copy):
    path = tiny_copy("llama", sharded=True)
    (path / "chat_template.jinja").rename(path / "template")
    template = (path / "template").read_text()
    edit_json(
        path / "tokenizer_config.json",
        lambda t: t.update(
            chat_template=[{"name": "rag", "template": "x"}, {"name": "default", "template": template}]
        ),
    )
    edit_json(
        path / "generation_config.json",
        lambda t: t.update(
            eos_token_id=[2, 5, 2, 999], temperature=0.7, top_p=0.95, top_k=20, do_sample=True
        ),
    )
    module = load_model(ModelSource(path.name, path.parent))
    files = dict(module.files)
    assert files["chat_template.jinja"].decode() == template
    assert files["tokenizer.json"] == (path / "tokenizer.json").read_bytes()
    defaults = module.generation
    assert (defaults.eos_token_ids, defaults.bos_token_id, defaults.temperature) == ((2, 5), 1, "0.7")
    assert (defaults.top_p, defaults.top_k, defaults.do_sample) == ("0.95", 20, True)
    names = [source.name for source in module.sources]
    assert names == sorted(names)
    assert {"config.json", INDEX, "tokenizer.json", "generation_config.json"} <= set(names)
    assert sum(name.startswith("model-") for name in names) > 3
    assert not any("/" in name for name in names)


@pytest.mark.slow
def test_special_tokens_fall_back_to_config(tiny_copy):
    path = tiny_copy("qwen3")
    (path / "generation_config.json").unlink()
    edit_json(path / "config.json", lambda t: t.update(eos_token_id=[2, 3], pad_token_id=-1))
    defaults = load_model(ModelSource(str(path), path)).generation
    assert (defaults.eos_token_ids, defaults.pad_token_id) == ((2, 3), None)


def test_no_tokenizer_at_all_is_fine_but_said(tiny_checkpoint, caplog):
    path = tiny_checkpoint("llama", tokenizer=False)
    files = load_model(ModelSource(str(path), path)).files
    assert [name for name, _ in files] == ["config.json", "generation_config.json"]
    (warning,) = caplog.messages
    assert "there is no tokenizer.json, so the artifact will take no text" in warning
