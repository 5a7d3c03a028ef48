"""What is shown of an artifact that nobody signed: blobs that no build would take are not read."""

import base64
import json

import pytest
from range_server import RangeServer, range_server
from remote_artifacts import MODEL, QUICK

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.models.files import MAX_BYTES, MAX_OTHER_BYTES
from pyc.passes.attest import facts
from pyc.runtime.artifact.format import Generation, Provenance
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.sources import http

__all__ = ["range_server"]

TOKENIZER = {"truncation": {"direction": "Left", "max_length": 24}}
CUT = "64 tokens, the last 24 of a text"


@pytest.fixture
def read(monkeypatch):
    """The names of blobs that are read."""
    names, blob = [], Artifact.blob
    monkeypatch.setattr(Artifact, "blob", lambda self, name: names.append(name) or blob(self, name))
    return names


@pytest.fixture
def write(tmp_path, key_home):
    """`write(**blobs)`: the path of an encoder's artifact that cuts texts as its tokenizer.json says."""

    def make(blobs):
        path = tmp_path / "encoder.pyca"
        with ArtifactWriter(path) as writer:
            writer.add_tensor("w", "u8", (4,), [b"1234"])
            for name, content in blobs.items():
                writer.add_blob(name, content)
            writer.finish(
                model=MODEL,
                generation=Generation(),
                provenance=Provenance("{}", (), (), ()),
                requires=("truncation",),
            )
        return path

    return make


def context_of(pyc, place):
    code, out, err = pyc("inspect", place)
    assert (code, err) == (0, "")
    (line,) = (line for line in out.splitlines() if line.startswith("context "))
    return " ".join(line.split()[1:])


def test_a_tokenizer_of_a_size_that_builds_take(pyc, write, read):
    assert context_of(pyc, write({"tokenizer.json": json.dumps(TOKENIZER).encode()})) == CUT
    assert read == ["tokenizer.json"]


def test_a_tokenizer_that_no_build_takes(pyc, write, read):
    text = json.dumps(TOKENIZER).encode()
    path = write({"tokenizer.json": text + b" " * (MAX_BYTES["tokenizer.json"] + 1 - len(text))})
    assert path.stat().st_size < 300_000
    assert context_of(pyc, path) == "64 tokens, fewer of a text (tokenizer.json is too large)"
    assert read == []


def test_of_a_url_the_header_alone_is_fetched(pyc, write, read, range_server: RangeServer, monkeypatch):
    monkeypatch.setattr(http, "PATIENT", QUICK)
    monkeypatch.setattr(http, "START_BYTES", 4096)
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    range_server.files["/m.pyca"] = write({"tokenizer.json": json.dumps(TOKENIZER).encode()}).read_bytes()
    assert context_of(pyc, f"{range_server.url}/m.pyca") == "64 tokens, fewer of a text (see its tokenizer.json)"
    assert read == [] and range_server.count() == 4096


@pytest.mark.parametrize("form", ["cyclonedx", "spdx", "slsa"])
def test_licences_that_are_too_large_are_named(pyc, write, read, form, monkeypatch):
    monkeypatch.setattr(facts, "MOST_LICENCE_BYTES", 1000)
    small = {"LICENSE": b"do as you please", "NOTICE": b"n" * 984}
    large = {"COPYING": bytes(MAX_OTHER_BYTES + 1), "LICENSE.txt": b"one byte more than are left"}
    path = write({"tokenizer.json": b"{}", **small, **large})
    code, out, err = pyc("attest", path, "--format", form)
    assert (code, err) == (0, "") and set(read) == set(small)
    if form == "spdx":
        assert all(name in json.loads(out)["packages"][0]["licenseComments"] for name in (*small, *large))
    if form == "cyclonedx":
        found = json.loads(out)["metadata"]["component"]["licenses"]
        licences = {each["license"]["name"]: each["license"] for each in found}
        assert licences.keys() == {*small, *large}
        assert all(base64.b64decode(licences[name]["text"]["content"]) == text for name, text in small.items())
        said = [{"name": "pyc:text", "value": "too large, not read"}]
        assert all(licences[name] == {"name": name, "properties": said} for name in large)
