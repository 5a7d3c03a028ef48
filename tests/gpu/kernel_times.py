"""Times each kernel of some functions on this machine's GPU, beside the bytes that it moves at least and its products.

    python tests/gpu/kernel_times.py [--work build/gpu] [--out times.json] [--model 8b-bf16] [--function forward:1]

All launches of a kernel in a function are one graph, each over its own layer's weights, and waiting for the one before
to end.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "bench"))

from bench import Measured, copy_bandwidth, timed  # noqa: E402
from cuda_roofline import work_of  # noqa: E402

from pyc.runtime.artifact.reader import open_artifact  # noqa: E402
from pyc.runtime.artifact.trust.decision import require_trusted  # noqa: E402
from pyc.runtime.artifact.trust.policy import trust_of  # noqa: E402
from pyc.runtime.executors.cuda.graph import BoundFunctions, BoundLaunch  # noqa: E402
from pyc.runtime.executors.cuda.program import CudaProgram, decode_program  # noqa: E402

COPY_BYTES = 1 << 30
MODELS = ["1b-bf16", "8b-bf16", "8b-fp8", "8b-int4"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Time what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--function", nargs="+", default=["forward:1", "logits:1", "forward:64", "forward:2048"])
    parser.add_argument("--repeat", type=int, default=10)
    given = parser.parse_args(arguments)
    manifest = json.loads((given.work / "manifest.json").read_text())
    report: dict[str, object] = {"commit": manifest["commit"], "models": {}}
    for name in given.model:
        started = time.perf_counter()
        with open_artifact(given.work / f"{name}.pyca") as artifact:
            require_trusted(artifact, trust_of(manifest["key"]))
            measured = Measured(artifact)
            program = next(p for p in artifact.header.programs if p.isa == measured.executor.isa)
            decoded = decode_program(artifact.blob(program.library))
        print(f"{name}: loaded in {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if "copy_gb_s" not in report:
            report |= {"device": measured.device.name, "copy_gb_s": copy_bandwidth(measured.device, COPY_BYTES) / 1e9}
        functions = {}
        for asked in given.function:
            function, _, rows = asked.partition(":")
            functions[asked] = kernel_times(measured, decoded, function, int(rows), given.repeat)
            print_table(name, asked, functions[asked])
        report["models"][name] = functions
        del measured
    if given.out:
        given.out.write_text(json.dumps(report, indent=2))


def kernel_times(
    measured: Measured, program: CudaProgram, name: str, rows: int, repeat: int
) -> list[dict[str, object]]:
    """Return, for each kernel of a function, how often it is launched and what one launch takes."""
    measured.executor.run(name, rows, measured.inputs(name, rows))
    bound = measured.executor._functions[name, rows]._bound
    function = measured.executor._functions[name, rows]._memory.function
    found = []
    for kernel in dict.fromkeys(launch.kernel for launch in function.launches):
        numbers = [number for number, launch in enumerate(function.launches) if launch.kernel == kernel]
        kernels, alone = bound._kernels, BoundFunctions(measured.device, bound._kernels, [])
        for place, launched in enumerate(bound._launches[number] for number in numbers):
            after = (place - 1,) if place else ()
            alone._launches.append(BoundLaunch(launched.launch, after, launched.parameters))
        begin_early, kernels.begin_early = kernels.begin_early, False
        times = timed(lambda alone=alone: (alone.run(), measured.device.wait()), repeat)
        kernels.begin_early = begin_early
        work = [work_of(function, program, number) for number in numbers]
        total = float(np.median(times))
        found.append(
            {
                "kernel": program.kernels[kernel].symbol,
                "grid": function.launches[numbers[0]].grid,
                "threads": program.kernels[kernel].threads,
                "launches": len(numbers),
                "total_ms": total,
                "gb_s": sum(size for size, _ in work) / total / 1e6,
                "tflop_s": sum(2 * products for _, products in work) / total / 1e9,
            }
        )
    return found


def print_table(model: str, function: str, kernels: list[dict[str, object]]) -> None:
    """Print a line for each kernel."""
    total = sum(each["total_ms"] for each in kernels)
    print(f"\n{model} {function}: {total:.3f} ms, one kernel after another")
    for each in kernels:
        grid, time_us = "x".join(map(str, each["grid"])), each["total_ms"] / each["launches"] * 1e3
        share = each["total_ms"] / total
        print(
            f"  {each['kernel']:60} {grid:>10} {each['launches']:4} x {time_us:8.2f} us {share:5.0%} "
            f"{each['gb_s']:7.0f} GB/s {each['tflop_s']:6.1f} TFLOP/s"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
