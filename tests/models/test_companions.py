"""models/companions.py: an adapter in the checkpoint's folder is built where the recipe names it, and else refused."""

import shutil

import pytest
from tiny_checkpoints import write_sentence_files

from pyc.cli import main
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.driver.build import lower_recipe, parse
from pyc.runtime.errors import IngestError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
LORA = {"r": 4, "target_modules": ["q_proj"]}


@pytest.fixture
def both(tiny_copy, tiny_checkpoint, tiny_adapter):
    """A folder that holds a model and an adapter, as a trainer that saves into the base's folder leaves it."""
    folder, adapter = tiny_copy("llama"), tiny_adapter(tiny_checkpoint("llama"), **LORA)
    for name in ADAPTER_FILES:
        shutil.copy(adapter / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "command", ["init FOLDER", "build FOLDER", "plan RECIPE", "build RECIPE", "build --check RECIPE"]
)
def test_an_adapter_beside_the_weights_is_refused(command, both, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.yaml").write_text(f"model: {both}\n")
    assert main(command.replace("FOLDER", str(both)).replace("RECIPE", "plain.yaml").split()) == 4
    error = capsys.readouterr().err
    assert "an adapter (adapter_config.json) is beside the weights, and transformers loads the model with it" in error
    assert f"- path: {both}" in error and "remove adapter_config.json" in error


def test_a_recipe_that_names_the_folder_has_the_adapter(both, tmp_path):
    """By whatever path, and as `pyc init` writes it."""
    (tmp_path / "link").symlink_to(both)
    recipe = parse({"model": str(both), "adapters": [{"path": str(tmp_path / "link")}]})
    assert [source.name for source in lower_recipe(recipe).common.sources if "adapter" in source.name] == [
        f"checkpoint/{name}" for name in ADAPTER_FILES
    ]
    output = tmp_path / "model.yaml"
    assert main(["init", str(both), "--adapter", str(both), "-o", str(output)]) == 0
    assert lower_recipe(parse(str(output))).common.sources
    assert main(["plan", str(output)]) == 0


def test_a_configuration_without_weights_is_refused_as_transformers_does(both):
    (both / ADAPTER_FILES[1]).unlink()
    with pytest.raises(IngestError, match=r"but no adapter_model.safetensors; transformers does not load such"):
        load_model(ModelSource(str(both), both))


def test_of_a_hub_id_transformers_takes_the_base_model(both, tmp_path, monkeypatch):
    """The error names it, and not a folder: in the cache nobody removes files."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789abcdef" * 2 + "01234567"
    folder = tmp_path / "hub" / "models--org--both"
    shutil.copytree(both, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    with pytest.raises(IngestError) as refused:
        load_model(ModelSource("org/both", tmp_path))
    assert "as `model`, and org/both under `adapters`" in str(refused.value)
    assert load_model(ModelSource("org/both", tmp_path, ("org/both",))).weights


def test_an_adapter_of_a_model_for_embeddings_makes_no_generator(tiny_checkpoint, tiny_adapter, tmp_path):
    base = tiny_checkpoint("llama")
    folder = shutil.copytree(tiny_adapter(base), tmp_path / "adapter")
    write_sentence_files(folder, 48, "mean", True)
    with pytest.raises(IngestError, match=r"adapter: modules\.json makes this decoder a model for embeddings"):
        load_model(ModelSource(str(base), tmp_path, (str(folder),)))
