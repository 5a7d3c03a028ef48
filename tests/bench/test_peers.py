"""The comparison with peers: what it writes and reports. Speed itself is nobody's test."""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.append(str(Path(__file__).parent))  # the modules of a script import each other from its folder
sys.path.append(str(Path(__file__).parent / "workers"))

import peer_engines
import peer_files
import peer_quality
import peer_results
import peer_speeds
import peer_table
import peer_turns
import peers
import random_checkpoint
from built_models import artifacts, built, random_ids
from machine_limits import Limits
from pyc_session import FillingSession
from tiny_checkpoints import tiny_checkpoint, tiny_copy

from pyc.models.decoder import BLOCK_TOKENS

__all__ = ["artifacts", "built", "tiny_checkpoint", "tiny_copy"]

SHAPE = random_checkpoint.Shape(vocabulary=4096, hidden=64, inner=96, layers=2, heads=4, kv_heads=2, head_dim=16)
LIMITS = Limits("x86-64", read=(1e9, 2e9), float32=(1e9, 2e9), int8=(2e12, 4e12), amx_int8=())


def answer(prefill: float, decode: float, weights_bytes: int | None, batches: list[tuple[int, float]]) -> dict:
    short = {"context": 8, "prefill_tok_s": prefill, "decode_tok_s": decode}
    filled = {"context": 4096, "prefill_tok_s": None, "decode_tok_s": decode / 2}
    memory = {"load_s": 1.0, "peak_rss_bytes": 1000, "rss_bytes": 500}
    together = [{"sequences": count, "decode_tok_s": speed} for count, speed in batches]
    versions = {"engine": "1.2"}
    return {
        "runs": [short, filled],
        "batches": together,
        **memory,
        "weights_bytes": weights_bytes,
        "versions": versions,
        "limits": {"read": 2e9, "int8": 4e12},
    }


def engine(name: str, peer: str, speeds: list[tuple[float, float]], weights_bytes: int | None, kl: float) -> dict:
    batches = [(1, 10.0), (4, 35.0)] if peer == "pyc" else []
    answers = [answer(prefill, decode, weights_bytes, batches) for prefill, decode in speeds]
    summary = peer_results.summary(answers, [8], [8, 4096])
    found = {"name": name, "peer": peer, "cache_bits": 16, "quality": {"kl": kl}, "state": "measured"}
    return {**found, "long_problem": None, **summary}


@pytest.fixture
def document() -> dict:
    """Results of pyc, of two peers, and of one that is missing."""
    engines = [
        engine("pyc int8", "pyc", [(100, 30), (120, 20), (90, 40)], 10_000_000, 2e-3),
        engine("llama.cpp Q8_0", "llama.cpp", [(50, 10), (40, 12), (60, 8)], 10_400_000, 1e-3),
        engine("openvino int8", "openvino-genai", [(80, 6)], None, 3e-3),
    ]
    for measured in engines:
        peer_results.add_shares(measured, 2_000_000_000, 8, 8)
    engines[2]["long_problem"] = "it said\nout of memory"
    job = {
        "threads": 2,
        "rounds": 3,
        "repeats": 1,
        "decode": 4,
        "prompts": [8],
        "contexts": [8, 4096],
        "batches": [1, 4],
    }
    return {
        "model": "random weights in the shape of Qwen3-4B",
        "machine": {"cpu": "A CPU", "arch": "x86_64", "cores": 2, "memory_bytes": 2**34, "kernel": "Linux"},
        "limits": LIMITS.__dict__,
        "job": job,
        "commit": "0123456789abcdef",
        "dirty": False,
        "date": "2026-01-01",
        "operations_a_token": 2_000_000_000,
        "versions": peer_results.versions(engines),
        "engines": [*engines, {"name": "mistral.rs Q4K", "peer": "mistral.rs", "state": "not installed"}],
        "ratios": peer_results.ratios(engines),
    }


def test_the_checkpoint_is_one_that_others_load(tmp_path, monkeypatch):
    monkeypatch.setattr(random_checkpoint, "SHARD_BYTES", 200_000)
    folder = tmp_path / "checkpoint"
    random_checkpoint.write_checkpoint(folder, SHAPE)
    shards = sorted(folder.glob("*.safetensors"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    embedding = model.get_input_embeddings().weight.detach().float().numpy()
    assert len(shards) > 1
    assert AutoConfig.from_pretrained(folder).rope_parameters["rope_theta"] == 1e6
    assert embedding.shape == (4096, 64)
    # 262,144 draws: the standard error of the deviation is 0.0014 of it, and cutting to bfloat16 takes at most 1/128
    assert np.std(embedding) == pytest.approx(0.02, rel=0.015)
    stored = {name for shard in shards for name in safe_open(shard, framework="pt").keys()}  # noqa: SIM118  no mapping
    assert stored == dict(SHAPE.tensors()).keys()


def test_a_folder_with_another_checkpoint_is_not_measured(tmp_path):
    random_checkpoint.write_checkpoint(tmp_path / "checkpoint", SHAPE)
    options = argparse.Namespace(work=tmp_path, checkpoint=None)
    with pytest.raises(SystemExit, match="expected Qwen3-4B's: remove it"):
        peers.prepare_place(options, "Qwen3-4B")


def test_shapes_are_of_the_models_that_they_are_called_after():
    weights = {
        name: sum(int(np.prod(dimensions)) for _, dimensions in shape.tensors())
        for name, shape in random_checkpoint.SHAPES.items()
    }
    # https://huggingface.co/Qwen: parameters of the published checkpoints, embeddings counted once
    assert weights == {"Qwen3-0.6B": 596_049_920, "Qwen3-1.7B": 1_720_574_976, "Qwen3-4B": 4_022_468_096}


def test_operations_count_the_matrices_of_layers(tmp_path):
    random_checkpoint.write_checkpoint(tmp_path / "checkpoint", SHAPE)
    matrices = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96
    assert peer_results.operations_a_token(tmp_path / "checkpoint") == 2 * 2 * matrices


def test_results_are_medians_shares_and_ratios_of_medians(document):
    ours = document["engines"][0]
    assert ours["decode_tok_s"]["8"] == {"median": 30, "least": 20, "most": 40}
    assert ours["prefill_tok_s"] == {"8": {"median": 100, "least": 90, "most": 120}}
    assert len(ours["rounds"]) == 3
    assert ours["bandwidth_share"] == pytest.approx(30 * 10e6 / 2e9)
    assert ours["peak_share"] == pytest.approx(100 * 2e9 / 4e12)
    assert ours["attention_ms"] == {"8": 0, "4096": pytest.approx(1000 / 15 - 1000 / 30)}
    assert document["engines"][2]["bandwidth_share"] is None
    entry, other = document["ratios"]
    assert (entry["comparison"], entry["pyc"]) == ("equal bytes", "pyc int8")
    assert (other["comparison"], [row["peer"] for row in other["peers"]]) == ("equal or better KL", ["openvino int8"])
    assert entry["peers"][0] == {
        "peer": "llama.cpp Q8_0",
        "prefill": {"8": 2.0},
        "decode": {"8": 3.0, "4096": 3.0},
    }
    assert other["best"] == {"prefill": {"8": 1.25}, "decode": {"8": 5.0, "4096": 5.0}}


def test_ratios_are_of_equal_bytes_or_of_a_kl_that_is_no_worse_and_of_a_cache_as_wide(document):
    """Names of the peers that an engine is compared with, by comparison."""
    ours, near, far = document["engines"][:3]
    found = {name: [peer["name"] for peer in peers] for name, _, peers in peer_results.comparisons([ours, near, far])}
    assert found == {"equal bytes": [near["name"]], "equal or better KL": [far["name"]]}
    far["weights_bytes"], near["weights_bytes"] = 9_600_000, 9_400_000
    far["quality"], near["quality"] = {"kl": 2e-3}, None
    found = {name: [peer["name"] for peer in peers] for name, _, peers in peer_results.comparisons([ours, near, far])}
    assert found == {"equal bytes": [far["name"]], "equal or better KL": [far["name"]]}
    far["cache_bits"] = 8
    assert list(peer_results.comparisons([ours, near, far])) == []


def test_quality_is_the_mean_divergence_from_the_reference():
    """Against sums over the definition; three texts of four scored tokens."""
    random = np.random.default_rng(1)
    logits, other = (random.normal(size=(3, 4, 7)).astype(np.float32) for _ in range(2))
    targets = random.integers(0, 7, (3, 4))
    p, q = (np.exp(z.astype(np.float64)) / np.exp(z.astype(np.float64)).sum(-1, keepdims=True) for z in (logits, other))
    found = peer_quality.figures(np.log(p).astype(np.float32), other, targets)
    expected = [sum(p[w, t, i] * np.log(p[w, t, i] / q[w, t, i]) for i in range(7)) for w in range(3) for t in range(4)]
    assert found["kl"] == pytest.approx(np.mean(expected), rel=1e-5)  # the reference is rounded to f32
    assert found["kl_error"] == pytest.approx(np.std(expected) / np.sqrt(11), rel=1e-5)
    chosen = [q[w, t, targets[w, t]] for w in range(3) for t in range(4)]
    assert found["perplexity"] == pytest.approx(np.exp(-np.mean(np.log(chosen))))
    assert found["same_top"] == np.mean(p.argmax(-1) == q.argmax(-1))


def test_the_reference_reads_as_llama_cpp_reads_it(tmp_path, monkeypatch):
    """Scale and least value as f32 in four codes, then a code of 16 bits for each of an odd vocabulary, padded."""
    monkeypatch.setattr(peer_quality, "WINDOW", 8)
    values = np.linspace(-30, 0, 7, dtype=np.float32).reshape(1, 1, 7).repeat(3, axis=1) - np.float32(0.01)
    peer_quality.write_llama_reference(tmp_path / "r.kld", np.arange(8, dtype=np.int32)[None], values)
    data = (tmp_path / "r.kld").read_bytes()
    assert data[:8] == b"_logits_"
    assert np.frombuffer(data, "<i4", 11, 8).tolist() == [8, 7, 1, *range(8)]
    rows = np.frombuffer(data, "<u2", offset=8 + 44).reshape(3, 4 + 8)
    scale, least = rows[0, :4].copy().view("<f4")
    got = scale * rows[0, 4:11].astype(np.float32) + least
    # values more than 24 below the largest are raised to that
    np.testing.assert_allclose(got, np.maximum(values[0, 0], -24.01), atol=24 / 65535)


def test_a_length_without_runs_has_no_figure():
    found = peer_results.summary([answer(100, 30, None, [])], [8, 512], [8, 16384])
    assert found["prefill_tok_s"]["512"] is None
    assert found["decode_tok_s"]["16384"] is None
    assert found["attention_ms"]["16384"] is None


def test_the_table_has_every_engine_measured_or_not(document):
    text = peer_table.markdown(document)
    speeds = "0.002 | 16 | 100 (90-120) | 30.0 (20.0-40.0) | 15.0 (10.0-20.0)"
    assert f"| pyc int8 | 10 | {speeds} | 15 % | 5 % | 1.00 | 0 |" in text
    assert "| pyc int8 | 33.33 |" in text
    assert "| pyc int8 | 10.0 (10.0-10.0) | 35.0 (35.0-35.0) | 3.50x |" in text
    assert "| equal bytes | pyc int8 | llama.cpp Q8_0 | 2.00x | 3.00x | 3.00x |" in text
    best = "**the best in each column** | **1.25x** | **5.00x** | **5.00x** |"
    assert f"| equal or better KL | pyc int8 | {best}" in text
    assert "Model: random weights in the shape of Qwen3-4B. Read bandwidth" in text
    assert "- mistral.rs Q4K: not installed" in text
    assert "- openvino int8 at long contexts: out of memory" in text


def test_ratios_are_of_turns_in_which_the_memory_was_as_fast(document):
    """Medians of all turns would say 20 over 10; a turn in which the memory changed counts for neither."""
    ours, peer = document["engines"][:2]
    for engine, speeds in ((ours, (20, 40)), (peer, (10, 11))):
        (answer,) = engine["rounds"][:1]
        (run,) = [run for run in answer["runs"] if run["context"] == 8]
        reads = {20: [3e9, 3.1e9], 40: [6e9, 6e9], 10: [3e9, 3e9], 11: [5.9e9, 6e9]}
        turns = [{**run, "decode_tok_s": speed, "reads": reads[speed]} for speed in speeds for _ in range(3)]
        engine["rounds"] = [{**answer, "runs": [turn]} for turn in turns]
    ours["rounds"].append({"runs": [{**run, "decode_tok_s": 1000, "reads": [3e9, 6e9]}]})
    document["engines"] = [ours, peer]
    lines = peer_speeds.by_speed([document]).splitlines()
    assert lines[0] == "| comparison | pyc | memory | prefill of 8 | decode at 8 | decode at 4096 |"
    slower, faster = (line.split(" | ") for line in lines[2:])
    assert slower[2:] == ["slower", "2.00x llama.cpp Q8_0 (3, 3)", "2.00x llama.cpp Q8_0 (3, 3)", "- |"]
    assert faster[2:] == ["faster", "2.00x llama.cpp Q8_0 (3, 3)", "3.64x llama.cpp Q8_0 (3, 3)", "- |"]
    peer["rounds"] = peer["rounds"][:4]
    assert len(peer_speeds.by_speed([document]).splitlines()) == 3  # of the faster memory the peer has one turn now


def test_nothing_is_sorted_where_reads_are_alike(document):
    assert peer_speeds.by_speed([document]) == ""


def test_limits_are_measured_at_rest_between_turns_those_that_fail_too(monkeypatch):
    """Three turns, the second of an engine that fails: four times of rest, each before the limits are read."""
    events = []

    class Meter:
        def now(self):
            events.append("read")
            return {"read": 1.0 * len(events), "int8": None}

    class WorkPlace:
        work = checkpoint = Path("somewhere")

        def run(self, command, standard_input):
            events.append("turn")
            if len(events) > 4:
                return 'a line\n{"runs": [{"context": 8}]}\n'
            raise peer_files.PeerError("exit status 1")

    monkeypatch.setattr(peer_turns.time, "sleep", lambda seconds: events.append(seconds))
    turns = peer_turns.Turns(WorkPlace(), {"pyc": Path("python")}, Meter(), 6.0)
    engine = peer_engines.ENGINES[0]
    with pytest.raises(peer_files.PeerError):
        turns.take(engine, {})
    found = [turns.take(engine, {}) for _ in range(2)]
    assert events == [6.0, "read", *("turn", 6.0, "read") * 3]
    assert [answer["runs"][0]["reads"] for answer in found] == [[5.0, 8.0], [8.0, 11.0]]
    assert [answer["limits"] for answer in found] == [{"read": 8.0, "int8": 0}, {"read": 11.0, "int8": 0}]


def test_every_storage_of_pyc_has_an_engine_and_every_engine_a_peer():
    ours = [engine for engine in peer_engines.ENGINES if engine.peer == peer_engines.PYC]
    peers = {peer.name for peer in peer_engines.PEERS}
    assert {engine.weights for engine in ours} == set(peer_engines.PYC_STORAGES)
    assert {engine.maker or engine.peer for engine in peer_engines.ENGINES} <= {*peers, peer_engines.PYC}
    workers = Path(peer_files.WORKERS)
    scripts = {name for engine in peer_engines.ENGINES for name in (engine.worker, engine.quality) if name}
    assert all((workers / name).is_file() for name in scripts)
    assert {engine.cache_bits for engine in peer_engines.ENGINES} == {8, 16}


def test_peers_are_found_where_they_are_given_or_in_the_work_folder(tmp_path):
    for program in ("llama.cpp/bin/python", "ik_llama.cpp/bin/llama-bench"):
        (tmp_path / program).parent.mkdir(parents=True)
        (tmp_path / program).touch()
    found = peers.find_pythons({"llama.cpp": "/elsewhere/python"}, tmp_path)
    assert found["llama.cpp"] == Path("/elsewhere/python")
    assert found["ik_llama.cpp"] == tmp_path / "ik_llama.cpp/bin/llama-bench"
    assert found["pyc"] == Path(sys.executable)
    assert "openvino-genai" not in found


def test_a_filled_context_is_as_long_as_a_computed_one(tiny_checkpoint, built):
    path = tiny_checkpoint("llama", tokenizer=False, max_position_embeddings=4 * BLOCK_TOKENS)
    model = built(path, shapes={"tokens": [1, BLOCK_TOKENS], "logits": [1], "context": 4 * BLOCK_TOKENS})
    ids = random_ids(model, 3 * BLOCK_TOKENS)
    filling = FillingSession(model, 4 * BLOCK_TOKENS)
    session = filling.session
    slot = session.acquire()
    filling.fill(ids[:BLOCK_TOKENS], slot)
    filled = session.logits(session.step((ids[BLOCK_TOKENS],), (slot,))).copy()
    # one piece is a prompt like any other
    assert np.array_equal(filled[0], model.logits(ids[: BLOCK_TOKENS + 1])[BLOCK_TOKENS])
    session.rewind(1, slot)
    filling.fill(ids[BLOCK_TOKENS:], slot)
    assert session.length(slot) == len(ids)
    later = session.logits(session.step((ids[0],), (slot,)))[0].copy()
    # the later pieces are in the cache, though they are not what a prompt of that length leaves there
    assert np.isfinite(later).all()
    assert not np.array_equal(later, filled[0])
    assert not np.allclose(later, model.logits([*ids, ids[0]])[-1])


def test_a_failed_worker_says_why_and_names_no_folder(tmp_path):
    place = peer_files.Place(tmp_path / "checkpoint", tmp_path)
    program = f"raise ValueError({os.fspath(tmp_path / 'model')!r})"
    with pytest.raises(peer_files.PeerError, match="ValueError: WORK/model") as caught:
        place.run((sys.executable, "-c", program))
    assert str(tmp_path) not in str(caught.value)


def test_files_are_read_anew_and_not_changed(tmp_path):
    folder = tmp_path / "weights"
    (folder / "inner").mkdir(parents=True)
    files = {folder / "one": b"x" * 5000, folder / "inner" / "two": b""}
    for path, data in files.items():
        path.write_bytes(data)
    peer_files.read_anew(folder)
    peer_files.read_anew(folder / "one")
    assert {path: path.read_bytes() for path in files} == files


def test_workers_get_no_key_and_no_cache_of_the_user(tmp_path):
    place = peer_files.Place(tmp_path / "checkpoint", tmp_path)
    program = "import json, os; print(json.dumps([os.environ['PYC_HOME'], os.environ['PYC_CACHE_DIR']]))"
    folders = json.loads(place.run((sys.executable, "-c", program)))
    assert folders == [str(tmp_path / "home"), str(tmp_path / "cache")]
