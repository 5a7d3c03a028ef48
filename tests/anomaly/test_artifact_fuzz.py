"""Structure-aware fuzzing and bombs: typed errors only, in little time and memory.

PYC_FUZZ sets how many fuzz inputs are tried (default 2,000; the long runs set it to 100,000).
"""

import copy
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import blake3
from artifact_forge import PAGE, Document, canonical, join, make, put, refused, restore_chunk, stored_chunk

FUZZ_COUNT = int(os.environ.get("PYC_FUZZ", "2000"))

INTERESTING: tuple[object, ...] = (
    *(
        0,
        1,
        -1,
        2,
        255,
        4095,
        4096,
        4097,
        8192,
        2**31 - 1,
        2**31,
        2**32,
        2**53 - 1,
        2**53,
        2**63,
        2**64,
        2**70,
    ),
    *("", "a", "lib", "none", "zstd", "lz4", "../x", "/", "\0", "é", "x" * 600, "0" * 64, "f32", "1e400"),
    *(None, True, False, 0.5, [], {}, [1], {"a": 1}, [[]] * 3),
)


def places(value: object, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every value inside a JSON document."""
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = [(*prefix, key) for key, _ in items]
    for key, inner in items:
        found += places(inner, (*prefix, key))
    return found


def mutate_document(document: Document, draw: random.Random) -> None:
    path = draw.choice(places(document))
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    value = copy.deepcopy(place[path[-1]])
    number = type(value) is int and draw.random() < 0.8
    kind = 4 if number else draw.randrange(6)
    if kind == 0:
        del place[path[-1]]
    elif kind == 1 and isinstance(place, list):
        place.insert(draw.randrange(len(place) + 1), value)
    elif kind == 2 and isinstance(place, list):
        draw.shuffle(place)
    elif kind == 3 and isinstance(place, dict):
        place[draw.choice(("extra", "name", "offset", "codec"))] = value
    elif number:
        near = (value + 1, value + PAGE, value * 2, abs(value - 1), value % 16, 0, 1, PAGE)
        place[path[-1]] = draw.choice(near)
    else:
        place[path[-1]] = copy.deepcopy(draw.choice(INTERESTING))


def mutate_payload(document: Document, payload: bytearray, draw: random.Random) -> None:
    """Alters a chunk's bytes and mends its digest, so that the decoders see them."""
    entry = draw.choice(document["chunks"])
    start, size = entry["offset"], entry["stored_bytes"]
    for _ in range(draw.randrange(1, 4)):
        payload[start + draw.randrange(size)] = draw.randrange(256)
    entry["blake3"] = blake3.blake3(payload[start : start + size]).hexdigest()


def fuzz_input(seed: int, document: Document, payload: bytearray) -> bytes:
    """One altered file; hash and length of the header are right, so that the deeper checks are reached."""
    draw = random.Random(seed)
    document, payload = copy.deepcopy(document), bytearray(payload)
    if draw.random() < 0.4:
        mutate_payload(document, payload, draw)
    if draw.random() < 0.7:
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            mutate_document(document, draw)
    text = bytearray(canonical(document))
    if draw.random() < 0.15:
        for _ in range(draw.randrange(1, 4)):
            text[draw.randrange(len(text))] = draw.randrange(256)
    fields: dict[str, int | bytes] = {}
    if draw.random() < 0.1:
        fields[draw.choice(("major", "reserved"))] = draw.randrange(1 << 16)
    if draw.random() < 0.3:
        fields["minor"] = draw.choice((0, 2, 1 << 15))
    if draw.random() < 0.1:
        fields["size"] = draw.choice((0, len(text) - 1, len(text) + 1, 2**32, 2**64 - 1))
    required = 3 if draw.random() < 0.95 else draw.choice((2, 1, 0, 1 << 40))
    data = join(bytes(text), payload, required=required, **fields)  # type: ignore[arg-type]
    if draw.random() < 0.1:
        return data[: draw.randrange(len(data))]
    return data + draw.randbytes(draw.randrange(1, 5000)) if draw.random() < 0.05 else data


def test_fuzz(tmp_path: Path) -> None:
    """Typed errors only, and none of the inputs takes a second."""
    path = tmp_path / "m.pyca"
    document, payload = make()
    slow, outcome = [], {True: 0, False: 0}
    for seed in range(FUZZ_COUNT):
        put(path, fuzz_input(seed, document, payload))
        started = time.perf_counter()
        try:
            outcome[refused(path, "pread" if seed % 4 == 0 else "mmap")] += 1
        except Exception as error:
            raise AssertionError(f"fuzz seed {seed}: {error!r}") from error
        if time.perf_counter() - started > 1:
            slow.append(seed)
    assert slow == []
    assert outcome[False] > 0, "no input is accepted: the fuzzer stops at the first check"


MEMORY_PROBE = """
import sys
from pathlib import Path
from pyc.runtime.errors import ArtifactError
from pyc.runtime.artifact.reader import open_artifact
import cryptography, lz4.block, zstandard

def status_bytes(key):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024

for path in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is resident now
    before = status_bytes("VmRSS")
    verdict = "accepted"
    try:
        with open_artifact(path) as artifact:
            artifact.verify_all()
    except ArtifactError as error:
        verdict = "refused"
    print(verdict, status_bytes("VmHWM") - before)
"""


def bombs() -> list[bytes]:
    """Files whose contents or header claim, or are, far more than the file's size."""
    files = []
    limit = 16 << 20
    for raw_bytes in (limit, limit - 1, 4 << 20, 1 << 20, 5000):
        for claimed in (raw_bytes, raw_bytes // 2, 4097):
            for codec in ("zstd", "lz4"):
                document, payload = make()
                restore_chunk(5, stored_chunk(bytes(raw_bytes), codec), claimed)(document, payload)
                document["chunks"][5]["codec"] = codec
                document["blobs"][1]["raw_bytes"] = 4096 + claimed
                files.append(join(canonical(document), payload))
    document, payload = make()
    text = canonical(document)
    for element in (b"1", b'""', b"[]", b"{}", b'"x"'):
        for target in (b'"shape":[40,32]', b'"eos_token_ids":[2]', b'"features":["avx2"]'):
            many = (element + b",") * 500_000 + element
            files.append(join(text.replace(target, target.partition(b"[")[0] + b"[" + many + b"]"), payload))
        many = (element + b",") * ((limit - 10_000) // (len(element) + 1)) + element
        files.append(join(text.replace(b'"features":["avx2"]', b'"features":[' + many + b"]"), payload))
    for element in (b"[]", b"{}", b'{"a":1}'):  # of a newer minor version, in a field that is passed over
        many = (element + b",") * 500_000 + element
        files.append(join(b'{"added":[' + many + b"]," + text[1:], payload, minor=2))
    files.append(join(text.replace(b'"recipe":"{}"', b'"recipe":"' + b"x" * (15 << 20) + b'"'), payload))
    return files


def test_bombs_stay_within_the_memory_budget(tmp_path: Path) -> None:
    """Peak memory grows by at most the file's size and 64 MiB; 128 where fields are parsed and passed over."""
    paths = []
    for index, data in enumerate(bombs()):
        path = tmp_path / f"{index}.pyca"
        put(path, data)
        paths.append(path)
    assert len(paths) >= 50
    command = [sys.executable, "-c", MEMORY_PROBE, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    grown = [int(grown) for _, grown in rows]
    allowed = [(64 if path.read_bytes()[10] == 1 else 128) << 20 for path in paths]
    budgets = [path.stat().st_size + more for path, more in zip(paths, allowed, strict=True)]
    assert len(rows) == len(paths)
    assert [i for i, (used, budget) in enumerate(zip(grown, budgets, strict=True)) if used > budget] == []
    assert sum(verdict == "accepted" for verdict, _ in rows) < len(rows) // 2
