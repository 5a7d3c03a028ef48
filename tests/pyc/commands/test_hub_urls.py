"""The URL of a model on the hub, where commands expect its name."""

import pytest


@pytest.mark.parametrize("url", ["https://huggingface.co/org/name", "hf.co/org/name"])
@pytest.mark.parametrize(("command", "code"), [("build", 3), ("plan", 3), ("init", 4)])
def test_the_name_is_said(command, code, url, pyc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    expected = f"pyc: error: {url}: this is a URL; write org/name --download (of pyc init, build and attach)\n"
    for options in ((), ("--download",)) if command != "plan" else ((),):
        assert pyc(command, url, *options) == (code, "", expected)
    assert not list(tmp_path.iterdir())
