"""The measurement of builds, loads and starts: what it writes. Speed itself is nobody's test."""

import json
import platform
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # the modules of a script import each other from its folder

import random_checkpoint
import startup

SHAPE = random_checkpoint.Shape(vocabulary=4096, hidden=64, inner=96, layers=2, heads=4, kv_heads=2, head_dim=16)
PORTABLE = {"x86_64": "x86-64", "aarch64": "armv8"}[platform.machine()]


def test_every_figure_is_taken(tmp_path, monkeypatch, capsys):
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "startup.json"
    random_checkpoint.write_checkpoint(checkpoint, SHAPE)
    places = ("--checkpoint", checkpoint, "--work", tmp_path, "--out", out)
    arguments = (*places, "--rounds", 2, "--builds", 1, "--isa", PORTABLE)
    monkeypatch.setattr(sys, "argv", ["startup.py", *map(str, arguments)])
    startup.main()
    document = json.loads(out.read_text("utf-8"))
    seconds, peaks = document["seconds"], document["peak_rss_bytes"]
    assert set(document["goals_s"]) <= set(seconds)
    for name, figures in seconds.items():
        assert 0 < figures["least"] <= figures["median"] <= figures["most"], name
        assert len(figures["values"]) == (1 if name.startswith("build") else 2), "the warm-up is not counted"
    assert set(peaks) == {"build, empty cache", "build, full cache", "first token"}
    assert min(figures["least"] for figures in peaks.values()) > 1 << 20
    assert len(document["commit"]) in (0, 40)
    assert document["versions"]["apache-tvm"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| what | seconds")
    assert len(lines) == 2 + len(seconds)


def test_a_process_that_fails_says_why(tmp_path):
    bench = startup.Startup(startup.Place(tmp_path / "none", tmp_path), None)
    with pytest.raises(startup.PeerError, match="exit status"):
        bench.build(is_cold=True)
