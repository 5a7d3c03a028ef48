"""runtime/artifact/reader.py: what was put in comes out: aligned, read-only, verified, mapped where it can be."""

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from pyc.compiler.files.artifact import ArtifactWriter, CodecChoice
from pyc.runtime.artifact import reader
from pyc.runtime.artifact.chunks import Wanted, chunks_of
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Generation, ModelInfo, Pooling, Provenance
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.host.aligned import AnyArray, aligned_buffers
from pyc.runtime.sources.protocol import Mode

MODES: tuple[Mode, ...] = ("mmap", "pread")
MODEL = ModelInfo("bert", "encoder", 32, 8, 64, 2, None, Pooling("mean", True))
PROVENANCE = Provenance("{}", (), (), ())
BLOBS = {"tokenizer.json": b'{"a":1} ' * 3000, "empty": b"", "lib.so": os.urandom(9000)}


def make_tensors() -> dict[str, tuple[str, AnyArray]]:
    """Every dtype, some larger than a chunk, some compressible."""
    rng = np.random.default_rng(7)
    return {
        "matrix": ("f32", rng.standard_normal((50, 100)).astype("<f4")),
        "half": ("f16", rng.standard_normal((7, 3, 5)).astype("<f2")),
        "brain": ("bf16", rng.integers(0, 1 << 16, (33, 65), dtype="<u2")),
        "ids": ("i32", rng.integers(-5, 5, (999,), dtype="<i4")),
        "bytes": ("u8", rng.integers(0, 256, (4096 * 3,), dtype="u1")),
        "zeros": ("i8", np.zeros((4096 * 2 + 1,), dtype="i1")),
        "scalar": ("f32", np.array(2.5, dtype="<f4")),
    }


TENSORS = make_tensors()


def write(path: Path, codec: CodecChoice = "auto", chunk_bytes: int = 4096) -> Path:
    with ArtifactWriter(path, codec, chunk_bytes=chunk_bytes) as writer:
        for name, (dtype, array) in TENSORS.items():
            writer.add_tensor(name, dtype, array.shape, [array.tobytes()])  # type: ignore[arg-type]
        for name, data in BLOBS.items():
            writer.add_blob(name, data)
        writer.finish(model=MODEL, generation=Generation(), provenance=PROVENANCE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", ["auto", "none", "lz4", "zstd"])
@pytest.mark.parametrize("chunk_bytes", [4096, 8192, 16 << 20])
def test_everything_comes_back(codec: CodecChoice, mode: Mode, chunk_bytes: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", codec, chunk_bytes)
    with open_artifact(path, mode=mode) as artifact:
        artifact.verify_all()
        arrays = artifact.tensors()
        assert list(arrays) == list(TENSORS)
        for name, (dtype, expected) in TENSORS.items():
            array = arrays[name]
            assert array.dtype == DTYPES[dtype].numpy
            assert array.shape == expected.shape
            assert array.tobytes() == expected.tobytes()
            assert not array.flags.writeable
            assert array.flags.c_contiguous
            assert array.ctypes.data % 64 == 0
            np.testing.assert_array_equal(artifact.tensor(name), expected)
        assert {name: artifact.blob(name) for name in BLOBS} == BLOBS
        assert artifact.size_bytes == path.stat().st_size
        assert artifact.signature is None
        assert artifact.header.model == MODEL


def address_range(path: Path) -> range:
    """Where the file is mapped in this process."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    assert len(lines) == 1
    start, _, end = lines[0].split()[0].partition("-")
    return range(int(start, 16), int(end, 16))


def test_uncompressed_tensors_are_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", "none")
    with open_artifact(path) as artifact:
        first, again = artifact.tensor("matrix"), artifact.tensor("matrix")
        mapped = address_range(path)
        assert first.ctypes.data in mapped
        assert first.ctypes.data == again.ctypes.data
        assert artifact.header.tensors[0].span.chunk_count == 5


def test_what_is_copied_lies_together(tmp_path: Path) -> None:
    """In one allocation: the system gives huge pages to large ones."""
    path = write(tmp_path / "m.pyca", "none")
    with open_artifact(path, mode="pread") as artifact:
        arrays = artifact.tensors()
    assert len({id(array.base) for array in arrays.values()}) == 1 or len(arrays) < 2
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays.values())
    for (start, size_bytes), (after, _) in pairwise(places):
        assert after == start + -(-size_bytes // 64) * 64


def test_pread_never_maps(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", "none")
    with open_artifact(path, mode="pread") as artifact:
        artifact.tensors()
        assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("mode", MODES)
def test_arrays_outlive_the_artifact(mode: Mode, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", "auto")
    with open_artifact(path, mode=mode) as artifact:
        arrays = artifact.tensors()
    path.unlink()
    for name, (_, expected) in TENSORS.items():
        np.testing.assert_array_equal(arrays[name], expected)
    with pytest.raises(ArtifactError, match="already closed"):
        artifact.tensor("matrix")
    with pytest.raises(ArtifactError, match="already closed"):
        artifact.blob("lib.so")


def test_files_and_mappings_are_released(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", "auto")
    before = len(os.listdir("/proc/self/fd"))
    for mode in MODES:
        with open_artifact(path, mode=mode) as artifact:
            artifact.tensors()
            artifact.verify_all()
        del artifact
    assert len(os.listdir("/proc/self/fd")) == before
    assert str(path) not in Path("/proc/self/maps").read_text()
    path.write_bytes(path.read_bytes()[:-1])
    for mode in MODES:
        with pytest.raises(ArtifactError):
            open_artifact(path, mode=mode)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_open_artifact_is_neither_pickled_nor_copied(how: Callable[[object], object], tmp_path: Path) -> None:
    said = "an Artifact cannot be pickled or copied; open its file in each process"
    with open_artifact(write(tmp_path / "a.pyca")) as artifact, pytest.raises(TypeError, match=said):
        how(artifact)


def test_unknown_names(tmp_path: Path) -> None:
    with open_artifact(write(tmp_path / "m.pyca")) as artifact:
        with pytest.raises(ArtifactError, match=r"has no tensor 'matrx'; did you mean 'matrix'\?"):
            artifact.tensor("matrx")
        with pytest.raises(ArtifactError, match=r"has no tensor 'lib.so'$"):
            artifact.tensors(["matrix", "lib.so"])
        with pytest.raises(ArtifactError, match="has no blob 'matrix'"):
            artifact.blob("matrix")


def test_repeated_names_give_one_entry(tmp_path: Path) -> None:
    with open_artifact(write(tmp_path / "m.pyca")) as artifact:
        assert list(artifact.tensors(["ids", "matrix", "ids"])) == ["ids", "matrix"]
        assert artifact.tensors([]) == {}


def alter(path: Path, artifact: Artifact, name: str, *, padding: bool = False) -> None:
    """Alters a byte of the first chunk of a tensor or blob, in the file that is open."""
    records = [*artifact.header.tensors, *artifact.header.blobs]
    span = next(record.span for record in records if record.name == name)
    chunk = artifact.header.chunks[span.first_chunk]
    payload = artifact.size_bytes - artifact.header.chunks[-1].offset - artifact.header.chunks[-1].stored_bytes
    where = payload + chunk.offset + (chunk.stored_bytes if padding else 0)
    with open(path, "r+b") as file:
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "padding"),
    [
        *((name, False) for name in ("half", "zeros", "scalar", "tokenizer.json", "lib.so")),
        *((name, True) for name in ("half", "zeros", "scalar", "tokenizer.json")),  # lib.so is last: no padding
    ],
)
def test_nothing_altered_escapes(name: str, padding: bool, mode: Mode, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", "zstd", 16 << 20)
    with open_artifact(path, mode=mode) as artifact:
        alter(path, artifact, name, padding=padding)
        read: Callable[[str], object] = artifact.blob if name in BLOBS else artifact.tensor
        with pytest.raises(ArtifactError, match=rf"chunk \d+ \({name}\): altered"):
            read(name)
        with pytest.raises(ArtifactError, match="altered"):
            artifact.verify_all()
        np.testing.assert_array_equal(artifact.tensor("matrix"), TENSORS["matrix"][1])


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_tensor_fails_every_time(mode: Mode, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca", "none")
    with open_artifact(path, mode=mode) as artifact:
        alter(path, artifact, "matrix")
        for _ in range(3):
            with pytest.raises(ArtifactError, match="altered"):
                artifact.tensor("matrix")


def test_blobs_are_verified_in_private_memory(tmp_path: Path) -> None:
    """Code that is swapped after it was verified once is verified again, not served from the mapping."""
    path = write(tmp_path / "m.pyca", "none")
    with open_artifact(path) as artifact:
        assert artifact.blob("lib.so") == BLOBS["lib.so"]
        alter(path, artifact, "lib.so")
        with pytest.raises(ArtifactError, match=r"\(lib.so\): altered"):
            artifact.blob("lib.so")


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_code_swapped_between_check_and_use(
    codec: CodecChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that were hashed are the bytes that are returned."""
    path = write(tmp_path / "m.pyca", codec, 16 << 20)
    with open_artifact(path) as artifact:

        class SwapAfterHashing:
            def __init__(self, data: memoryview) -> None:
                self._digest = blake3(data).hexdigest()

            def hexdigest(self) -> str:
                alter(path, artifact, "tokenizer.json")
                return self._digest

        monkeypatch.setattr(reader, "blake3", SwapAfterHashing)
        assert artifact.blob("tokenizer.json") == BLOBS["tokenizer.json"]
        monkeypatch.undo()
        with pytest.raises(ArtifactError, match="altered"):
            artifact.blob("tokenizer.json")


def large(path: Path, tensors: int, size_bytes: int) -> Path:
    with ArtifactWriter(path, chunk_bytes=1 << 20) as writer:
        for index in range(tensors):
            data = np.random.default_rng(index).bytes(size_bytes)
            writer.add_tensor(f"t{index}", "u8", (size_bytes,), [data])
        writer.finish(model=MODEL, generation=Generation(), provenance=PROVENANCE)
    return path


@pytest.mark.parametrize("mode", MODES)
def test_large_requests_are_verified_on_several_threads(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    seen: set[int] = set()
    barrier = threading.Barrier(4, timeout=30)
    real = Artifact._fetch

    def fetch(self: Artifact, job: Wanted) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            barrier.wait()
        real(self, job)

    path = large(tmp_path / "m.pyca", 6, 1_500_000)
    monkeypatch.setattr(Artifact, "_fetch", fetch)
    with open_artifact(path, mode=mode) as artifact:
        arrays = artifact.tensors()
    assert len(seen) == 4
    for index in range(6):
        assert arrays[f"t{index}"].tobytes() == np.random.default_rng(index).bytes(1_500_000)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_an_altered_chunk_among_many_is_found(mode: Mode, tmp_path: Path) -> None:
    path = large(tmp_path / "m.pyca", 6, 1_500_000)
    with open_artifact(path, mode=mode) as artifact:
        alter(path, artifact, "t4")
        with pytest.raises(ArtifactError, match=r"\(t4\): altered"):
            artifact.tensors()
        with pytest.raises(ArtifactError, match=r"\(t4\): altered"):
            artifact.verify_all()
        assert artifact.tensor("t3").tobytes() == np.random.default_rng(3).bytes(1_500_000)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", ["auto", "zstd"])
def test_verified_ahead(mode: Mode, codec: CodecChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[str, int]] = []
    real = Artifact._fetch

    def fetch(self: Artifact, job: Wanted) -> None:
        fetched.append((threading.current_thread().name, job.number))
        real(self, job)

    path = write(tmp_path / "m.pyca", codec)
    monkeypatch.setattr(Artifact, "_fetch", fetch)
    with open_artifact(path, mode=mode) as artifact:
        artifact.verify_ahead()
        artifact.verify_ahead()
        arrays = artifact.tensors()
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, (_, array) in TENSORS.items()
        }
        plain = sum(
            tensor.span.chunk_count
            for tensor in artifact.header.tensors
            if all(artifact.header.chunks[index].codec == "none" for index in chunks_of(tensor))
        )
        count = sum(tensor.span.chunk_count for tensor in artifact.header.tensors)
    assert sorted(chunk for _, chunk in fetched) == list(range(count)), "each chunk once"
    behind = [chunk for name, chunk in fetched if name.startswith("pyc-verify")]
    assert len(behind) == (plain if mode == "mmap" else 0)


def test_what_is_altered_is_found_ahead(tmp_path: Path) -> None:
    path = large(tmp_path / "m.pyca", 6, 1_500_000)
    with open_artifact(path) as artifact:
        alter(path, artifact, "t4")
        artifact.verify_ahead()
        for _ in range(2):
            with pytest.raises(ArtifactError, match=r"\(t4\): altered"):
                artifact.tensors()


def test_closing_ends_what_is_verified_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, fetched = threading.Event(), threading.Event(), []

    def fetch(self: Artifact, job: Wanted) -> None:
        fetched.append(job.number)
        begun.set()
        assert go_on.wait(30)

    path = large(tmp_path / "m.pyca", 40, 5000)
    monkeypatch.setattr(Artifact, "_fetch", fetch)
    artifact = open_artifact(path)
    artifact.verify_ahead()
    assert begun.wait(30)
    threading.Timer(0.1, go_on.set).start()
    artifact.close()
    assert 1 <= len(fetched) < 40
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pyc-verify")]


class NoMoreThreadsError(RuntimeError):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [0, 1])
def test_a_system_without_threads(
    threads: int, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RLIMIT_NPROC has it, and the end of the interpreter."""
    path = large(tmp_path / "m.pyca", 6, 1_500_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    left = [threads]
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if not left[0]:
            raise NoMoreThreadsError("can't start new thread")
        left[0] -= 1
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with open_artifact(path, mode=mode) as artifact:
        artifact.verify_ahead()
        left[0] = threads
        arrays = artifact.tensors()
        left[0] = threads
        artifact.verify_all()
        for index in range(6):
            assert arrays[f"t{index}"].tobytes() == np.random.default_rng(index).bytes(1_500_000)
        alter(path, artifact, "t4")
    with open_artifact(path, mode=mode) as artifact:
        left[0] = threads
        artifact.verify_ahead()
        for _ in range(2):
            with pytest.raises(ArtifactError, match=r"\(t4\): altered"):
                artifact.tensors()


@pytest.mark.slow
def test_an_artifact_is_read_while_the_interpreter_ends(tmp_path: Path) -> None:
    """No pool takes work then: a thread that the main thread did not wait for, or what atexit calls, loads a model."""
    path = large(tmp_path / "m.pyca", 6, 1_500_000)
    code = (
        "import atexit, sys; from concurrent.futures import ThreadPoolExecutor; "
        "from pyc.runtime.artifact.reader import open_artifact\n"
        "def read():\n"
        "    with open_artifact(sys.argv[1]) as artifact:\n"
        "        artifact.verify_ahead(); print(len(artifact.tensors())); artifact.verify_all()\n"
        "atexit.register(read)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("6\n", "")


def test_opening_imports_no_numpy(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pyca")
    code = (
        "import sys; from pyc.runtime.artifact.reader import open_artifact; artifact = open_artifact(sys.argv[1]); "
        "artifact.verify_ahead(); artifact.verify_all(); artifact.blob('lib.so'); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_an_artifact_without_payload(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    with ArtifactWriter(path) as writer:
        writer.finish(model=MODEL, generation=Generation(), provenance=PROVENANCE)
    for mode in MODES:
        with open_artifact(path, mode=mode) as artifact:
            artifact.verify_all()
            assert artifact.tensors() == {}


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(RunError, match=r"^weights take 4\.612e\+06 TB of memory, and this process may have"):
        aligned_buffers([1 << 62])


def test_a_path_that_is_none_is_spelt_out_once() -> None:
    with pytest.raises(ArtifactError, match=r"^'a\\x00b': not a usable path: "):
        open_artifact("a\0b")
