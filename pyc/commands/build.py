"""`pyc build`: a recipe to a signed artifact; progress on standard error, the result on standard output."""

from typing import TYPE_CHECKING

import click

from pyc.commands.mixture_report import mixture_document, mixture_lines
from pyc.commands.opening import PATH_TEXT, keep_blas_small
from pyc.commands.screen import say, say_json
from pyc.runtime.host.sizes import human_bytes, human_duration
from pyc.runtime.text.counted import counted

if TYPE_CHECKING:
    from pyc.passes.driver.build import BuildResult
    from pyc.runtime.measure.quality_report import QualityReport


def _cluster(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The cluster of --jobs, which is wrong usage where it is none."""
    if value is not None:
        from pyc.passes.jobs.registry import check_jobs
        from pyc.runtime.errors import RecipeError

        try:
            check_jobs(value, use_cache=True)
        except RecipeError as error:
            raise click.BadParameter(str(error).removeprefix("jobs: "), context, parameter) from error
    return value


@click.command("build")
@click.argument("source", metavar="RECIPE", type=PATH_TEXT)
@click.option("-o", "--output", type=PATH_TEXT, metavar="FILE", help="The artifact to write.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the recipe, as in quantize.scheme=int8; may be given several times.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Threads that evaluate weights (default: one a CPU, within a container's quota).",
)
@click.option(
    "--jobs",
    callback=_cluster,
    metavar="ray[://HOST:PORT]",
    help="Have a Ray cluster evaluate weights: this machine's, or another (--workers: how many jobs at once).",
)
@click.option("--no-cache", is_flag=True, help="Neither read nor write the build cache.")
@click.option("--force", is_flag=True, help="Replace a file that is there even if it is not an artifact.")
@click.option("--download", is_flag=True, help="Fetch what the local cache lacks of a model on the Hugging Face hub.")
@click.option("--key", metavar="FILE", help="Sign with the key in this file instead of the recipe's artifact.key.")
@click.option("--dump-ir", metavar="DIR", help="Write the model as text after each pass into a folder, to look at.")
@click.option("--check", is_flag=True, help="Build nothing: exit with 1 where the artifact is not up to date.")
@click.option("--program-only", is_flag=True, help="Write compiled code without weights, for `pyc attach`.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    source: str,
    output: str | None,
    overrides: tuple[str, ...],
    workers: int | None,
    jobs: str | None,
    no_cache: bool,
    force: bool,
    download: bool,
    key: str | None,
    dump_ir: str | None,
    check: bool,
    program_only: bool,
    as_json: bool,
) -> None:
    """Compile RECIPE into an artifact.

    RECIPE is a model.yaml. A checkpoint's folder, or a hub id (org/name or org/name@revision), is compiled with the
    recipe that `pyc init` would write, into NAME.pyca in the working directory.

    The artifact appears whole or not at all; a build that fails or is interrupted leaves the former one as it
    was. The same recipe gives the same bytes, whatever the folder and the number of workers. What the build reads
    is never replaced, nor, without --force, a file that is not an artifact.

    It is signed with the key of --key, $PYC_SIGNING_KEY (the key itself), $PYC_SIGNING_KEY_FILE, by the program of
    $PYC_SIGNER, or with the key in this machine's store; there it is made at first use, and trusted here.

    A recipe with a gate (`quality:`) has the artifact run over a text before it appears; where a limit is exceeded
    there is none, the report is printed, and the exit code is 13. NAME.quality.json has the report either way.

    With --check the recipe, the sources by their digests, the versions of tools and the passes are compared with what
    the artifact records, one line for each difference. No program is compiled and no weight is evaluated. The
    artifact's own bytes are not looked at: `pyc verify` does that.

    With --jobs ray://HOST:PORT, machines of a Ray cluster evaluate the weights, to the same bytes. They need the same
    pyc, and see the checkpoint and the build cache ($PYC_SHARED_CACHE, a folder or bucket) under the same paths.

    With --program-only, headers of the weights are read and no weight is: the artifact has code, buckets and the
    tensor table, some hundred kilobytes for a model of any size, and `pyc attach` makes artifacts of it, without a
    compiler.
    """
    keep_blas_small()
    if check:
        from pyc.commands.build_check import check as check_up_to_date

        if force or key is not None or dump_ir is not None or program_only or jobs is not None:
            raise click.UsageError(
                "--check writes nothing: leave --force, --key, --dump-ir, --program-only and --jobs out"
            )
        check_up_to_date(
            source, output=output, overrides=overrides, workers=workers, download=download, as_json=as_json
        )
        return
    from pyc.commands.building import build
    from pyc.runtime.errors import QualityError

    try:
        result = build(
            source,
            output=output,
            overrides=overrides,
            workers=workers,
            jobs=jobs,
            use_cache=not no_cache,
            force=force,
            download=download,
            key=key,
            dump_ir=dump_ir,
            program_only=program_only,
            progress=True,
        )
    except QualityError as error:
        _print_report(error.report, as_json=as_json)
        raise
    if as_json:
        say_json(as_document(result))
    else:
        for line in describe(result):
            say(line)


def _print_report(report: str, *, as_json: bool) -> None:
    """What a gate measured of an artifact that it refused."""
    if as_json:
        click.echo(report, nl=False)
        return
    import msgspec

    from pyc.commands.eval_text import text_lines
    from pyc.runtime.measure.quality_report import QualityReport

    for line in text_lines(msgspec.json.decode(report, type=QualityReport)):
        say(line)


def as_document(result: "BuildResult") -> dict[str, object]:
    """The result as JSON: sizes in bytes, durations in seconds, gain as a share of the raw bytes."""
    return {
        "path": str(result.path),
        "sha256": result.sha256,
        "digest": result.digest,
        "size_bytes": result.size_bytes,
        "elapsed_s": round(result.elapsed_s, 3),
        "peak_rss_bytes": result.peak_rss_bytes,
        "tensors": result.tensors,
        "scheme_bytes": dict(result.scheme_bytes),
        "codecs": [
            {
                "codec": use.codec,
                "chunks": use.chunks,
                "raw_bytes": use.raw_bytes,
                "stored_bytes": use.stored_bytes,
                "gain": round(use.gain, 4),
            }
            for use in result.codecs
        ],
        "cache_hits": result.cache_hits,
        "cache_misses": result.cache_misses,
        "fingerprint": result.fingerprint,
        "quality": None if result.quality is None else _limits(result.quality),
        "mixture": None if result.mixture is None else mixture_document(result.mixture),
    }


def _limits(report: "QualityReport") -> list[dict[str, object]]:
    """The limits of a gate, and what was measured."""
    return [
        {"name": limit.name, "limit": limit.limit, "measured": limit.measured, "is_kept": limit.is_kept}
        for limit in report.limits
    ]


def describe(result: "BuildResult") -> list[str]:
    """The lines for a reader's eyes."""
    schemes = ", ".join(f"{name} {human_bytes(size)}" for name, size in result.scheme_bytes)
    codecs = ", ".join(
        f"{use.codec} {human_bytes(use.raw_bytes)}"
        + (f" as {human_bytes(use.stored_bytes)}" if use.stored_bytes != use.raw_bytes else "")
        for use in result.codecs
    )
    reused = f"{result.cache_hits} of {result.cache_hits + result.cache_misses} parts from the cache"
    tensors = counted(result.tensors, "tensor")
    memory = f"peak memory {human_bytes(result.peak_rss_bytes)}"
    weights = f"{tensors}: {schemes}" if schemes else f"none: a table of {tensors}"
    return [
        f"{result.path}: {human_bytes(result.size_bytes)} in {human_duration(result.elapsed_s)}",
        f"sha256      {result.sha256}",
        f"digest      {result.digest}",
        f"key         {result.fingerprint or 'unsigned'}",
        f"weights     {weights}",
        f"chunks      {codecs}",
        f"build       {reused}, {memory}",
        *_quality_lines(result),
        *([] if result.mixture is None else mixture_lines(result.mixture)),
    ]


def _quality_lines(result: "BuildResult") -> list[str]:
    """The line of a gate that was passed; none without one."""
    if result.quality is None:
        return []
    kept = ", ".join(f"{limit.name} {limit.limit:g}: {limit.measured:.4g}" for limit in result.quality.limits)
    return [f"quality     {kept}"]
