"""passes/driver/dump_ir.py: a file for each pass, and a folder that holds something else stays as it is."""

import errno
import io
import json
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

pytestmark = pytest.mark.usefixtures("compiled_once")

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


@pytest.mark.parametrize("name", ["notes.txt", "00-ingest.ir.bak", "1-x.ir", "01-heldout.ir"])
def test_other_files_are_not_touched(module, tmp_path, name):
    """Nor one that is called like a dump and begins otherwise, such as a text that the build reads."""
    (tmp_path / name).write_text("mine")
    IrDump(tmp_path / "made")("ingest", module)
    dump = (tmp_path / "made" / "00-ingest.ir").rename(tmp_path / "00-ingest.ir")
    (tmp_path / "made").rmdir()
    text = dump.read_text()
    with pytest.raises(ArtifactError, match=f"holds '{name}', no dump; name a new or empty folder"):
        IrDump(tmp_path)
    assert dump.read_text() == text and (tmp_path / name).read_text() == "mine"


def test_the_recipe_and_the_calibration_text_of_a_build_stay_as_they_are(tiny_checkpoint, tmp_path):
    folder = tmp_path / "ir"
    folder.mkdir()
    text = folder / "01-calibration.ir"
    text.write_text("A text to round for.\n" * 500)
    recipe = recipe_for(tiny_checkpoint("llama"))
    recipe["quantize"] = {"scheme": "int4-g32", "algorithm": "gptq", "calibration": {"text": str(text)}}
    path = folder / "00-model.ir"
    path.write_text(json.dumps(recipe))
    before = path.read_bytes(), text.read_bytes()
    with pytest.raises(ArtifactError, match=r"holds '00-model\.ir', no dump"):
        build(path, output=tmp_path / "m.pyca", dump_ir=folder)
    assert (path.read_bytes(), text.read_bytes()) == before
    path = path.rename(tmp_path / "model.yaml")
    with pytest.raises(ArtifactError, match=r"holds '01-calibration\.ir', no dump"):
        build(path, output=tmp_path / "m.pyca", dump_ir=folder)
    assert text.read_bytes() == before[1]


def test_a_dump_that_a_killed_build_left_empty_is_removed(tmp_path):
    (tmp_path / "00-ingest.ir").touch()
    IrDump(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("call", "message"), [("unlink", "cannot be removed: Permission denied"), ("open", "denied")])
def test_a_former_dump_that_cannot_be_read_or_removed(module, tmp_path, monkeypatch, call, message):
    IrDump(tmp_path)("ingest", module)

    def denied(*given, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, call, denied)
    with pytest.raises(ArtifactError, match=rf"dump_ir: .*00-ingest\.ir: .*{message}; name a new or empty folder"):
        IrDump(tmp_path)


def test_a_full_disk_names_the_file(module, tmp_path, monkeypatch):
    dump = IrDump(tmp_path)
    dump("ingest", module)

    class Half(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(path, mode, encoding):
        open(path, mode).close()
        return Half()

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
