"""Fetches an artifact into a file beside its target, which is renamed to it when all is there.

    .<name>.part    as large as the artifact from the start; what has not been written yet is a hole. Behind its end,
                    what is there of chunks that are not complete (`kept_blocks`)

No record is kept of the chunks that are there: who goes on hashes each where it should lie and fetches those that are
wrong, so it makes no difference how the last try ended, or of which version of the artifact it was. One process at a
time: it holds a lock on the file, and where the file system has none, a chunk is written once it is verified. One that
is not this user's own is never written into: its owner could change the artifact. Nor is one of this user's that others
may write to: a copy takes its place, which nobody else has open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from blake3 import blake3

from pyc.runtime.artifact.format import Chunk, payload_size
from pyc.runtime.artifact.kept_blocks import KeptBlocks, not_written, write
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.host.output_file import OutputFile
from pyc.runtime.host.own_files import has_this_owner, why_not_own
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.temporary_files import create_locked, sweep, temporary_path
from pyc.runtime.host.umask import current_umask

READ_BYTES = 1 << 20
MARGIN_BYTES = 1 << 20


def pull_into(
    artifact: Artifact,
    target: OutputFile,
    advance: Callable[[int], None],
    before_rename: Callable[[], None] = lambda: None,
) -> int:
    """Fetch an open artifact into the file `target` and return how many bytes of it an earlier try had left.

    `advance` is told of the bytes of each chunk that is there, on several threads; `before_rename` is called once all
    is there. Raises ArtifactError (also for no space), FetchError, and what `target.check` raises; the file at the
    target is then as it was.
    """
    target.check()
    part = target.path.with_name(f".{target.path.name}.part")
    try:
        descriptor = _locked(part)
        blocks: KeptBlocks | None = None
        try:
            front = artifact.front()
            payload = artifact.size_bytes - payload_size(artifact.header)
            chunks = artifact.header.chunks
            missing = _missing(descriptor, chunks, payload)
            present = set(range(len(chunks))).difference(missing)
            reused = sum(chunks[number].stored_bytes for number in present)
            if artifact.is_remote and _lock(descriptor, part):
                blocks = KeptBlocks(descriptor, part, chunks, payload, artifact.size_bytes, artifact.prelude)
            _require_space(descriptor, part, artifact.size_bytes + (blocks.note_bytes if blocks else 0), reused)
            if blocks is not None and not blocks.begin(missing):
                blocks = None
            if blocks is None:
                os.ftruncate(descriptor, artifact.size_bytes)
            write(descriptor, 0, memoryview(front))
            advance(len(front) + reused)

            def keep(number: int, stored: memoryview) -> None:
                holes = [(0, len(stored))] if blocks is None else blocks.holes(number)
                for begin, end in holes:  # the rest has been written as it came
                    write(descriptor, payload + chunks[number].offset + begin, stored[begin:end])
                advance(len(stored))

            artifact.fetch_chunks(missing, keep, blocks)
            _clear_gaps(descriptor, chunks, payload)
            if blocks is not None:
                reused += blocks.reused_bytes
                blocks.end()
            os.fsync(descriptor)
            before_rename()
            target.check()
            os.fchmod(descriptor, 0o666 & ~current_umask())
            part.replace(target.path)
        except BaseException:
            if not os.fstat(descriptor).st_size:  # who comes next would gain nothing by it
                part.unlink(missing_ok=True)
            raise
        finally:
            if blocks is not None:
                blocks.close()
            closing, descriptor = descriptor, -1  # for threads that have not ended
            os.close(closing)
        _sync_folder(target.path.parent)
    except unless_signalled(OSError) as error:
        raise not_written(part, error) from error
    return reused


def _locked(part: Path) -> int:
    """The partial file, open and locked. Raises ArtifactError when another process fetches into it, or where it is not
    this user's own, and OSError."""
    while True:
        descriptor = _opened(part)
        if descriptor is None:
            continue
        try:
            if not _lock(descriptor, part):
                return descriptor
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), part.lstat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # renamed by who held it meanwhile: make another


def _opened(part: Path) -> int | None:
    """The partial file, made, or as it was left; None where it went meanwhile. Raises as `_locked` does."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(part, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    try:
        found = part.lstat()
        if why_not_own(found, part) and has_this_owner(found, part):
            _renew(part)
            found = part.lstat()
        _require_own(found, part)  # whose it is explains why it cannot be opened
        descriptor = os.open(part, flags)
    except FileNotFoundError:
        return None
    try:
        _require_own(os.fstat(descriptor), part)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _renew(part: Path) -> None:
    """Put a copy in place of a partial file that others may have open; an empty file where there is no space for it.

    Raises ArtifactError where another process fetches into it, and OSError.
    """
    names: list[Path] = []

    def named() -> Path:
        names.append(temporary_path(part))
        return names[-1]

    sweep(part)
    source = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    copy = -1
    try:
        _lock(source, part)
        copy = create_locked(named, os.O_RDWR)
        _copy(source, copy)
        names[-1].replace(part)
    except BaseException:
        for name in names:
            name.unlink(missing_ok=True)
        raise
    finally:
        try:
            os.close(source)
        finally:
            if copy >= 0:
                os.close(copy)


def _copy(source: int, target: int) -> None:
    size_bytes = os.fstat(source).st_size
    try:
        os.ftruncate(target, size_bytes)
        at = 0
        while at < size_bytes:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, at, os.SEEK_HOLE)
            while at < end and (piece := os.pread(source, min(READ_BYTES, end - at), at)):
                write(target, at, memoryview(piece))
                at += len(piece)
    except unless_signalled(OSError) as error:
        if error.errno == errno.ENXIO:  # there is no data behind it
            return
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(target, 0)


def _lock(descriptor: int, part: Path) -> bool:
    """Whether the lock was taken: not on a file system without locks. Raises FetchError where another process has it:
    what comes later may pass."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FetchError(f"{part}: another process is fetching into it; wait for it") from error
    except unless_signalled(OSError):
        return False
    return True


def _require_own(found: os.stat_result, part: Path) -> None:
    """Raise ArtifactError for a file that others made, or may write to: they could change the artifact while it runs.

    It is not removed: it may be what another user has fetched.
    """
    if reason := why_not_own(found, part):
        raise ArtifactError(
            f"{part}: {reason}, expected what an earlier pull of yours left; remove it, or choose another folder or "
            "name with -o"
        )


def _missing(descriptor: int, chunks: tuple[Chunk, ...], payload: int) -> list[int]:
    """The chunks that are not, or not rightly, in the file."""
    size_bytes = os.fstat(descriptor).st_size
    if not size_bytes:
        return list(range(len(chunks)))
    return [
        number
        for number, chunk in enumerate(chunks)
        if payload + chunk.offset + chunk.stored_bytes > size_bytes
        or _is_hole(descriptor, payload + chunk.offset, chunk.stored_bytes)
        or _digest(descriptor, payload + chunk.offset, chunk.stored_bytes) != chunk.blake3
    ]


def _is_hole(descriptor: int, offset: int, size_bytes: int) -> bool:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + size_bytes
    except unless_signalled(OSError) as error:
        return error.errno == errno.ENXIO  # there is no data behind it


def _digest(descriptor: int, offset: int, size_bytes: int) -> str:
    hasher = blake3()
    done = 0
    while done < size_bytes and (piece := os.pread(descriptor, min(READ_BYTES, size_bytes - done), offset + done)):
        hasher.update(piece)
        done += len(piece)
    return hasher.hexdigest()


def _require_space(descriptor: int, part: Path, size_bytes: int, reused: int) -> None:
    """Raise ArtifactError where the disk has no room for what the file lacks: blocks that it has are written over."""
    space = os.fstatvfs(descriptor)
    free_bytes = space.f_bavail * space.f_frsize
    has_bytes = max(os.fstat(descriptor).st_blocks * 512, reused)
    if size_bytes + MARGIN_BYTES > free_bytes + has_bytes:
        raise ArtifactError(
            f"{part}: {size_bytes - reused} bytes are to be written, the disk has {free_bytes} left, and "
            f"{MARGIN_BYTES} are kept free"
        )


def _clear_gaps(descriptor: int, chunks: tuple[Chunk, ...], payload: int) -> None:
    """Write the zeros between chunks: an earlier try may have been of another version, with other gaps."""
    for chunk, following in pairwise(chunks):
        end = chunk.offset + chunk.stored_bytes
        if following.offset > end:
            write(descriptor, payload + end, memoryview(bytes(following.offset - end)))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except unless_signalled(OSError):  # some network file systems cannot
        pass
    finally:
        os.close(descriptor)
