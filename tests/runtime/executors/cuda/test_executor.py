"""runtime/executors/cuda: loads that fail say why, and programs that disagree with their header run nothing."""

import ctypes
import dataclasses
import gc
import os

import msgspec
import numpy as np
import pytest
from built_models import random_ids
from emulated_cuda import CUDA, emulated, emulated_cuda
from tiny_checkpoints import tiny_checkpoint

from pyc.passes.driver.build import build
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cuda import driver, executor
from pyc.runtime.executors.cuda.device import find_gpu
from pyc.runtime.executors.cuda.executor import functions_of
from pyc.runtime.executors.cuda.graph import BoundFunctions
from pyc.runtime.executors.cuda.program import decode_program
from pyc.runtime.model import load

__all__ = ["emulated_cuda", "tiny_checkpoint"]
pytest.importorskip("torch")

SHAPES = {"tokens": [1, 4], "batch": [1], "logits": [1]}
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def artifact(tiny_checkpoint, tmp_path_factory):
    """One for CUDA alone, built by the emulated compiler, once."""
    path = tmp_path_factory.mktemp("cuda") / "model.pyca"
    model = tiny_checkpoint("llama", tokenizer=False, max_position_embeddings=128, num_hidden_layers=2)
    with emulated():
        build({"model": str(model), "targets": [CUDA], "shapes": SHAPES}, output=path)
    return path


def test_a_bucket_is_a_graph_that_is_made_once(artifact, emulated_cuda):
    graphs = lambda: emulated_cuda.emulated_count(b"graph_launches")  # noqa: E731
    with load(artifact) as model:
        before = graphs()
        ids = random_ids(model, 4)
        first = model.logits(ids)
        made = graphs() - before
        assert np.array_equal(model.logits(ids), first)
        assert graphs() - before == 2 * made
        functions = model.executor._functions
        step = functions["forward", 4]
        step._bound.run_plainly()  # the same without a graph
        step._device.wait()


def test_graphs_compute_what_plain_launches_do(artifact, emulated_cuda, monkeypatch):
    with load(artifact) as model:
        ids = random_ids(model, 6)
        wanted = model.logits(ids)
    monkeypatch.setattr(BoundFunctions, "run", BoundFunctions.run_plainly)
    with load(artifact) as model:
        assert np.array_equal(model.logits(ids), wanted)


def test_a_graph_without_an_edge_is_found(artifact, emulated_cuda, monkeypatch):
    """Nodes of the emulated device run in any order that edges allow: some seed shows that one is missing."""
    with load(artifact) as model:
        ids = random_ids(model, 4)
        wanted = model.logits(ids)
    instantiated = BoundFunctions._instantiated

    def without_edges(self):
        self._launches = [dataclasses.replace(bound, after=()) for bound in self._launches]
        return instantiated(self)

    monkeypatch.setattr(BoundFunctions, "_instantiated", without_edges)
    differs = False
    for seed in range(4):
        emulated_cuda.emulated_configure(b"seed", ctypes.c_long(seed))
        try:
            with load(artifact) as model:
                differs |= not np.array_equal(model.logits(ids), wanted)
        except RunError as error:  # a read of what was not written yet
            differs |= "CUDA_ERROR" in str(error)
        emulated_cuda.emulated_reset()
    assert differs


def edges_and_logits(artifact, library, ids):
    """How many programmatic edges the graphs have that a model makes for its logits, and these."""
    before = library.emulated_count(b"programmatic_edges")
    with load(artifact) as model:
        logits = model.logits(ids)
    return library.emulated_count(b"programmatic_edges") - before, logits


def test_a_launch_that_waits_for_one_other_begins_early(artifact, emulated_cuda):
    with open_artifact(artifact) as opened:
        decoded = decode_program(opened.blob(opened.header.programs[0].library))
    assert decoded.kernels_wait
    used = [function for function in decoded.functions if function.symbol in ("forward_4", "logits_1")]
    expected = sum(len(launch.after) == 1 for function in used for launch in function.launches)
    assert 8 < expected < sum(len(function.launches) for function in used)
    assert edges_and_logits(artifact, emulated_cuda, [1, 2, 3, 4])[0] == expected


class OlderLibrary:
    """A driver from before CUDA 12.3."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        if name == "cuGraphAddDependencies_v2":
            raise AttributeError(name)
        return getattr(self._library, name)


@pytest.mark.parametrize("why", ["the driver", "the program", "the GPU"])
def test_launches_wait_for_the_end_of_others_where_they_cannot_begin_early(artifact, emulated_cuda, monkeypatch, why):
    ids = [3, 1, 4, 1]
    edges, wanted = edges_and_logits(artifact, emulated_cuda, ids)
    assert edges
    if why == "the driver":
        monkeypatch.setattr(executor, "open_driver", lambda: driver.Driver(OlderLibrary(emulated_cuda)))
    elif why == "the program":
        monkeypatch.setattr(executor, "decode_program", lambda data: replace(decode_program(data), kernels_wait=False))
    else:
        gpu = find_gpu(executor.open_driver())
        monkeypatch.setattr(executor, "best_program", lambda programs, _: programs[0])
        monkeypatch.setattr(executor, "find_gpu", lambda _: dataclasses.replace(gpu, capability=(8, 9)))
    edges, logits = edges_and_logits(artifact, emulated_cuda, ids)
    assert edges == 0
    assert np.array_equal(logits, wanted)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("devices", 0, "the NVIDIA driver finds no GPU"),
        ("capability", 80, r"has compute capability 8\.0, .* are for sm_90a; add one for 8\.0"),
        ("driver_version", 11080, r"the NVIDIA driver is for CUDA 11\.8, expected 12\.0 or later"),
        ("memory_bytes", (64 << 20) + 9000, r"the model takes .* GB \(weights .*\), .* 0\.00 of 0 GB free; load"),
    ],
)
def test_a_machine_that_does_not_fit_is_one_message(setting, value, says, artifact, emulated_cuda):
    usual = {"devices": 1, "capability": 90, "driver_version": 13000, "memory_bytes": 8 << 30}
    emulated_cuda.emulated_configure(setting.encode(), ctypes.c_long(value))
    try:
        with pytest.raises(RunError, match=says):
            load(artifact, context=128)
    finally:
        emulated_cuda.emulated_configure(setting.encode(), ctypes.c_long(usual[setting]))


def test_a_machine_without_a_driver(artifact, monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.1")
    driver.open_driver.cache_clear()
    with pytest.raises(RunError, match=r"needs an NVIDIA GPU and its driver, and there is no libnothing\.so\.1; run"):
        load(artifact)


def test_loads_leave_nothing_on_the_device(artifact, emulated_cuda):
    used = []
    for _ in range(4):
        with load(artifact) as model:
            model.logits(random_ids(model, 2))
        gc.collect()
        used.append(emulated_cuda.emulated_count(b"used_bytes"))
    assert used[1] == used[-1], used


def test_a_forked_child_does_not_use_the_parents_device(artifact, emulated_cuda):
    with load(artifact) as model:
        ids = random_ids(model, 2)
        child = os.fork()
        if not child:
            try:
                model.logits(ids)
            except RunError as error:
                os._exit(0 if "was loaded by another process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_program_that_disagrees_with_its_header_is_refused(artifact, emulated_cuda):
    with open_artifact(artifact) as opened:
        header, (program,) = opened.header, opened.header.programs
        decoded = decode_program(opened.blob(program.library))
    assert functions_of(program, decoded, header)
    first = next(index for index, f in enumerate(decoded.functions) if f.symbol.startswith("forward"))

    def changed(**fields):
        functions = list(decoded.functions)
        functions[first] = replace(functions[first], **fields)
        return replace(decoded, functions=tuple(functions))

    function = decoded.functions[first]
    weight = next(b for b in function.buffers if b.kind == "weight")
    larger = tuple(replace(b, size_bytes=b.size_bytes + 1) if b is weight else b for b in function.buffers)
    other = tuple(replace(b, name="other") if b is weight else b for b in function.buffers)
    wide = replace(function.result, shape=(function.result.shape[0], function.result.shape[1] + 1))
    for fields, says in (
        ({"symbol": "x"}, "has no function 'forward_1'"),
        ({"buffers": larger}, r"has \d+ bytes, the program for CUDA reads"),
        ({"buffers": other}, "differ in what it reads"),
        ({"inputs": function.inputs[:-1]}, "differ in what it reads"),
        ({"result": wide}, "expected rows of"),
    ):
        with pytest.raises(ArtifactError, match=says):
            functions_of(program, changed(**fields), header)
