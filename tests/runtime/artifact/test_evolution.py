"""runtime/artifact/evolution.py: what a reader makes of headers of other minor versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artifact_forge import Document, canonical, check, join, make, put

from pyc.runtime.artifact import evolution
from pyc.runtime.artifact.format import Header
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.errors import ArtifactError

NEWER = 7
UNKNOWN = {"list": [1, {"b": None, "c": "é"}], "zero": 0}
OPEN = [
    (),
    ("programs", 0),
    ("programs", 0, "functions", 1),
    ("generation",),
    ("provenance",),
    ("provenance", "sources", 0),
    ("provenance", "passes", 0),
]
CLOSED = [
    ("model",),
    ("model", "kv_cache"),
    ("tensors", 0),
    ("tensors", 0, "span"),
    ("blobs", 0),
    ("chunks", 0),
    ("programs", 0, "abi", 0),
    ("provenance", "tools", 0),
]


def place(document: Document, path: tuple[str | int, ...]) -> Any:
    found: Any = document
    for step in path:
        found = found[step]
    return found


def written(path: Path, change: Callable[[Document], object] = lambda document: None, minor: int = NEWER) -> Path:
    """An artifact of version 1.`minor`, with a header that `change` has altered."""
    document, payload = make()
    change(document)
    put(path, join(canonical(document), payload, minor=minor))
    return path


def header_of(path: Path) -> Header:
    with open_artifact(path) as artifact:
        return artifact.header


@pytest.fixture
def current(tmp_path: Path) -> Header:
    """The header of the same content, of this version."""
    return header_of(written(tmp_path / "current.pyca", minor=1))


@pytest.mark.parametrize("where", OPEN, ids=str)
def test_a_newer_minor_may_add_fields(where: tuple[str | int, ...], current: Header, tmp_path: Path) -> None:
    path = written(tmp_path / "m.pyca", lambda d: place(d, where).update(added=UNKNOWN))
    check(path)
    assert header_of(path) == current


@pytest.mark.parametrize("where", OPEN, ids=str)
def test_this_version_has_no_other_fields(where: tuple[str | int, ...], tmp_path: Path) -> None:
    path = written(tmp_path / "m.pyca", lambda d: place(d, where).update(added=UNKNOWN), minor=1)
    with pytest.raises(ArtifactError, match="unknown field `added`"):
        check(path)


@pytest.mark.parametrize("where", CLOSED, ids=str)
def test_where_bytes_lie_and_what_the_model_is_have_no_other_fields(
    where: tuple[str | int, ...], tmp_path: Path
) -> None:
    """Who passes over a part of these misreads the rest: a newer version names a feature."""
    path = written(tmp_path / "m.pyca", lambda d: place(d, where).update(added=UNKNOWN))
    with pytest.raises(ArtifactError, match="unknown field `added`"):
        check(path)


@pytest.mark.parametrize("minor", [1, 2, NEWER, 65535])
def test_an_unknown_feature_is_refused_before_the_rest_is_read(minor: int, tmp_path: Path) -> None:
    def change(document: Document) -> None:
        document["requires"] = ["ragged-tensors"]
        document["tensors"] = {"a": "of a kind that this reader does not know"}

    words = "needs 'ragged-tensors', which this pyc does not know; install a newer pyc, or build the artifact again"
    with pytest.raises(ArtifactError, match=words) as caught:
        check(written(tmp_path / "m.pyca", change, minor))
    assert type(caught.value).exit_code == 8


def test_a_known_feature_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evolution, "FEATURES", frozenset({"a", "b"}))
    path = written(tmp_path / "m.pyca", lambda d: d.update(requires=["a", "b"]), minor=1)
    assert header_of(path).requires == ("a", "b")
    with pytest.raises(ArtifactError, match="needs 'c', which"):
        check(written(tmp_path / "m.pyca", lambda d: d.update(requires=["a", "c"])))


@pytest.mark.parametrize("names", [["b", "a"], ["a", "a"]])
def test_features_are_sorted_and_each_once(names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evolution, "FEATURES", frozenset({"a", "b"}))
    with pytest.raises(ArtifactError, match="requires: expected each feature once, sorted"):
        check(written(tmp_path / "m.pyca", lambda d: d.update(requires=names), minor=1))


NOT_CANONICAL: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "space": (lambda text: text.replace(b'"added":1', b'"added": 1'), "not in canonical form"),
    "duplicate": (lambda text: text.replace(b'"added":1', b'"added":1,"added":1'), "not in canonical form"),
    "order": (lambda text: b'{"zeta":1,' + text[1:], "not in canonical form"),
    "escape": (lambda text: text.replace(b'"added":1', rb'"added":"\u0061"'), "not in canonical form"),
    "minus_zero": (lambda text: text.replace(b'"added":1', b'"added":-0'), "not in canonical form"),
    "fraction": (lambda text: text.replace(b'"added":1', b'"added":1.5'), "'1.5': numbers are integers"),
    "exponent": (lambda text: text.replace(b'"added":1', b'"added":1e9'), "'1e9': numbers are integers"),
    "nan": (lambda text: text.replace(b'"added":1', b'"added":NaN'), "'NaN': numbers are integers"),
    "large": (lambda text: text.replace(b'"added":1', b'"added":9007199254740992'), "an integer of 16 digits"),
    "digits": (lambda text: text.replace(b'"added":1', b'"added":' + b"9" * 10**6), "an integer of 1000000 digits"),
    "surrogate": (lambda text: text.replace(b'"added":1', rb'"added":"\ud800"'), "header is not valid"),
    "not_utf8": (lambda text: text.replace(b'"added":1', b'"added":"\xff"'), "header is not valid"),
    "byte_order_mark": (lambda text: b"\xef\xbb\xbf" + text, "header is not valid"),
    "deep": (lambda text: text.replace(b'"added":1', b'"added":' + b"[" * 10**5 + b"]" * 10**5), "not valid"),
    "array": (lambda text: b"[]", "Expected `object`"),
    "unknown_type": (lambda text: text.replace(b'"blobs":[', b'"blobs":[1,'), "Expected `object`"),
    "missing": (lambda text: re.sub(rb'"requires":\[\],', b"", text), "not in canonical form"),
}


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_a_newer_header_is_canonical_too(name: str, tmp_path: Path) -> None:
    change, message = NOT_CANONICAL[name]
    document, payload = make()
    text = canonical({**document, "added": 1})
    assert change(text) != text
    put(tmp_path / "m.pyca", join(change(text), payload, minor=NEWER))
    with pytest.raises(ArtifactError, match=message) as caught:
        check(tmp_path / "m.pyca")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("minor", [0, NEWER])
@pytest.mark.parametrize("value", ["[" * 30 + "]" * 30, '{"":' * 30 + "1" + "}" * 30])
def test_values_that_are_nested_without_a_comma_are_bounded_before_they_are_parsed(
    minor: int, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, payload = make()
    text = canonical(document)[:-1] + f',"zeta":[{",".join([value] * 20_000)}]}}'.encode()
    put(tmp_path / "m.pyca", join(text, payload, minor=minor))
    monkeypatch.setattr(evolution.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(ArtifactError, match=r"header has 6\d{5} opening brackets, above the limit of 524288"):
        check(tmp_path / "m.pyca")


def test_the_signature_covers_what_is_passed_over(tmp_path: Path) -> None:
    document, payload = make()
    header = canonical({**document, "added": 1})
    record = signing_key(home=tmp_path / "home").sign(join(header, b"", minor=NEWER)[:64]).pack()
    path = tmp_path / "m.pyca"
    put(path, join(header, payload, minor=NEWER, record=record))
    check(path)
    other = canonical({**document, "added": 2})
    for forged in (
        join(other, payload, minor=NEWER, record=record),
        join(header, payload, minor=NEWER + 1, record=record),
    ):
        put(path, forged)
        with pytest.raises(ArtifactError, match=r"signature of key .* is wrong"):
            check(path)


def older(document: Document) -> None:
    """As version 1.0 has it."""
    del document["requires"]
    document["programs"][0]["runtime_library"] = "lib"


def test_version_1_0_opens(current: Header, tmp_path: Path) -> None:
    path = written(tmp_path / "m.pyca", older, minor=0)
    check(path)
    assert header_of(path) == current


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d["programs"][0].pop("runtime_library"), "1.0 has the field `runtime_library`"),
    (lambda d: d.update(programs=[1]), "1.0 has the field `runtime_library`"),
    (lambda d: d.update(programs=1), "Expected `array`"),
    (lambda d: d.update(requires=[]), "1.0 has no field `requires`"),
    (lambda d: d.update(added=1), "unknown field `added`"),
])
def test_version_1_0_is_read_as_strictly(change: Callable[[Document], object], message: str, tmp_path: Path) -> None:
    def both(document: Document) -> None:
        older(document)
        change(document)

    with pytest.raises(ArtifactError, match=message):
        check(written(tmp_path / "m.pyca", both, minor=0))


def test_programs_of_unknown_kinds_open(tmp_path: Path) -> None:
    def change(document: Document) -> None:
        document["programs"][0].update(backend="cuda", device="gpu", arch="sm_90a", system="any", isa="sm_90a")
        document["programs"][0]["functions"][0]["name"] = "sample"

    program = header_of(written(tmp_path / "m.pyca", change, minor=1)).programs[0]
    assert (program.backend, program.functions[0].name) == ("cuda", "sample")
