"""executor.py over a real program: rows, buckets, blocks, sequences, threads, and what is refused."""

import itertools
import logging
import os
import platform
import resource
import subprocess
import sys
import threading
from pathlib import Path

import kernel_threads
import numpy as np
import pytest
from built_models import artifacts, built, random_ids, target_of
from interruptions import InterruptedAt, interrupted
from tiny_checkpoints import tiny_checkpoint

from pyc.runtime.artifact.format import Program, Tool
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cpu import executor as cpu_executor
from pyc.runtime.executors.cpu import features as cpu
from pyc.runtime.executors.cpu.libraries import check_convention, load_library
from pyc.runtime.executors.cpu.prefetch import (
    MOST_BYTES,
    Distance,
    Distances,
    forget_distances,
    keep_distances,
    usual_distances,
)
from pyc.runtime.executors.cpu.threads import usable_cpus
from pyc.runtime.host.aligned import aligned_zeros
from pyc.runtime.model import load

__all__ = ["artifacts", "built", "tiny_checkpoint"]

SHAPES = {"tokens": [1, 4, 16], "logits": [1, 4], "batch": [1, 3], "context": 256}


@pytest.fixture
def path(request, artifacts):
    # The base install has no compiler; there .ci/check_base.py runs the executor over the demo's artifact.
    pytest.importorskip("transformers")
    tiny_checkpoint = request.getfixturevalue("tiny_checkpoint")
    return artifacts(tiny_checkpoint("qwen2", max_position_embeddings=256), shapes=SHAPES, targets=target_of()).path


@pytest.fixture
def model(path):
    with load(path, threads=1) as opened:
        yield opened


def test_the_log_tells_what_was_loaded(path, caplog):
    with caplog.at_level(logging.INFO, logger="pyc"), load(path, threads=1, context=64) as opened:
        digest, key = opened_digest(path), signer(path)
        isa = opened.executor.isa
    said = [record.getMessage() for record in caplog.records]
    assert said[-2:] == [
        f"{path}, {digest}: may run by the key store: key {key} counts",
        f"{path}: {path.stat().st_size} bytes, qwen2 for {isa}, 1 thread, context 64",
    ]


def opened_digest(path):
    with open_artifact(path) as artifact:
        return f"header:{artifact.prelude.header_sha256.hex()}"


def signer(path):
    with open_artifact(path) as artifact:
        return PublicKey(artifact.signature.public_key).fingerprint


@pytest.mark.slow
def test_functions_and_buckets(model):
    """Those of the recipe, and its batch of 3."""
    assert model.executor.functions("forward") == (1, 3, 4, 16)
    assert model.executor.functions("prompt") == (3, 4, 16)
    assert model.executor.functions("logits") == (1, 3, 4)
    assert model.executor.functions("embed") == ()


@pytest.mark.parametrize(("name", "shape", "dtype"), [
    ("token_ids", (3,), np.int32),
    ("token_ids", (4,), np.float32),
    ("positions", (4, 1), np.int32),
    ("block_table", (1, 1), np.int32),
])
def test_inputs_of_another_shape_or_dtype_are_refused(model, name, shape, dtype):
    """The executor checks them; kernels do not."""
    inputs = {key: aligned_zeros((4,), np.int32) for key in ("token_ids", "positions", "sequences")}
    inputs["block_table"] = aligned_zeros((model.info.max_sequences, -(-model.info.context // 64)), np.int32)
    model.executor.run("forward", 4, inputs)
    with pytest.raises(RunError, match=f"forward, bucket 4: {name}: got {np.dtype(dtype)} .*, expected int32 "):
        model.executor.run("forward", 4, {**inputs, name: aligned_zeros(shape, dtype)})


def test_sequences_in_one_batch_do_not_see_each_other(model):
    """Three sequences decode in one batch, their cache blocks interleaved: each as if it were alone, bit for bit."""
    session = model.session
    texts = [random_ids(model, count, seed) for seed, count in enumerate((20, 1, 33))]
    alone = [model.logits(ids) for ids in texts]
    slots = [session.acquire() for _ in texts]
    for row in range(max(map(len, texts))):
        rows = [(ids, slot, wanted) for ids, slot, wanted in zip(texts, slots, alone, strict=True) if row < len(ids)]
        hidden = session.step([ids[row] for ids, _, _ in rows], [slot for _, slot, _ in rows])
        got = np.array(session.logits(np.array(hidden)))
        for index, (_, _, wanted) in enumerate(rows):
            assert np.array_equal(got[index], wanted[row]), (row, index)
    for slot in slots:
        session.release(slot)


def run_forward(model, bucket, ids, blocks, row=None):
    """Hidden rows of a prompt in one call, or one of them, its cache in the given blocks."""
    executor, count = model.executor, len(ids)
    table = aligned_zeros((model.info.max_sequences, -(-model.info.context // 64)), np.int32)
    table[1, : len(blocks)] = blocks
    inputs = {name: aligned_zeros((bucket,), np.int32) for name in ("token_ids", "positions", "sequences")}
    inputs["token_ids"][:count] = ids
    inputs["positions"][:] = -1
    inputs["positions"][:count] = np.arange(count)
    inputs["sequences"][:count] = 1
    inputs["block_table"] = table
    if row is None:
        return np.array(executor.run("forward", bucket, inputs)[:count])
    inputs["row"] = aligned_zeros((1,), np.int32)
    inputs["row"][0] = row
    return np.array(executor.run("prompt", bucket, inputs))


@pytest.mark.parametrize("bucket", [4, 16])
def test_prompt_returns_one_row_of_forward(model, bucket):
    ids = random_ids(model, bucket - 1)
    wanted = run_forward(model, bucket, ids, [0])
    for row in range(len(ids)):
        found = run_forward(model, bucket, ids, [3], row)
        assert np.array_equal(found, wanted[row : row + 1])
        # the cache holds every token, not the chosen row's alone
        assert np.array_equal(run_forward(model, bucket, [*ids, 7], [3]), run_forward(model, bucket, [*ids, 7], [0]))


def test_neither_bucket_nor_block_nor_row_of_the_table_shows(model):
    ids = random_ids(model, 3)
    wanted = run_forward(model, 4, ids, [0])
    assert np.abs(wanted).max() > 0.1
    for bucket, block in ((16, 0), (4, 5), (16, 11)):
        assert np.array_equal(run_forward(model, bucket, ids, [block]), wanted)
    long = random_ids(model, 16)
    assert np.array_equal(run_forward(model, 16, long, [7])[:3], run_forward(model, 4, long[:3], [2]))


def test_padding_rows_leave_the_cache_alone(model):
    """A padding row has block table entry 0 and must not write there."""
    session = model.session
    slot = session.acquire()
    ids = random_ids(model, 5)
    session.prefill(ids, slot)
    before = np.array(session.logits(session.step([7], (slot,))))
    session.rewind(1, slot)
    aligned = run_forward(model, 16, random_ids(model, 2, 9), [9])
    assert np.isfinite(aligned).all()
    assert np.array_equal(np.array(session.logits(session.step([7], (slot,)))), before)
    session.release(slot)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_show(path, model, threads):
    ids = random_ids(model, 37)
    wanted = model.logits(ids)
    with load(path, threads=threads) as other:
        assert other.executor.threads == min(threads, usable_cpus())
        assert np.array_equal(other.logits(ids), wanted)


@pytest.mark.slow
def test_threads_share_the_stretches_of_a_long_context(request, artifacts):
    """There is one key/value head for all of them."""
    pytest.importorskip("transformers")
    make = request.getfixturevalue("tiny_checkpoint")
    checkpoint = make("llama", num_key_value_heads=1, max_position_embeddings=2048)
    shapes = {"tokens": [1, 16], "logits": [16], "batch": [1], "context": 2048}
    file = artifacts(checkpoint, shapes=shapes, targets=target_of()).path
    with load(file, threads=1) as alone, load(file, threads=2) as shared:
        ids = random_ids(alone, 1600)
        assert np.array_equal(shared.logits(ids), alone.logits(ids))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int4-g32", "int8", "none", "bf16"])
def test_no_result_depends_on_how_far_ahead_weights_are_asked_for(artifacts, request, scheme):
    pytest.importorskip("transformers")
    shape = {"max_position_embeddings": 256, "hidden_size": 64, "intermediate_size": 96}
    checkpoint = request.getfixturevalue("tiny_checkpoint")("qwen2", **shape)
    quantize = {"scheme": "none", "activations": "bf16"} if scheme == "bf16" else {"scheme": scheme}
    path = artifacts(checkpoint, quantize=quantize, shapes=SHAPES, targets=target_of()).path
    with load(path, threads=2) as model:
        wanted = None
        for ahead, panel in ((0, False), (0, True), (1536, False), (MOST_BYTES, True)):
            distance = Distance(ahead, ahead, panel)
            model.executor.set_distances(Distances(distance, distance, distance))
            got = [model.logits(random_ids(model, count)) for count in (1, 3, 40)]
            wanted = wanted or got
            assert all(map(np.array_equal, got, wanted)), (ahead, panel)


def test_what_was_tuned_is_used(path, tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(cpu_executor.CpuExecutor, "set_distances", lambda self, distances: used.append(distances))
    with load(path, threads=1) as model:
        isa = model.executor.isa
    found = Distances(Distance(64, 64, False), Distance(64, 64, False), Distance(64, 64, False))
    keep_distances(isa, found)
    try:
        with load(path, threads=1):
            pass
    finally:
        forget_distances()
    assert used == [usual_distances(), found]


@pytest.mark.slow
def test_threads_end_before_the_process_lets_weights_go(path):
    """What is registered first at the process's end is called last: the library's threads have been stopped by then."""
    script = """
import atexit, sys
from kernel_threads import become
from pyc.runtime.model import load
atexit.register(lambda: print(running, become(0)))
model = load(sys.argv[1], threads=2)
model.logits([5, 6, 7])
running = become(1)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(kernel_threads.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, path], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout == "1 0\n"


def test_no_thread_is_bound_to_a_cpu(path):
    """TVM's pool would bind the calling thread to one, and all that it starts later, this test's build included."""
    allowed = os.sched_getaffinity(0)
    for threads in (1, None):
        with load(path, threads=threads) as model:
            model.logits(random_ids(model, 20))
            own = [threading.get_native_id(), *kernel_threads.kernel_threads()]
            assert [os.sched_getaffinity(task) for task in own] == [allowed] * len(own)
            assert model.executor.threads == (threads or len(allowed))


def test_another_thread_of_the_process_may_run_it(model):
    ids = random_ids(model, 30)
    wanted, found = model.logits(ids), []
    workers = [threading.Thread(target=lambda: found.append(model.logits(ids))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 3
    assert all(np.array_equal(got, wanted) for got in found)


def test_two_models_at_a_time(path, tiny_checkpoint, built):
    first = built(tiny_checkpoint("qwen2", max_position_embeddings=256), shapes=SHAPES)
    second = built(tiny_checkpoint("qwen2", seed=4, max_position_embeddings=256), shapes=SHAPES)
    ids = random_ids(first, 20)
    wanted = [first.logits(ids), second.logits(ids)]
    assert not np.array_equal(*wanted)
    second.close()
    assert np.array_equal(first.logits(ids), wanted[0])


def test_a_shorter_context_takes_fewer_blocks(path):
    with load(path, threads=1, context=17) as model:
        assert len(model.logits(random_ids(model, 17))) == 17
        with pytest.raises(RunError, match="context of 17"):
            model.logits(random_ids(model, 18))


# --- what is refused


def test_a_cpu_without_the_features(path, monkeypatch):
    monkeypatch.setattr(cpu, "cpu_features", frozenset)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "s390x")
    with pytest.raises(RunError, match=r"s390x\) cannot run the artifact: .* build with another isa"):
        load(path)


def test_a_variant_that_it_does_not_have(path):
    with pytest.raises(RunError, match="has no program for 'mips'; it has: "):
        load(path, isa="mips")


def program_with(*abi: Tool) -> Program:
    return Program(
        backend="cpu",
        device="cpu",
        arch=platform.machine(),
        system="linux",
        isa="x",
        features=(),
        library="l",
        abi=abi,
        functions=(),
    )


@pytest.mark.parametrize(("recorded", "words"), [((), "pyc-step 1, "), ((Tool("pyc-step", "9"),), "pyc-step 9, ")])
def test_code_of_another_convention_is_refused(recorded, words):
    with pytest.raises(RunError, match=f"compiled for {words}this pyc makes steps by version 7: build the artifact"):
        check_convention(program_with(Tool("apache-tvm", "0.27"), *recorded))


@pytest.mark.parametrize("data", [b"", b"no library", b"\x7fELF" + bytes(200)])
def test_bytes_that_are_no_library(model, data):
    with pytest.raises(RunError, match="the artifact's avx9 program does not load on this system"):
        load_library(data, "avx9")


def test_a_system_that_keeps_programs_from_loading(path, monkeypatch):
    """What to do is said: a chroot without /proc, a limit on the size of files."""
    with open_artifact(path) as artifact:
        program = artifact.header.programs[0]
        library = artifact.blob(program.library)
    with monkeypatch.context() as changed:
        changed.setattr("pyc.runtime.executors.cpu.libraries._DESCRIPTORS", "/nowhere/self/fd")
        with pytest.raises(RunError, match=r"does not load on this system: .*; programs are loaded .*: mount /proc$"):
            load_library(library, program.isa)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, former[1]))
    try:
        with pytest.raises(RunError, match=r"File too large; the size of files is limited \(ulimit -f\)"):
            load_library(library, program.isa)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_a_library_that_is_cut(path):
    """The linker maps what the segments say and touches it, which ends the process by SIGBUS."""
    with open_artifact(path) as artifact:
        program = artifact.header.programs[0]
        library = artifact.blob(program.library)
    for size_bytes in range(64, len(library) - 4096, 4096):
        with pytest.raises(RunError, match="does not load on this system"):
            load_library(library[:size_bytes], program.isa)
    with pytest.raises(RunError, match=rf"the library is cut: it has {len(library) // 2} bytes, expected \d+"):
        load_library(library[: len(library) // 2], program.isa)


def test_bytes_that_are_not_aligned(path):
    array = aligned_zeros((65,), np.float32)[1:]
    with pytest.raises(ArtifactError, match=r"model\.norm: its bytes are not 64-byte aligned"):
        cpu_executor._placed("model.norm", array)


def test_weights_are_mapped_and_not_copied(path):
    """Uncompressed tensors are read from the page cache: the executor's arrays are the file's own pages."""
    with open_artifact(path) as artifact:
        executor = cpu_executor.create_executor(artifact, threads=1, kv_blocks=1)
        plain = [
            tensor.name
            for tensor in artifact.header.tensors
            if all(
                artifact.header.chunks[index].codec == "none"
                for index in range(tensor.span.first_chunk, tensor.span.first_chunk + tensor.span.chunk_count)
            )
        ]
        assert plain
        assert all(not executor._arrays[name].flags.owndata for name in plain)
        assert all(not executor._arrays[name].flags.writeable for name in plain)


def test_an_interruption_while_inputs_are_bound_leaves_no_stale_one(model):
    """An array that is bound and not noted, or noted and not bound, would be read in place of the next call's."""
    function = model.executor._functions["forward", 4]
    ids, others = random_ids(model, 3), random_ids(model, 3, seed=1)

    def inputs_of(ids):
        inputs = {name: aligned_zeros((4,), np.int32) for name in ("token_ids", "positions", "sequences")}
        inputs["token_ids"][:3], inputs["positions"][:] = ids, (0, 1, 2, -1)
        table = aligned_zeros((model.info.max_sequences, -(-model.info.context // 64)), np.int32)
        return {**inputs, "block_table": table}

    first, second = inputs_of(ids), inputs_of(others)
    wanted = np.array(function.run(first))
    assert not np.array_equal(np.array(function.run(second)), wanted)
    tracer = sys.gettrace()
    for moment in itertools.count(1):
        function.run(first)
        interrupted = InterruptedAt(moment, ("run", "_place"), "executors/cpu")
        sys.settrace(interrupted)
        try:
            function.run(second)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        assert np.array_equal(function.run(first), wanted), moment
        if interrupted.countdown > 0:
            break
    assert moment > 50


def test_who_catches_an_interruption_may_run_again_at_once(model):
    """The exception is alive then, and with it whatever the frames that it passed have in variables."""
    first, second = random_ids(model, 5), random_ids(model, 3, seed=1)
    wanted = [model.logits(ids) for ids in (first, second)]
    moment = 0
    for moment in interrupted(lambda: model.logits(first), "/runtime/"):
        assert np.array_equal(model.logits(second), wanted[1]), moment
        assert np.array_equal(model.logits(first), wanted[0]), moment
    assert moment > 100
