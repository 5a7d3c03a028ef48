"""`pyc bench`: load time, latency and throughput of an artifact."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import mmap_option, mode_of

if TYPE_CHECKING:
    from pyc.runtime.benchmark import Spread
    from pyc.runtime.model import Model

# The sentences that encoders are timed with: short and long ones in turn.
_SENTENCES = (
    "The cat sat on the mat.",
    "A compiler turns a description of a computation into a form that a machine executes well.",
    "Rain.",
    "When the train finally arrived at the little station by the sea, nobody was there to meet it.",
)


@click.command("bench")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompt-tokens", type=click.IntRange(min=1), help="Tokens of the prompt.  [default: 128, or what fits]")
@click.option("--decode-tokens", type=click.IntRange(min=1), help="Tokens to generate.  [default: 64, or what fits]")
@click.option(
    "--sentences",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Texts to embed, for encoders.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Times to measure.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use.  [default: the best this CPU runs]")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of context.  [default: as compiled]")
@mmap_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    artifact: Path,
    prompt_tokens: int | None,
    decode_tokens: int | None,
    sentences: int,
    repeat: int,
    threads: int | None,
    isa: str | None,
    context: int | None,
    mmap: bool,
    as_json: bool,
) -> None:
    """Measure load time, latency and throughput of ARTIFACT.

    Values are medians over the repeats; "spread" holds the least and the most. "decode_histogram" counts the steps of
    all repeats: upper edge in milliseconds, and how many.
    """
    from pyc.runtime.machine import describe_machine, peak_rss_bytes
    from pyc.runtime.model import load

    machine = describe_machine()
    start = time.perf_counter()
    with load(artifact, threads=threads, isa=isa, context=context, mode=mode_of(mmap)) as model:
        load_s = time.perf_counter() - start
        if model.info.kind == "decoder":
            measured = _decoder(model, prompt_tokens, decode_tokens, repeat)
        else:
            measured = _encoder(model, sentences, repeat)
        document = {
            "artifact": artifact.name,
            "load_s": round(load_s, 6),
            **measured,
            "repeat": repeat,
            "peak_rss_bytes": peak_rss_bytes(),
            "machine": {**asdict(machine), **_variant(model)},
        }
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        _print_table(document)


def _decoder(model: "Model", prompt_tokens: int | None, decode_tokens: int | None, repeat: int) -> dict[str, object]:
    import numpy as np

    from pyc.runtime.benchmark import histogram, measure_decoder

    context = model.session.context
    prompt_count = prompt_tokens if prompt_tokens is not None else max(1, min(128, context // 2))
    decode_count = decode_tokens if decode_tokens is not None else max(1, min(64, context - prompt_count))
    times = measure_decoder(model, prompt_tokens=prompt_count, decode_tokens=decode_count, repeat=repeat)
    p50, p90, p99 = (round(float(value), 4) for value in np.percentile(times.decode_ms, (50, 90, 99)))
    spreads = {
        "ttft_s": times.ttft_s,
        "prefill_tok_s": times.prefill_tok_s,
        "decode_tok_s": times.decode_tok_s,
    }
    return {
        "prompt_tokens": prompt_count,
        "decode_tokens": decode_count,
        **_medians(spreads),
        "decode_ms": {"p50": p50, "p90": p90, "p99": p99},
        "decode_histogram": [[round(edge_ms, 5), count] for edge_ms, count in histogram(times.decode_ms)],
        "spread": _extremes(spreads),
    }


def _encoder(model: "Model", sentences: int, repeat: int) -> dict[str, object]:
    from pyc.runtime.benchmark import measure_encoder

    texts = [_SENTENCES[index % len(_SENTENCES)] for index in range(sentences)]
    times = measure_encoder(model, texts=texts, repeat=repeat)
    spreads = {"sentences_s": times.sentences_s, "latency_s": times.latency_s}
    return {"sentences": sentences, **_medians(spreads), "spread": _extremes(spreads)}


def _medians(spreads: "dict[str, Spread]") -> dict[str, float]:
    return {name: round(value.median, 6) for name, value in spreads.items()}


def _extremes(spreads: "dict[str, Spread]") -> dict[str, list[float]]:
    return {name: [round(value.least, 6), round(value.most, 6)] for name, value in spreads.items()}


def _variant(model: "Model") -> dict[str, object]:
    """What of the artifact and the machine is in use."""
    features = model.program.features if model.program is not None else ()
    return {"threads": model.executor.threads, "isa": model.executor.isa, "features": list(features)}


def _print_table(document: dict[str, object]) -> None:
    """The document as aligned lines, nested names joined by a dot."""
    rows = list(_rows("", document))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _rows(prefix: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for name, inner in value.items() for row in _rows(f"{prefix}.{name}" if prefix else name, inner)]
    if isinstance(value, list):
        return [(prefix, " ".join(str(item) for item in value))]
    return [(prefix, str(value))]
