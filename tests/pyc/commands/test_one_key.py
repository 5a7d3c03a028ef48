"""`--trust` of the commands that load several artifacts, or one several times: the key of an artifact, and no other."""

import os

import pytest

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import remove_trusted, signing_key
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.measure import tuning

COMMANDS = {
    "eval": ("eval", "{artifact}", "--reference", "{artifact}", "--text", "{text}", "--context", 16, "--no-speed"),
    "bench": ("bench", "{artifact}", "-p", 4, "-n", 2, "-r", 2),
    "tune": ("tune", "{artifact}", "--rounds", 3, "--force"),
}


@pytest.fixture
def own_key(decoder_artifact) -> PublicKey:
    """The key that signed the artifact, which this machine does not trust."""
    with open_artifact(decoder_artifact) as artifact:
        key = PublicKey(artifact.signature.public_key)
    remove_trusted(key.fingerprint)
    return key


@pytest.fixture(params=list(COMMANDS))
def command(request, decoder_artifact, tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))  # where `tune` keeps what it finds
    monkeypatch.setattr(tuning, "tune_distances", lambda model, usual, **options: (usual, ()))
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten\n" * 8)
    return [str(word).format(artifact=decoder_artifact, text=text) for word in COMMANDS[request.param]]


def test_only_the_key_that_is_asked_for(pyc, command, own_key, tmp_path):
    code, out, err = pyc(*command)
    assert (code, out) == (12, "") and "not trusted" in err
    code, out, err = pyc(*command, "--trust", own_key.text())
    assert (code, err) == (0, "") and out
    public = tmp_path / "own.pub"
    public.write_text(own_key.text() + "\n")
    assert pyc(*command, "--trust", public)[0] == 0
    other = signing_key("other").public
    code, out, err = pyc(*command, "--trust", other.text())
    assert (code, out) == (12, "")
    assert f"signed by key {own_key.fingerprint}, expected key {other.fingerprint}" in err


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_page_never_replaces_the_key(pyc, decoder_artifact, own_key, is_linked, tmp_path):
    public, text, link = tmp_path / "own.pub", tmp_path / "text.txt", tmp_path / "link.pub"
    public.write_text(own_key.text() + "\n")
    text.write_text("one two three four five six seven eight nine ten\n" * 8)
    link.symlink_to(public)
    trust = link if is_linked else public
    words = ("eval", decoder_artifact, "--text", text, "--trust", trust, "--html", public, "--force", "--no-speed")
    code, out, err = pyc(*words)
    assert (code, out) == (8, "") and "own.pub: is a file of this evaluation" in err
    assert public.read_text() == own_key.text() + "\n"


@pytest.mark.parametrize("name", ["eval", "bench"])
def test_a_pipe_is_asked_once_and_so_refused(pyc, name, decoder_artifact, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = tmp_path / "text.txt"
    text.write_text("one\n")
    words = [str(word).format(artifact=decoder_artifact, text=text) for word in COMMANDS[name]]
    code, out, err = pyc(*words, "--trust", pipe)
    assert (code, out) == (15, "")
    assert f"--trust {pipe} is a pipe, which can be read once" in err
