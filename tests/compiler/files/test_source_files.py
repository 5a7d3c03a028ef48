"""compiler/files/source_files.py: one descriptor a file, and a file that is written to meanwhile is told."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from pyc.compiler.files.source_files import SourceFiles
from pyc.runtime.errors import IngestError

DATA = bytes(range(256)) * 500


@pytest.fixture
def files():
    with SourceFiles() as opened:
        yield opened


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def rewrite(path, data=b"x"):
    """Write into a file in place, and set its times back."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_digest_is_that_of_the_bytes(files, path, tmp_path):
    assert files.digest(str(path)) == blake3(DATA).hexdigest()
    (tmp_path / "small").write_bytes(b"{}")
    assert files.read(str(tmp_path / "small")) == b"{}"
    assert files.digest(str(tmp_path / "small")) == blake3(b"{}").hexdigest()
    files.check()


def test_the_digest_of_what_was_read_is_kept(files, path):
    """The bytes that are carried into an artifact are the hashed ones, even where no change is seen."""
    files.read(str(path))
    rewrite(path)
    assert files.digest(str(path)) == blake3(DATA).hexdigest()


def test_another_file_under_the_name_is_not_read(files, path, tmp_path):
    assert files.size_bytes(str(path)) == len(DATA)
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "other").replace(path)
    assert files.read(str(path)) == DATA


def test_a_write_right_after_the_opening_is_seen(files, path):
    """However fresh the file: its last change and the new one never have the same time."""
    for number in range(30):
        fresh = path.with_name(str(number))
        fresh.write_bytes(DATA)
        files.size_bytes(str(fresh))
        rewrite(fresh)
        with pytest.raises(IngestError, match=rf"{number}: the file changed .*: it was written to"):
            files.check([str(fresh)])


def test_reading_is_no_change(files, path):
    before = files.digest(str(path))
    path.read_bytes()
    files.check()
    assert files.digest(str(path)) == before


def test_a_file_that_shrinks_between_opening_and_reading(files, path):
    files.size_bytes(str(path))
    os.truncate(path, 10)
    with pytest.raises(IngestError, match=f"it had {len(DATA)} bytes and now has 10"):
        files.read(str(path))


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "none"])
def test_only_regular_files_are_opened(kind, files, tmp_path):
    place = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "device":
        place = "/dev/zero"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"regular|No such"):
        files.size_bytes(str(place))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_leads_where_it_first_led_under_a_relative_name_too(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("one")
    assert files.resolved(Path("current")) == tmp_path / "one"
    link.unlink()
    link.symlink_to("other")
    assert files.resolved(link) == files.resolved(Path("./current")) == tmp_path / "one"


def test_threads_share_one_descriptor_and_closing_closes_it(path):
    before = len(os.listdir("/proc/self/fd"))
    got = []
    with SourceFiles() as files:
        threads = [threading.Thread(target=lambda: got.append(files.digest(str(path)))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert set(got) == {blake3(DATA).hexdigest()}
    assert len(os.listdir("/proc/self/fd")) == before
    files.close()


def test_files_are_hashed_after_a_fork(tmp_path):
    """Threads of BLAKE3 would be missing in the child, which waited for them."""
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    code = (
        "import os, sys; from pyc.compiler.files.source_files import SourceFiles\n"
        "def digest():\n"
        "    with SourceFiles() as files: return files.digest(sys.argv[1])\n"
        "digest(); child = os.fork()\n"
        "if not child: digest(); os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "large")], start_new_session=True) as process:
        try:
            assert process.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_files_of_its_own_are_closed_behind_their_context(files, path, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "codes").write_bytes(DATA)
    before = len(os.listdir("/proc/self/fd"))
    with files.owning(folder):
        assert files.read(str(folder / "codes")) == DATA
        assert files.is_own(str(folder / "codes"))
        assert not files.is_own(str(path))
        files.digest(str(path))
    assert not files.is_own(str(folder / "codes"))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    (folder / "codes").unlink()
    files.check()


def test_a_link_leads_where_it_led_when_it_was_first_followed(files, path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    assert files.resolved(link) == path.resolve()
    link.unlink()
    link.symlink_to(tmp_path)
    assert files.resolved(link) == path.resolve()
