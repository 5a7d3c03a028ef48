"""`pyc bench`: load time, latency, throughput and memory of artifacts."""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pyc.commands.opening import ArtifactPlace, keep_blas_small, mmap_option, mode_of, trust_option
from pyc.commands.reading import check_text
from pyc.commands.screen import say, say_json
from pyc.commands.status_line import show_status

if TYPE_CHECKING:
    from pyc.commands.bench_report import Measured, Subject
    from pyc.commands.bench_worker import Report, Request
    from pyc.runtime.artifact.format import ModelInfo
    from pyc.runtime.sources.places import Place

Command = Callable[..., Any]

MAX_REPEAT = 10_000
PROMPT, DECODE = 512, 64
"""Tokens that are measured unless others are asked for, where they fit half of the context."""
SENTENCES = 64


def _numbers(least: int) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[int, ...]]:
    """Return what parses an option that is given any number of times: whole numbers with commas between them."""

    def parse(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[int, ...]:
        found: list[int] = []
        for part in (part for text in given for part in text.split(",")):
            if not part.strip().isascii() or not part.strip().isdigit():
                raise click.BadParameter(f"{part!r}: expected whole numbers with commas between them, such as 128,512")
            found.append(int(part[:20]))
            if not least <= found[-1] < 1 << 31:
                raise click.BadParameter(f"{part} is not at least {least} and below {1 << 31}")
        return tuple(dict.fromkeys(found))

    return parse


def _names(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Parse an option that is given any number of times: names with commas between them."""
    return tuple(dict.fromkeys(name.strip() for text in given for name in text.split(",")))


def _list_option(*names: str, least: int, text: str) -> Callable[[Command], Command]:
    return click.option(*names, multiple=True, metavar="N,...", callback=_numbers(least), help=text)


@click.command("bench")
@click.argument("artifacts", metavar="ARTIFACT...", nargs=-1, required=True, type=ArtifactPlace())
@_list_option("-p", "--prompt-tokens", least=1, text="Tokens of the prompt.  [default: 512, or what fits]")
@_list_option("-n", "--decode-tokens", least=1, text="Tokens to generate.  [default: 64, or what fits]")
@_list_option("-d", "--depth", least=0, text="Tokens in the cache before either.  [default: 0]")
@_list_option("-t", "--threads", least=1, text="Threads for the kernels.  [default: one a core]")
@click.option(
    "--isa",
    multiple=True,
    metavar="NAME,...",
    callback=_names,
    help="The compiled variants to use.  [default: the best this CPU runs]",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME,...",
    callback=_names,
    help="The engines: cpu, onnx, tensorrt, cuda.  [default: the artifact's first that runs here]",
)
@click.option(
    "--sentences",
    type=click.IntRange(min=1),
    help="Texts to embed, for encoders.  [default: 64]",
)
@click.option(
    "-r", "--repeat", type=click.IntRange(1, MAX_REPEAT), default=3, show_default=True, help="Times to measure."
)
@click.option("--context", type=click.IntRange(min=1), help="Tokens of context.  [default: as compiled]")
@trust_option
@mmap_option
@click.option(
    "--random-weights", is_flag=True, help="Measure with random weights: artifacts of --program-only have no others."
)
@click.option("--markdown", is_flag=True, help="Print the table as markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    artifacts: "tuple[Place, ...]",
    prompt_tokens: tuple[int, ...],
    decode_tokens: tuple[int, ...],
    depth: tuple[int, ...],
    threads: tuple[int, ...],
    isa: tuple[str, ...],
    backends: tuple[str, ...],
    sentences: int | None,
    repeat: int,
    context: int | None,
    trust: str,
    mmap: bool,
    random_weights: bool,
    markdown: bool,
    as_json: bool,
) -> None:
    """Measure load time, latency, throughput and memory of each ARTIFACT.

    Options marked ",..." take several values, with commas or repeated: every combination is measured. Each round runs
    all of them once, in turn, so that what else the machine does meets all alike. Each is a process of its own, which
    loads the artifact and warms up first; its peak memory counts what it maps. ppN: tokens a second of a prompt of N;
    tgN: of N generated ones; "@ dD": behind D others, as llama-bench has it.

    Of a URL, load time is that of the transfer, too; every process fetches.

    --random-weights: weights are made where the model runs, in place of the artifact's; the size is theirs. Programs
    for cpu and cuda take them.

    --json: medians; "spread" is the least and the most, "decode_histogram" the steps of all rounds (upper edge in
    milliseconds, and how many). Several combinations are the list "runs".
    """
    keep_blas_small()
    from msgspec.structs import replace

    from pyc.commands.bench_report import documents, markdown_lines, text_lines
    from pyc.commands.bench_worker import Request
    from pyc.commands.tables import terminal_width
    from pyc.runtime.artifact.trust.policy import check_read_often
    from pyc.runtime.host.machine import describe_machine
    from pyc.runtime.measure.scoring import names_of

    if markdown and as_json:
        raise click.UsageError("--markdown or --json, not both")
    check_read_often(trust, "--trust")
    for option, names in (("--isa", isa), ("--backend", backends)):
        for name in names:
            check_text(name, option)
    asked = Request(
        artifact="",
        header_sha256=b"",
        mode=mode_of(mmap),
        trust=trust,
        threads=None,
        isa=None,
        backend=None,
        context=context,
        prompts=prompt_tokens,
        decodes=decode_tokens,
        depths=depth or (0,),
        sentences=sentences or SENTENCES,
        has_random_weights=random_weights,
    )
    subjects = zip(artifacts, names_of(map(str, artifacts)), strict=True)
    variants = list(itertools.product(threads or (None,), backends or (None,), isa or (None,)))
    plans = [
        (subject, replace(request, threads=count, backend=engine, isa=variant))
        for subject, request in [_request(artifact, name, asked) for artifact, name in subjects]
        for count, engine, variant in variants
    ]
    if (prompt_tokens or decode_tokens or depth) and all(subject.kind == "encoder" for subject, _ in plans):
        raise click.UsageError(f"{plans[0][0].name} is an encoder, which has --sentences and neither of -p, -n and -d")
    if sentences is not None and all(subject.kind == "decoder" for subject, _ in plans):
        raise click.UsageError(f"{plans[0][0].name} is a decoder, which has -p, -n and -d, and no --sentences")
    results = _rounds(plans, repeat)
    machine = describe_machine()
    if as_json:
        runs = [document for measured in results for document in documents(measured, machine)]
        say_json(runs[0] if len(runs) == 1 else {"runs": runs})
        return
    for line in markdown_lines(results) if markdown else text_lines(results, machine, terminal_width()):
        say(line)


def _request(artifact: "Place", name: str, asked: "Request") -> "tuple[Subject, Request]":
    """An artifact, by its short name, and what is asked of it, with the tokens that fit its context where none are
    asked for.

    Raises ArtifactError, and RunError when something does not fit the context."""
    from msgspec.structs import replace

    from pyc.runtime.sources.places import address_of

    subject, info, most, digest = _subject(artifact, name, asked.has_random_weights)
    check_text(str(artifact), "ARTIFACT")
    limit = min(asked.context or most, most)
    rest = max(1, (limit - max(asked.depths)) // 2)
    request = replace(
        asked,
        artifact=address_of(artifact),
        header_sha256=digest,
        prompts=asked.prompts or (min(PROMPT, rest),),
        decodes=asked.decodes or (min(DECODE, rest),),
    )
    if info.kind == "decoder":
        _check(request, limit)
    return subject, request


def _subject(artifact: "Place", name: str, random_weights: bool) -> "tuple[Subject, ModelInfo, int, bytes]":
    """What the header says of an artifact, the tokens that a sequence may have, and the header's digest.

    Raises ArtifactError, for one without weights too, unless they are to be random."""
    from pyc.backends.stored_weights import main_scheme, weights_of
    from pyc.commands.bench_report import Subject
    from pyc.runtime.artifact.prefix import usable_context
    from pyc.runtime.artifact.program_only import is_program_only
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.errors import ArtifactError

    with open_artifact(artifact) as opened:
        if is_program_only(opened.header) and not random_weights:
            raise ArtifactError(
                f"{artifact}: has programs and no weights; add those of a checkpoint: pyc attach {artifact} RECIPE -o "
                "model.pyca, or measure it with random ones: --random-weights"
            )
        info = opened.header.model
        if info.kind == "encoder" and is_program_only(opened.header):
            raise ArtifactError(
                f"{artifact}: an encoder is timed with texts, and programs without weights have no tokenizer; measure "
                "the artifact of a whole build, which may take --random-weights"
            )
        weights = next(iter(weights_of(opened.header).values()))
        parameters = sum(weight.values for weight in weights)
        size_bytes = sum(weight.size_bytes for weight in weights) if random_weights else opened.size_bytes
        subject = Subject(
            name,
            info.architecture,
            info.kind,
            size_bytes,
            parameters,
            main_scheme(weights),
            "random" if random_weights else "own",
        )
        return subject, info, usable_context(opened.header), opened.prelude.header_sha256


def _check(request: "Request", context: int) -> None:
    """Raise RunError when something does not fit the context."""
    from pyc.runtime.errors import RunError
    from pyc.runtime.sources.places import place_of

    depth = max(request.depths)
    for what, count in (("prompt", max(request.prompts)), ("decode", max(request.decodes))):
        if depth + count > context:
            behind = f" behind {depth} others" if depth else ""
            raise RunError(
                f"bench: {place_of(request.artifact)}: {count} {what} tokens{behind} exceed the context of {context}; "
                "ask for fewer"
            )


def _rounds(plans: "list[tuple[Subject, Request]]", repeat: int) -> "list[Measured]":
    """Measure everything `repeat` times, forwards and backwards in turn."""
    from pyc.commands.bench_report import Measured
    from pyc.commands.bench_worker import measure_apart

    reports: list[list[Report]] = [[] for _ in plans]
    try:
        for number in range(repeat):
            for index in range(len(plans))[:: -1 if number % 2 else 1]:
                show_status(f"round {number + 1} of {repeat}: {plans[index][0].name}")
                reports[index].append(measure_apart(plans[index][1]))
    finally:
        show_status("")
    return [
        Measured(subject, request, tuple(found)) for (subject, request), found in zip(plans, reports, strict=True)
    ]
