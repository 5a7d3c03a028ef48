"""The comparison with peers: what it writes and reports. Speed itself is nobody's test."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.append(str(Path(__file__).parent))  # the modules of a script import each other from its folder

import peer_files
import peer_results
import peer_table
import random_checkpoint
from machine_limits import Limits

SHAPE = random_checkpoint.Shape(vocabulary=4096, hidden=64, inner=96, layers=2, heads=4, kv_heads=2, head_dim=16)
LIMITS = Limits("x86-64", read=(1e9, 2e9), float32=(1e9, 2e9), int8=(2e12, 4e12), amx_int8=())


def answer(prefill: float, decode: float, weights_bytes: int | None) -> dict:
    run = {"context": 8, "prefill_tok_s": prefill, "decode_tok_s": decode}
    memory = {"load_s": 1.0, "peak_rss_bytes": 1000, "rss_bytes": 500}
    return {"runs": [run], **memory, "weights_bytes": weights_bytes, "versions": {"engine": "1.2"}}


def engine(name: str, peer: str, speeds: list[tuple[float, float]], weights_bytes: int | None) -> dict:
    answers = [answer(prefill, decode, weights_bytes) for prefill, decode in speeds]
    return {"name": name, "peer": peer, "state": "measured", **peer_results.summary(answers, 8, [8])}


@pytest.fixture
def document() -> dict:
    """Results of pyc, of one peer, and of one that is missing."""
    engines = [
        engine("pyc int8", "pyc", [(100, 30), (120, 20), (90, 40)], 10_000_000),
        engine("llama.cpp Q8_0", "llama.cpp", [(50, 10), (40, 12), (60, 8)], None),
    ]
    for measured in engines:
        peer_results.add_shares(measured, LIMITS, 2_000_000_000, 8)
    return {
        "machine": {"cpu": "A CPU", "arch": "x86_64", "cores": 2, "memory_bytes": 2**34, "kernel": "Linux"},
        "limits": LIMITS.__dict__,
        "job": {"threads": 2, "rounds": 3, "repeats": 1, "decode": 4, "prompt": 8, "contexts": [8]},
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


def test_operations_count_the_matrices_of_layers(tmp_path):
    random_checkpoint.write_checkpoint(tmp_path / "checkpoint", SHAPE)
    matrices = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96
    assert peer_results.operations_a_token(tmp_path / "checkpoint") == 2 * 2 * matrices


def test_results_are_medians_shares_and_ratios_of_medians(document):
    ours = document["engines"][0]
    assert ours["decode_tok_s"]["8"] == {"median": 30, "least": 20, "most": 40}
    assert len(ours["rounds"]) == 3
    assert ours["bandwidth_share"] == pytest.approx(30 * 10e6 / 2e9)
    assert ours["peak_share"] == pytest.approx(100 * 2e9 / 4e12)
    assert document["engines"][1]["bandwidth_share"] is None
    assert document["ratios"] == {"llama.cpp Q8_0": {"pyc int8": {"prefill": 2.0, "decode": {"8": 3.0}}}}


def test_the_table_has_every_engine_measured_or_not(document):
    text = peer_table.markdown(document)
    assert "| pyc int8 | 10 | 100 (90-120) | 30.0 (20.0-40.0) | 15 % | 5 % | 1.00 | 0 |" in text
    assert "| llama.cpp Q8_0 | 2.00x / 3.00x |" in text
    assert "- mistral.rs Q4K: not installed" in text


def test_a_failed_worker_says_why_and_names_no_folder(tmp_path):
    place = peer_files.Place(tmp_path / "checkpoint", tmp_path)
    program = f"raise ValueError({os.fspath(tmp_path / 'model')!r})"
    with pytest.raises(peer_files.PeerError, match="ValueError: WORK/model") as caught:
        place.run((sys.executable, "-c", program))
    assert str(tmp_path) not in str(caught.value)


def test_workers_get_no_key_and_no_cache_of_the_user(tmp_path):
    place = peer_files.Place(tmp_path / "checkpoint", tmp_path)
    program = "import json, os; print(json.dumps([os.environ['PYC_HOME'], os.environ['PYC_CACHE_DIR']]))"
    folders = json.loads(place.run((sys.executable, "-c", program)))
    assert folders == [str(tmp_path / "home"), str(tmp_path / "cache")]
