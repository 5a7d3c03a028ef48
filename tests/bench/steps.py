"""Times of single steps of the demo model: percentiles, a histogram, and its plot.

    python tests/bench/steps.py --out steps.json --plots docs/plots

The demo model is built with int8 for this machine's best instruction set. A step is what `pyc bench` times: one token
through the session, its logits and the likeliest of them. The goal is 120 steps a second at the 99th percentile.
"""

import argparse
import datetime
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
from machine_limits import best_isa
from peers import commit, say
from svg_plot import histogram_plot

import pyc
from pyc.runtime.host.machine import describe_machine
from pyc.runtime.measure.benchmark import WARM_UP_TOKENS, DecoderBench, histogram

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
CONTEXT = 512
PROMPT = 128
GOAL_MS = 1000 / 120


def main() -> None:
    """Measure, write and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="generations")
    parser.add_argument("--steps", type=int, default=200, help=f"steps of each, after a prompt of {PROMPT}")
    parser.add_argument("--threads", type=int, default=describe_machine().cores)
    parser.add_argument("--out", type=Path, help="where the numbers go")
    parser.add_argument("--plots", type=Path, help="folder for the plot")
    options = parser.parse_args()
    machine = describe_machine()  # before the kernels' threads are bound to cores
    isa = best_isa()
    recipe = {
        "model": str(DEMO),
        "quantize": {"scheme": "int8"},
        "shapes": {"context": CONTEXT},
        "targets": [{"arch": isa.arch, "isa": [isa.name]}],
    }
    with tempfile.TemporaryDirectory(prefix="pyc-steps-") as folder:
        say("building the demo model")
        path = pyc.build(recipe, output=Path(folder) / "demo.pyca").path
        say("timing steps")
        with pyc.load(path, threads=options.threads) as model:
            bench = DecoderBench(model)
            bench.decode(WARM_UP_TOKENS)
            runs = [bench.decode(options.steps, depth=PROMPT) for _ in range(options.repeats)]
    times = [step * 1e3 for steps in runs for step in steps]
    bins = histogram(times)
    percentiles = {f"p{share:g}": float(np.percentile(times, share)) for share in (50, 90, 99, 99.9, 100)}
    document = {
        **commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "isa": isa.name,
        "threads": options.threads,
        "steps": len(times),
        "percentiles_ms": percentiles,
        "goal_p99_ms": GOAL_MS,
        "verdict": "reached" if percentiles["p99"] < GOAL_MS else "missed",
        "histogram": bins,
    }
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
        title = f"{len(times)} steps of the demo model; 99 % take at most {percentiles['p99']:.3f} ms"
        text = histogram_plot(title, "milliseconds, up to", "steps", bins)
        (options.plots / "steps.svg").write_text(text, "utf-8")
    print("| steps | " + " | ".join(percentiles) + " | goal for p99 | |")
    print("| --- |" + " --- |" * (len(percentiles) + 2))
    cells = " | ".join(f"{value:.3f} ms" for value in percentiles.values())
    print(f"| {len(times)} | {cells} | {GOAL_MS:.2f} ms | {document['verdict']} |")


if __name__ == "__main__":
    main()
