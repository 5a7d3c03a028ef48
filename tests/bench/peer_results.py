"""From the raw answers of the workers to medians, spreads, shares of the limits and ratios."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer_engines import PYC

Document = dict[str, Any]

EQUAL_BYTES = 0.05
"""How far apart the bytes of two engines are at most that are called equal."""


def operations_a_token(checkpoint: Path) -> int:
    """Operations (a multiply-add is two) of the layers' matrices for one token; embedding and output not counted."""
    weights = 0
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if ".layers." in name and len(tensor["shape"]) == 2:
                weights += tensor["shape"][0] * tensor["shape"][1]
    return 2 * weights


def summary(answers: Sequence[Document], prompts: Sequence[int], contexts: Sequence[int]) -> Document:
    """Medians and spreads of one engine's answers, one a round; every raw run is kept in "rounds".

    What no run has is None, speeds by length. `attention_ms` is what a token costs more at a context than at the
    shortest: attention over the cache, and nothing else that depends on the length.
    """
    runs = [run for answer in answers for run in answer["runs"]]
    batches = [run for answer in answers for run in answer.get("batches", ())]
    decode = {str(context): _of_length(runs, context, "decode_tok_s") for context in contexts}
    return {
        "prefill_tok_s": {str(prompt): _of_length(runs, prompt, "prefill_tok_s") for prompt in prompts},
        "decode_tok_s": decode,
        "attention_ms": {context: _more_ms(spread, decode[str(contexts[0])]) for context, spread in decode.items()},
        "batch_tok_s": {
            str(count): _spread([run["decode_tok_s"] for run in batches if run["sequences"] == count])
            for count in sorted({run["sequences"] for run in batches})
        },
        **{name: _spread([answer[name] for answer in answers]) for name in ("load_s", "peak_rss_bytes", "rss_bytes")},
        "weights_bytes": answers[0].get("weights_bytes"),
        "details": {name: answers[0][name] for name in ("isa", "system") if name in answers[0]},
        "versions": answers[0]["versions"],
        "rounds": [
            {name: answer.get(name) for name in ("runs", "batches", "load_s", "peak_rss_bytes", "rss_bytes", "limits")}
            for answer in answers
        ],
    }


def _of_length(runs: Sequence[Document], length: int, speed: str) -> Document | None:
    return _spread([run[speed] for run in runs if run["context"] == length])


def _more_ms(spread: Document | None, least: Document | None) -> float | None:
    return None if spread is None or least is None else 1e3 / spread["median"] - 1e3 / least["median"]


def add_shares(engine: Document, operations: int, prompt: int, context: int) -> None:
    """The share of the bandwidth that decode reaches, and of the int8 peak that prefill reaches; None if unknown.

    Medians of the rounds' shares, each of the limits around that engine's turn.
    """
    weights, rounds = engine["weights_bytes"], engine["rounds"]
    decode = _shares(rounds, context, "decode_tok_s", "read")
    engine["bandwidth_share"] = decode * weights if decode and weights else None
    prefill = _shares(rounds, prompt, "prefill_tok_s", "int8")
    engine["peak_share"] = prefill * operations if prefill else None


def _shares(rounds: Sequence[Document], length: int, speed: str, limit: str) -> float | None:
    """The median of speed over limit."""
    found = [
        speeds["median"] / answer["limits"][limit]
        for answer in rounds
        if (speeds := _of_length(answer["runs"], length, speed)) and answer["limits"][limit]
    ]
    return statistics.median(found) if found else None


def comparisons(engines: Sequence[Document]) -> Iterator[tuple[str, Document, list[Document]]]:
    """Name, an engine of pyc and the peers that it may be compared with: as many bits a key or value, and either as
    many bytes of weights a token (within EQUAL_BYTES) or a KL that is no better than pyc's."""
    measured = [engine for engine in engines if engine["state"] == "measured"]
    for our in measured:
        if our["peer"] != PYC:
            continue
        peers = [peer for peer in measured if peer["peer"] != PYC and peer["cache_bits"] == our["cache_bits"]]
        for name, alike in (("equal bytes", _as_large), ("equal or better KL", _no_better)):
            if found := [peer for peer in peers if alike(our, peer)]:
                yield name, our, found


def _as_large(our: Document, peer: Document) -> bool:
    sizes = our.get("weights_bytes"), peer.get("weights_bytes")
    return all(sizes) and abs(sizes[1] / sizes[0] - 1) <= EQUAL_BYTES


def _no_better(our: Document, peer: Document) -> bool:
    costs = [(engine.get("quality") or {}).get("kl") for engine in (our, peer)]
    return None not in costs and costs[0] <= costs[1]


def ratios(engines: Sequence[Document]) -> list[Document]:
    """pyc's medians over those of every peer of a comparison, and over the best of them in each column."""
    found = []
    for name, our, peers in comparisons(engines):
        rows = [{"peer": peer["name"], **_ratio(our, peer)} for peer in peers]
        best = {speed: _least([row[speed] for row in rows]) for speed in ("prefill", "decode")}
        found.append({"comparison": name, "pyc": our["name"], "peers": rows, "best": best})
    return found


def _ratio(ours: Document, peer: Document) -> Document:
    return {
        "prefill": _quotients(ours["prefill_tok_s"], peer["prefill_tok_s"]),
        "decode": _quotients(ours["decode_tok_s"], peer["decode_tok_s"]),
    }


def _quotients(ours: Mapping[str, Document | None], peers: Mapping[str, Document | None]) -> dict[str, float | None]:
    pairs = {length: (spread, peers.get(length)) for length, spread in ours.items()}
    return {length: our["median"] / peer["median"] if our and peer else None for length, (our, peer) in pairs.items()}


def _least(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The smallest ratio of each length: that to the fastest peer."""
    return {length: min((row[length] for row in rows if row[length] is not None), default=None) for length in rows[0]}


def versions(engines: Sequence[Document]) -> Mapping[str, str]:
    """Every package that took part."""
    found: dict[str, str] = {}
    for engine in engines:
        found |= engine.get("versions", {})
    return found


def _spread(values: Sequence[float | None]) -> Document | None:
    """None when there is no value."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return {"median": statistics.median(numbers), "least": min(numbers), "most": max(numbers)}
