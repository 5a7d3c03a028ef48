"""`pyc attest`: documents that fit the schemas of those who read them, and say what the artifact's header does."""

import base64
import hashlib
import json
import shutil
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from nacl.signing import VerifyKey
from referencing import Registry, Resource

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.driver.build import build
from pyc.runtime.artifact.format import Generation, KvCache, ModelInfo, PassRecord, Provenance, SourceFile, Tool
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.errors import IngestError

LICENCE = b"You may do as you please.\n"


@pytest.fixture
def artifact(tmp_path, key_home):
    path = tmp_path / "model.pyca"
    with ArtifactWriter(path) as writer:
        writer.add_blob("LICENSE", LICENCE)
        writer.finish(
            model=ModelInfo("llama", "decoder", 32, 8, 64, 2, KvCache(2, 4, 16, "f16", 16), None),
            generation=Generation(),
            provenance=Provenance(
                '{"model":"demo","quantize":{"scheme":"int8"}}',
                (SourceFile("config.json", 10, "a" * 64), SourceFile("model.safetensors", 1234, "0" * 64)),
                (Tool("numpy", "2.4.6"), Tool("pyc-compiler", "0.1")),
                (PassRecord("fuse_lora", 1, "{}"),),
            ),
            programs=(),
            signing_key=None,
        )
    return path


def schema_errors(document):
    folder = resources.files("cyclonedx.schema._res")
    found = {name: json.loads(folder.joinpath(f"{name}.SNAPSHOT.schema.json").read_text("utf-8")) for name in SCHEMAS}
    pairs = [(f"{name}.schema.json", Resource.from_contents(schema)) for name, schema in found.items()]
    pairs += [(schema["$id"], Resource.from_contents(schema)) for schema in found.values()]
    validator = jsonschema.Draft7Validator(found["bom-1.6"], registry=Registry().with_resources(pairs))
    return [error.message for error in validator.iter_errors(document)]


SCHEMAS = ("bom-1.6", "spdx", "jsf-0.82")


def test_cyclonedx(pyc, artifact):
    code, out, err = pyc("attest", artifact, "--format", "cyclonedx")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert schema_errors(document) == []
    assert schema_errors({**document, "specVersion": 5}) != []
    model = document["metadata"]["component"]
    assert model["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(artifact.read_bytes()).hexdigest()}]
    (licence,) = model["licenses"]
    assert base64.b64decode(licence["license"]["text"]["content"]) == LICENCE
    names = {part["name"]: part for part in document["components"]}
    assert names["model.safetensors"]["hashes"] == [{"alg": "BLAKE3", "content": "0" * 64}]
    assert names["numpy"]["purl"] == "pkg:pypi/numpy@2.4.6"
    assert pyc("attest", artifact, "--format", "cyclonedx")[1] == out  # nothing of the day is in it


def test_spdx(pyc, artifact, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    document = json.loads(pyc("attest", artifact, "--format", "spdx")[1])
    assert document["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    packages = {package["SPDXID"]: package for package in document["packages"]}
    digest = hashlib.sha256(artifact.read_bytes()).hexdigest()
    assert packages["SPDXRef-Model"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": digest}]
    related = {each["relatedSpdxElement"] for each in document["relationships"]}
    assert related <= {*packages, "SPDXRef-Model"} and "SPDXRef-Source-1" in related
    for value in ("yesterday", "9" * 30, ""):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
        code, out, err = pyc("attest", artifact, "--format", "spdx")
        assert (code, out) == (8, "") and "expected seconds since 1970" in err


def test_provenance_that_is_signed(pyc, artifact, tmp_path):
    key = signing_key().public
    plain = json.loads(pyc("attest", artifact, "--format", "slsa")[1])
    target = tmp_path / "model.intoto.json"
    assert pyc("attest", artifact, "--format", "slsa", "--sign", "-o", target)[0] == 0
    envelope = json.loads(target.read_text())
    payload = base64.b64decode(envelope["payload"])
    assert json.loads(payload) == plain
    (signature,) = envelope["signatures"]
    kind = "application/vnd.in-toto+json"
    message = b"DSSEv1 28 " + kind.encode() + b" " + str(len(payload)).encode() + b" " + payload
    VerifyKey(key.raw).verify(message, base64.b64decode(signature["sig"]))
    assert (envelope["payloadType"], signature["keyid"]) == (kind, key.fingerprint)
    assert plain["subject"][0]["digest"] == {"sha256": hashlib.sha256(artifact.read_bytes()).hexdigest()}
    definition = plain["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["recipe"]["quantize"] == {"scheme": "int8"}
    assert {"name": "config.json", "digest": {"blake3": "a" * 64}} in definition["resolvedDependencies"]


def test_what_is_wrong(pyc, artifact, tmp_path):
    (tmp_path / "there").write_text("mine")
    for arguments, code in (
        (("--format", "spdx", "--sign"), 2),
        (("--format", "spdx", "-o", artifact, "--force"), 8),
        (("--format", "spdx", "-o", tmp_path / "there"), 8),
        (("--format", "slsa", "--sign", "--name", "nobody"), 8),
        ((), 2),
    ):
        assert pyc("attest", artifact, *arguments)[0] == code, arguments
    assert (tmp_path / "there").read_text() == "mine"
    data = bytearray(artifact.read_bytes())
    data[-2] ^= 1
    artifact.write_bytes(data)
    code, out, _ = pyc("attest", artifact, "--format", "cyclonedx")
    assert (code, out) == (8, "")


def test_a_build_carries_the_licence_of_its_checkpoint(tiny_checkpoint, tmp_path, key_home):
    from pyc.runtime.artifact.reader import open_artifact

    path = Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "checkpoint"))
    (path / "LICENSE.md").write_bytes(LICENCE)
    (path / "NOTICE").mkdir()
    (path / "licence-of-others.py").write_bytes(b"x")
    recipe = {"model": str(path), "shapes": {"tokens": [1, 8], "logits": [1]}, "targets": [{"backend": "onnx"}]}
    with open_artifact(build(recipe, output=tmp_path / "a.pyca").path) as opened:
        names = [blob.name for blob in opened.header.blobs]
        assert opened.blob("LICENSE.md") == LICENCE
        assert "LICENSE.md" in [source.name for source in opened.header.provenance.sources]
    assert not {"NOTICE", "licence-of-others.py"} & set(names)


def test_every_licence_is_carried_or_the_checkpoint_is_refused(tiny_checkpoint, tmp_path):
    path = Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "checkpoint"))
    for number in range(12):
        (path / f"LICENSE-{number}.txt").write_bytes(LICENCE)
    carried = dict(load_model(ModelSource(str(path), tmp_path)).files)
    assert sum(name.startswith("LICENSE") for name in carried) == 12
    (path / "LICENSE").symlink_to("nowhere")
    with pytest.raises(IngestError, match="LICENSE is a link that leads nowhere"):
        load_model(ModelSource(str(path), tmp_path))
    (path / "LICENSE").unlink()
    for number in range(65):
        (path / f"NOTICE-{number}.txt").write_bytes(LICENCE)
    with pytest.raises(IngestError, match="it has 77 licence files, expected at most 64"):
        load_model(ModelSource(str(path), tmp_path))


def test_a_url_is_named_as_it_was_written(pyc):
    code, _, err = pyc("attest", "http://127.0.0.1:1/a.pyca", "--format", "spdx")
    assert code != 0
    assert "http://127.0.0.1:1/a.pyca: a URL, taken for a path; give it as text and with both slashes" in err
