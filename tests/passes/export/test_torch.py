"""passes/export/torch.py: a recipe or a checkpoint to a folder with a program and the tokenizer's files."""

import os
import subprocess
import sys

import pytest
import torch
from long_runs import sample

from pyc.backends.torch_tensorrt.export import load_program
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.export.torch import export_torch
from pyc.runtime.artifact.format import MAGIC
from pyc.runtime.errors import ArtifactError, RecipeError

SMALL = {"tokens": [1, 8], "batch": [1, 2]}
SHAPES = ("shapes.tokens=[1, 8]", "shapes.batch=[1, 2]")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "export"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "mapping", "recipe", "file"])
def test_every_kind_of_source(kind, tiny_checkpoint, folder, tmp_path):
    path = tiny_checkpoint("llama", num_hidden_layers=1)
    document = {"model": str(path), "shapes": SMALL}
    file = tmp_path / "model.yaml"
    file.write_text(f"model: {path}\nshapes: {{tokens: [1, 8], batch: [1, 2]}}\n")
    source = {"folder": path, "mapping": document, "recipe": recipe_from(document), "file": file}[kind]
    events = []
    found = export_torch(
        source, folder, overrides=SHAPES if kind == "folder" else (), progress=lambda event: events.append(event.stage)
    )
    assert found == folder
    program, interface = load_program(folder / "model.pt2")
    assert interface.ranges["tokens"].max == 8
    ids = torch.ones(1, 3, dtype=torch.int64)
    logits, *cache = program.module()(ids, torch.arange(3)[None], ids, *[torch.zeros(1, 2, 0, 12)] * 2)
    assert logits.shape == (1, 3, 263)
    assert [value.shape for value in cache] == [(1, 2, 3, 12)] * 2
    assert (folder / "tokenizer.json").read_bytes() == (path / "tokenizer.json").read_bytes()
    assert events[0] == "ingest" or kind == "folder"
    assert events[-3:] == ["emit", "compile", "done"]


@pytest.mark.slow
def test_overrides_are_those_of_a_build(tiny_checkpoint, folder):
    path = tiny_checkpoint("llama", num_hidden_layers=1)
    program, _ = load_program(export_torch(path, folder, overrides=(*SHAPES, "quantize.scheme=int8")) / "model.pt2")
    kinds = {tensor.dtype for name, tensor in program.state_dict.items() if "proj" in name}
    assert torch.uint8 in kinds


def test_a_folder_that_is_not_empty_stays_as_it_is(tiny_checkpoint, folder):
    folder.mkdir()
    (folder / "model.pt2").write_text("mine")
    with pytest.raises(ArtifactError, match="is there already and is not an empty folder"):
        export_torch(tiny_checkpoint("llama"), folder)
    assert (folder / "model.pt2").read_text() == "mine"


def test_nothing_is_left_where_a_recipe_is_refused(tiny_checkpoint, tmp_path):
    with pytest.raises(RecipeError, match="shapes"):
        export_torch(tiny_checkpoint("llama"), tmp_path / "export", overrides=("shapes.tokns=[1]",))
    assert not list(tmp_path.iterdir())


def test_an_artifact_takes_no_overrides_and_is_read_before_it_is_believed(folder, tmp_path):
    path = tmp_path / "model.pyca"
    path.write_bytes(MAGIC + bytes(100))
    with pytest.raises(ArtifactError, match="--set is for a recipe"):
        export_torch(path, folder, overrides=SHAPES)
    with pytest.raises(ArtifactError, match=r"model\.pyca"):
        export_torch(path, folder)
    assert not folder.exists()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pyc.passes.export.torch import export_torch
from pyc.runtime.artifact.format import MAGIC
from pyc.runtime.errors import MissingExtraError
try:
    export_torch("model.yaml", "folder")
except MissingExtraError as error:
    print(error)
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


EXPORT = """
import os, sys
from pyc.passes.export.torch import export_torch
export_torch(sys.argv[1], sys.argv[2], overrides=("shapes.tokens=[1, 8]", "shapes.batch=[1, 2]"))
print(os.environ.get("TORCHINDUCTOR_CACHE_DIR"), os.listdir(os.environ["TMPDIR"]))
"""


@pytest.mark.parametrize("is_named", sample([False, True]))
def test_nothing_stays_in_the_folder_for_temporary_files(is_named, tiny_checkpoint, folder, tmp_path):
    """torch makes the cache's folder of a compiler that is not used; one that the user names is his."""
    (tmp_path / "temporary").mkdir()
    variables = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    variables["TMPDIR"] = str(tmp_path / "temporary")
    named = str(tmp_path / "named") if is_named else None
    if named:
        variables["TORCHINDUCTOR_CACHE_DIR"] = named
    command = [sys.executable, "-c", EXPORT, tiny_checkpoint("llama", num_hidden_layers=1), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert done.stdout == f"{named} []\n"


def test_without_torch_the_message_says_what_to_install():
    assert python(WITHOUT_TORCH).startswith("export: torch is not installed; to install it, ")
    assert "'.[torch]'" in python(WITHOUT_TORCH)


def test_importing_it_and_a_build_imports_no_torch():
    modules = "pyc.passes.export.torch, pyc.passes.driver.build"
    code = f"import sys, {modules}; print([m for m in sys.modules if m[:5] == 'torch'])"
    assert python(code).strip() == "[]"
