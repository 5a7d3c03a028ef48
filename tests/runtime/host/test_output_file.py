"""runtime/host/output_file.py: nothing that was not asked for is replaced, and what cannot be written is said first."""

import os
import socket
from pathlib import Path

import pytest

from pyc.runtime.errors import ArtifactError, RecipeError
from pyc.runtime.host.output_file import OutputFile, output_path

MAGIC = b"\x93PYCA\r\n\x1a"


def refusal(output: OutputFile) -> str:
    with pytest.raises(ArtifactError) as caught:
        output.check()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("-", r"nothing is written to standard output; give a file name, or \./-"),
        (".", "names a folder"),
        ("..", "names a folder"),
        ("/", "names a folder"),
        ("out/", "names a folder"),
        ("a\nb", "control characters .* give another name"),
        ("a\0b", "control characters .* give another name"),
        ("a\udcff", "control characters .* give another name"),
        ("\x1b[31mred", "control characters .* give another name"),
    ],
)
def test_names_that_name_no_file(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        output_path(text, RecipeError)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["model.pyca", " ", "-o", "été", "模型", "a b'\"", "\u3000\xa0", "x" * 255])
def test_odd_names_are_names(name: str, tmp_path: Path) -> None:
    assert output_path(name) == Path(name)
    OutputFile(tmp_path / name).check()


def test_a_new_file_and_an_artifact_may_be_written(tmp_path: Path) -> None:
    target = tmp_path / "model.pyca"
    OutputFile(target, magic=MAGIC).check()
    target.write_bytes(MAGIC + b"rest")
    OutputFile(target, magic=MAGIC).check()


@pytest.mark.parametrize("content", [b"", b"notes", MAGIC[:-1], b"PK" + MAGIC])
def test_another_file_only_by_force(content: bytes, tmp_path: Path) -> None:
    target = tmp_path / "notes"
    target.write_bytes(content)
    assert "is not a pyc artifact; choose another name with -o, or give --force" in refusal(
        OutputFile(target, magic=MAGIC)
    )
    OutputFile(target, magic=MAGIC, force=True).check()
    assert "is there already; choose" in refusal(OutputFile(target))


def test_sources_are_never_replaced(tmp_path: Path) -> None:
    """By their name, a link, a hard link, another spelling; forced or not, though they look like an artifact."""
    source = tmp_path / "weights"
    source.write_bytes(MAGIC)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "link to link").symlink_to("link")
    os.link(source, tmp_path / "hard")
    (tmp_path / "alias").symlink_to(tmp_path)
    names = ("weights", "link", "link to link", "hard", "folder/../weights", "alias/weights")
    for name in names:
        for force in (False, True):
            output = OutputFile(tmp_path / name, ((str(source), "the recipe"),), MAGIC, force=force)
            assert "is the recipe, which is read here" in refusal(output)
    other = OutputFile(tmp_path / "other", ((str(source), "the recipe"), (str(tmp_path / "gone"), "gone")))
    other.check()


def test_what_is_not_a_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link to device").symlink_to("/dev/null")
    (tmp_path / "link to pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        kinds = {
            "pipe": "a named pipe",
            "link to pipe": "a named pipe",
            "folder": "a folder",
            "link to device": "a device",
            "socket": "a socket",
            "/dev/null": "a device",
        }
        for name, kind in kinds.items():
            for force in (False, True):
                assert f"is {kind}, expected a file name" in refusal(
                    OutputFile(tmp_path / name, magic=MAGIC, force=force)
                )


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    for name, place in (("dangling", "nowhere"), ("loop", "loop")):
        (tmp_path / name).symlink_to(place)
        refusal(OutputFile(tmp_path / name, magic=MAGIC))
    OutputFile(tmp_path / "dangling", magic=MAGIC, force=True).check()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "does not exist" in refusal(OutputFile(tmp_path / "no" / "out"))
    assert "does not exist" in refusal(OutputFile(tmp_path / "file" / "out"))


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode, **options: False)
    assert "is not writable" in refusal(OutputFile(tmp_path / "out"))


def test_a_read_only_file_system() -> None:
    if not os.statvfs("/sys").f_flag & os.ST_RDONLY:
        pytest.skip("/sys is writable here")
    assert "read-only" in refusal(OutputFile(Path("/sys/out")))


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    assert "has 256 bytes, the file system takes 255" in refusal(OutputFile(tmp_path / ("x" * 256)))
    assert "has 258 bytes" in refusal(OutputFile(tmp_path / ("é" * 129)))
    refusal(OutputFile(tmp_path / ("d" * 300) / "out"))


def test_another_users_file_in_a_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the sticky bit a rename over another user's file fails, after all the work."""
    target = tmp_path / "out"
    target.write_bytes(MAGIC)
    tmp_path.chmod(0o1777)
    OutputFile(target, magic=MAGIC).check()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "another user" in refusal(OutputFile(target, magic=MAGIC))


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else may write there")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/new.html", "/proc/new.html"])
def test_what_leads_to_what_is_open_is_no_place_for_a_file(name: str, tmp_path: Path) -> None:
    """As root, with standard output in a file, a rename replaced /dev/stdout for the whole machine."""
    with (tmp_path / "redirected").open("wb") as file:
        saved = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            assert "holds devices" in refusal(OutputFile(Path(name), force=True))
        finally:
            os.dup2(saved, 1)
            os.close(saved)


def test_shared_memory_is_a_place_for_a_file() -> None:
    OutputFile(Path("/dev/shm/page.html")).check()
