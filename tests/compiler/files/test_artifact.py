"""compiler/files/artifact.py: the same content gives the same bytes, in bounded memory, whole or not at all."""

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler.files.artifact import ArtifactSummary, ArtifactWriter, Bytes, CodecChoice
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Function, Generation, KvCache, ModelInfo, Program, Provenance, SourceFile
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.errors import ArtifactError, QualityError

CACHE = KvCache(layers=1, heads=1, head_dim=8, dtype="f32", block_tokens=16)
MODEL = ModelInfo("llama", "decoder", 32, 8, 64, 2, CACHE, None)
PROVENANCE = Provenance("{}", (), (), ())
TEXT = " ".join(str(number * number) for number in range(3000)).encode()


def finish(writer: ArtifactWriter, **fields: object) -> ArtifactSummary:
    given_fields = {"model": MODEL, "generation": Generation(), "provenance": PROVENANCE} | fields
    return writer.finish(**given_fields)  # type: ignore[arg-type]


def write(path: Path, *, codec: CodecChoice = "auto", pieces: list[Bytes] | None = None) -> ArtifactSummary:
    with ArtifactWriter(path, codec, chunk_bytes=4096) as writer:
        writer.add_tensor("a", "u8", (3, 3000), pieces or [bytes(range(250)) * 36])
        writer.add_blob("b", b"blob")
        return finish(writer)


tensors = st.lists(
    st.tuples(
        st.sampled_from(sorted(DTYPES)),
        st.lists(st.integers(1, 9), max_size=4),
        st.booleans(),
    ),
    max_size=4,
)


@pytest.mark.slow
@given(
    tensors=tensors,
    blobs=st.lists(st.binary(max_size=9000), max_size=3),
    codec=st.sampled_from(["auto", "none", "lz4", "zstd"]),
    order=st.randoms(use_true_random=False),
)
def test_what_is_read_is_what_was_written(
    tensors: list, blobs: list[bytes], codec: CodecChoice, order, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.pyca"
    contents: dict[str, tuple[str, tuple[int, ...], bytes] | bytes] = {}
    for index, (dtype, shape, zeros) in enumerate(tensors):
        size = int(np.prod(shape, dtype=int)) * DTYPES[dtype].itemsize
        contents[f"t{index}"] = (dtype, tuple(shape), bytes(size) if zeros else os.urandom(size))
    contents |= {f"b{index}": data for index, data in enumerate(blobs)}
    names = list(contents)
    order.shuffle(names)
    with ArtifactWriter(path, codec, chunk_bytes=4096) as writer:
        for name in names:
            content = contents[name]
            if isinstance(content, bytes):
                writer.add_blob(name, content)
            else:
                writer.add_tensor(name, content[0], content[1], [content[2]])  # type: ignore[arg-type]
        finish(writer)
    with open_artifact(path) as artifact:
        artifact.verify_all()
        assert [t.name for t in artifact.header.tensors] == [n for n in names if n.startswith("t")]
        for name, content in contents.items():
            if isinstance(content, bytes):
                assert artifact.blob(name) == content
            else:
                array = artifact.tensor(name)
                assert (array.shape, array.tobytes()) == content[1:]


@pytest.mark.slow
@given(cuts=st.lists(st.integers(0, 9000), max_size=8))
def test_the_pieces_do_not_matter(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = bytes(range(250)) * 36
    edges = [0, *sorted(cuts), 9000]
    pieces: list[Bytes] = [memoryview(data)[start:end] for start, end in itertools.pairwise(edges)]
    assert write(folder / "p1.pyca", pieces=pieces).sha256 == write(folder / "p2.pyca").sha256


def test_pieces_of_other_element_types(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype="<f4").reshape(3, 4)
    with ArtifactWriter(tmp_path / "m.pyca") as writer:
        writer.add_tensor("m", "f32", (3, 4), [matrix[:1].data, bytearray(matrix[1:].tobytes()), b""])
        finish(writer)
    with open_artifact(tmp_path / "m.pyca") as artifact:
        np.testing.assert_array_equal(artifact.tensor("m"), matrix)


@pytest.mark.slow
def test_same_content_same_bytes(tmp_path: Path) -> None:
    """Whatever the name, the directory, the umask, the hash seed and the time."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_artifact\n"
        "os.umask(int(sys.argv[2]))\n"
        "print(test_artifact.write(Path(sys.argv[1]), codec='zstd').sha256)\n"
    )
    digests = set()
    for seed, umask, name in (("1", "18", "a.pyca"), ("2", "63", "other/b.pyca")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": f"UTC{seed}"}
        command = [sys.executable, "-c", code, str(path), umask]
        result = subprocess.run(
            command, env=environment, cwd=path.parent, capture_output=True, text=True, check=True
        )
        digests.add(result.stdout.strip())
        assert hashlib.sha256(path.read_bytes()).hexdigest() in digests
    assert len(digests) == 1


def test_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    with ArtifactWriter(path, chunk_bytes=8192) as writer:
        writer.add_tensor("a", "u8", (10_000,), [os.urandom(10_000)])
        writer.add_blob("text", TEXT)
        summary = finish(writer)
    data = path.read_bytes()
    assert summary.path == path
    assert summary.sha256 == hashlib.sha256(data).hexdigest()
    assert summary.size_bytes == len(data)
    assert summary.fingerprint is None
    use = {entry.codec: entry for entry in summary.codecs}
    assert (use["none"].chunks, use["none"].raw_bytes, use["none"].gain) == (2, 10_000, 0.0)
    assert sum(entry.raw_bytes for entry in summary.codecs) == 10_000 + len(TEXT)
    assert use["zstd"].gain > 0.4


@pytest.mark.parametrize(
    ("codec", "name", "data", "expected"),
    [
        ("auto", "tensor", bytes(8192), {"none"}),  # tensors stay as they are, so that they map
        ("auto", "blob", TEXT, {"zstd"}),
        ("auto", "blob", os.urandom(20_000), {"none"}),
        ("auto", "blob", b"a" * 4096, {"none"}),  # a page is a page
        ("none", "blob", TEXT, {"none"}),
        ("lz4", "tensor", bytes(8192), {"lz4"}),
        ("zstd", "tensor", os.urandom(8192), {"none"}),
        ("zstd", "tensor", TEXT, {"zstd"}),
        ("zstd", "tensor", bytes(1 << 20), {"lz4"}),  # zstd would exceed 256:1
    ],
)
def test_codec_choice(codec: CodecChoice, name: str, data: bytes, expected: set[str], tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.pyca", codec) as writer:
        if name == "tensor":
            writer.add_tensor(name, "u8", (len(data),), [data])
        else:
            writer.add_blob(name, data)
        summary = finish(writer)
    assert {use.codec for use in summary.codecs} == expected
    with open_artifact(tmp_path / "m.pyca") as artifact:
        artifact.verify_all()


def test_signing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    key = signing_key(home=home)
    path = tmp_path / "m.pyca"
    with ArtifactWriter(path) as writer:
        writer.add_blob("b", b"x")
        assert finish(writer, signing_key=key).fingerprint == key.public.fingerprint
    with open_artifact(path) as artifact:
        assert require_trusted(artifact, home=home)[0].key.raw == key.public.raw


@pytest.mark.parametrize("size", [0, 1, 8999, 9001, 20_000])
def test_a_wrong_number_of_bytes(size: int, tmp_path: Path) -> None:
    with (
        pytest.raises(ArtifactError, match=r"tensor 'a': got \d+( or more)? bytes, expected 9000"),
        ArtifactWriter(tmp_path / "m.pyca") as writer,
    ):
        writer.add_tensor("a", "u8", (9000,), [bytes(size)])
    assert list(tmp_path.iterdir()) == []


def test_an_endless_tensor_is_stopped(tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield bytes(4096)
        raise AssertionError("was not stopped")

    with (
        pytest.raises(ArtifactError, match="got 12288 or more bytes, expected 9000"),
        ArtifactWriter(tmp_path / "m.pyca", chunk_bytes=4096) as writer,
    ):
        writer.add_tensor("a", "u8", (9000,), endless())


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "message"),
    [
        ("a", "f64", (2,), "dtype 'f64' is not one of"),
        ("a", "u8", (0,), "dimensions of at least 1"),
        ("a", "u8", (-1, -2), "dimensions of at least 1"),
        ("a", "u8", (1,) * 9, "at most 8 dimensions"),
        ("a", "f32", (1 << 40, 1 << 40), "larger than"),
        ("../a", "u8", (2,), "not a plain name"),
        ("", "u8", (2,), "not a plain name"),
        ("taken", "u8", (2,), "the name is used twice"),
    ],
)
def test_bad_tensors(name: str, dtype: str, shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.pyca") as writer:
        writer.add_blob("taken", b"x")
        with pytest.raises(ArtifactError, match=message):
            writer.add_tensor(name, dtype, shape, [b"xx"])  # type: ignore[arg-type]


def program(**fields: object) -> Program:
    """A program over the blob "lib" and the tensor "w"."""
    forward = Function("forward", 1, "f", ("token_ids",), ("w",))
    values = {
        "backend": "cpu",
        "device": "cpu",
        "arch": "x86_64",
        "system": "linux",
        "isa": "x86-64-v3",
        "features": ("avx2",),
        "library": "lib",
        "abi": (),
        "functions": (forward,),
    }
    return Program(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"programs": (program(library="other"),)}, "'other' is not a blob"),
        (
            {"programs": (program(functions=(Function("forward", 1, "f", (), ("x",)),)),)},
            "'x' is not a tensor",
        ),
        ({"programs": (program(isa=""),)}, "length >= 1"),
        ({"generation": Generation(temperature="hot")}, "matching regex"),
        ({"model": ModelInfo("llama", "decoder", 32, 8, 64, 2, None, None)}, "without kv_cache"),
        ({"provenance": Provenance("{}", (SourceFile("/home/me/x", 1, "0" * 64),), (), ())}, "plain name"),
    ],
)
def test_a_header_no_reader_would_take_is_not_published(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.pyca"
    before = write(path)
    with ArtifactWriter(path) as writer:
        writer.add_tensor("w", "u8", (2,), [b"xx"])
        writer.add_blob("lib", b"x")
        with pytest.raises(ArtifactError, match=message):
            finish(writer, **fields)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before.sha256
    assert list(tmp_path.iterdir()) == [path]


def test_a_program_is_kept(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.pyca") as writer:
        writer.add_tensor("w", "u8", (2,), [b"xx"])
        writer.add_blob("lib", b"x")
        finish(writer, programs=(program(),))
    with open_artifact(tmp_path / "m.pyca") as artifact:
        assert artifact.header.programs == (program(),)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interrupted_build_leaves_the_old_artifact(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    before = write(path)

    def broken() -> Iterator[bytes]:
        yield bytes(8192)
        raise error

    with pytest.raises(error), ArtifactWriter(path, chunk_bytes=4096) as writer:
        writer.add_tensor("a", "u8", (90_000,), broken())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before.sha256
    assert list(tmp_path.iterdir()) == [path]


def test_rewriting_does_not_disturb_a_reader(tmp_path: Path) -> None:
    """A reader keeps the file it opened; the next open sees the new one."""
    path = tmp_path / "m.pyca"
    write(path)
    with open_artifact(path) as old:
        array = old.tensor("a")
        before = array.copy()
        write(path, pieces=[bytes(9000)])
        np.testing.assert_array_equal(array, before)
        old.verify_all()
    with open_artifact(path) as new:
        assert not new.tensor("a").any()


def test_an_artifact_that_is_not_accepted_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    write(path)
    old = path.read_bytes()

    def refuse(staged: Path) -> None:
        with open_artifact(staged) as artifact:
            artifact.verify_all()
            assert not artifact.tensor("a").any(), "all of the new one is there to be read"
        assert path.read_bytes() == old
        raise QualityError("no")

    with ArtifactWriter(path) as writer:
        writer.add_tensor("a", "u8", (9000,), [bytes(9000)])
        with pytest.raises(QualityError, match="no"):
            finish(writer, accept=refuse)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["m.pyca"]


@pytest.mark.parametrize("chunk_bytes", [0, 1, 4095, 5000, (16 << 20) + 4096])
def test_bad_chunk_sizes(chunk_bytes: int, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a multiple of 4096"):
        ArtifactWriter(tmp_path / "m.pyca", chunk_bytes=chunk_bytes)


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """192 MiB of tensors through a writer that may hold 96 MiB beyond what it starts with."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_artifact as t\n"
        "import zstandard, lz4.block\n"
        "status = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) * 1024\n"
        "before = status()\n"
        "piece = bytes(range(256)) * 4096\n"
        "with t.ArtifactWriter(sys.argv[1]) as writer:\n"
        "    for index in range(3):\n"
        "        writer.add_tensor(f't{index}', 'u8', (64 << 20,), (piece for _ in range(64)))\n"
        "    t.finish(writer)\n"
        "print(status() - before)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m.pyca")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(result.stdout) < 96 << 20
    assert (tmp_path / "m.pyca").stat().st_size > 192 << 20
