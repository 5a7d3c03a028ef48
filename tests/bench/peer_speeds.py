"""Ratios to the best peer where the memory was as fast for both, from results of one sitting or of several.

    python tests/bench/peer_speeds.py RESULTS.json ...

On a virtual machine whose cores move from chiplet to chiplet the memory has two speeds, each for minutes. Medians of a
sitting mix them, and its ratios say which engine met the faster one. So turns are sorted by what was read in a second
before and after them: below the (geometric) middle of all reads of all files, or above it. A turn during which the
memory changed, as far as the two reads tell, is left out. Files are of one machine, and what they say of an engine
should be of kernels that are the same. Older files, which lack `cache_bits`, are for the script of
commit b488f1a.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peer_engines import LONG_CONTEXT
from peer_results import comparisons

Document = dict[str, Any]

SPREAD = 1.4
"""Most over least of all reads, from which on the memory has two speeds."""
LEAST_TURNS = 3
"""Fewer say nothing. Three say little: once a peer's were a fifth faster than twenty others like them."""
SLOWER, FASTER = "slower", "faster"
NOT_MEASURED = "-"


class Turn(NamedTuple):
    """What speeds are of: an engine, "prefill" or "decode", a length, and the memory of the turn."""

    engine: str
    work: str
    length: int
    memory: str


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="what tests/bench/peers.py wrote")
    options = parser.parse_args()
    documents = [json.loads(path.read_text("utf-8")) for path in options.results]
    print(by_speed(documents) or "the memory had one speed")


def by_speed(documents: Sequence[Document]) -> str:
    """The table in markdown; nothing where all reads are alike."""
    timed = [
        (engine, run, reads)
        for document in documents
        for engine in document["engines"]
        for answer in engine.get("rounds", ())
        for run in answer["runs"]
        if (reads := _reads(run, answer))
    ]
    every = [read for _engine, _run, reads in timed for read in reads]
    if not every or max(every) < SPREAD * min(every):
        return ""
    middle = math.sqrt(min(every) * max(every))
    lengths = {"prefill": _lengths(documents, "prompts"), "decode": _lengths(documents, "contexts")}
    turns: dict[Turn, list[float]] = defaultdict(list)
    for engine, run, reads in timed:
        memories = {SLOWER if read < middle else FASTER for read in reads}
        for work, wanted in lengths.items():
            if len(memories) == 1 and run["context"] in wanted and (speed := run[f"{work}_tok_s"]):
                turns[Turn(engine["name"], work, run["context"], *memories)].append(speed)
    columns = list(dict.fromkeys((work, length) for work, wanted in lengths.items() for length in sorted(wanted)))
    heads = [f"{work} {'of' if work == 'prefill' else 'at'} {length}" for work, length in columns]
    lines = [f"| comparison | pyc | memory | {' | '.join(heads)} |", "| --- |" + " --- |" * (2 + len(columns))]
    engines = {engine["name"]: engine for engine, _run, _reads in timed}
    for comparison, our, others in comparisons(list(engines.values())):
        ours, peers = our["name"], [peer["name"] for peer in others]
        for memory in (SLOWER, FASTER):
            cells = [_cell(turns, Turn(ours, *column, memory), peers) for column in columns]
            if set(cells) != {NOT_MEASURED}:
                lines.append(f"| {comparison} | {ours} | {memory} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _lengths(documents: Sequence[Document], name: str) -> set[int]:
    return {length for document in documents for length in document["job"][name]}


def _reads(run: Document, answer: Document) -> Sequence[float]:
    """Bytes read a second before and after a run's turn.

    Older files have the better of the two alone, and nothing for long contexts, which take turns of their own.
    """
    return run.get("reads") or ([answer["limits"]["read"]] if run["context"] <= LONG_CONTEXT else [])


def _cell(turns: Mapping[Turn, Sequence[float]], ours: Turn, peers: Iterable[str]) -> str:
    """The ratio of medians to the best peer's, its name, and both numbers of turns; none where either has too few."""
    found = {name: turns[turn] for name in peers if (turn := ours._replace(engine=name)) in turns}
    best = max(found, key=lambda name: statistics.median(found[name]), default=None)
    if best is None or min(len(turns.get(ours, ())), len(found[best])) < LEAST_TURNS:
        return NOT_MEASURED
    ratio = statistics.median(turns[ours]) / statistics.median(found[best])
    return f"{ratio:.2f}x {best} ({len(turns[ours])}, {len(found[best])})"


if __name__ == "__main__":
    main()
