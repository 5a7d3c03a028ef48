"""Files that change while a build reads them: a typed error, no artifact, and a cache as if it had never been tried."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from built_models import recipe_for
from long_runs import sample

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build import build
from pyc.passes.driver.plan import plan
from pyc.runtime.errors import IngestError

pytestmark = pytest.mark.usefixtures("compiled_once")

SHAPE = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96}
RECIPE = {"quantize": {"scheme": "int8"}}


def flipped(path, offset=-1):
    """Other bytes in a file, written in place: one bit of the byte at `offset`."""
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        value = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ 1]))


def overwrite(path):
    status = path.stat()
    flipped(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def replace(path):
    other = path.with_name("other")
    shutil.copy(path, other)
    flipped(other)
    other.replace(path)


CHANGES = {"overwrite": overwrite, "truncate": truncate, "replace": replace, "delete": Path.unlink}
FILES = {
    "weights": "checkpoint/model.safetensors",
    "config": "checkpoint/config.json",
    "tokenizer": "checkpoint/tokenizer.json",
    "generation": "checkpoint/generation_config.json",
    "adapter": "adapter/adapter_model.safetensors",
    "adapter config": "adapter/adapter_config.json",
    "shard": "sharded/model-00002-of-*.safetensors",
    "index": "sharded/model.safetensors.index.json",
}
MOMENTS = ("lower", "emit", "compile")


@pytest.fixture(scope="module")
def sources(tmp_path_factory, tiny_checkpoint, tiny_adapter):
    """A folder with a checkpoint, the same in shards, an adapter, and a cache that has the programs for them."""
    folder = tmp_path_factory.mktemp("sources")
    whole = tiny_checkpoint("llama", **SHAPE)
    shutil.copytree(whole, folder / "checkpoint")
    shutil.copytree(tiny_checkpoint("llama", sharded=True, **SHAPE), folder / "sharded")
    shutil.copytree(tiny_adapter(whole, "lora", r=2, target_modules=["q_proj"]), folder / "adapter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYC_CACHE_DIR", str(folder / "cache"))
        build(recipe_for(folder / "checkpoint", **RECIPE), output=folder / "programs.pyca")
    (folder / "programs.pyca").unlink()
    return folder


@pytest.fixture
def attack(sources, tmp_path, monkeypatch):
    """`attack(file, change, moment)`: a build during which a file changes; returns its refusal.

    Fails unless the build is refused, leaves nothing, and the restored file then builds, out of the same cache, to
    the bytes that a cache gives that never saw the change.
    """
    folder = Path(shutil.copytree(sources, tmp_path / "work"))
    for weights in folder.glob("*/*model*.safetensors"):
        flipped(weights, weights.stat().st_size - 3)  # weights that the cache has not
    shutil.copytree(folder / "cache", tmp_path / "clean")

    def run(file, change, moment):
        path = next(folder.glob(FILES[file]))
        recipe = {**recipe_for(path.parent, **RECIPE), "adapters": []}
        if path.parent.name == "adapter":
            recipe |= {"model": str(folder / "checkpoint"), "adapters": [{"path": str(path.parent)}]}
        kept = Path(shutil.copy2(path, tmp_path / "kept"))
        done = []

        def progress(event):
            if event.stage == moment and not done:
                done.append(change(path))

        (folder / "out").mkdir()
        monkeypatch.setenv("PYC_CACHE_DIR", str(folder / "cache"))
        with pytest.raises(IngestError) as caught:
            build(recipe, output=folder / "out" / "model.pyca", progress=progress)
        assert done
        assert not list((folder / "out").iterdir())
        assert not list((folder / "cache").glob("staged-*"))
        path.unlink(missing_ok=True)
        kept.replace(path)
        again = build(recipe, output=folder / "out" / "model.pyca")
        monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "clean"))
        clean = build(recipe, output=folder / "out" / "clean.pyca")
        assert clean.cache_misses > 0
        assert again.sha256 == clean.sha256
        return str(caught.value)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_during_a_build(file, change, attack):
    moment = MOMENTS[(list(FILES).index(file) + list(CHANGES).index(change)) % len(MOMENTS)]
    assert Path(FILES[file]).name.split("*")[0] in attack(file, CHANGES[change], moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_weights_overwritten_at_any_moment(moment, attack):
    assert "the file changed while the build read it: it was written to" in attack("weights", overwrite, moment)


def test_weights_overwritten_and_restored_within_one_build(attack):
    def there_and_back(path):
        overwrite(path)
        overwrite(path)

    assert "the file changed while the build read it" in attack("weights", there_and_back, "emit")


def test_a_change_that_comes_before_the_reading_is_simply_read(sources, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(sources, tmp_path / "work"))
    recipe, weights = recipe_for(folder / "checkpoint", **RECIPE), folder / "checkpoint" / "model.safetensors"
    monkeypatch.setenv("PYC_CACHE_DIR", str(folder / "cache"))

    def progress(event):
        if event.stage == "ingest":
            overwrite(weights)

    first = build(recipe, output=folder / "a.pyca", progress=progress)
    assert build(recipe, output=folder / "b.pyca").sha256 == first.sha256


@pytest.mark.slow
def test_builds_and_plans_leave_no_file_open(sources, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(sources, tmp_path / "work"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(folder / "cache"))
    recipe = recipe_for(folder / "sharded", **RECIPE)

    def stop(event):
        if event.stage == "emit":
            raise KeyboardInterrupt

    def descriptors():
        links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return sorted(os.readlink(link) for link in links if os.path.lexists(link) and str(folder) in os.readlink(link))

    for _ in range(2):
        build(recipe, output=folder / "a.pyca")
        plan(recipe_from(recipe))
        with pytest.raises(KeyboardInterrupt):
            build(recipe, output=folder / "b.pyca", progress=stop)
        assert not descriptors()
    os.truncate(next(folder.glob("sharded/model-00002-of-*")), 100)
    with pytest.raises(IngestError, match="truncated"):
        build(recipe, output=folder / "b.pyca")
    assert not descriptors()


def other_weights(path):
    """Other numbers in the second half of a file, written in place."""
    half = path.stat().st_size // 8 * 4
    with open(path, "r+b") as file:
        file.seek(half)
        size = (path.stat().st_size - half) // 4
        file.write(np.random.default_rng(0).normal(0, 1, size).astype(np.float32).tobytes())


MEASURED = {
    "generated text": {"scheme": "int4-g32", "algorithm": "gptq", "calibration": {"generate": 256, "window": 32}},
    "gptq": {"scheme": "int4-g32", "algorithm": "gptq"},
    "awq": {"scheme": "int4-g32", "algorithm": "awq"},
    "a goal": {"bits_per_weight": 6},
}


@pytest.mark.slow
@pytest.mark.parametrize("measured", sample(MEASURED, "generated text", "gptq"))
def test_what_is_measured_of_weights_that_change_is_not_kept(measured, sources, tmp_path, monkeypatch):
    """Tokens, codes, factors and distances are of the whole model, and the cache has them by the digests of its files:
    here that of the embedding, a shard of its own, changes when all are hashed."""
    folder = Path(shutil.copytree(sources, tmp_path / "work"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat; the dog sat on the log\n" * 80)
    text = {"text": str(tmp_path / "text.txt"), "window": 32, "tokens": 256}
    recipe = recipe_for(folder / "sharded", quantize={"calibration": text, **MEASURED[measured]})
    index = json.loads((folder / "sharded" / "model.safetensors.index.json").read_text())
    shard = folder / "sharded" / index["weight_map"]["model.embed_tokens.weight"]
    before, digest, left = shard.read_bytes(), SourceFiles.digest, set(index["weight_map"].values())

    def digest_and_change(self, path):
        found = digest(self, path)
        if left:
            left.discard(Path(path).name)
            if not left:
                other_weights(shard)
        return found

    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(SourceFiles, "digest", digest_and_change)
        with pytest.raises(IngestError, match=f"/{shard.name}: the file changed while the build read it"):
            build(recipe, output=tmp_path / "model.pyca", workers=1)
    assert shard.read_bytes() != before
    shard.write_bytes(before)
    again = build(recipe, output=tmp_path / "model.pyca")
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "clean"))
    clean = build(recipe, output=tmp_path / "clean.pyca")
    assert (again.sha256, again.mixture) == (clean.sha256, clean.mixture)
