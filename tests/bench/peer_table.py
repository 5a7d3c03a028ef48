"""Results of tests/bench/peers.py as markdown: speeds and shares of the limits, then ratios."""

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]
NOT_MEASURED = "-"


def markdown(document: Document) -> str:
    """The whole text."""
    parts = (_introduction(document), _speeds(document), _ratios(document), _left_out(document))
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
    return (
        f"Machine: {machine['cpu']}, {machine['arch']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['kernel']}; {job['threads']} threads for every engine.\n"
        f"Read bandwidth measured: {read}. Peak measured: {'; '.join(peaks)}.\n"
        f"Commit {document['commit'][:12]}{' with changes' if document['dirty'] else ''}, {document['date']}; "
        f"{versions}.\n"
        f"Medians of {job['rounds']} rounds with {job['repeats']} runs each, engines in turn, least and most in "
        f"brackets; {job['decode']} tokens decoded a run. Speeds in tokens a second. The share of the bandwidth is "
        f"decode at {job['contexts'][0]} times the bytes of weights a token reads; the share of the peak is prefill "
        f"times {document['operations_a_token'] / 1e9:.2f} billion operations a token, of the int8 peak"
        f"{' with AMX' if limits['amx_int8'] else ''}."
    )


def _by_threads(values: list[float], unit: float, name: str, digits: int = 1) -> str:
    listed = (f"{value / unit:.{digits}f} on {count}" for count, value in enumerate(values, 1))
    return f"{', '.join(listed)} {name}"


def _speeds(document: Document) -> str:
    job = document["job"]
    heads = [
        "engine",
        "weights a token, MB",
        f"prefill {job['prompt']}",
        *(f"decode at {context}" for context in job["contexts"]),
        "share of bandwidth",
        "share of peak",
        "load, s",
        "peak memory, MB",
    ]
    return _grid(heads, (_speed_row(engine, job) for engine in document["engines"] if engine["state"] == "measured"))


def _speed_row(engine: Document, job: Document) -> list[str]:
    weights = engine["weights_bytes"]
    return [
        engine["name"],
        NOT_MEASURED if weights is None else f"{weights / 1e6:.0f}",
        _spread(engine["prefill_tok_s"]),
        *(_spread(engine["decode_tok_s"][str(context)]) for context in job["contexts"]),
        _share(engine["bandwidth_share"]),
        _share(engine["peak_share"]),
        f"{engine['load_s']['median']:.2f}",
        f"{engine['peak_rss_bytes']['median'] / 1e6:.0f}",
    ]


def _spread(value: Document) -> str:
    digits = 0 if value["median"] >= 100 else 1
    median, least, most = (f"{value[name]:.{digits}f}" for name in ("median", "least", "most"))
    return f"{median} ({least}-{most})"


def _share(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{100 * share:.0f} %"


def _ratios(document: Document) -> str:
    ratios = document["ratios"]
    if not ratios:
        return ""
    job = document["job"]
    ours = list(next(iter(ratios.values())))
    names = ["prefill", *(f"decode at {context}" for context in job["contexts"])]
    rows = ([peer, *(_ratio_cell(by_ours[our]) for our in ours)] for peer, by_ours in ratios.items())
    return f"pyc's median over the peer's: {' / '.join(names)}.\n\n" + _grid(["peer", *ours], rows)


def _ratio_cell(ratios: Document) -> str:
    return " / ".join(f"{ratio:.2f}x" for ratio in (ratios["prefill"], *ratios["decode"].values()))


def _left_out(document: Document) -> str:
    lines = [
        f"- {engine['name']}: {engine['state']}{_reason(engine)}"
        for engine in document["engines"]
        if engine["state"] != "measured"
    ]
    return "\n".join(["Not in the table:", "", *lines]) if lines else ""


def _reason(engine: Document) -> str:
    return f" ({engine['reason'].splitlines()[-1]})" if engine.get("reason") else ""


def _grid(heads: list[str], rows: Iterator[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
