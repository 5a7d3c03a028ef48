"""`pyc tune`: how far ahead this CPU wants weights asked for, kept for later runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyc.runtime.prefetch import Distance
    from pyc.runtime.tuning import Finding


@click.command("tune")
@click.argument("artifact", type=click.Path(path_type=Path), required=False)
@click.option("--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to tune.  [default: the best this CPU runs]")
@click.option("--rounds", type=click.IntRange(min=3), default=15, show_default=True, help="Times to try a candidate.")
@click.option("--forget", is_flag=True, help="Forget what was found on this kind of CPU instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    artifact: Path | None, threads: int | None, isa: str | None, rounds: int, forget: bool, as_json: bool
) -> None:
    """Measure how far ahead this CPU wants weights asked for, by decoding with ARTIFACT.

    Takes about a minute, a machine at rest, and a model that does not fit the caches. What is found is kept for this
    kind of CPU and the variant, and used whenever an artifact is loaded here. No result depends on it, only the speed.
    """
    import msgspec

    from pyc.runtime.cpu import cpu_kind
    from pyc.runtime.model import load
    from pyc.runtime.prefetch import forget_distances, keep_distances, usual_distances
    from pyc.runtime.tuning import tune_distances

    if forget == (artifact is not None):
        raise click.UsageError("name an artifact to tune with, or --forget, and not both")
    if artifact is None:
        forgotten = forget_distances()
        click.echo(json.dumps({"forgotten": forgotten}) if as_json else f"forgot {forgotten} variants on {cpu_kind()}")
        return
    with load(artifact, threads=threads, isa=isa) as model:
        variant = model.executor.isa
        distances, findings = tune_distances(model, usual_distances(), rounds=rounds)
    kept = keep_distances(variant, distances)
    if as_json:
        rows = msgspec.to_builtins(findings)
        click.echo(json.dumps({"cpu": cpu_kind(), "isa": variant, "kept": str(kept), "findings": rows}, indent=2))
        return
    for finding in findings:
        click.echo(_line(finding))
    click.echo(f"kept for {variant} on {cpu_kind()} in {kept}")


def _line(finding: "Finding") -> str:
    what = f"{finding.kind:<7} {finding.tokens} token{'s' if finding.tokens > 1 else ' '}  "
    before, after = (_words(distance, finding.tokens) for distance in (finding.before, finding.after))
    if finding.before == finding.after:
        return f"{what}{before}: nothing is faster"
    return f"{what}{after} instead of {before}: {finding.ratio:.2f} of the time"


def _words(distance: "Distance", tokens: int) -> str:
    if tokens == 1:
        return f"{distance.few} bytes ahead"
    return f"{distance.many} bytes ahead{' and the next panel' if distance.panel else ''}"
