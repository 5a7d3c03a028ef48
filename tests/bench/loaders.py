"""How fast the same tensors are loaded by pyc and by what else loads checkpoints, and what compression costs and gains.

    python tests/bench/loaders.py --work DIR --out loaders.json [--python PYTHON]

The tensors are those of pyc's artifact of a checkpoint (a random one in the shape of Qwen3-0.6B, int4-g32, if none is
given), written as .safetensors and .tensors with the same bytes. All are in the page cache. Each load is a process of
its own that has imported what it needs, in turn with the others, forwards and backwards. PYTHON is the interpreter of
an environment with fastsafetensors, runai-model-streamer, tensorizer, torch and pyc; what is not there is reported so.

Then the checkpoint as it is (bf16), its chunks stored, and by lz4 and zstd: bytes, and the throughput of a load in
bytes of tensors.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer_files import PeerError
from peers import commit, prepare_place, say
from streaming import build, spread
from workers.loader_worker import LOADERS

from pyc.runtime.host.machine import describe_machine

WORKER = Path(__file__).parent / "workers" / "loader_worker.py"
SMALL_PROGRAM = {"shapes": {"context": 512, "tokens": [1]}, "targets": [{"backend": "cpu", "isa": ["x86-64-v3"]}]}
RECIPES: dict[str, dict[str, Any]] = {
    "int4": {**SMALL_PROGRAM, "quantize": {"scheme": "int4-g32", "embeddings": "int4-g32"}},
    **{f"bf16 {codec}": {**SMALL_PROGRAM, "artifact": {"codec": codec}} for codec in ("none", "lz4", "zstd")},
}


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    machine, source = describe_machine(), commit()
    place = prepare_place(options)
    artifacts = {name: build(place, name, recipe) for name, recipe in RECIPES.items()}

    def work(what: str, artifact: Path) -> dict[str, Any]:
        line = [options.python, str(WORKER), what, str(artifact)]
        done = subprocess.run(line, capture_output=True, text=True, env=place.environment, check=False)
        if done.returncode:
            raise PeerError(f"{what}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout or "{}")
        return result

    work("write", artifacts["int4"])
    turns = [(name, artifacts["int4"]) for name in LOADERS]
    turns += [("pyc, copied, BLAKE3", artifacts[name]) for name in artifacts if name != "int4"]
    found: dict[tuple[str, str], list[float]] = {}
    missing: dict[str, str] = {}
    for number in range(options.rounds + 1):  # the first fills the page cache
        for what, artifact in turns[:: -1 if number % 2 else 1]:
            if what in missing:
                continue
            result = work(what, artifact)
            if "missing" in result:
                missing[what] = result["missing"]
            elif number:
                found.setdefault((artifact.stem, what), []).append(result["bytes"] / 1e9 / result["seconds"])
        say(f"round {number} of {options.rounds}")
    document = {
        **source,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "load_average": os.getloadavg(),
        "rounds": options.rounds,
        "missing": missing,
        "bytes": {name: artifact.stat().st_size for name, artifact in artifacts.items()},
        "gb_per_s": {f"{stem}: {what}": spread(rates) for (stem, what), rates in found.items()},
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    for name, rate in document["gb_per_s"].items():
        print(f"| {name} | {rate['median']:.2f} | {rate['least']:.2f} to {rate['most']:.2f} |")
    for name, size in document["bytes"].items():
        print(f"| {name} | {size:,} |")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint (default: a random Qwen3-0.6B)")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the other loaders")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
