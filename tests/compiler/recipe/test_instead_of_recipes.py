"""compiler/recipe/nodes.py: folders and URLs in place of a recipe, by what is in them."""

import re
from pathlib import Path

import pytest

from pyc.compiler.recipe.nodes import read_node
from pyc.runtime.errors import RecipeError

GRAPH = "a graph that was made of a checkpoint; give the folder of the checkpoint"
FOLDERS = {
    "Model-Q4.GGUF": "found Model-Q4.GGUF, a GGUF file, which pyc does not read; take the model's safetensors",
    "consolidated.00.pth": "found consolidated.00.pth, weights as Meta and Mistral lay them out; take the model in",
    "consolidated.safetensors": "found consolidated.safetensors, weights as Meta and Mistral lay them out",
    "model.onnx": f"found model.onnx, {GRAPH}",
    "openvino_model.xml": f"found openvino_model.xml, {GRAPH}",
    "notes.txt": "give a checkpoint's folder or a model.yaml",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_called_by_what_is_in_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    words = f"{tmp_path}: is a folder without config.json, so no checkpoint; {FOLDERS[name]}"
    with pytest.raises(RecipeError, match=f"^{re.escape(words)}"):
        read_node(tmp_path)


@pytest.mark.parametrize("config", ["config.json", "adapter_config.json"])
def test_of_a_trainers_folder_the_last_checkpoint_is_offered(config: str, tmp_path: Path) -> None:
    for number in (500, 1000, 90):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / config).write_text("{}")
    (tmp_path / "checkpoint-2000").mkdir()  # as one that is being written
    with pytest.raises(RecipeError, match=re.escape(f"such as the last: {tmp_path / 'checkpoint-1000'}")):
        read_node(tmp_path)


@pytest.mark.parametrize("url", ["ollama://x", "file:///tmp/x", "hf://Qwen/Qwen3-0.6B", "https://example.org/model.yaml"])
def test_a_url_is_named_as_it_was_written(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=f"^{re.escape(url)}: a URL, and nothing is built from one; give a checkp"):
        read_node(Path(url))
