"""runtime/artifact/chunk_fetcher.py and arrival.py: chunks in the order of use, verified, over several connections."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from remote_artifacts import write_artifact

from pyc.runtime.artifact import chunk_fetcher
from pyc.runtime.artifact.arrival import Arrival
from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher
from pyc.runtime.artifact.chunks import Wanted, chunks_of, wanted_into
from pyc.runtime.artifact.format import payload_offset
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.errors import ArtifactError, FetchError, RunError


class Memory:
    """A remote source over bytes; `before` is called with each range before it is given."""

    def __init__(self, data: bytes, before: Callable[[int, int], None] = lambda first, stop: None) -> None:
        self.data, self.before = data, before
        self.asked: list[tuple[int, int]] = []
        self.is_closed = False

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def expect(self, size_bytes: int) -> None:
        pass

    def read_parts(self, offset: int, parts: Sequence[memoryview]) -> None:
        stop = offset + sum(map(len, parts))
        self.asked.append((offset, stop))
        self.before(offset, stop)
        if self.is_closed:
            raise ArtifactError("already closed")
        for part in parts:
            part[:] = self.data[offset : offset + len(part)]
            offset += len(part)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_fetcher, "LEAST_PIECE_BYTES", 50_000)
    monkeypatch.setattr(chunk_fetcher, "MOST_PIECE_BYTES", 50_000)


@pytest.fixture(params=["auto", "zstd", "lz4"])
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def payload_of(artifact: Artifact, data: bytes) -> int:
    return payload_offset(int.from_bytes(data[24:32], "little"))


def fetcher_of(source: Memory, artifact: Artifact, wanted: Sequence[Wanted], **options: object) -> ChunkFetcher:
    payload = payload_of(artifact, source.data)
    return ChunkFetcher(source, artifact.header.chunks, payload, wanted, lambda n: f"chunk {n}", **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("threads", [0, 1, 4])
def test_what_was_put_in_comes_out(tmp_path: Path, codec: str, threads: int) -> None:
    data = write_artifact(tmp_path / "m.pyca", codec=codec)
    with open_artifact(tmp_path / "m.pyca") as artifact:
        expected = artifact.tensors()
        buffers = {t.name: bytearray(expected[t.name].nbytes) for t in artifact.header.tensors}
        wanted = [
            each
            for tensor in artifact.header.tensors
            for each in wanted_into(artifact.header, tensor, memoryview(buffers[tensor.name]))
        ]
        source = Memory(data)
        fetcher = fetcher_of(source, artifact, wanted)
        if threads:
            fetcher.start(threads)
        fetcher.wait()
        assert fetcher.is_complete
        assert all(bytes(buffers[name]) == expected[name].tobytes() for name in buffers)
        assert max(stop - first for first, stop in source.asked) <= 50_000 + 4096
        fetcher.stop()
    assert source.is_closed


@pytest.mark.usefixtures("small_pieces")
def test_chunks_that_lie_together_share_a_request(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca", tensors=40, size=4000)
    with open_artifact(tmp_path / "m.pyca") as artifact:
        source = Memory(data)
        fetcher = fetcher_of(source, artifact, [Wanted(number) for number in range(len(artifact.header.chunks))])
        fetcher.start()
        fetcher.wait()
        assert len(artifact.header.chunks) > 40 and len(source.asked) <= len(data) // 50_000 + 1


@pytest.mark.usefixtures("small_pieces")
def test_what_is_first_is_whole_first(tmp_path: Path) -> None:
    """With four threads, at most the pieces of four are on their way behind what has been waited for."""
    data = write_artifact(tmp_path / "m.pyca")
    with open_artifact(tmp_path / "m.pyca") as artifact:
        last = artifact.header.tensors[-1]
        source = Memory(data, lambda first, stop: time.sleep(0.01))
        fetcher = fetcher_of(source, artifact, [Wanted(n) for t in artifact.header.tensors for n in chunks_of(t)])
        fetcher.start()
        first = artifact.header.tensors[1]
        fetcher.wait(chunks_of(first))
        ends = payload_of(artifact, data) + artifact.header.chunks[chunks_of(first)[-1]].offset + 300_000
        assert max(stop for _, stop in source.asked) < ends + 5 * 54_096
        fetcher.wait(chunks_of(last))
        fetcher.stop()


def altered(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.usefixtures("small_pieces")
def test_a_chunk_that_is_wrong_is_never_said_to_be_there(tmp_path: Path, codec: str) -> None:
    data = write_artifact(tmp_path / "m.pyca", codec=codec)
    with open_artifact(tmp_path / "m.pyca") as artifact:
        noise = random.Random(1)
        for _ in range(20):
            number = noise.randrange(len(artifact.header.chunks))
            chunk = artifact.header.chunks[number]
            at = payload_of(artifact, data) + chunk.offset + noise.randrange(chunk.stored_bytes)
            kept: list[int] = []
            fetcher = fetcher_of(
                Memory(altered(data, at)),
                artifact,
                [Wanted(each) for each in range(len(artifact.header.chunks))],
                keep=lambda number, stored, kept=kept: kept.append(number),
            )
            fetcher.start()
            with pytest.raises(ArtifactError, match=f"chunk {number}: altered: its BLAKE3 digest"):
                fetcher.wait()
            with pytest.raises(ArtifactError, match="altered"):
                fetcher.wait([number])
            fetcher.stop()
            assert number not in kept


def test_padding_that_is_not_zero(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")
    with open_artifact(tmp_path / "m.pyca") as artifact:
        at = payload_of(artifact, data) + artifact.header.chunks[1].offset - 1
        fetcher = fetcher_of(Memory(altered(data, at)), artifact, [Wanted(0), Wanted(1)])
        with pytest.raises(ArtifactError, match=r"chunk 0: altered: the .* bytes of padding after it"):
            fetcher.wait()


def test_padding_that_is_wrong_once_is_fetched_again(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")
    with open_artifact(tmp_path / "m.pyca") as artifact:
        at = payload_of(artifact, data) + artifact.header.chunks[1].offset - 1
        source = Memory(altered(data, at))

        def mend(first: int, stop: int) -> None:
            source.data = altered(data, at) if len(source.asked) == 1 else data

        source.before = mend
        fetcher = fetcher_of(source, artifact, [Wanted(0), Wanted(1)])
        fetcher.wait()
        assert fetcher.is_complete and (at - 7, at + 1) in [(stop - 8, stop) for _, stop in source.asked[1:]]


def test_an_error_of_the_source_ends_all(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")

    def fail(first: int, stop: int) -> None:
        raise FetchError("gone")

    with open_artifact(tmp_path / "m.pyca") as artifact:
        fetcher = fetcher_of(Memory(data, fail), artifact, [Wanted(0), Wanted(1)])
        fetcher.start()
        with pytest.raises(FetchError, match="gone"):
            fetcher.wait()
        fetcher.stop()
    assert "pyc-fetch" not in [thread.name for thread in threading.enumerate()]


def test_stopping_wakes_who_waits(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")
    going_on = threading.Event()
    with open_artifact(tmp_path / "m.pyca") as artifact:
        fetcher = fetcher_of(Memory(data, lambda first, stop: going_on.wait(5) and None), artifact, [Wanted(0)])
        fetcher.start()
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                fetcher.wait()
            except ArtifactError as error:
                caught.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        threading.Timer(0.05, going_on.set).start()
        fetcher.stop()
        waiting.join(5)
        assert caught and not waiting.is_alive()


def test_a_forked_child_does_not_wait_for_threads_that_it_lacks(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")
    going_on = threading.Event()
    with open_artifact(tmp_path / "m.pyca") as artifact:
        fetcher = fetcher_of(Memory(data, lambda first, stop: going_on.wait(10) and None), artifact, [Wanted(0)])
        fetcher.start()
        child = os.fork()
        if not child:
            try:
                fetcher.wait()
                os._exit(1)
            except RunError:
                fetcher.stop()
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        going_on.set()
        fetcher.wait()
        fetcher.stop()


def test_a_forked_child_does_not_wait_for_progress_that_another_thread_is_told(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")
    told, going_on = threading.Event(), threading.Event()
    with open_artifact(tmp_path / "m.pyca") as artifact:
        fetcher = fetcher_of(Memory(data), artifact, [Wanted(0)])

        def progress(done_bytes: int, total_bytes: int) -> None:
            told.set()
            going_on.wait(60)

        fetcher.progress = progress
        fetcher.start()
        assert told.wait(60) and fetcher.is_complete
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            fetcher.wait()
            fetcher.stop()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        going_on.set()
        fetcher.wait()
        fetcher.stop()


def test_arrival_gives_arrays_and_blobs(tmp_path: Path, codec: str) -> None:
    data = write_artifact(tmp_path / "m.pyca", codec=codec)
    with open_artifact(tmp_path / "m.pyca") as artifact:
        expected = artifact.tensors()
        source = Memory(data)
        payload = payload_of(artifact, data)
        arrival = Arrival(source, artifact.header, payload, str, None, ["t3", "t1"], ["tokenizer.json"])  # type: ignore[arg-type]
        assert arrival.has(["t1", "tokenizer.json"]) and not arrival.has(["t0"])
        assert arrival.blob("tokenizer.json") == artifact.blob("tokenizer.json")
        arrival.wait(["t1"])
        assert np.array_equal(arrival.arrays["t1"], expected["t1"])
        arrival.wait()
        assert np.array_equal(arrival.arrays["t3"], expected["t3"]) and arrival.is_complete
        assert not arrival.arrays["t3"].flags.writeable and arrival.arrays["t3"].ctypes.data % 64 == 0
        lib = artifact.header.blobs[-1]
        start = payload + artifact.header.chunks[lib.span.first_chunk].offset
        assert max(stop for _, stop in source.asked) <= start, "nothing that was not asked for"
        arrival.stop()
