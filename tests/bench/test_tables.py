"""What the other commands write: verdicts, ratios, plots. Speed itself is nobody's test."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # the modules of a script import each other from its folder

import embeddings
import kernel_programs
import kernels
import scaling

GOAL_US = 0.62


def test_a_kernel_reaches_its_goal_below_it():
    rows = [
        kernels.row("fast", [0.5e-6, 0.6e-6, 0.7e-6], GOAL_US),
        kernels.row("slow", np.array([0.5e-6, 0.62e-6, 0.7e-6]), GOAL_US),
        kernels.row("free", [100e-6], None),
    ]
    assert kernels.table(rows).splitlines()[2:] == [
        "| fast | 0.60 (0.50-0.70) | 0.62 | reached |",
        "| slow | 0.62 (0.50-0.70) | 0.62 | missed |",
        "| free | 100 (100-100) |  |  |",
    ]


def test_kernels_take_turns_and_the_median_of_their_calls_counts():
    calls = []
    found = kernels.in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, calls=2)
    assert "".join(calls) == ("a" * 5 + "b" * 5) * 2
    assert {name: times.shape for name, times in found.items()} == {"a": (2,), "b": (2,)}
    assert all((times > 0).all() for times in found.values())


@pytest.mark.parametrize("count", [1, 2])
def test_programs_of_single_kernels_compute_what_they_time(count, tmp_path):
    """One kernel has nothing between it and another, and so an empty workspace."""
    program = kernel_programs.Program(kernel_programs.norms(count, 48), tmp_path, threads=1)
    got = program.executor.run("forward", 1, program.inputs)[0]
    x = program.inputs["x"][0].astype(np.float64)
    for _ in range(count):
        x /= np.sqrt((x * x).mean() + 1e-6)
    # f32 sums of 48 squares
    np.testing.assert_allclose(got, x, rtol=1e-5)
    program.inputs["x"][0, 3] = np.nan
    with pytest.raises(ArithmeticError, match="not finite"):
        program.run()


def test_sentences_are_256_different_ones_of_6_to_40_words():
    found = embeddings.sentences()
    assert len(set(found)) == embeddings.SENTENCES
    assert all(6 <= len(sentence.split()) <= 40 for sentence in found)


def test_the_table_of_embeddings_compares_with_each_storage():
    rows = [
        {"name": "pyc int8", "seconds": [0.5, 0.4, 0.6], "cosine": {"mean": 0.9991, "least": 0.998}},
        {"name": "onnxruntime int8", "seconds": [1.0]},
        {"name": embeddings.REFERENCE, "problem": "not installed"},
    ]
    text = embeddings.table(rows)
    assert "| pyc int8 | 0.500 (0.400-0.600) | 512 | 0.99910 | 0.99800 |  |" in text
    assert "| onnxruntime int8 | 1.000 (1.000-1.000) | 256 | - | - | 2.00x as fast |" in text
    assert f"Not in the table: {embeddings.REFERENCE}: not installed" in text


def test_scaling_plots_every_cache():
    row = {"context": 8, "token_ms": 8.0, "attention_ms": 0.0, "rss_bytes": 4e8, "kv_bytes": 1e6}
    later = {"context": 512, "token_ms": 10.0, "attention_ms": 2.0, "rss_bytes": 5e8, "kv_bytes": 6e7}
    document = {
        "threads": [{"threads": 1, "tok_s": 60.0, "least": 59.0, "most": 61.0}],
        "contexts": {"f16": [row, later], "int8": [row, later]},
    }
    plots = scaling.plots(document)
    assert plots.keys() == {"threads.svg", "contexts.svg", "memory.svg"}
    assert plots["contexts.svg"].count("<polyline") == plots["memory.svg"].count("<polyline") == 4
    text = scaling.tables(document)
    assert "| 1 | 60.0 (59.0-61.0) |" in text
    assert "| int8 | 512 | 10.00 | 2.00 | 60 | 500 |" in text
