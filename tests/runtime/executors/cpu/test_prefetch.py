"""prefetch.py: distances by the CPU's maker, those that were kept, and files that are no such thing."""

import logging

import msgspec
import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu import prefetch
from pyc.runtime.executors.cpu.prefetch import (
    SAPPHIRE_RAPIDS,
    ZEN4,
    Distance,
    Distances,
    distances_for,
    forget_distances,
    keep_distances,
    usual_distances,
)

FOUND = Distances(Distance(64, 128, False), Distance(192, 256, True), Distance(320, 384, False))


@pytest.fixture
def kind(monkeypatch):
    def pretend(name: str) -> None:
        monkeypatch.setattr(prefetch, "cpu_kind", lambda: name)

    pretend("AuthenticAMD 25 17 1")
    return pretend


@pytest.mark.parametrize(
    ("name", "expected"),
    [("GenuineIntel 6 143 8", SAPPHIRE_RAPIDS), ("AuthenticAMD 25 17 1", ZEN4), ("0x41 0xd40", ZEN4), ("", ZEN4)],
)
def test_a_maker_s_distances_unless_something_was_kept(kind, name, expected, tmp_path):
    kind(name)
    assert usual_distances() == distances_for("avx512-vnni", tmp_path) == expected


def test_what_was_kept_is_for_one_variant_on_one_kind_of_cpu(kind, tmp_path):
    path = keep_distances("avx512-vnni", FOUND, tmp_path)
    assert path.parent == tmp_path
    assert distances_for("avx512-vnni", tmp_path) == FOUND
    assert distances_for("x86-64-v3", tmp_path) == ZEN4
    keep_distances("x86-64-v3", SAPPHIRE_RAPIDS, tmp_path)
    assert distances_for("avx512-vnni", tmp_path) == FOUND
    assert distances_for("x86-64-v3", tmp_path) == SAPPHIRE_RAPIDS
    kind("AuthenticAMD 26 2 1")
    assert distances_for("avx512-vnni", tmp_path) == ZEN4
    keep_distances("avx512-vnni", SAPPHIRE_RAPIDS, tmp_path)
    assert forget_distances(tmp_path) == 1
    assert distances_for("avx512-vnni", tmp_path) == ZEN4
    kind("AuthenticAMD 25 17 1")
    assert distances_for("avx512-vnni", tmp_path) == FOUND
    assert forget_distances(tmp_path) == 2
    assert forget_distances(tmp_path) == 0


def test_the_home_is_the_user_s(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    keep_distances("x", FOUND)
    assert distances_for("x") == distances_for("x", tmp_path / "home") == FOUND


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "no UTF-8": b'{"\xe0x": {}}',
    "an unknown name": msgspec.json.encode({"a": {"b": {**msgspec.to_builtins(FOUND), "c": 1}}}),
    "a name less": b'{"a":{"b":{"codes":{"few":0,"many":0,"panel":true}}}}',
    "too far": msgspec.json.encode({"a": {"b": msgspec.to_builtins(FOUND)}}).replace(b":64", b":65537"),
    "backwards": msgspec.json.encode({"a": {"b": msgspec.to_builtins(FOUND)}}).replace(b":64", b":-64"),
    "no number": msgspec.json.encode({"a": {"b": msgspec.to_builtins(FOUND)}}).replace(b":64", b':"64"'),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_file_of_something_else_is_told_of_and_not_used(kind, content, tmp_path, caplog):
    """It is no reason not to run, and none to write over it."""
    path = tmp_path / "tuned.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert distances_for("b", tmp_path) == ZEN4
    assert f"{path}: not what `pyc tune` writes: " in caplog.text and "delete it and tune again" in caplog.text
    for write in (lambda: keep_distances("b", FOUND, tmp_path), lambda: forget_distances(tmp_path)):
        with pytest.raises(RunError, match="not what `pyc tune` writes"):
            write()
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_or_written(kind, tmp_path, caplog):
    (tmp_path / "tuned.json").mkdir()
    assert distances_for("b", tmp_path) == ZEN4
    assert "tuned.json: cannot be read: not a regular file" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"tuned\.json: cannot be read: .* is a file, expected a folder; set PYC_HOME"):
        keep_distances("b", FOUND, tmp_path / "file")


def test_compiled_code_takes_them_in_this_order():
    assert list(FOUND.as_c()) == [64, 128, 0, 192, 256, 1, 320, 384, 0]
