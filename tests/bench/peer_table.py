"""Results of tests/bench/peers.py as markdown: speeds, shares of the limits, attention, batches, ratios."""

from collections.abc import Iterable
from typing import Any

from peer_results import EQUAL_BYTES

Document = dict[str, Any]
NOT_MEASURED = "-"


def markdown(document: Document) -> str:
    """The whole text."""
    parts = (
        _introduction(document),
        _speeds(document),
        _attention(document),
        _batches(document),
        _ratios(document),
        _left_out(document),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(document: Document) -> str:
    machine, limits, job = document["machine"], document["limits"], document["job"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(document["versions"].items()))
    read = _by_threads(limits["read"], 1e9, "GB/s")
    peaks = [f"float32 {_by_threads(limits['float32'], 1e9, 'GFLOP/s')}"]
    if limits["int8"]:
        peaks.append(f"int8 {_by_threads(limits['int8'], 1e12, 'TOP/s', 2)}")
    if limits["amx_int8"]:
        peaks.append(f"int8 with AMX {_by_threads(limits['amx_int8'], 1e12, 'TOP/s', 2)}")
    rest = f" with {job['pause']:g} s of rest between them" if job.get("pause") else ""
    return (
        f"Machine: {machine['cpu']}, {machine['arch']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['kernel']}; {job['threads']} threads for every engine.\n"
        f"{f'Model: {model}. ' if (model := document.get('model')) else ''}"
        f"Read bandwidth measured: {read}. Peak measured: {'; '.join(peaks)}.\n"
        f"Commit {document['commit'][:12]}{' with changes' if document['dirty'] else ''}, {document['date']}; "
        f"{versions}.\n"
        f"Medians of {job['rounds']} rounds with {job['repeats']} runs each, engines in turn{rest}, least and most in "
        f"brackets; {job['decode']} tokens decoded a run. Speeds in tokens a second. The share of the bandwidth is "
        f"decode at {job['contexts'][0]} times the bytes of weights a token reads; the share of the peak is prefill "
        f"of {job['prompts'][0]} times {document['operations_a_token'] / 1e9:.2f} billion operations a token, of the "
        f"int8 peak{' with AMX' if limits['amx_int8'] else ''}. Shares are medians over the rounds, of the limits that "
        f"were measured right before and after each turn. KL is that of the same storage of the demo model to "
        f"transformers in float32, in nats a token, on text that was held back (tests/bench/peer_quality.py)."
    )


def _by_threads(values: list[float], unit: float, name: str, digits: int = 1) -> str:
    listed = (f"{value / unit:.{digits}f} on {count}" for count, value in enumerate(values, 1))
    return f"{', '.join(listed)} {name}"


def _speeds(document: Document) -> str:
    job = document["job"]
    heads = [
        "engine",
        "weights a token, MB",
        "KL",
        "cache, bits",
        *(f"prefill {prompt}" for prompt in job["prompts"]),
        *(f"decode at {context}" for context in job["contexts"]),
        "share of bandwidth",
        "share of peak",
        "load, s",
        "peak memory, MB",
    ]
    return _grid(heads, (_speed_row(engine, job) for engine in _measured(document)))


def _measured(document: Document) -> list[Document]:
    return [engine for engine in document["engines"] if engine["state"] == "measured"]


def _speed_row(engine: Document, job: Document) -> list[str]:
    return [
        engine["name"],
        _scaled(engine["weights_bytes"], 1e6, 0),
        _quality(engine),
        str(engine["cache_bits"]),
        *(_spread(engine["prefill_tok_s"][str(prompt)]) for prompt in job["prompts"]),
        *(_spread(engine["decode_tok_s"][str(context)]) for context in job["contexts"]),
        _share(engine["bandwidth_share"]),
        _share(engine["peak_share"]),
        _scaled(_median(engine["load_s"]), 1, 2),
        _scaled(_median(engine["peak_rss_bytes"]), 1e6, 0),
    ]


def _quality(engine: Document) -> str:
    kl = (engine.get("quality") or {}).get("kl")
    return NOT_MEASURED if kl is None else f"{kl:.2g}"


def _median(spread: Document | None) -> float | None:
    return None if spread is None else spread["median"]


def _scaled(value: float | None, unit: float, digits: int) -> str:
    return NOT_MEASURED if value is None else f"{value / unit:.{digits}f}"


def _spread(value: Document | None) -> str:
    if value is None:
        return NOT_MEASURED
    digits = 0 if value["median"] >= 100 else 1
    median, least, most = (f"{value[name]:.{digits}f}" for name in ("median", "least", "most"))
    return f"{median} ({least}-{most})"


def _share(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{100 * share:.0f} %"


def _attention(document: Document) -> str:
    contexts = [str(context) for context in document["job"]["contexts"][1:]]
    if not contexts:
        return ""
    rows = (
        [engine["name"], *(_scaled(engine["attention_ms"][context], 1, 2) for context in contexts)]
        for engine in _measured(document)
    )
    shortest = document["job"]["contexts"][0]
    title = f"Attention: milliseconds that a token takes longer at a context than at {shortest}.\n\n"
    return title + _grid(["engine", *(f"at {context}" for context in contexts)], rows)


def _batches(document: Document) -> str:
    counts = [str(count) for count in document["job"]["batches"]]
    engines = [engine for engine in _measured(document) if engine["batch_tok_s"]]
    if not engines:
        return ""
    heads = ["engine", *(f"{count} at once" for count in counts), *(f"{count} to {counts[0]}" for count in counts[1:])]
    title = f"Sequences decoded together at {document['job']['contexts'][0]}: tokens a second in all, and ratios.\n\n"
    return title + _grid(heads, (_batch_row(engine, counts) for engine in engines))


def _batch_row(engine: Document, counts: list[str]) -> list[str]:
    speeds = [engine["batch_tok_s"][count] for count in counts]
    first = speeds[0]["median"]
    return [
        engine["name"],
        *(_spread(speed) for speed in speeds),
        *(f"{speed['median'] / first:.2f}x" for speed in speeds[1:]),
    ]


def _ratios(document: Document) -> str:
    if not document["ratios"]:
        return ""
    job = document["job"]
    heads = ["comparison", "pyc", "peer"]
    heads += [f"prefill {prompt}" for prompt in job["prompts"]]
    heads += [f"decode at {context}" for context in job["contexts"]]
    rows = []
    for entry in document["ratios"]:
        own = [entry["comparison"], entry["pyc"]]
        rows += [[*own, row["peer"], *_ratio_cells(row)] for row in entry["peers"]]
        rows.append([*own, "**the best in each column**", *(f"**{cell}**" for cell in _ratio_cells(entry["best"]))])
    return (
        "pyc's median over the peer's, of peers with as many bits in their cache. Equal bytes: weights a token within "
        f"{100 * EQUAL_BYTES:.0f} %. Equal or better KL: pyc's is at most the peer's.\n\n" + _grid(heads, rows)
    )


def _ratio_cells(ratios: Document) -> list[str]:
    values = (*ratios["prefill"].values(), *ratios["decode"].values())
    return [NOT_MEASURED if value is None else f"{value:.2f}x" for value in values]


def _left_out(document: Document) -> str:
    lines = [
        f"- {engine['name']}: {engine['state']}{_reason(engine)}"
        for engine in document["engines"]
        if engine["state"] != "measured"
    ]
    lines += [
        f"- {engine['name']} at long contexts: {engine['long_problem'].splitlines()[-1]}"
        for engine in _measured(document)
        if engine.get("long_problem")
    ]
    lines += [
        f"- {engine['name']}, KL: {engine['quality']['problem'].splitlines()[-1]}"
        for engine in _measured(document)
        if "problem" in (engine.get("quality") or {})
    ]
    return "\n".join(["Not in the table:", "", *lines]) if lines else ""


def _reason(engine: Document) -> str:
    return f" ({engine['reason'].splitlines()[-1]})" if engine.get("reason") else ""


def _grid(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
