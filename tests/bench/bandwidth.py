"""The share of the memory's bandwidth that decoding reaches, tokens and plain reads in turn.

    python tests/bench/bandwidth.py --work WORK --out bandwidth.json

On a machine that others use the memory's speed changes within seconds, and what was read before a run says little of
it. Here a few tokens stand between two plain reads, many times; a share is the bytes of weights that these tokens read
in a second over the mean of the reads before and after them.

Where reads differ by more than SPREAD, as on a virtual machine whose cores move from chiplet to chiplet, a second
table has the turns with the slower and with the faster memory apart.
"""

import argparse
import datetime
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from machine_limits import LimitMeter, best_isa
from peer_files import read_anew
from peers import commit, prepare_place, say
from workers.weights_read import bytes_a_token

import pyc
from pyc.runtime.host.machine import describe_machine

SCHEMES = {
    "int4-g32": {"scheme": "int4-g32", "embeddings": "int4-g32"},
    "int8": {"scheme": "int8"},
    "bf16": {},
}
CONTEXT = 512
PROMPT = 8
READ_BYTES = 1 << 28
WARM_UP = 3
SPREAD = 1.4
SLEEP_S = 0.03
"""Until the kernels' threads have gone to sleep: while they look for work they take a CPU from the readers."""


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint (default: a random one of 0.6B)")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument("--turns", type=int, default=60, help="of each scheme")
    parser.add_argument("--tokens", type=int, default=8, help="decoded in a turn")
    parser.add_argument("--threads", type=int, default=describe_machine().cores)
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    options = parser.parse_args()
    machine, source = describe_machine(), commit()
    place = prepare_place(options)
    meter = LimitMeter(place.work / "cache", options.threads)
    rows = []
    for name, quantize in SCHEMES.items():
        say(f"building {name}")
        isa = best_isa()
        recipe = {
            "model": str(place.checkpoint),
            "quantize": quantize,
            "shapes": {"context": CONTEXT, "tokens": [1, PROMPT]},
            "targets": [{"arch": isa.arch, "isa": [isa.name]}],
        }
        path = pyc.build(recipe, output=place.work / f"bandwidth-{name}.pyca").path
        read_anew(path)
        say(f"measuring {name}")
        rows.append({"scheme": name, **measure(path, meter, options.turns, options.tokens, options.threads)})
        path.unlink()
    document = {
        **source,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "threads": options.threads,
        "turns": options.turns,
        "tokens": options.tokens,
        "rows": rows,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(table(rows))
    print(f"\n{by_speed(rows)}")


def measure(path: Path, meter: LimitMeter, turns: int, tokens: int, threads: int) -> dict[str, object]:
    """Medians of the turns, and quartiles of the share."""
    weights = bytes_a_token(str(path))
    buffer = np.ones(READ_BYTES // 8, np.uint64)
    speeds, reads = [], []
    with pyc.load(path, threads=threads) as model, model.session.lock:
        session = model.session
        slot = session.acquire()
        for turn in range(turns + WARM_UP):
            session.rewind(session.length(slot), slot)
            session.prefill(list(range(PROMPT)), slot)
            time.sleep(SLEEP_S)
            before = meter.read_once(buffer)
            start = time.perf_counter()
            for token in range(tokens):
                session.logits(session.step((token,), (slot,)))[0].argmax()
            seconds = time.perf_counter() - start
            time.sleep(SLEEP_S)
            after = meter.read_once(buffer)
            if turn >= WARM_UP:
                speeds.append(tokens / seconds)
                reads.append((before + after) / 2)
        session.release(slot)
    shares = np.array(speeds) * weights / np.array(reads)
    low, middle, high = (float(value) for value in np.percentile(shares, (25, 50, 75)))
    return {
        "weights_bytes": weights,
        "decode_tok_s": float(np.median(speeds)),
        "read_bytes_s": float(np.median(reads)),
        "share": middle,
        "share_quartiles": [low, high],
        "turns": [{"decode_tok_s": speed, "read_bytes_s": read} for speed, read in zip(speeds, reads, strict=True)],
    }


def table(rows: list[dict[str, object]]) -> str:
    """The rows in markdown."""
    columns = ("scheme", "weights a token, MB", "tokens a second", "read, GB/s", "share, quartiles")
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " --- |" * 4]
    for row in rows:
        low, high = row["share_quartiles"]
        lines.append(
            f"| {row['scheme']} | {row['weights_bytes'] / 1e6:.0f} | {row['decode_tok_s']:.1f} "
            f"| {row['read_bytes_s'] / 1e9:.1f} | {100 * row['share']:.0f} % ({100 * low:.0f}-{100 * high:.0f}) |"
        )
    return "\n".join(lines)


def by_speed(rows: list[dict[str, object]]) -> str:
    """The turns below and above the (geometric) middle of all reads, in markdown; nothing where they are alike."""
    reads = np.array([turn["read_bytes_s"] for row in rows for turn in row["turns"]])
    if reads.max() < SPREAD * reads.min():
        return ""
    middle = np.sqrt(reads.min() * reads.max())
    lines = ["| scheme | memory | turns | tokens a second | read, GB/s | share |", "| --- |" + " --- |" * 5]
    for row in rows:
        turns = np.array([(turn["read_bytes_s"], turn["decode_tok_s"]) for turn in row["turns"]])
        for name, chosen in (("slower", turns[:, 0] < middle), ("faster", turns[:, 0] >= middle)):
            if chosen.any():
                read, speed = turns[chosen].T
                share = np.median(speed * row["weights_bytes"] / read)
                lines.append(
                    f"| {row['scheme']} | {name} | {chosen.sum()} | {np.median(speed):.1f} "
                    f"| {np.median(read) / 1e9:.1f} | {100 * share:.0f} % |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
