"""compiler/files/staging.py: the old file or the new one, never a third, and nothing left beside them."""

import errno
import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyc.compiler.files.staging import BLOCK_BYTES, PIECE_BYTES, StagedFile
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.temporary_files import temporary_path

# Forks a child for each system call of a publication and kills it there; the child never returns.
KILL_EVERYWHERE = """
import os, signal, sys
from pathlib import Path
from pyc.compiler.files.staging import StagedFile

target, unnamed = Path(sys.argv[1]), sys.argv[2] == "unnamed"
calls = ("pwrite", "pread", "fsync", "link", "replace", "close", "rename")
if not unnamed:
    os.O_TMPFILE = -1  # refused by every file system
    real_open = os.open
    def refuse(path, flags, *rest, **options):
        if flags == -1:
            raise OSError(95, "not supported")
        return real_open(path, flags, *rest, **options)
    os.open = refuse

def publish(data):
    with StagedFile(target) as file:
        file.write(data[:5000])
        file.write(data[5000:])
        file.insert_front(b"front" * 100)
        file.publish()

def die_at(step):
    count = 0
    def wrap(real):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call
    for name in calls:
        setattr(os, name, wrap(getattr(os, name)))

old, new = b"front" * 100 + b"o" * 9000, b"front" * 100 + b"n" * 9000
step, seen, debris = 0, set(), 0
while True:
    step += 1
    publish(b"o" * 9000)
    child = os.fork()
    if child == 0:
        die_at(step)
        publish(b"n" * 9000)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    content = target.read_bytes()
    assert content in (old, new), f"step {step}: a third content"
    seen.add(content[-1:])
    debris = max(debris, len(os.listdir(target.parent)) - 1)
    publish(b"o" * 9000)
    assert os.listdir(target.parent) == [target.name], f"step {step}: debris outlives the next writer"
    if os.WIFEXITED(status):
        break
print(step, sorted(seen), debris, sep="|")
"""


def publish(target: Path, data: bytes) -> None:
    with StagedFile(target) as file:
        file.write(data)
        file.insert_front(b"front")
        file.sha256()
        file.publish()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_what_appears(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with StagedFile(target) as file:
        file.write(b"abc")
        file.write(memoryview(b"def"))
        assert names(tmp_path) == []
        file.insert_front(b"01234567")
        assert file.size_bytes == 14
        digest = file.sha256()
        file.publish()
    assert target.read_bytes() == b"01234567abcdef"
    assert digest == hashlib.sha256(b"01234567abcdef").hexdigest()
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 12345])
def test_insert_front_moves_every_byte(size: int, tmp_path: Path) -> None:
    data = os.urandom(size)
    with StagedFile(tmp_path / "out") as file:
        file.write(data)
        file.insert_front(b"f" * 4096)
        file.publish()
    assert (tmp_path / "out").read_bytes() == b"f" * 4096 + data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unnamed", "named"])
def test_kill_at_every_system_call(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILL_EVERYWHERE, str(tmp_path / "out"), kind]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    steps, both, debris = result.stdout.split("|")
    assert int(steps) >= 8
    assert both == "[b'n', b'o']"
    assert int(debris) <= 1


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without O_TMPFILE."""
    real = os.open

    def refuse(path: str, flags: int, *rest: int, **options: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.usefixtures("named")
def test_without_unnamed_files(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with StagedFile(target) as file:
        file.write(b"abc")
        assert len(names(tmp_path)) == 1
        assert names(tmp_path)[0].startswith(f".out.{os.getpid()}.")
        file.publish()
    assert names(tmp_path) == ["out"]
    with StagedFile(target) as file:
        file.write(b"never")
    assert names(tmp_path) == ["out"]
    assert target.read_bytes() == b"abc"


def failing(name: str, number: int, error: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Makes call `number` of os.`name`, and every later one, fail."""

    def install(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(os, name)
        count = 0

        def call(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count >= number:
                raise OSError(error, os.strerror(error))
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    return install


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize(
    ("name", "number"), [("pwrite", 1), ("pwrite", 2), ("pwrite", 3), ("pread", 1), ("fsync", 1), ("link", 1)]
)
def test_a_failing_call_leaves_the_old_file(
    name: str, number: int, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with monkeypatch.context() as patch:
        failing(name, number, error)(patch)
        with pytest.raises(OSError, match=os.strerror(error)) as caught:
            publish(target, b"abc")
    assert (caught.value.errno, caught.value.filename) == (error, str(target))
    assert ("free some space" in str(caught.value)) == (error == errno.ENOSPC)
    assert names(tmp_path) == ["out"]
    assert target.read_bytes() == b"old"


def test_file_is_synced_before_the_rename_and_directory_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives a power cut: the name must not reach the disk before the bytes."""
    calls = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        real_fsync(fd)

    def replace(source: Path, target: Path) -> None:
        calls.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    publish(tmp_path / "out", b"abc")
    assert calls == ["sync file", "rename", "sync directory"]


def test_a_failing_rename_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")

    def refuse(self: Path, other: Path) -> Path:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            publish(target, b"abc")
    assert names(tmp_path) == ["out"]
    assert target.read_bytes() == b"old"


def test_short_writes_and_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real_write(fd, data[:7], offset))
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real_read(fd, min(size, 11), offset))
    with StagedFile(tmp_path / "out") as file:
        file.write(b"0123456789" * 10)
        file.insert_front(b"front")
        file.publish()
    assert (tmp_path / "out").read_bytes() == b"front" + b"0123456789" * 10


def test_a_file_size_limit_is_an_error(tmp_path: Path) -> None:
    """A real refusal by the kernel, as a full disk or a quota would give: of an artifact an error of its own."""
    script = (
        "import resource, sys\n"
        "from pyc.compiler.files.staging import StagedFile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "with StagedFile(sys.argv[1], is_artifact=len(sys.argv) > 2) as file:\n"
        "    for _ in range(100):\n"
        "        file.write(bytes(4096))\n"
        "    file.publish()\n"
    )
    for kind, error in ((["artifact"], "ArtifactError: "), ([], "OSError: ")):
        command = [sys.executable, "-c", script, str(tmp_path / "out"), *kind]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 1
        assert error in result.stderr.splitlines()[-1]
        assert "File too large" in result.stderr
        assert names(tmp_path) == []


WRITE_FOREVER = """
import os, signal, sys
from pathlib import Path
from pyc.compiler.files.staging import StagedFile

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background inherits that it is ignored
os.O_TMPFILE = os.O_DIRECTORY  # refused for a file that is written: the named kind is used
with StagedFile(sys.argv[1]) as file:
    print("ready", flush=True)
    while True:
        file.write(bytes(4096))
        if file.size_bytes >= 1 << 22:
            file.size_bytes = 0
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.01, 0.03])
def test_an_interrupt_leaves_no_debris(delay_s: float, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    command = [sys.executable, "-c", WRITE_FOREVER, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(names(tmp_path)) == 2
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=20) in (-signal.SIGINT, 130)
        finally:
            process.kill()
    assert names(tmp_path) == ["out"]
    assert target.read_bytes() == b"old"


def test_space_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"needs \d+ bytes, \d+ are free"):
        StagedFile(tmp_path / "out", expected_bytes=1 << 60)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("place", "message"),
    [("missing/out", "does not exist"), ("folder", "is a directory"), ("file/out", "does not exist")],
)
def test_unusable_places(place: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=message):
        StagedFile(tmp_path / place)
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.parametrize("length", [200, 201, 220, 255])
@pytest.mark.parametrize("kind", ["unnamed", "named"])
def test_any_name_that_the_file_system_takes(
    length: int, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The temporary name is longer than the target's, and must fit all the same."""
    if kind == "named":
        request.getfixturevalue("named")
    target = tmp_path / ("x" * length)
    publish(target, b"old")
    with StagedFile(target) as file:
        dead = temporary_path(file.path).name
    (tmp_path / dead).touch()
    publish(target, b"new")
    assert names(tmp_path) == [target.name]
    assert target.read_bytes() == b"frontnew"


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ArtifactError, match="not a regular file"):
            StagedFile(target)
    assert names(tmp_path) == ["pipe"]


def test_what_may_be_replaced_is_asked_first_and_last(tmp_path: Path) -> None:
    """A file that appears during the work is found just before the rename."""
    target = tmp_path / "out"

    def allowed() -> None:
        if target.exists():
            raise ArtifactError("not this one")

    with StagedFile(target, allowed=allowed) as file:
        file.write(b"new")
        target.write_bytes(b"appeared")
        with pytest.raises(ArtifactError, match="not this one"):
            file.publish()
    with pytest.raises(ArtifactError, match="not this one"):
        StagedFile(target, allowed=allowed)
    assert names(tmp_path) == ["out"]
    assert target.read_bytes() == b"appeared"


def test_only_what_dead_writers_left_is_swept(tmp_path: Path) -> None:
    dead, alive = tmp_path / f".out.1.{'a' * 16}.tmp", tmp_path / f".out.2.{'b' * 16}.tmp"
    others = [tmp_path / name for name in (f".other.1.{'a' * 16}.tmp", ".out.tmp", ".out.1.aaaa.tmp", "out.tmp")]
    for path in (dead, alive, *others):
        path.touch()
    with open(alive) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        StagedFile(tmp_path / "out").discard()
        assert names(tmp_path) == sorted(path.name for path in (alive, *others))


def test_a_sweep_follows_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"data")
    (tmp_path / f".out.1.{'a' * 16}.tmp").symlink_to(precious)
    StagedFile(tmp_path / "out").discard()
    assert precious.read_bytes() == b"data"


def test_two_writers_of_one_target(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with StagedFile(target) as first, StagedFile(target) as second:
        first.write(b"first")
        second.write(b"second")
        second.publish()
        first.publish()
    assert target.read_bytes() == b"first"
    assert names(tmp_path) == ["out"]


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        with StagedFile(tmp_path / "out") as file:
            file.publish()
    finally:
        os.umask(previous)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_a_link_at_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"real")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with StagedFile(tmp_path / "out") as file:
        file.write(b"new")
        file.publish()
    assert (tmp_path / "real").read_bytes() == b"real"
    assert (tmp_path / "out").read_bytes() == b"new"


@pytest.mark.slow
@pytest.mark.parametrize("size", [5000, PIECE_BYTES // 3, PIECE_BYTES, 3 * PIECE_BYTES + 17])
def test_appended_bytes_are_written_in_whole_pieces(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes a huge page for a write that fills one, and small ones for any other."""
    written: list[tuple[int, int]] = []
    real = os.pwrite

    def note(fd: int, data: memoryview, offset: int) -> int:
        written.append((offset, len(data)))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", note)
    data = os.urandom(size)
    count = 7 * PIECE_BYTES // size + 1
    with StagedFile(tmp_path / "a") as file:
        for _ in range(count):
            file.write(data)
        assert file.size_bytes == count * size
        assert all(offset % PIECE_BYTES == 0 == length % PIECE_BYTES for offset, length in written)
        assert sum(length for _, length in written) == file.size_bytes // PIECE_BYTES * PIECE_BYTES
        assert file.sha256() == hashlib.sha256(data * count).hexdigest()
        file.publish()
    assert (tmp_path / "a").read_bytes() == data * count
