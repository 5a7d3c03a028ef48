"""runtime/artifact/kinds.py, and the commands that say what was given in place of what they expect."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from range_server import RangeServer, range_server

from pyc.runtime.artifact.kinds import (
    Kind,
    instead_of_artifact,
    instead_of_checkpoint,
    instead_of_recipe,
    kind_of,
    kind_of_bytes,
)
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, MissingArtifactError

__all__ = ["range_server"]


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """One of each kind of thing that newcomers hand to a command."""
    folder = tmp_path / "my zoo"
    folder.mkdir()
    (folder / "model.yaml").write_text("# a comment\nmodel: ./m\n")
    (folder / "recipe").write_text("quantize: {scheme: int8}\nmodel: ./m\n")
    header = b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'  # the base install has no safetensors
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    (folder / "model.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    (folder / "weights.pkl").write_bytes(pickle.dumps({"w": [1.0]}))
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    (folder / "pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (folder / "model.onnx").write_bytes(b"\x08\x0b\x12\x07pytorch" + bytes(20))
    (folder / "page").write_text("<!DOCTYPE html><html>Log in</html>")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "other.json").write_text("{}")
    (folder / "model.pyca.gz").write_bytes(b"\x1f\x8b\x08" + bytes(20))
    (folder / "lora").mkdir()
    (folder / "lora" / "adapter_config.json").write_text("{}")
    (folder / "lora" / "adapter_model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "empty folder").mkdir()
    return folder


# name, in place of an artifact, in place of a recipe (None: what is expected, or unknown)
TABLE = [
    ("model.yaml", "this is a recipe, not yet compiled; compile it first: pyc build '{}'", None),
    ("recipe", "this is a recipe, not yet compiled", None),
    (".", "this is a folder with a checkpoint; compile it first: pyc build '{}'", "this is a folder with a checkpoint"),
    ("model.safetensors", "this is a file of weights (safetensors); compile the folder", "this is a file of weights"),
    ("model.gguf", "this is a GGUF file, which pyc does not read", "this is a GGUF file"),
    ("weights.pkl", "this is a pickle of PyTorch", "this is a pickle"),
    ("pytorch_model.bin", "this is a zip file or a pickle of PyTorch", "this is a zip file"),
    ("pointer", "this is a Git LFS pointer in place of the file; fetch the file itself: git lfs pull", "Git LFS"),
    ("model.onnx", "this is a graph that was made of a checkpoint; give the folder of the", "made of a check"),
    ("page", "this is a web page in place of the file", "this is a web page"),
    ("config.json", "this is the config.json of a checkpoint; give the folder that it is in: pyc build", "pyc build"),
    ("other.json", "this is a JSON file; give the folder that it is in: pyc build", None),
    ("model.pyca.gz", "this is a compressed file; unpack it first", "this is a compressed file"),
    ("lora", "this is a folder with a PEFT adapter; list it in a recipe", "PEFT adapter"),
    ("lora/adapter_config.json", "this is a file of a PEFT adapter; list the folder", "pyc init CHECKPOINT --adapter"),
    ("lora/adapter_model.safetensors", "pyc init CHECKPOINT --adapter", "this is a file of a PEFT adapter"),
    ("empty folder", "this is a folder; give the file in it", "this is a folder"),
    ("nowhere", None, None),
]


@pytest.mark.parametrize(("name", "artifact", "recipe"), TABLE)
def test_every_kind_is_named_with_what_to_do(name: str, artifact: str | None, recipe: str | None, zoo: Path) -> None:
    place = zoo / name
    for advice, expected in ((instead_of_artifact(place), artifact), (instead_of_recipe(place), recipe)):
        assert (expected or "").format(place) in advice
        assert bool(advice) == (expected is not None)
        assert "\n" not in advice
    with pytest.raises(ArtifactError) as caught:
        open_artifact(place)
    assert str(caught.value).startswith(f"{place}: ")
    assert (artifact or "").format(place) in str(caught.value)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert kind_of(tmp_path / "pipe") is None
    assert kind_of("/dev/zero") is None
    assert kind_of("a\0b") is None
    assert instead_of_checkpoint(tmp_path / "pipe") == ""


def test_any_bytes_have_a_kind_or_none() -> None:
    generator = np.random.default_rng(0)
    for size in range(200):
        kind = kind_of_bytes(generator.bytes(size))
        assert kind is None or isinstance(kind, Kind)
        assert kind_of_bytes(b"GGUF" + generator.bytes(size)) == kind_of_bytes(b"GGUF")


PAGE = b"\n<!DOCTYPE html>\n<html><title>demo.pyca</title></html>" + b" " * 400


@pytest.mark.parametrize(("data", "knows_ranges"), [(PAGE, True), (PAGE, False), (PAGE[:60], True)])
def test_a_url_that_answers_with_a_web_page(range_server: RangeServer, data: bytes, knows_ranges: bool) -> None:
    range_server.files["/org/model/blob/main/demo.pyca"] = data
    range_server.knows_ranges = knows_ranges
    with pytest.raises(ArtifactError, match=r"demo.pyca: not a pyc artifact: this is a web page .*link that downloads"):
        open_artifact(f"{range_server.url}/org/model/blob/main/demo.pyca")


def test_a_pointer_behind_a_url(range_server: RangeServer) -> None:
    range_server.files["/demo.pyca"] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    with pytest.raises(ArtifactError, match=r"demo.pyca: not a pyc artifact: this is a Git LFS pointer .*git lfs pull"):
        open_artifact(f"{range_server.url}/demo.pyca")


def test_an_artifact_that_is_not_there_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    hub = "this reads artifacts; if it is a model of the hub, make one first: pyc build Qwen/Qwen3-0.6B --download"
    path = "give the path of an artifact; `pyc build` makes one"
    wanted = {
        "Qwen/Qwen3-0.6B": hub,
        "nothing.pyca": path,
        "a/b.pyca": path,
        "models/nothing": path,
        "a/b/c": path,
        "/a/b": path,
        "hf.co/Qwen/Qwen3-0.6B": hub.replace("if it is a model of the hub, make one", "make one of a model of the hub"),
        "~/model.pyca": "a shell makes a folder of ~, outside of one os.path.expanduser(path) does",
    }
    for given, remedy in wanted.items():
        with pytest.raises(MissingArtifactError) as caught:
            open_artifact(given)
        assert str(caught.value) == f"{given}: cannot be opened: No such file or directory; {remedy}"
