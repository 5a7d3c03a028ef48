"""The process that loads one artifact for `pyc bench`, measures it once, and ends: what memory it took is its own then.

    stdin   a Request as JSON
    stdout  a Report, or a Failure, as JSON
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from pyc.commands.opening import keep_blas_small
from pyc.runtime import errors
from pyc.runtime.errors import ArtifactError, PycError, RunError

if TYPE_CHECKING:
    from pyc.runtime.model import Model

# The sentences that encoders are timed with: short and long ones in turn.
SENTENCES = (
    "The cat sat on the mat.",
    "A compiler turns a description of a computation into a form that a machine executes well.",
    "Rain.",
    "When the train finally arrived at the little station by the sea, nobody was there to meet it.",
)

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG"""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to measure: every prompt and every decoding, in tokens, behind each of `depths`; of encoders `sentences`.

    `artifact` is a path, or a URL with all that belongs to it, credentials too; `header_sha256` is of the header that
    is reported, so that an artifact that is replaced meanwhile is not measured under another's name.
    """

    artifact: str
    header_sha256: bytes
    mode: Literal["mmap", "pread"]
    trust: str
    threads: int | None
    isa: str | None
    backend: str | None
    context: int | None
    prompts: tuple[int, ...]
    decodes: tuple[int, ...]
    depths: tuple[int, ...]
    sentences: int
    has_random_weights: bool = False


class PromptRun(msgspec.Struct, frozen=True):
    """A prompt of `tokens` behind `depth` others: see `benchmark.PromptTimes`."""

    tokens: int
    depth: int
    prefill_s: float
    first_s: float


class DecodeRun(msgspec.Struct, frozen=True):
    """The seconds of each of `tokens` steps behind `depth` tokens."""

    tokens: int
    depth: int
    steps_s: tuple[float, ...]


class TextRun(msgspec.Struct, frozen=True):
    """Seconds of all sentences together, and of the first of them alone."""

    together_s: float
    alone_s: float


class Report(msgspec.Struct, frozen=True, tag=True):
    """What one process measured."""

    load_s: float
    threads: int
    isa: str
    features: tuple[str, ...]
    peak_rss_bytes: int
    prompts: tuple[PromptRun, ...]
    decodes: tuple[DecodeRun, ...]
    texts: TextRun | None


class Failure(msgspec.Struct, frozen=True, tag=True):
    """The class of an error, and what it says."""

    kind: str
    message: str


def measure_apart(request: Request) -> Report:
    """Return what a process of its own measures. Raises what it raises, and RunError when it dies."""
    from pyc.runtime.sources.places import place_of

    if not sys.executable:
        raise RunError("bench: this Python does not say where its interpreter is; run pyc from a usual installation")
    # From the same places as this process, wherever those are.
    code = f"import sys; sys.path[:] = {sys.path!r}; from pyc.commands.bench_worker import main; main()"
    command = [sys.executable, "-P", "-c", code]
    # In a group of its own a control-C does not reach it: this process ends it, and says so in one line.
    done = subprocess.run(
        command, input=msgspec.json.encode(request), stdout=subprocess.PIPE, check=False, process_group=0
    )
    place = place_of(request.artifact)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise RunError(f"{place}: the process that measured it died of {name}; is there enough memory?")
    try:
        reply = msgspec.json.decode(done.stdout, type=Report | Failure)
    except msgspec.DecodeError as error:
        raise RunError(f"{place}: the process that measured it ended with {done.returncode}") from error
    if isinstance(reply, Report):
        return reply
    kind = getattr(errors, reply.kind, RunError)
    raise kind(reply.message)


def measure(request: Request) -> Report:
    """Load the artifact and measure it once, after a run of everything that is not counted. Raises the errors of
    `load`, and RunError for what does not fit its context."""
    from pyc.runtime.host.machine import peak_rss_bytes

    model, load_s = _loaded(request)
    with model:
        prompts: tuple[PromptRun, ...] = ()
        decodes: tuple[DecodeRun, ...] = ()
        texts = None
        if model.info.kind == "decoder":
            from pyc.runtime.measure.benchmark import WARM_UP_TOKENS, DecoderBench

            bench = DecoderBench(model)
            for tokens in request.prompts:
                bench.prompt(tokens)
            bench.decode(min(WARM_UP_TOKENS, *request.decodes))
            prompts = tuple(
                PromptRun(tokens, depth, times.prefill_s, times.first_s)
                for depth in request.depths
                for tokens in request.prompts
                for times in (bench.prompt(tokens, depth=depth),)
            )
            decodes = tuple(
                DecodeRun(tokens, depth, tuple(bench.decode(tokens, depth=depth)))
                for depth in request.depths
                for tokens in request.decodes
            )
        else:
            from pyc.runtime.measure.benchmark import time_texts

            sentences = [SENTENCES[index % len(SENTENCES)] for index in range(request.sentences)]
            time_texts(model, sentences)
            texts = TextRun(time_texts(model, sentences), time_texts(model, sentences[:1]))
        with contextlib.suppress(PycError):  # a run of text needs it, if there is one: its memory counts
            model.tokenizer.encode("a text")
        features = model.program.features if model.program is not None else ()
        return Report(
            load_s, model.executor.threads, model.executor.isa, features, peak_rss_bytes(), prompts, decodes, texts
        )


def _loaded(request: Request) -> tuple[Model, float]:
    """The model, with the artifact's weights or random ones, and the seconds that its load took.

    The import of Python modules is not counted: it takes as long whatever the artifact.
    """
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.executors.registry import choose_program
    from pyc.runtime.loading import LoadOptions, load_executor
    from pyc.runtime.model import model_of
    from pyc.runtime.sources.places import place_of

    start = time.perf_counter()
    with open_artifact(place_of(request.artifact), mode=request.mode) as artifact:
        if artifact.prelude.header_sha256 != request.header_sha256:
            raise ArtifactError(f"{artifact.path}: replaced while it was being measured: run pyc bench again")
        opened_s = time.perf_counter() - start
        _import_for(choose_program(artifact.header.programs, request.isa, request.backend).backend)
        start = time.perf_counter()
        weights = None
        if request.has_random_weights:
            from pyc.backends.random_weights import random_weights

            weights = random_weights(artifact)
        options = LoadOptions(
            request.threads,
            request.isa,
            request.backend,
            context=request.context,
            trust=request.trust,
            random_weights=weights,
        )
        model = model_of(load_executor(artifact, options))
        return model, opened_s + time.perf_counter() - start


def _import_for(backend: str) -> None:
    """What the load of a program imports."""
    engine = {"tvm": "cpu"}.get(backend, backend)
    for name in ("tokenizers", "pyc.runtime.text.tokenizer", f"pyc.runtime.executors.{engine}.executor"):
        importlib.import_module(name)
    if engine == "onnx":
        from pyc.runtime.executors.onnx.engine import import_onnxruntime

        import_onnxruntime()


def main() -> None:
    """The process: read the request, answer, end."""
    keep_blas_small()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    reply: Report | Failure
    try:
        reply = measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Request))
    except PycError as error:
        reply = Failure(type(error).__name__, str(error))
    except Exception as error:  # noqa: BLE001 -- who asked reports it
        reply = Failure("RunError", f"bench: {type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError):  # who asked has ended
        sys.stdout.buffer.write(msgspec.json.encode(reply))
        sys.stdout.flush()
    os._exit(0)
