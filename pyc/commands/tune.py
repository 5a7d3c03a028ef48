"""`pyc tune`: how far ahead to prefetch weights on this CPU, kept for later runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pyc.commands.opening import ARTIFACT_FILE, keep_blas_small, trust_option
from pyc.commands.screen import say, say_json
from pyc.commands.status_line import show_status
from pyc.runtime.host.sizes import human_bytes
from pyc.runtime.text.counted import counted

if TYPE_CHECKING:
    from pyc.runtime.artifact.reader import Artifact
    from pyc.runtime.executors.cpu.prefetch import Distance
    from pyc.runtime.measure.tuning import Finding


@click.command("tune")
@click.argument("artifact", type=ARTIFACT_FILE, required=False)
@click.option("-t", "--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to tune.  [default: the best this CPU runs]")
@trust_option
@click.option("--rounds", type=click.IntRange(min=3), default=15, show_default=True, help="Times to try a candidate.")
@click.option("--force", is_flag=True, help="Tune with a model that fits the caches, too.")
@click.option("--forget", is_flag=True, help="Forget what was found on this kind of CPU instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    artifact: Path | None,
    threads: int | None,
    isa: str | None,
    trust: str,
    rounds: int,
    force: bool,
    forget: bool,
    as_json: bool,
) -> None:
    """Measure how far ahead to prefetch weights on this CPU, by decoding with ARTIFACT.

    Takes about a minute, a machine at rest, and a model that does not fit the caches. What is found is kept for this
    kind of CPU and the variant, and used whenever an artifact is loaded here. No result depends on it, only the speed.
    Kinds of weights are codes (quantized ones), floats, and pairs (bf16 that is multiplied as bf16).

    --json prints "cpu", "isa", the file it is "kept" in, and "findings": for each "kind" of weights and number of
    tokens, the distances "before" and "after" in bytes, and the "ratio" of their times.
    """
    keep_blas_small()
    import msgspec

    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.executors.cpu.features import cpu_kind
    from pyc.runtime.executors.cpu.prefetch import forget_distances, keep_distances, require_keeping, usual_distances
    from pyc.runtime.measure.tuning import tune_distances
    from pyc.runtime.model import load

    if forget == (artifact is not None):
        raise click.UsageError("name an artifact to tune with, or --forget, and not both")
    if artifact is None:
        _refuse_measuring_options()
        forgotten = forget_distances()
        text = f"forgot {counted(forgotten, 'variant')} on {cpu_kind()}"
        if as_json:
            say_json({"forgotten": forgotten}, indent=None)
        else:
            say(text)
        return
    require_keeping()
    with open_artifact(artifact) as opened:
        if not force:
            _require_large(opened)
        with load(opened, threads=threads, isa=isa, trust=trust) as model:
            variant = model.executor.isa
            try:
                distances, findings = tune_distances(model, usual_distances(), rounds=rounds, progress=_show_share)
            finally:
                show_status("")
    kept = keep_distances(variant, distances)
    if as_json:
        rows = msgspec.to_builtins(findings)
        say_json({"cpu": cpu_kind(), "isa": variant, "kept": str(kept), "findings": rows})
        return
    for finding in findings:
        say(_line(finding))
    say(f"kept for {variant} on {cpu_kind()} in {kept}")


def _refuse_measuring_options() -> None:
    """Raise click.UsageError for an option of the command line that --forget has no use for."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in ("forget", "as_json") and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[-1]} is for measuring; --forget forgets all of this kind of CPU")


def _require_large(opened: "Artifact") -> None:
    """Raise RunError for a model of which a step reads nothing from memory."""
    from pyc.runtime.artifact.validate import tensor_bytes
    from pyc.runtime.errors import RunError
    from pyc.runtime.executors.cpu.features import cache_bytes

    weights = sum(tensor_bytes(tensor.dtype, tensor.shape) for tensor in opened.header.tensors)
    caches = cache_bytes()
    if weights <= caches:
        raise RunError(
            f"tune: {opened.path}: its weights ({human_bytes(weights)}) fit the caches of this CPU "
            f"({human_bytes(caches)}), so that the result would mean nothing for models that do not; "
            "take a larger model, or --force"
        )


def _show_share(share: float) -> None:
    show_status(f"tuning: {share:.0%}")


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
