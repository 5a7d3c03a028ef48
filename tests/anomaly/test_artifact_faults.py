"""Artifacts that are altered, cut short or grown: every one is detected.

PYC_FUZZ raises the number of data flips, to a tenth of it (default 2,000; the long runs set it to 100,000).
"""

import os
import random
import struct
from pathlib import Path

import pytest
from artifact_forge import PAGE, Document, add_chunk, canonical, check, join, make, put, refused, signed_file

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.errors import ArtifactError

FUZZ_COUNT = int(os.environ.get("PYC_FUZZ", "2000"))


def test_the_handmade_file_is_valid(tmp_path: Path) -> None:
    document, payload = make()
    path = tmp_path / "m.pyca"
    put(path, join(canonical(document), payload))
    check(path)
    check(path, "pread")
    signed_file(path, tmp_path / "home")
    check(path)


def flip(path: Path, data: bytes, bit: int) -> None:
    """Flips one bit of the file in place."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(bit // 8)
        file.write(bytes([data[bit // 8] ^ 1 << bit % 8]))


def unflip(path: Path, data: bytes, bit: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(bit // 8)
        file.write(data[bit // 8 : bit // 8 + 1])


def test_every_bit_before_the_payload(tmp_path: Path) -> None:
    """Prelude, signature record and header: each bit. Padding: one bit of each byte."""
    path = tmp_path / "m.pyca"
    data = signed_file(path, tmp_path / "home")
    end = 160 + struct.unpack_from("<Q", data, 24)[0]
    bits = [*range(end * 8), *(byte * 8 + byte % 8 for byte in range(end, PAGE))]
    accepted = []
    for bit in bits:
        flip(path, data, bit)
        try:
            open_artifact(path).close()
            accepted.append(bit)
        except ArtifactError:
            pass
        unflip(path, data, bit)
    assert accepted == []
    check(path)


def test_flips_anywhere_in_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    data = signed_file(path, tmp_path / "home")
    draw = random.Random(2)
    accepted = []
    for round_number in range(max(FUZZ_COUNT // 10, 2000)):
        bit = draw.randrange(PAGE * 8, len(data) * 8)
        flip(path, data, bit)
        if not refused(path, "pread" if round_number % 4 == 0 else "mmap"):
            accepted.append(bit)
        unflip(path, data, bit)
    assert accepted == []
    check(path)


def test_truncation_at_every_byte_before_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    data = signed_file(path, tmp_path / "home")
    accepted = []
    for size in [*range(PAGE, -1, -1)]:
        os.truncate(path, size) if size < PAGE else put(path, data[:size])
        if not refused(path, "mmap" if size % 4 else "pread"):
            accepted.append(size)
    assert accepted == []


def test_truncation_and_extension_of_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    data = signed_file(path, tmp_path / "home")
    draw = random.Random(3)
    sizes = {
        len(data) - 1,
        len(data) + 1,
        len(data) + PAGE,
        *(draw.randrange(PAGE, len(data)) for _ in range(200)),
    }
    accepted = []
    for size in sorted(sizes):
        put(path, data[:size].ljust(size, b"\0"))
        if not (refused(path) and refused(path, "pread")):
            accepted.append(size)
    assert accepted == []


def test_chunk_swaps(tmp_path: Path) -> None:
    """Two chunks of equal size change places, in the file alone or with their digests in the header too."""
    document: Document = make()[0] | {"chunks": [], "programs": [], "blobs": []}
    payload = bytearray()
    draw = random.Random(4)
    document["tensors"] = []
    for index in range(40):
        add_chunk(document, payload, draw.randbytes(512))
        span = {"first_chunk": index, "chunk_count": 1}
        document["tensors"].append({"name": f"t{index}", "dtype": "u8", "shape": [512], "span": span})
    path = tmp_path / "m.pyca"
    header = canonical(document)
    put(path, join(header, payload, required=0))
    check(path)
    accepted = []
    for _ in range(1000):
        first, second = draw.sample(range(40), 2)
        swapped = bytearray(payload)
        one, other = slice(first * PAGE, first * PAGE + 512), slice(second * PAGE, second * PAGE + 512)
        swapped[one], swapped[other] = payload[other], payload[one]
        put(path, join(header, swapped, required=0))
        if not refused(path):
            accepted.append((first, second))
    assert accepted == []


def test_header_swapped_under_a_signature(tmp_path: Path) -> None:
    """A well-formed header of other content, with the signature of the first."""
    path = tmp_path / "m.pyca"
    data = signed_file(path, tmp_path / "home")
    document, payload = make()
    put(path, join(canonical(document), payload, record=data[64:160]))
    with pytest.raises(ArtifactError, match="signature of key"):
        open_artifact(path)


def test_signature_stripped_or_by_another_key(tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    data = signed_file(path, tmp_path / "home")
    put(path, data[:64] + bytes(96) + data[160:])
    with (
        open_artifact(path) as artifact,
        pytest.raises(ArtifactError, match="not signed"),
    ):
        require_trusted(artifact, home=tmp_path / "home")
    other = signing_key(home=tmp_path / "other").sign(data[:64]).pack()
    put(path, data[:64] + other + data[160:])
    with open_artifact(path) as artifact:
        with pytest.raises(ArtifactError, match="not trusted here"):
            require_trusted(artifact, home=tmp_path / "home")
        assert require_trusted(artifact, home=tmp_path / "other")[0].key.raw == other[:32]
