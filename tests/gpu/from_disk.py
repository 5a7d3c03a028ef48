"""Measures how long a process takes from its start to its first token, with weights from a file on this machine.

    python tests/gpu/from_disk.py [--work build/gpu] [--files /tmp/pyc-from-disk] [--out results.json]

An artifact of a program alone becomes one with weights: random ones, written and signed here. A process of its own then
opens it, verifies the signature and every chunk, copies the weights to the GPU, and generates one token behind a prompt
of 512. `cold` is with the file dropped from the page cache, `warm` with it there. `peak_bytes` is the most memory that
the process had, the driver's part in it; `empty_peak_bytes` that of one that opens the driver and loads nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from bench import write_report

from pyc.backends.random_weights import random_weights
from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact.format import PROGRAM_ONLY, Tensor
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.keys import new_key_text, parse_signing_key
from pyc.runtime.artifact.trust.policy import trust_of
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.executors.cuda.device import Device, find_gpu
from pyc.runtime.executors.cuda.driver import open_driver
from pyc.runtime.model import load

NAMES = ("1b-int4", "8b-int4", "8b-bf16")
PROMPT = 512


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the artifacts called `NAMES`, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/gpu"))
    parser.add_argument("--files", type=Path, default=Path("/tmp/pyc-from-disk"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("ARTIFACT", "KEY"), help="what a measured process runs")
    parser.add_argument("--empty", action="store_true", help="likewise, without an artifact")
    given = parser.parse_args(arguments)
    if given.one or given.empty:
        print(first_token(*given.one) if given.one else open_device(), flush=True)
        return
    manifest = json.loads((given.work / "manifest.json").read_text())
    report: dict[str, object] = {"commit": manifest["commit"], "models": {}}
    report["empty_peak_bytes"] = measured(["--empty"])[1]
    given.files.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        report["models"][name] = measure(given.work / f"{name}.pyca", manifest["key"], given.files / name, given.repeat)
        print(f"{name} from a file: {json.dumps(report['models'][name])}", file=sys.stderr, flush=True)
        write_report(report, given.out)
    print(json.dumps(report, indent=2))


def measure(program: Path, key: str, target: Path, repeat: int) -> dict[str, object]:
    """Times of one artifact, which is gone afterwards."""
    started = time.perf_counter()
    with open_artifact(program) as artifact:
        require_trusted(artifact, trust_of(key))
        own_key = write_filled(artifact, target)
    written = time.perf_counter() - started
    command = ["--one", str(target), own_key]
    try:
        leave_page_cache(target)
        cold, peak = measured(command)
        warm = sorted(measured(command)[0] for _ in range(repeat))
        size = target.stat().st_size
    finally:
        target.unlink()
    return {"file_bytes": size, "write_s": written, "cold_s": cold, "warm_s": warm[repeat // 2], "peak_bytes": peak}


def write_filled(artifact: Artifact, target: Path) -> str:
    """Write the artifact with random weights, signed with a new key, whose public part is returned."""
    header, fill = artifact.header, random_weights(artifact)
    key = parse_signing_key(new_key_text(), "a new key")
    with ArtifactWriter(target, "none") as writer:
        for blob in header.blobs:
            writer.add_blob(blob.name, artifact.blob(blob.name))
        for tensor in header.tensors:
            pieces = repeated(bytes(fill(tensor)), size_of(tensor))
            writer.add_tensor(tensor.name, tensor.dtype, tensor.shape, pieces)
        writer.finish(
            model=header.model,
            generation=header.generation,
            provenance=header.provenance,
            programs=header.programs,
            signing_key=key,
            requires=tuple(name for name in header.requires if name != PROGRAM_ONLY),
        )
    return key.public.text()


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor."""
    return tensor_bytes(tensor.dtype, tensor.shape)


def repeated(pattern: bytes, size: int) -> Iterator[bytes]:
    """Pieces of `size` bytes together, of a pattern over and over."""
    for piece in cycle([pattern]):
        yield piece[:size]
        size -= len(piece)
        if size <= 0:
            return


def leave_page_cache(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def measured(arguments: Sequence[str]) -> tuple[float, int]:
    """Seconds from the start of a process until its first line, and the most bytes that it had."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    taken = time.perf_counter() - started
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode or not line:
        raise SystemExit(f"{' '.join(arguments)}: the process ended with {process.returncode}")
    return taken, usage.ru_maxrss << 10


def first_token(path: str, key: str) -> int:
    """The first token behind a prompt."""
    with load(path, backend="cuda", trust=key) as model:
        (token,) = model.generate(list(range(100, 100 + PROMPT)), max_tokens=1, temperature=0, ignore_eos=True)
        return token.id


def open_device() -> int:
    """Open the driver and the GPU, and nothing else."""
    driver = open_driver()
    return Device(driver, find_gpu(driver)).free_bytes()


if __name__ == "__main__":
    main()
