"""How speed and memory change with threads and with the context: JSON, and a plot of each.

    python tests/bench/scaling.py --work DIR --out scaling.json --plots docs/plots

The model is that of peers.py in the same work folder (a random checkpoint in the shape of Qwen3-0.6B), built with a
context of 33,792 tokens, int4-g32, with keys and values of f16 and of int8. Contexts are filled in pieces of 512 tokens
that do not attend to each other; what is timed reads the whole cache. Threads take turns, each with a process of its
own, bound to as many CPUs.
"""

import argparse
import datetime
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine_limits import best_isa
from peer_files import WORKERS, PeerError, Place
from peers import commit, prepare_place, say
from svg_plot import line_plot

from pyc.compiler.estimate import kv_cache_bytes
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.host.machine import describe_machine

CACHES = ("f16", "int8")
SPARE = 1024

Document = dict[str, Any]


def main() -> None:
    """Measure, write and plot."""
    options = parse_options()
    place = prepare_place(options)
    artifacts = {}
    for cache in CACHES:
        try:
            artifacts[cache] = build(place, cache, options.contexts[-1] + SPARE)
        except PeerError as error:
            say(f"a cache of {cache} could not be built: {error}")
    if not artifacts:
        raise SystemExit("nothing could be built")
    document = {
        **commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(describe_machine()),
        "isa": best_isa().name,
        "steps": options.steps,
        "rounds": options.rounds,
        "threads": measure_threads(place, next(iter(artifacts.values())), options),
        "contexts": {cache: measure_contexts(place, path, cache, options) for cache, path in artifacts.items()},
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    options.plots.mkdir(parents=True, exist_ok=True)
    for name, text in plots(document).items():
        (options.plots / name).write_text(text, "utf-8")
    print(tables(document))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument("--checkpoint", type=Path, help="folder of a Qwen3 checkpoint (default: a random one)")
    parser.add_argument("--contexts", default="8,512,1024,2048,4096,8192,16384,32768", help="tokens before a step")
    parser.add_argument("--steps", type=int, default=24, help="tokens decoded at a time")
    parser.add_argument("--rounds", type=int, default=3, help="times that every number is taken")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    parser.add_argument("--plots", type=Path, required=True, help="folder for the plots")
    options = parser.parse_args()
    options.contexts = sorted({int(number) for number in options.contexts.split(",")})
    if min(options.steps - 1, options.rounds, *options.contexts) < 1 or options.steps > SPARE:
        parser.error(f"contexts and rounds are at least 1, steps 2 to {SPARE}")
    return options


def build(place: Place, cache: str, context: int) -> Path:
    """Build the artifact of one kind of cache. Raises PeerError."""
    say(f"building with a cache of {cache}")
    isa = best_isa()
    path = place.work / f"pyc-scaling-{cache}.pyca"
    recipe = {
        "model": str(place.checkpoint),
        "quantize": {"scheme": "int4-g32", "embeddings": "int4-g32", "kv_cache": cache},
        "shapes": {"context": context, "batch": [1, 2]},
        "targets": [{"arch": isa.arch, "isa": [isa.name]}],
    }
    source = path.with_suffix(".yaml")
    source.write_text(json.dumps(recipe), "utf-8")
    place.run((sys.executable, "-m", "pyc", "build", str(source), "-o", str(path)))
    return path


def run_worker(place: Place, weights: Path, threads: int, contexts: list[int], options: argparse.Namespace) -> Document:
    """Rows of one process."""
    job = {"weights": str(weights), "threads": threads, "contexts": contexts, "steps": options.steps, "repeats": 1}
    if len(contexts) > 1:
        job["repeats"] = options.rounds
    lines = place.run((sys.executable, str(WORKERS / "pyc_lengths.py")), json.dumps(job)).strip().splitlines()
    return json.loads(lines[-1])


def measure_threads(place: Place, weights: Path, options: argparse.Namespace) -> list[Document]:
    """Tokens a second from one thread to all CPUs at the least context, in turn."""
    counts = range(1, describe_machine().cores + 1)
    found: dict[int, list[float]] = {count: [] for count in counts}
    for number in range(1, options.rounds + 1):
        for count in counts:
            (row,) = run_worker(place, weights, count, options.contexts[:1], options)["rows"]
            found[count].append(1e3 / row["token_ms"])
            say(f"round {number}: {count} threads: {found[count][-1]:.1f} tokens a second")
    return [
        {"threads": count, "tok_s": statistics.median(speeds), "least": min(speeds), "most": max(speeds)}
        for count, speeds in found.items()
    ]


def measure_contexts(place: Place, weights: Path, cache: str, options: argparse.Namespace) -> list[Document]:
    """Time of a token, attention's part of it, and memory, at every context."""
    say(f"contexts with a cache of {cache}")
    with open_artifact(weights) as artifact:
        info = artifact.header.model
    rows = run_worker(place, weights, describe_machine().cores, options.contexts, options)["rows"]
    for row in rows:
        row["kv_bytes"] = kv_cache_bytes(info, 1, row["context"])
        say(f"{row['context']}: {row['token_ms']:.2f} ms, {row['rss_bytes'] / 1e6:.0f} MB")
    return rows


def plots(document: Document) -> dict[str, str]:
    """SVG by file name."""
    speeds = [(row["threads"], row["tok_s"]) for row in document["threads"]]
    times, memory = {}, {}
    for cache, rows in document["contexts"].items():
        times[f"a token, {cache} cache"] = [(row["context"], row["token_ms"]) for row in rows]
        times[f"attention, {cache} cache"] = [(row["context"], row["attention_ms"]) for row in rows]
        memory[f"process, {cache} cache"] = [(row["context"], row["rss_bytes"] / 1e6) for row in rows]
        memory[f"keys and values, {cache}"] = [(row["context"], row["kv_bytes"] / 1e6) for row in rows]
    return {
        "threads.svg": line_plot(
            "Decoding with more threads", "threads", "tokens a second", {"int4-g32": speeds}, doubling=False
        ),
        "contexts.svg": line_plot(
            "What a token costs behind a context", "tokens of context", "milliseconds", times, doubling=True
        ),
        "memory.svg": line_plot("Memory with a context", "tokens of context", "MB", memory, doubling=True),
    }


def tables(document: Document) -> str:
    """The same as markdown."""
    lines = ["| threads | tokens a second |", "| --- | --- |"]
    lines += [
        f"| {row['threads']} | {row['tok_s']:.1f} ({row['least']:.1f}-{row['most']:.1f}) |"
        for row in document["threads"]
    ]
    lines += ["", "| cache | context | ms a token | attention, ms | keys and values, MB | process, MB |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {cache} | {row['context']} | {row['token_ms']:.2f} | {row['attention_ms']:.2f} | "
        f"{row['kv_bytes'] / 1e6:.0f} | {row['rss_bytes'] / 1e6:.0f} |"
        for cache, rows in document["contexts"].items()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
