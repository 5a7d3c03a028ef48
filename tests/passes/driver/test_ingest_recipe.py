"""passes/driver/ingest_recipe.py: what a recipe names is read once, by whatever name."""

import pytest
from tiny_checkpoints import tiny_adapter, tiny_checkpoint

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.runtime.errors import RecipeError

__all__ = ["tiny_adapter", "tiny_checkpoint"]


@pytest.mark.parametrize("second", ["lora/", "other/../lora", "link", "absolute"])
@pytest.mark.parametrize("merge", [None, {"method": "linear"}])
def test_an_adapter_that_is_there_twice_is_refused(second, merge, tiny_checkpoint, tiny_adapter, tmp_path):
    """By whatever name: its difference would be added twice."""
    checkpoint = tiny_checkpoint("llama")
    (tmp_path / "lora").symlink_to(tiny_adapter(checkpoint))
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("lora")
    named = str(tmp_path / "lora") if second == "absolute" else second
    adapters = [{"path": "./lora"}, {"path": named}]
    recipe = recipe_from({"model": str(checkpoint), "adapters": adapters, "merge": merge}, folder=tmp_path)
    with SourceFiles() as files, pytest.raises(RecipeError, match=r"^adapters\[1\].path: got .* that adapters\[0\], "):
        ingest_recipe(recipe, files, None, {})
