"""How soon a model speaks that comes over a network, and what reading and checking it costs.

    python tests/bench/streaming.py --work DIR --out streaming.json

Serves the artifact of a checkpoint (a random one in the shape of Qwen3-0.6B, if none is given) on this machine over
links of 20, 100 and 1,000 MB/s. For each: the time of the bytes alone, which a client without checks takes over as many
connections; the time to the first token of a prompt from `pyc.load` on; and the same where the prompt waits for all
weights. Then load throughput, digests checked, from the page cache and from an unthrottled loopback beside a bare read
of the same bytes. Each number from a process of its own that has imported what it needs; the server takes some of the
same cores. The cache of chunks is off.
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from peer_files import PeerError, Place
from peers import commit, prepare_place, say

from pyc.runtime.host.machine import describe_machine

WORKERS = Path(__file__).parent / "workers"
RECIPE: dict[str, Any] = {"quantize": {"scheme": "int4-g32", "embeddings": "int4-g32"}, "shapes": {"context": 4096}}
LINKS_MB_S = (20, 100, 1000)
MOST_OVER = "1.05 x + 0.2 s"


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    machine, source = describe_machine(), commit()
    place = prepare_place(options)
    artifact = build(place)
    environment = {**place.environment, "PYC_CHUNK_CACHE": "off"}

    def measure(what: str, where: str, prompt: int = 0) -> dict[str, float]:
        line = [sys.executable, str(WORKERS / "streaming_worker.py"), what, where, str(prompt)]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise PeerError(f"{what}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        result: dict[str, float] = json.loads(done.stdout)
        return result

    links = []
    measure("weights-mmap", str(artifact))  # the page cache
    for rate in options.links:
        with serving(artifact, rate * 1e6) as url:
            taken: dict[str, list[dict[str, float]]] = {"bare": [], "first-token": [], "whole-first": []}
            for _ in range(options.rounds):
                for what, results in taken.items():
                    results.append(measure(what, url, options.prompt))
        seconds = {what: spread([each["seconds"] for each in results]) for what, results in taken.items()}
        over_s = seconds["first-token"]["median"] - seconds["bare"]["median"]
        peak = max(each["peak_rss_bytes"] for each in taken["first-token"])
        alone = statistics.median(each["prompt_alone_s"] for each in taken["first-token"])
        links.append(
            {"mb_per_s": rate, "bytes": taken["bare"][0]["bytes"], "seconds": seconds, "over_s": over_s,
             "over_share": over_s / seconds["bare"]["median"], "prompt_alone_s": alone, "peak_rss_bytes": peak}
        )  # fmt: skip
        say(f"{rate} MB/s: " + ", ".join(f"{what} {each['median']:.2f} s" for what, each in seconds.items()))
    loads: dict[str, list[dict[str, float]]] = {}
    with serving(artifact, 0) as url:
        for _ in range(3 * options.rounds):
            for name, what, where in (
                ("page cache, bare read", "read", str(artifact)),
                ("page cache, mapped", "weights-mmap", str(artifact)),
                ("page cache, copied", "weights-pread", str(artifact)),
                ("loopback http, bare read", "bare", url),
                ("loopback http", "weights-mmap", url),
            ):
                loads.setdefault(name, []).append(measure(what, where))
    rates = {
        name: spread([each["bytes"] / 1e9 / each["seconds"] for each in results]) for name, results in loads.items()
    }
    document = {
        **source,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "load_average": os.getloadavg(),
        "versions": {name: metadata.version(name) for name in ("pyc-compiler", "numpy", "blake3", "tokenizers")},
        "job": {"rounds": options.rounds, "prompt_tokens": options.prompt, "recipe": RECIPE},
        "artifact_bytes": artifact.stat().st_size,
        "goal": f"first token within {MOST_OVER} of the bytes alone; loads at 0.8 of a bare read",
        "links": links,
        "load_gb_per_s": rates,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(table(document))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint (default: a random Qwen3-0.6B)")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--links", type=int, nargs="*", default=list(LINKS_MB_S), help="MB/s of each link")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    return parser.parse_args()


def build(place: Place, name: str = "streaming", recipe: Mapping[str, Any] = RECIPE) -> Path:
    """The artifact of the checkpoint by a recipe, in `NAME.pyca`."""
    path, artifact = place.work / f"{name}.yaml", place.work / f"{name}.pyca"
    stated = {**recipe.get("artifact", {}), "path": str(artifact)}
    path.write_text(json.dumps({"model": str(place.checkpoint), **recipe, "artifact": stated}), "utf-8")  # JSON is YAML
    place.run((sys.executable, "-m", "pyc", "build", str(path)))
    return Path(artifact)


@contextlib.contextmanager
def serving(artifact: Path, bytes_per_s: float) -> Iterator[str]:
    """Yield the URL of the artifact behind a link."""
    line = [sys.executable, str(WORKERS / "throttled_server.py"), str(artifact), str(bytes_per_s)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}/m.pyca"
        finally:
            server.terminate()


def spread(values: list[float]) -> dict[str, Any]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "values": values}


def table(document: dict[str, Any]) -> str:
    """The numbers in markdown."""
    lines = [
        "| link | bytes alone | first token | over it | prompt behind all weights | peak memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for link in document["links"]:
        bare, first, whole = (link["seconds"][what]["median"] for what in ("bare", "first-token", "whole-first"))
        lines.append(
            f"| {link['mb_per_s']:,} MB/s | {bare:.2f} s | {first:.2f} s | {link['over_s']:.2f} s, "
            f"{link['over_share']:.1%} | {whole:.2f} s | {link['peak_rss_bytes'] / 1e6:.0f} MB |"
        )
    lines += ["", "| load, digests checked | GB/s, median | best | best, of a bare read's |", "|---|---:|---:|---:|"]
    bare_of = ""
    for name, rate in document["load_gb_per_s"].items():
        bare_of = name if "bare" in name else bare_of
        share = rate["most"] / document["load_gb_per_s"][bare_of]["most"]
        lines.append(f"| {name} | {rate['median']:.2f} | {rate['most']:.2f} | {share:.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
