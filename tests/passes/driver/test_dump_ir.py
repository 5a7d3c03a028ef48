"""passes/driver/dump_ir.py: a file for each pass, and a folder that holds something else stays as it is."""

import errno
import os
from pathlib import Path

import pytest
from built_models import recipe_for
from tiny_checkpoints import tiny_checkpoint

from pyc.compiler.text import parse_graph
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.driver.build import build
from pyc.passes.driver.dump_ir import IrDump
from pyc.runtime.errors import ArtifactError

__all__ = ["tiny_checkpoint"]


def test_each_pass_of_a_build_has_its_file(tiny_checkpoint, tmp_path):
    recipe = recipe_for(tiny_checkpoint("llama"))
    folder = tmp_path / "new" / "ir"
    for _ in range(2):  # the second finds the dumps of the first
        result = build(recipe, output=tmp_path / "m.pyca", dump_ir=folder)
    names = [path.name for path in sorted(folder.iterdir())]
    assert names[:2] == ["00-ingest.ir", "01-assign_schemes.ir"]
    assert [name[:2] for name in names] == [f"{number:02}" for number in range(len(names))]
    for step in ("lower_layout", "fuse_quantize", "fuse_add_norm", "fuse_linear_append", "fuse_linear_gated"):
        assert any(f"-cpu-{step}.ir" in name for name in names)
    before, after = ((folder / name).read_text() for name in (names[0], names[-1]))
    for text in (before, after):
        assert parse_graph(text.partition("\n\nweights\n")[0]).functions[0].name == "forward"
    assert "panel16(" in after and "panel16(" not in before
    assert result.path.is_file()


@pytest.fixture
def module(tiny_checkpoint):
    path = tiny_checkpoint("llama")
    return load_model(ModelSource(str(path), path))


@pytest.mark.parametrize("name", ["notes.txt", "00-ingest.ir.bak", "1-x.ir"])
def test_other_files_are_not_touched(tmp_path, name):
    (tmp_path / name).write_text("mine")
    (tmp_path / "00-ingest.ir").write_text("a dump")
    with pytest.raises(ArtifactError, match=f"holds '{name}', no dump; name a new or empty folder"):
        IrDump(tmp_path)
    assert (tmp_path / "00-ingest.ir").read_text() == "a dump"


def test_a_full_disk_names_the_file(module, tmp_path, monkeypatch):
    dump = IrDump(tmp_path)
    dump("ingest", module)

    def half(path, mode, encoding):
        with open(path, mode, encoding=encoding) as file:
            file.write("func")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", half)
    with pytest.raises(ArtifactError, match=r"dump_ir: .*01-lower\.ir: No space left on device; free some space"):
        dump("lower", module)
    assert [path.name for path in tmp_path.iterdir()] == ["00-ingest.ir"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_name_that_another_made_meanwhile_is_not_written_through(link, module, tmp_path):
    """As in a folder that others may write to, after it was found empty."""
    dump = IrDump(tmp_path / "ir")
    (tmp_path / "mine").write_text("kept")
    link(tmp_path / "mine", tmp_path / "ir" / "00-ingest.ir")
    with pytest.raises(ArtifactError, match=r"00-ingest\.ir: another process made it just now; name a new folder"):
        dump("ingest", module)
    assert (tmp_path / "mine").read_text() == "kept" and (tmp_path / "ir" / "00-ingest.ir").exists()


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    """As of a variable that is not set; the former dumps there would go."""
    (tmp_path / "00-ingest.ir").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="the name of the folder to write is empty"):
        IrDump("")
    assert (tmp_path / "00-ingest.ir").exists()


def test_what_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"dump_ir: .*file: .*; name a folder that can be made"):
        IrDump(tmp_path / "file")
    (tmp_path / "00-ingest.ir").mkdir()
    with pytest.raises(ArtifactError, match="no dump"):
        IrDump(tmp_path)
