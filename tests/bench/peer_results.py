"""From the raw answers of the workers to medians, spreads, shares of the limits and ratios."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine_limits import Limits
from peer_engines import PYC

Document = dict[str, Any]


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


def summary(answers: Sequence[Document], prompt: int, contexts: Sequence[int]) -> Document:
    """Medians and spreads of one engine's answers, one a round; every raw run is kept in "rounds"."""
    runs = [run for answer in answers for run in answer["runs"]]
    return {
        "prefill_tok_s": _spread([run["prefill_tok_s"] for run in runs if run["context"] == prompt]),
        "decode_tok_s": {
            str(context): _spread([run["decode_tok_s"] for run in runs if run["context"] == context])
            for context in contexts
        },
        **{name: _spread([answer[name] for answer in answers]) for name in ("load_s", "peak_rss_bytes", "rss_bytes")},
        "weights_bytes": answers[0].get("weights_bytes"),
        "details": {name: answers[0][name] for name in ("isa", "system") if name in answers[0]},
        "versions": answers[0]["versions"],
        "rounds": [
            {name: answer[name] for name in ("runs", "load_s", "peak_rss_bytes", "rss_bytes")} for answer in answers
        ],
    }


def add_shares(engine: Document, limits: Limits, operations: int, context: int) -> None:
    """The share of the bandwidth that decode reaches, and of the int8 peak that prefill reaches; None if unknown."""
    weights = engine["weights_bytes"]
    decode, prefill = engine["decode_tok_s"][str(context)]["median"], engine["prefill_tok_s"]["median"]
    engine["bandwidth_share"] = None if weights is None else decode * weights / limits.read[-1]
    engine["peak_share"] = prefill * operations / limits.best_int8[-1] if limits.best_int8 else None


def ratios(engines: Sequence[Document]) -> dict[str, dict[str, Document]]:
    """pyc's medians over the peer's: by peer, by storage of pyc."""
    measured = [engine for engine in engines if engine["state"] == "measured"]
    ours = [engine for engine in measured if engine["peer"] == PYC]
    peers = [engine for engine in measured if engine["peer"] != PYC]
    if not ours:
        return {}
    return {peer["name"]: {our["name"]: _ratio(our, peer) for our in ours} for peer in peers}


def _ratio(ours: Document, peer: Document) -> Document:
    decode = {
        context: spread["median"] / peer["decode_tok_s"][context]["median"]
        for context, spread in ours["decode_tok_s"].items()
    }
    return {"prefill": ours["prefill_tok_s"]["median"] / peer["prefill_tok_s"]["median"], "decode": decode}


def versions(engines: Sequence[Document]) -> Mapping[str, str]:
    """Every package that took part."""
    found: dict[str, str] = {}
    for engine in engines:
        found |= engine.get("versions", {})
    return found


def _spread(values: Sequence[float]) -> Document:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}
