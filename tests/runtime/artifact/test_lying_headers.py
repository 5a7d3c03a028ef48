"""A header that a trusted key signed and that disagrees with its code: an error, or the same results as before."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import artifact_forge
import pytest
from built_models import SMALL_SHAPES, artifacts
from tiny_checkpoints import tiny_checkpoint

from pyc.passes.driver.build import BuildResult
from pyc.runtime.artifact.format import KvCache
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cpu import executor as cpu_executor
from pyc.runtime.executors.cpu.kv_cache import check_memory
from pyc.runtime.generation.kv_blocks import blocks_for
from pyc.runtime.model import load

__all__ = ["artifacts", "tiny_checkpoint"]

SWEEP = """
import contextlib, copy, io, itertools, json, os, signal, sys
from pathlib import Path
import artifact_forge
from pyc.cli import main
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.model import load

original, kind = Path(sys.argv[1]), sys.argv[2]
target = original.with_name("forged.pyca")
HUGE = 2**53 - 1
ids = [5 + index % 7 for index in range(9)]

def results(path):
    with load(path, threads=1) as model:
        if kind == "encoder":
            return model._embedder.embed([ids, ids[:3]]).tobytes()
        tokens = list(model.generate(ids, max_tokens=3, seed=1))
        return model.logits(ids).tobytes()

header = artifact_forge.forge(original, target, lambda document: None)
expected = results(target)

def nasty(value):
    if isinstance(value, bool):
        return [not value, 1, None]
    if isinstance(value, int):
        return [0, 1, value + 1, value - 1, value * 2, 2**31 - 1, 2**31, 2**32, HUGE, HUGE + 1, -1, 1.5, None]
    return {
        "f32": ["f16", "int8", "bf16", "i32"], "f16": ["f32", "int8", "bf16"], "u8": ["i8", "f32", "f16"],
        "decoder": ["encoder"], "encoder": ["decoder"], "mean": ["cls"], "cls": ["mean"],
        "x86_64": ["aarch64"], "aarch64": ["x86_64"], "forward": ["prompt", "logits", "embed"],
        "prompt": ["forward", "logits"], "logits": ["forward", "embed"], "embed": ["forward"],
    }.get(value, []) + ["", "x", "pyc_run", "a\\x00b", "\\u202e" * 200]

def leaves(value, where=()):
    if isinstance(value, dict):
        for name in value:
            yield from leaves(value[name], (*where, name))
    elif isinstance(value, list):
        yield where, [[], value[::-1], value[:-1], value + value[-1:]]
        for index in {0, 1, len(value) // 2, len(value) - 1} & set(range(len(value))):
            yield from leaves(value[index], (*where, index))
    elif value is not None:
        yield where, nasty(value)

def more():
    for name in ("bos_token_id", "pad_token_id"):
        yield ("generation", name), [0, 2**31 - 1, 2**31, header["model"]["vocab_size"], -1]
    yield ("generation", "eos_token_ids"), [[2**31 - 1], [0] * 1000, [-1], [HUGE]]
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        yield ("generation", name), ["0", "1", "2", "9" * 400, "0." + "0" * 390 + "1", "1e9", "nan", "-1"]
    yield ("generation", "top_k"), [0, 1, HUGE, -1]
    yield ("model", "kv_cache"), [None, {"layers": 1, "heads": 1, "head_dim": 1, "dtype": "f32", "block_tokens": 16}]
    yield ("model", "pooling"), [None, {"mode": "cls", "normalize": True}, {"mode": "mean", "normalize": False}]
    functions = header["programs"][0]["functions"]
    for (a, first), (b, second) in itertools.combinations(enumerate(functions), 2):
        for field in ("symbol", "weights", "inputs", "tokens"):
            changed = copy.deepcopy(functions)
            changed[a][field], changed[b][field] = second[field], first[field]
            yield ("programs", 0, "functions"), [changed]

def put(document, where, value):
    *path, last = where
    for step in path:
        document = document[step]
    document[last] = value

counts = {"refused": 0, "same": 0}
for where, values in itertools.chain(leaves({k: v for k, v in header.items() if k != "chunks"}), more()):
    for value in values:
        print("case", where, repr(value)[:200], flush=True)
        signal.alarm(60)
        artifact_forge.forge(original, target, lambda document: put(document, where, value))
        try:
            same = results(target) == expected
            assert same, "other results"
            counts["same"] += 1
        except (ArtifactError, RunError) as error:
            text = str(error)
            assert text.isascii() or "\\u202e" not in text
            assert 10 < len(text) < 2000 and "\\n" not in text, text
            counts["refused"] += 1
        if where[0] == "model":
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = main(["inspect", str(target)])
            assert code in (0, 8, 9), code
print(json.dumps(counts))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "model_type"), [("decoder", "llama"), ("encoder", "bert")])
def test_no_field_of_a_signed_header_is_believed(
    kind: str, model_type: str, artifacts: Callable[..., BuildResult], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")(model_type)
    shapes = {**SMALL_SHAPES, "context": 16}
    path = shutil.copy(artifacts(checkpoint, shapes=shapes).path, tmp_path / "m.pyca")
    folder = str(Path(artifact_forge.__file__).parent)
    script = f"import sys; sys.path.insert(0, {folder!r})\n{SWEEP}"
    command = [sys.executable, "-c", script, str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-600:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused"] > 500
    assert counts["same"] > 100


def change_of(where: str, value: object) -> Callable[[artifact_forge.Document], None]:
    """What puts a value where a path of names and numbers leads."""

    def change(document: artifact_forge.Document) -> None:
        *path, last = [int(part) if part.isdigit() else part for part in where.split(".")]
        place: Any = document
        for step in path:
            place = place[step]
        place[last] = value

    return change


@pytest.mark.slow
@pytest.mark.parametrize(("where", "value", "words"), [
    ("model.kv_cache.layers", 2**53 - 1, r"kv_cache\.layers: the header says 9007199254740991, the code was .* for 2;"),
    ("model.vocab_size", 10**6, "model.vocab_size: the header says 1000000, the code was compiled for "),
    ("model.context", 32, "model.context: the header says 32, the code was compiled for 16; build the artifact again"),
    ("programs.0.features", [], r"features: the header says \[\], the code was compiled for \["),
    ("programs.0.functions.0.symbol", "forward_4", r"forward, 1 tokens\.symbol: .* 'forward_4', .* 'forward_1'"),
])
def test_what_disagrees_is_named(
    where: str, value: object, words: str, artifacts: Callable[..., BuildResult], tmp_path: Path, request: Any
) -> None:
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")("llama")
    path = artifacts(checkpoint, shapes={**SMALL_SHAPES, "context": 16}).path
    artifact_forge.forge(path, tmp_path / "m.pyca", change_of(where, value))
    with pytest.raises(ArtifactError, match=words):
        load(tmp_path / "m.pyca")


def test_a_huge_context_says_what_it_needs(
    artifacts: Callable[..., BuildResult], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")("llama")
    path = artifacts(checkpoint, shapes={**SMALL_SHAPES, "context": 16}).path
    monkeypatch.setattr(cpu_executor, "most_memory_bytes", lambda: 1000)
    with pytest.raises(RunError, match=r"context: the cache of a sequence of 64 tokens takes .*B, .* --context"):
        load(path)


def test_memory_of_a_cache() -> None:
    cache = KvCache(layers=28, heads=8, head_dim=128, dtype="f16", block_tokens=16)
    blocks = blocks_for(1 << 20, 16)
    check_memory(cache, 4 * blocks, 4, 121 * 10**9)
    words = r"of 1048576 tokens takes 120 GB, of all 4 sequences 481 GB.* may have 119 GB"
    with pytest.raises(RunError, match=words):
        check_memory(cache, 4 * blocks, 4, 119 * 10**9)
    with pytest.raises(RunError, match="load with a smaller context"):
        check_memory(cache, 2**31 * blocks, 2**31, 1 << 60)
