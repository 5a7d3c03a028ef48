"""runtime/executors/cuda: tokens that the device chooses are the host's, and only they are read back."""

import ctypes
import dataclasses

import msgspec
import numpy as np
import pytest
from built_models import random_ids
from emulated_cuda import CUDA, emulated, emulated_cuda
from long_runs import sample
from tiny_checkpoints import tiny_checkpoint

from pyc.passes.driver.build import build
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cuda.executor import functions_of
from pyc.runtime.executors.cuda.graph import BoundFunctions
from pyc.runtime.executors.cuda.program import InputArray, decode_program
from pyc.runtime.executors.cuda.sampler import check_samplers
from pyc.runtime.executors.protocol import RowSampling
from pyc.runtime.generation.token_counts import TokenCounts
from pyc.runtime.model import load

__all__ = ["emulated_cuda", "tiny_checkpoint"]
pytest.importorskip("torch")

SHAPES = {"tokens": [1, 2, 8], "batch": [3], "logits": [3]}
replace = msgspec.structs.replace
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 12},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.2},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 1.0, "top_k": 20, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 2.0, "top_p": 0.9, "frequency_penalty": -0.5},
]


@pytest.fixture(scope="module")
def artifact(tiny_checkpoint, tmp_path_factory):
    """One of three sequences for CUDA alone."""
    path = tmp_path_factory.mktemp("cuda") / "model.pyca"
    model = tiny_checkpoint("llama", tokenizer=False, max_position_embeddings=128, num_hidden_layers=1)
    with emulated():
        build({"model": str(model), "targets": [CUDA], "shapes": SHAPES}, output=path)
    return path


@pytest.fixture
def model(artifact, emulated_cuda):
    with load(artifact) as loaded:
        yield loaded


def tokens_of(model, prompts, settings, *, samples, count=8):
    """Tokens of prompts that run together, chosen by the device or by the host."""
    sampler = model.executor.sampler
    model.executor.sampler = sampler if samples else None
    try:
        streams = [
            model.generate(ids, max_tokens=count, ignore_eos=True, **each)
            for ids, each in zip(prompts, settings, strict=True)
        ]
        model.scheduler.submit([stream._request for stream in streams])
        return [[token.id for token in stream] for stream in streams]
    finally:
        model.executor.sampler = sampler


@pytest.mark.parametrize("settings", sample(SETTINGS))
def test_tokens_are_those_of_the_host(model, settings):
    for seed in range(3):
        prompts, asked = [random_ids(model, 5 + seed)], [{**settings, "seed": seed}]
        expected = tokens_of(model, prompts, asked, samples=False)
        before = model.executor.read_bytes
        assert tokens_of(model, prompts, asked, samples=True) == expected
        assert model.executor.read_bytes - before == 8 * 4  # a token of 4 bytes, of the prompt and each step


def test_requests_of_different_settings_run_together(model):
    """More than there are sequences, so that sequences are used again; one with log-probabilities among them."""
    asked = [{**settings, "seed": 9} for settings in SETTINGS]
    asked.insert(2, {"logprobs": 3, "temperature": 1.0, "seed": 9})
    prompts = [random_ids(model, 3 + number) for number in range(len(asked))]
    expected = tokens_of(model, prompts, asked, samples=False)
    assert tokens_of(model, prompts, asked, samples=True) == expected
    assert expected == [tokens_of(model, [p], [s], samples=True)[0] for p, s in zip(prompts, asked, strict=True)]


def test_what_is_read_back_is_counted(model):
    ids, vocabulary, hidden = random_ids(model, 7), model.info.vocab_size, model.info.hidden_size

    def read(count, **settings):
        before = model.executor.read_bytes
        list(model.generate(ids, max_tokens=count, ignore_eos=True, temperature=0, **settings))
        return model.executor.read_bytes - before

    assert read(6) == 6 * 4
    assert read(6, logprobs=0) == 6 * 4 * (vocabulary + hidden)  # a row whose logits are asked for has them
    before = model.executor.read_bytes
    together = model.generate([ids, ids, ids], max_tokens=6, temperature=0, ignore_eos=True)
    assert len({tuple(token.id for token in stream) for stream in together}) == 1
    steps = model.executor.read_bytes - before
    assert steps < (3 + 5 * 6) * 3 * 4  # three prompts, and steps of one to three rows


def test_a_row_with_log_probabilities_is_read_back_alone(model):
    """Beside rows whose tokens the device chooses, in one run."""
    ids, vocabulary = random_ids(model, 7), model.info.vocab_size
    sampler, buckets = model.executor.sampler, []
    run = sampler.run

    def counted(name, bucket, inputs, rows):
        before = model.executor.read_bytes
        found = run(name, bucket, inputs, rows)
        buckets.append((bucket, [row is None for row in rows], model.executor.read_bytes - before))
        return found

    sampler.run = counted
    asked = [{"temperature": 0.0}, {"temperature": 0.0, "logprobs": 0}]
    assert len({tuple(tokens) for tokens in tokens_of(model, [ids, ids], asked, samples=True)}) == 1
    assert (2, [False, True], 4 * (2 + vocabulary)) in buckets


def test_a_step_that_is_repeated_chooses_the_same_token(model):
    """As after Ctrl-C: what the device has counted of the first time is forgotten."""
    session, counts = model.session, TokenCounts(model.info.vocab_size, [1, 2])
    slot = session.acquire()
    session.prefill(random_ids(model, 5), slot)

    def chosen():
        row = RowSampling(slot, 0.0, 0, 1.0, 0.0, 1.0, 1e3, 0.0, 0.0, counts)  # each token once
        (token,) = session.next_tokens([3], [slot], [row])
        return token

    first = chosen()
    session.rewind(1, slot)
    assert chosen() == first
    counts.add(first)
    session.rewind(1, slot)
    second = chosen()  # by what the device has counted
    counts.add(second)
    session.rewind(1, slot)
    assert len({first, second, chosen()}) == 3


def test_logits_that_are_no_numbers_end_a_request(model, monkeypatch):
    stream = model.generate(random_ids(model, 4), max_tokens=4, temperature=0.7, ignore_eos=True)
    next(stream)
    wait, sampler = type(model.executor._device).wait, model.executor.sampler
    logits = sampler._memories["logits", 1]

    def broken(device):
        wait(device)
        sampler._drawn[1].arrived[0] = -1  # what the kernel says of them
        logits.arrived[:] = np.nan

    monkeypatch.setattr(type(model.executor._device), "wait", broken)
    with pytest.raises(RunError, match="sampling: the largest logit is nan"):
        list(stream)


def test_functions_of_a_graph_begin_before_those_before_have_ended(artifact, emulated_cuda):
    before = emulated_cuda.emulated_count(b"programmatic_edges")
    with load(artifact) as model:
        tokens_of(model, [random_ids(model, 3)], [{"temperature": 0.8, "seed": 1}], samples=True)
        graphs = [graph._launches for graph in model.executor.sampler._graphs.values()]
        plain = [function._bound for function in model.executor._functions.values()]
        graphs += [bound._launches for bound in plain if bound.launched]
    made = emulated_cuda.emulated_count(b"programmatic_edges") - before
    assert made == sum(len(bound.after) == 1 for launches in graphs for bound in launches)
    between = [bound.after for launches in graphs for bound in launches[1:] if not bound.launch.after]
    assert any(len(after) == 1 for after in between)  # the head, and the choice


def test_a_missing_edge_between_the_functions_of_a_graph_is_found(artifact, emulated_cuda, monkeypatch):
    instantiated = BoundFunctions._instantiated
    settings = {"temperature": 0.0}

    def without_edges(self):
        self._launches = [
            bound if bound.launch.after else dataclasses.replace(bound, after=()) for bound in self._launches
        ]
        return instantiated(self)

    differs = False
    for seed in range(6):
        emulated_cuda.emulated_configure(b"seed", ctypes.c_long(seed))
        with load(artifact) as model:
            expected = tokens_of(model, [random_ids(model, 3)], [settings], samples=False)
        monkeypatch.setattr(BoundFunctions, "_instantiated", without_edges)
        try:
            with load(artifact) as model:
                differs |= tokens_of(model, [random_ids(model, 3)], [settings], samples=True) != expected
        except RunError as error:
            differs |= "CUDA_ERROR" in str(error)
        monkeypatch.setattr(BoundFunctions, "_instantiated", instantiated)
        emulated_cuda.emulated_reset()
    assert differs


def test_a_sampler_that_disagrees_with_its_header_is_refused(artifact, emulated_cuda):
    with open_artifact(artifact) as opened:
        header, (program,) = opened.header, opened.header.programs
        decoded = decode_program(opened.blob(program.library))
    functions = functions_of(program, decoded, header)
    check_samplers(decoded, functions, header.model)
    sampler = decoded.samplers[0]

    def refused(other, says, **named):
        with pytest.raises(ArtifactError, match=says):
            check_samplers(replace(decoded, samplers=(other,)), named.get("functions", functions), header.model)

    drawn, likeliest = sampler.drawn, sampler.likeliest
    arrays = "chooses tokens by other arrays"
    refused(replace(sampler, drawn=replace(drawn, inputs=drawn.inputs[:-1])), arrays)
    refused(replace(sampler, likeliest=replace(likeliest, inputs=drawn.inputs)), arrays)
    refused(replace(sampler, likeliest=replace(likeliest, result=InputArray("tokens", "f32", (1,)))), arrays)
    refused(sampler, arrays, functions=())
    larger = tuple(replace(b, size_bytes=b.size_bytes + 4) if b.kind == "counts" else b for b in drawn.buffers)
    refused(replace(sampler, drawn=replace(drawn, buffers=larger)), "reads other logits or counts")
    other = tuple(replace(b, kind="weight") if b.kind == "logits" else b for b in drawn.buffers)
    refused(replace(sampler, drawn=replace(drawn, buffers=other)), "reads other logits or counts")
