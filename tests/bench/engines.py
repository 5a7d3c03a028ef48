"""The engines of one artifact, beside onnxruntime-genai with the model that its builder makes of the same checkpoint.

    python tests/bench/engines.py --work DIR --builder PYTHON --out engines.json

The checkpoint is random, in the shape of Qwen3-0.6B; everything is int4 in groups of 32, the head too. `--builder` is a
Python that has onnxruntime-genai with what its builder needs (torch, transformers, onnx_ir); without it that row is
left out. Every run is a process of its own with the same number of threads; rounds take the engines in turn. A row has
the seconds until the model is loaded, tokens a second of a prompt and of decoding behind it, and memory: the most that
was resident, and what of it is the process's own and not mapped from files.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from peers import commit, say
from random_checkpoint import SHAPES, is_checkpoint, write_checkpoint

import pyc
from pyc.runtime.host.machine import describe_machine

WORKER = Path(__file__).parent / "workers" / "engine.py"
QUANTIZE = {"scheme": "int4-g32", "embeddings": "int4-g32"}
BUILDER = [
    "-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu",
    "--extra_options", "int4_accuracy_level=4", "int4_block_size=32",
]  # fmt: skip


def main() -> None:
    """Build what is missing, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--builder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    engines = prepare(options.work, options.builder)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for number in range(options.rounds):
        for name, (kind, path) in engines.items():
            say(f"round {number + 1} of {options.rounds}: {name}")
            arguments = [kind, path, options.prompt, options.tokens, options.threads]
            command = [sys.executable, str(WORKER), *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    document = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": asdict(describe_machine()),
        "checkpoint": "random, Qwen3-0.6B's shape",
        "quantize": QUANTIZE,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "threads": options.threads,
        "engines": {name: {"bytes": size(path), **summary(runs[name])} for name, (_, path) in engines.items()},
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for name, row in document["engines"].items():
        say(f"{name}: {json.dumps({key: row[key]['median'] for key in runs[name][0]})}")


def prepare(work: Path, builder: Path | None) -> dict[str, tuple[str, Path]]:
    """Return the engines: how each is loaded, and from where."""
    checkpoint, shape = work / "Qwen3-0.6B", SHAPES["Qwen3-0.6B"]
    if not is_checkpoint(checkpoint, shape):
        write_checkpoint(checkpoint, shape)
    recipe = {"model": str(checkpoint), "quantize": QUANTIZE, "shapes": {"context": 2048}}
    found = {}
    for backend in ("cpu", "onnx"):
        path = work / f"{backend}.pyca"
        pyc.build({**recipe, "targets": [{"backend": backend}]}, output=path)
        found[f"pyc, {backend}"] = (backend, path)
    if builder is not None:
        folder = work / "genai"
        if not (folder / "genai_config.json").exists():
            command = [str(builder), *BUILDER[:2], "-i", str(checkpoint), "-o", str(folder), *BUILDER[2:]]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found["onnxruntime-genai, its own model"] = ("genai", folder)
    folder = work / "exported"
    if not folder.exists():
        subprocess.run(["pyc", "export", str(work / "onnx.pyca"), str(folder), "--to", "onnx"], check=True)
    found["onnxruntime-genai, pyc's export"] = ("genai", folder)
    return found


def size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.iterdir())


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most of each number."""
    return {
        key: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for key in runs[0]
        for values in ([run[key] for run in runs],)
    }


if __name__ == "__main__":
    main()
