"""What one processor does in a second of each thing that a build of a checkpoint is made of, for plans on paper.

    python tests/bench/job_rates.py --checkpoint DIR --work DIR --out rates.json

Seconds are those of the processor (CPU time), so other work on the machine counts little; writing is wall time. The
checkpoint is one of `random_checkpoint.py`, in the page cache.
"""

import argparse
import datetime
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line sets it

import numpy as np
from peers import commit, say

from pyc.compiler import gptq
from pyc.compiler.files.blocks import VerifiedFiles, block_digests
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.operands import sources
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import Int4Group
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.host.machine import describe_machine

SCHEMES = ("none", "int8", "int4-g32", "lut4-g32", "fp8", "nvfp4")
BLOCK_BYTES = 8 << 20
ROUNDS = 5


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the least that `work` takes of ROUNDS."""
    taken = []
    for _ in range(ROUNDS):
        at = clock()
        work()
        taken.append(clock() - at)
    return min(taken)


def file_rates(path: Path, copy: Path) -> dict[str, float]:
    """Return bytes a second of what happens to files."""

    def hashed() -> None:
        with SourceFiles() as files:
            files.digest(str(path))

    def by_blocks() -> None:
        with SourceFiles() as files:
            block_digests(files, str(path))

    def sha256() -> None:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)

    def written() -> None:
        with path.open("rb") as file, copy.open("wb") as target:
            while block := file.read(BLOCK_BYTES):
                target.write(block)
            target.flush()
            os.fsync(target.fileno())

    size = path.stat().st_size
    return {
        "blake3_bytes_s": size / seconds(hashed),
        "blake3_and_blocks_bytes_s": size / seconds(by_blocks),
        "sha256_bytes_s": size / seconds(sha256),
        "write_and_sync_bytes_per_wall_s": size / seconds(written, time.perf_counter),
    }


def weight_rates(checkpoint: Path, scheme: str, cache: Cache) -> dict[str, float]:
    """Return weights a second of a matrix as the CPU's backend packs it, read plainly and verified."""
    target = {"backend": "cpu", "isa": ["x86-64-v3"]}
    recipe = recipe_from({"model": str(checkpoint), "quantize": {"scheme": scheme}, "targets": [target]})
    with SourceFiles() as files, VerifiedFiles() as verified:
        weights = lower_recipe(recipe, files, cache).weights()
        weight = next(weight for name, weight in weights.items() if "gate_proj" in name)
        for path in dict.fromkeys(source.path for source in sources(weight.expression)):
            found = block_digests(files, path)
            verified.expect(path, found.size_bytes, [found.run(0, found.size_bytes)])

        def evaluated(opened: SourceFiles) -> None:
            for piece in weight.backend.pieces(weight.expression, opened):
                piece()

        evaluated(files)  # the packer is compiled
        size = weight.tensor.rows * weight.tensor.columns
        return {
            "weights_s": size / seconds(lambda: evaluated(files)),
            "verified_weights_s": size / seconds(lambda: evaluated(verified)),
            "stored_bytes_per_weight": weight.tensor.size_bytes / size,
        }


def gptq_seconds(inputs: int = 2048, rows: int = 4096, tokens: int = 4096) -> dict[str, float]:
    """Return seconds of what GPTQ does to a matrix [rows, inputs]."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((tokens, inputs), np.float32)
    weights = np.float32(0.02) * generator.standard_normal((rows, inputs), np.float32)
    gram = x.T @ x
    hessian = gptq.prepare(gram, gram)
    return {
        "inputs": inputs,
        "rows": rows,
        "tokens": tokens,
        "product_s": seconds(lambda: x @ weights.T),
        "cross_s": seconds(lambda: x.T @ x[::-1]),
        "prepare_s": seconds(lambda: gptq.prepare(gram, gram)),
        "round_s": seconds(lambda: gptq.round_rows(weights, Int4Group(), hessian)),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--checkpoint", "--work", "--out"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args()
    machine, source = describe_machine(), commit()
    largest = max(options.checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    found: dict[str, Any] = {"files": file_rates(largest, options.work / "copy"), "weights": {}}
    for scheme in SCHEMES:
        found["weights"][scheme] = weight_rates(options.checkpoint, scheme, Cache(options.work / "cache"))
        say(f"{scheme}: {found['weights'][scheme]['verified_weights_s']:,.0f} weights/s")
    found["gptq"] = gptq_seconds()
    result = {
        **source,
        "date": datetime.date.today().isoformat(),
        "machine": asdict(machine),
        "load_average": os.getloadavg(),
        "versions": {name: metadata.version(name) for name in ("pyc-compiler", "numpy", "blake3")},
        **found,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
