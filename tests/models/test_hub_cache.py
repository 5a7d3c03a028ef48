"""models/hub_cache.py: references to folders and to models of the hub."""

import json

import pytest

from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.hub_cache import cache_root, instead_of_url, is_cached
from pyc.models.model_source import ModelSource
from pyc.runtime.errors import AdapterError, IngestError

LONG = "x" * 3000
ODD_REFERENCES = ("~nosuchuser/x", LONG, f"org/{LONG}", f"org/n@{LONG}", "/dev/null", "/dev/null/x", "a\nb")


@pytest.mark.parametrize("reference", ODD_REFERENCES)
def test_references_that_name_nothing(reference, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    nothing = r"no such directory|cannot be opened|is a file"
    with pytest.raises(IngestError, match=nothing):
        load_model(ModelSource(reference, tmp_path))
    with pytest.raises(AdapterError, match=nothing):
        read_adapter(reference, base_dir=tmp_path)


@pytest.fixture
def hub(tmp_path, tiny_checkpoint, monkeypatch):
    """A cache as huggingface_hub lays it out, with one model, org/name, at one commit."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / "models--org--name"
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(tiny_checkpoint("llama").iterdir())):
        (folder / "blobs" / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return folder, snapshot, commit


def test_a_hub_id_is_found_in_the_cache(hub, tmp_path):
    folder, snapshot, commit = hub
    for reference in ("org/name", f"org/name@{commit}", "org/name@main", str(snapshot)):
        module = load_model(ModelSource(reference, tmp_path))
        assert module.sources[0].name == "chat_template.jinja"
        assert all(str(folder / "blobs") in source.path for source in module.sources)


def test_a_part_of_another_commit_leaves_the_name_of_a_whole_model(hub, tmp_path, monkeypatch, caplog):
    """A tokenizer, or an adapter, of a model that is cached; without it the name stands for what was fetched."""
    from pyc.models import hub_download

    folder, snapshot, commit = hub
    newer = "b" * 40
    found = hub_download._Repository("org/name", "org/name", "main", newer, {})
    monkeypatch.setattr(hub_download, "_look_up", lambda *arguments: found)
    monkeypatch.setattr(hub_download, "_fetch", lambda *arguments: None)
    hub_download.download("org/name", "tokenizer")
    assert f"whole model of this name, of commit {commit}, whose tokenizer is taken; the hub has {newer}" in caplog.text
    assert load_model(ModelSource("org/name", tmp_path)).info.kind == "decoder"
    hub_download.download("org/name", "adapter")  # the whole model has none
    assert (folder / "refs" / "main").read_text() == newer
    for kind, gone in (("checkpoint", None), ("tokenizer", "tokenizer.json"), ("tokenizer", "config.json")):
        (folder / "refs" / "main").write_text(commit)
        if gone is not None:
            (snapshot / gone).rename(snapshot / "gone")
        hub_download.download("org/name", kind)
        assert (folder / "refs" / "main").read_text() == newer
        if gone is not None:
            (snapshot / "gone").rename(snapshot / gone)


@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_model_with_an_adapter_is_refused_before_its_weights_are_fetched(with_adapter, hub, monkeypatch):
    """Unless the recipe names both."""
    from pyc.models import hub_download

    _, snapshot, commit = hub
    (snapshot / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    sizes = {file.name: file.stat().st_size for file in snapshot.iterdir()}
    found, fetched = hub_download._Repository("org/name", "org/name", "main", commit, sizes), []
    monkeypatch.setattr(hub_download, "_look_up", lambda *arguments: found)
    monkeypatch.setattr(hub_download, "_get", lambda _, of, name, advance: fetched.append(name) or snapshot / name)
    if with_adapter:
        hub_download.download("org/name", with_adapter=True)
        assert set(fetched) == set(sizes)
        return
    with pytest.raises(IngestError, match=r"org/name: an adapter .* transformers loads org/base with that adapter"):
        hub_download.download("org/name")
    assert fetched == ["config.json", "adapter_config.json"]


def test_a_part_of_a_model_in_the_cache(hub, tmp_path):
    _, snapshot, _ = hub
    (snapshot / "config.json").unlink()
    with pytest.raises(IngestError, match=r"no config.json; the cache has only a part of the model; .*--download"):
        load_model(ModelSource("org/name", tmp_path))


def test_the_cache_is_where_huggingface_hub_has_it(monkeypatch, tmp_path):
    from pathlib import Path

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_root() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / "hub"


HUB_REFUSALS = {
    "org/other": "no model of this name in the cache",
    "org/name@v2": "has no revision 'v2' of this model; pyc init, build and attach fetch it with --download",
    "org/name@" + "f" * 40: "the cache has no snapshot ffff",
    "../org/name": "no such directory",
    "s3://b/x": "this is a URL; give a checkpoint's folder, or org/name of a model",
    "org/name@../../refs/main": "no such directory",
    "https://huggingface.co/org/name": "this is a URL; write org/name --download",
    "": "is not a path or hub id",
}


@pytest.mark.parametrize("reference", HUB_REFUSALS)
def test_a_reference_that_leads_nowhere(reference, hub, tmp_path):
    with pytest.raises(IngestError) as caught:
        load_model(ModelSource(reference, tmp_path))
    assert HUB_REFUSALS[reference] in str(caught.value)


def test_a_link_out_of_the_cache_is_refused(hub, tmp_path):
    _, snapshot, _ = hub
    (tmp_path / "canary.json").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "canary.json")
    with pytest.raises(IngestError, match=r"config\.json is a symbolic link that leads out"):
        load_model(ModelSource("org/name", tmp_path))


def test_a_ref_that_is_not_a_commit(hub, tmp_path):
    folder, _, _ = hub
    (folder / "refs" / "main").write_text("../../..")
    with pytest.raises(
        IngestError, match=r"refs/main in the cache holds '\.\./\.\./\.\.', expected a commit"
    ):
        load_model(ModelSource("org/name", tmp_path))


def test_a_name_too_long_for_the_cache_is_not_in_it() -> None:
    assert not is_cached("x" * 5000)


URLS = {
    "https://huggingface.co/org/name": "org/name",
    "https:/huggingface.co/org/name/": "org/name",  # what a path makes of it
    "HTTP://www.huggingface.co/org/name?library=x#y": "org/name",
    "hf.co/org/name": "org/name",
    "hf.co/org/name@v2": "org/name@v2",
    "huggingface.co/org/name/tree/main": "org/name",
    "https://huggingface.co/org/name/blob/v1.0/config.json": "org/name@v1.0",
}


@pytest.mark.parametrize("url", URLS)
def test_the_url_of_a_model_is_answered_with_its_name(url):
    assert instead_of_url(url) == f"this is a URL; write {URLS[url]} --download (of pyc init, build and attach)"


@pytest.mark.parametrize("url", ["https://huggingface.co/datasets/squad", "hf.co/papers/2309.00071", "hf.co/Spaces/x"])
def test_the_url_of_another_page_is_no_model(url):
    assert instead_of_url(url) == "this is a URL, and not a model's; write org/name of a model, or a directory"


@pytest.mark.parametrize("text", ["https://example.com/org/name", "hf.co/org", "hf.co/org/../name", "hf.co.org/a/b"])
def test_other_urls_are_no_models(text):
    assert instead_of_url(text) == ""


@pytest.mark.parametrize("page", ["", "/tree/v1"])
def test_a_url_of_gguf_files_asks_for_the_model_that_they_were_made_of(page: str) -> None:
    said = instead_of_url(f"https://hf.co/Qwen/Qwen3-0.6B-GGUF{page}")
    assert said == "this is a URL of GGUF files, which are not read; write org/name of the model that they were made of"
