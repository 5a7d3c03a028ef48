"""Encoders' adapters that sentence-transformers saved: what their folders say of vectors counts, as in a checkpoint."""

import json
import shutil

import pytest
from tiny_checkpoints import write_sentence_files

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.comparison.check_artifact import check_artifact
from pyc.passes.driver.build import build, lower_recipe, parse
from pyc.runtime.errors import IngestError

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
FILES = ("1_Pooling/config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json")


@pytest.fixture
def base(tiny_checkpoint):
    return tiny_checkpoint("bert", pooling="mean")


@pytest.fixture
def saved(base, tiny_adapter, tmp_path):
    """`saved(name, pooling, normalize, longest, **files)`: an adapter in a folder as sentence-transformers saves it."""

    def make(name="adapter", pooling="cls", *, normalize=True, longest=None, **files):
        folder = shutil.copytree(tiny_adapter(base, r=2, target_modules=["query"]), tmp_path / name)
        write_sentence_files(folder, 48, pooling, normalize)
        for file in TOKENIZER:
            shutil.copy(base / file, folder)
        settings = json.loads((folder / TOKENIZER[1]).read_text())
        (folder / TOKENIZER[1]).write_text(json.dumps(settings | {"model_max_length": longest or 10**30}))
        for file, content in {"sentence_bert_config": {}, "config_sentence_transformers": {}, **files}.items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        return folder

    return make


def loaded(base, *adapters, tokenizer=None):
    return load_model(ModelSource(str(base), base, tuple(map(str, adapters)), tokenizer))


def test_pooling_length_and_tokenizer_are_those_of_the_adapter(base, saved):
    adapter = saved(longest=16)
    module = loaded(base, adapter)
    assert (module.info.pooling.mode, module.info.pooling.normalize, module.info.context) == ("cls", True, 16)
    paths = {source.name: source.path for source in module.sources}
    assert {paths[name] for name in (*FILES, *TOKENIZER)} == {str(adapter / name) for name in (*FILES, *TOKENIZER)}
    assert paths["config.json"] == str(base / "config.json")


def test_an_adapter_that_peft_saved_leaves_them_to_the_checkpoint(base, saved):
    adapter = saved()
    (adapter / "modules.json").unlink()
    module = loaded(base, adapter)
    assert (module.info.pooling.mode, module.info.pooling.normalize) == ("mean", False)
    assert not [source for source in module.sources if source.path.startswith(str(adapter))]


def test_without_a_tokenizer_that_of_the_checkpoint_counts(base, saved):
    adapter = saved(longest=16)
    for file in TOKENIZER:
        (adapter / file).unlink()
    module = loaded(base, adapter)
    assert (module.info.pooling.mode, module.info.context) == ("cls", 64)


def test_a_tokenizer_that_the_recipe_names_counts_before(base, saved):
    """With its length, as that of any tokenizer; the pooling is the adapter's still."""
    adapter = saved(longest=16)
    module = loaded(base, adapter, tokenizer=str(base))
    assert (module.info.pooling.mode, module.info.context) == ("cls", 64)
    assert {source.path for source in module.sources if source.name in TOKENIZER} == {str(base / n) for n in TOKENIZER}
    (adapter / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    assert loaded(base, adapter, tokenizer=str(base)).info.context == 8


REFUSED = {
    "default prompt": (
        {"config_sentence_transformers": {"prompts": {"q": "Query: "}, "default_prompt_name": "q"}},
        "adapter: config_sentence_transformers.json: a default prompt",
    ),
    "length": ({"sentence_bert_config": {"max_seq_length": 0}}, "sentence_bert_config.json: max_seq_length is 0"),
    "module": (
        {"modules": [{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Dense"}]},
        "adapter: modules.json: module 'Dense' is not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_checkpoint_may_not_say_is_refused(case, base, saved):
    files, said = REFUSED[case]
    with pytest.raises(IngestError) as caught:
        loaded(base, saved(**files))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"pooling": "mean"}, "pooling mean, normalized, 64 tokens"),
        ({"normalize": False}, "pooling cls, not normalized, 64 tokens"),
        ({"longest": 16}, "pooling cls, normalized, 16 tokens"),
    ],
)
def test_two_adapters_that_disagree_are_refused(other, said, base, saved):
    first, second = saved("one"), saved("two", **other)
    with pytest.raises(IngestError) as caught:
        loaded(base, first, second)
    assert f"{second} {said}" in str(caught.value)
    assert loaded(base, first, saved("three", longest=64)).info.pooling.mode == "cls"


@pytest.mark.slow
def test_a_change_of_the_adapters_files_is_a_change_of_the_artifact(base, saved, tmp_path):
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    adapter = saved()
    recipe = tmp_path / "model.yaml"
    document = {"model": str(base), "adapters": [{"path": "adapter"}], "targets": [{"backend": "onnx"}]}
    recipe.write_text(json.dumps({**document, "shapes": {"tokens": [64]}}))
    artifact = build(str(recipe)).path
    assert check_artifact(parse(str(recipe)), artifact).is_up_to_date
    (adapter / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    groups = check_artifact(parse(str(recipe)), artifact).groups
    assert "1_Pooling/config.json" in [change.name for change in groups["sources"]]
    assert "pooling.mode" in [change.name for change in groups["model"]]


def test_a_plan_reads_them(base, saved):
    lowered = lower_recipe(parse({"model": str(base), "adapters": [{"path": str(saved(longest=16))}]}))
    assert lowered.common.info.context == 16
