"""runtime/executors/cpu/arriving.py: prompts run while weights are on their way, with the results of a file's."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from built_models import SMALL_SHAPES, artifacts, random_ids
from range_server import RangeServer, range_server
from remote_artifacts import MODEL
from tiny_checkpoints import tiny_checkpoint

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.passes.driver.build import BuildResult
from pyc.runtime.artifact import chunk_fetcher
from pyc.runtime.artifact.format import Generation, Provenance, payload_size
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.errors import ArtifactError, FetchError, RunError
from pyc.runtime.executors.cpu import executor
from pyc.runtime.executors.cpu.arriving import ArrivingFunction
from pyc.runtime.model import load
from pyc.runtime.sources import http
from pyc.runtime.sources.protocol import Retries

__all__ = ["artifacts", "range_server", "tiny_checkpoint"]


class Gate:
    """Holds requests back that reach beyond `open_until` in the file."""

    def __init__(self) -> None:
        self.open_until = 0
        self.moved = threading.Condition()

    def plan(self, number: int, path: str, first: int, last: int) -> str:
        with self.moved:
            self.moved.wait_for(lambda: first < self.open_until, timeout=20)
        return ""

    def open(self, until: int = 1 << 40) -> None:
        with self.moved:
            self.open_until = until
            self.moved.notify_all()


@pytest.fixture
def served(
    artifacts: Callable[..., BuildResult],
    tiny_checkpoint: Callable[..., Path],
    range_server: RangeServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[RangeServer, Path, Gate]]:
    """A small decoder on a server whose pieces are small, behind a gate that is closed."""
    pytest.importorskip("tvm")
    pytest.importorskip("transformers")
    built = artifacts(tiny_checkpoint("qwen3"), shapes=SMALL_SHAPES)
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    monkeypatch.setattr(http, "PATIENT", Retries(first_wait_s=0.001, most_wait_s=0.004))
    monkeypatch.setattr(http, "START_BYTES", 4096)
    monkeypatch.setattr(chunk_fetcher, "LEAST_PIECE_BYTES", 8192)
    monkeypatch.setattr(chunk_fetcher, "MOST_PIECE_BYTES", 8192)
    monkeypatch.setattr(executor, "A_WHILE_S", 0.0)
    range_server.files["/m.pyca"] = built.path.read_bytes()
    gate = Gate()
    range_server.plan = gate.plan
    yield range_server, built.path, gate
    gate.open()


def place_of(path: Path, tensor: str) -> int:
    """Where a tensor begins in the file."""
    with open_artifact(path) as artifact:
        found = next(each for each in artifact.header.tensors if each.name == tensor)
        return payload_of(artifact) + artifact.header.chunks[found.span.first_chunk].offset


def payload_of(artifact: Artifact) -> int:
    return artifact.size_bytes - payload_size(artifact.header)


def open_for_loading(server: RangeServer, path: Path, gate: Gate, tensor: str) -> None:
    """Let blobs (which lie at both ends) and what lies before a tensor through, and nothing else."""
    stop = place_of(path, tensor)
    with open_artifact(path) as artifact:
        last = artifact.header.tensors[-1].span
        header = artifact.header
        end = payload_of(artifact) + header.chunks[last.first_chunk + last.chunk_count].offset

    def plan(number: int, path: str, first: int, last: int) -> str:
        with gate.moved:
            gate.moved.wait_for(lambda: first < max(stop, gate.open_until) or first >= end, timeout=20)
        return ""

    server.plan = plan


LATE = "model.layers.1.self_attn.o_proj.weight"


def test_first_layers_run_while_later_ones_are_on_the_wire(
    served: tuple[RangeServer, Path, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path, gate = served
    open_for_loading(server, path, gate, LATE)
    waited: list[list[str]] = []
    run = ArrivingFunction.run

    class Watched:
        def __init__(self, arrival: object) -> None:
            self.arrival = arrival

        def wait(self, names: list[str]) -> None:
            waited.append(names)
            if LATE in names:
                gate.open()
            self.arrival.wait(names)  # type: ignore[attr-defined]

    monkeypatch.setattr(ArrivingFunction, "run", lambda self, arrival: run(self, Watched(arrival)))  # type: ignore[arg-type]
    with load(path) as expected, load(f"{server.url}/m.pyca") as model:
        ids = random_ids(expected, 13)
        assert not model.executor._arrival.is_complete  # type: ignore[attr-defined]
        assert np.array_equal(model.logits(ids), expected.logits(ids))
        assert "model.embed_tokens.weight" in waited[0] + waited[1]
        before = [names for names in waited[: next(i for i, names in enumerate(waited) if LATE in names)] if names]
        assert len(before) >= 7, "the calls of the first layer have run before the gate was opened"
        model.wait()
        assert not model.executor.is_arriving
        assert np.array_equal(model.logits(ids), expected.logits(ids))


@pytest.mark.parametrize("bucket", [1, 4, 16])
def test_the_same_tokens_as_from_a_file(served: tuple[RangeServer, Path, Gate], bucket: int) -> None:
    server, path, gate = served
    gate.open()
    with load(path) as expected, load(f"{server.url}/m.pyca") as model:
        ids = random_ids(expected, bucket)
        settings = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
        got = [token.id for token in model.generate(ids, **settings)]
        assert got == [token.id for token in expected.generate(ids, **settings)]


def test_what_is_left_of_a_quick_transfer_is_waited_for(
    served: tuple[RangeServer, Path, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path, gate = served
    gate.open()
    monkeypatch.setattr(executor, "A_WHILE_S", 1e9)
    monkeypatch.setattr(ArrivingFunction, "run", pytest.fail)
    with load(path) as expected, load(f"{server.url}/m.pyca") as model:
        assert np.array_equal(model.logits([5, 6, 7]), expected.logits([5, 6, 7]))


def test_only_what_this_machine_needs_is_fetched(served: tuple[RangeServer, Path, Gate]) -> None:
    server, path, gate = served
    gate.open()
    with load(f"{server.url}/m.pyca") as model:
        model.wait()
        needed = {name for function in model.program.functions for name in function.weights}  # type: ignore[union-attr]
    with open_artifact(path) as artifact:
        header = artifact.header
        records = [t for t in header.tensors if t.name in needed] + [
            b for b in header.blobs if b.name.endswith(".json") or b.name == model.program.library  # type: ignore[union-attr]
        ]
        stored = sum(
            header.chunks[n].stored_bytes
            for record in records
            for n in range(record.span.first_chunk, record.span.first_chunk + record.span.chunk_count)
        )
    assert sum(last + 1 - first for _, first, last, _ in server.asked) < stored + 4096 * (len(records) + 40)


def test_what_goes_wrong_on_the_way_is_an_error_of_each_run(served: tuple[RangeServer, Path, Gate]) -> None:
    server, path, gate = served
    open_for_loading(server, path, gate, LATE)
    with load(f"{server.url}/m.pyca") as model:
        server.statuses["/m.pyca"] = 403
        gate.open()
        for _ in range(2):
            with pytest.raises(FetchError, match="access refused"):
                model.logits([5, 6, 7])
        with pytest.raises(FetchError, match="access refused"):
            model.wait()


def test_altered_weights_are_never_computed_with(served: tuple[RangeServer, Path, Gate]) -> None:
    server, path, gate = served
    gate.open()
    data = bytearray(server.files["/m.pyca"])
    data[place_of(path, LATE) + 5] ^= 1
    server.files["/m.pyca"] = bytes(data)
    with load(f"{server.url}/m.pyca") as model, pytest.raises(ArtifactError, match=f"{LATE}.*altered"):
        model.logits([5, 6, 7])


def test_an_altered_library_is_never_loaded(
    served: tuple[RangeServer, Path, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path, gate = served
    gate.open()
    with open_artifact(path) as artifact:
        library = next(blob for blob in artifact.header.blobs if blob.name.endswith(".so"))
        at = payload_of(artifact) + artifact.header.chunks[library.span.first_chunk].offset
    data = bytearray(server.files["/m.pyca"])
    data[at + 100] ^= 1
    server.files["/m.pyca"] = bytes(data)
    monkeypatch.setattr("pyc.runtime.executors.cpu.executor.load_library", pytest.fail)
    with pytest.raises(ArtifactError, match="altered"):
        load(f"{server.url}/m.pyca")
    gc.collect()
    assert "pyc-fetch" not in [thread.name for thread in threading.enumerate()]


def test_trust_comes_before_the_first_weight(
    served: tuple[RangeServer, Path, Gate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _, gate = served
    gate.open()
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "nobody"))
    with pytest.raises(ArtifactError, match="not trusted here"):
        load(f"{server.url}/m.pyca")
    with open_artifact(f"{server.url}/m.pyca") as artifact:
        start = payload_of(artifact)
    assert max(first for _, first, _, _ in server.asked) < start


def test_libraries_that_cannot_run_in_parts_wait_for_all(
    served: tuple[RangeServer, Path, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path, gate = served
    gate.open()
    monkeypatch.setattr("pyc.runtime.executors.cpu.executor.runs_calls", lambda library: False)
    with load(path) as expected, load(f"{server.url}/m.pyca") as model:
        assert model.executor._arrival is None  # type: ignore[attr-defined]
        assert np.array_equal(model.logits([5, 6, 7]), expected.logits([5, 6, 7]))


def test_closing_a_model_whose_weights_are_on_their_way(served: tuple[RangeServer, Path, Gate]) -> None:
    server, path, gate = served
    open_for_loading(server, path, gate, LATE)
    model = load(f"{server.url}/m.pyca")
    model.close()
    gc.collect()
    deadline = time.monotonic() + 10
    while "pyc-fetch" in [thread.name for thread in threading.enumerate()] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "pyc-fetch" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(RunError, match="closed"):
        model.logits([5])


def test_closing_a_model_ends_a_run_that_waits_for_weights(served: tuple[RangeServer, Path, Gate]) -> None:
    server, path, gate = served
    open_for_loading(server, path, gate, LATE)
    model, raised = load(f"{server.url}/m.pyca"), []

    def ask() -> None:
        try:
            model.logits([5, 6, 7])
        except (ArtifactError, RunError) as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + 10
    while not is_waiting(thread) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_waiting(thread)
    model.close()
    thread.join(10)
    assert not thread.is_alive() and "fetching was ended" in str(raised[0])


def is_waiting(thread: threading.Thread) -> bool:
    """Whether a thread waits for chunks."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and not frame.f_code.co_filename.endswith("chunk_fetcher.py"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "wait"


CTRL_C = """
import os, signal, sys, threading
from pyc.runtime.model import load
model = load(sys.argv[1])
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    model.logits([5, 6, 7])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_weights_are_waited_for(served: tuple[RangeServer, Path, Gate]) -> None:
    """And the process ends at once, though threads of it are in the middle of a read."""
    server, path, gate = served
    open_for_loading(server, path, gate, LATE)
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, f"{server.url}/m.pyca"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


MEMORY = """
import sys
import numpy, tokenizers
from pyc.runtime import model
from pyc.runtime.artifact import arrival, reader
from pyc.runtime.sources import http, response
from pyc.runtime.executors.cpu import executor
from pyc.runtime.host.machine import peak_rss_bytes
before = peak_rss_bytes()
with reader.open_artifact(sys.argv[1]) as artifact:
    artifact.fetch_ahead([tensor.name for tensor in artifact.header.tensors], [])
    taken = artifact.arriving([])
    taken.wait()
    taken.stop()
    print(peak_rss_bytes() - before, sum(array.nbytes for array in taken.arrays.values()))
"""


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_memory_is_the_weights_and_a_few_chunks(
    codec: str, range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = np.random.default_rng(1).integers(0, 8, 16 << 20, np.uint8).tobytes()
    with ArtifactWriter(tmp_path / "m.pyca", codec) as writer:  # type: ignore[arg-type]
        for number in range(3):
            writer.add_tensor(f"t{number}", "u8", (len(pattern),), [pattern])
        writer.finish(model=MODEL, generation=Generation(), provenance=Provenance("{}", (), (), ()))
    range_server.files["/m.pyca"] = (tmp_path / "m.pyca").read_bytes()
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, f"{range_server.url}/m.pyca"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    grown, weights = map(int, done.stdout.split())
    assert weights == 48 << 20
    assert grown < weights + (4 * 16 << 20) + (64 << 20), f"{grown >> 20} MiB for {weights >> 20} MiB of weights"
    print(f"{codec}: {(grown - weights) >> 20} MiB above the weights")


def test_loads_leave_nothing_behind(served: tuple[RangeServer, Path, Gate]) -> None:
    server, _path, gate = served
    gate.open()

    def held() -> tuple[int, int]:
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        return len(os.listdir("/proc/self/fd")), sum(name.startswith("pyc-") for name in names)

    def load_once(number: int) -> None:
        with load(f"{server.url}/m.pyca", threads=1) as model:
            if number % 3 == 0:
                model.logits([5, 6, 7])
            elif number % 3 == 1:
                model.wait()

    load_once(0)
    server.keeps_alive = False
    deadline, before = time.monotonic() + 20, held()
    for number in range(30):
        load_once(number)
    while held()[1] > before[1] or held()[0] > before[0] + 8:  # the server's own connections
        assert time.monotonic() < deadline, (before, held())
        time.sleep(0.05)
