"""Progress of a build on standard error: a bar with the time left on a terminal, else a line now and then."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyc.commands.screen import is_terminal, tell
from pyc.commands.status_line import is_quiet
from pyc.runtime.host.sizes import human_bytes, human_duration
from pyc.runtime.text.printable import printable

if TYPE_CHECKING:
    from pyc.passes.build_events import BuildEvent

LINE_EVERY_S = 10.0
"""At most one line of the same stage in this time, so that a log of CI stays short."""

_STAGES = {
    "download": "downloading",
    "ingest": "reading headers",
    "measure": "measuring schemes",
    "compare": "comparing with uniform schemes",
    "calibrate": "calibrating",
    "lower": "hashing sources",
    "compile": "compiling programs",
    "emit": "writing weights",
    "reference": "building the reference",
    "evaluate": "evaluating",
    "done": "done",
}


@contextmanager
def report_progress() -> Iterator[Callable[["BuildEvent"], None]]:
    """Yield what to hand to `build` as its progress."""
    if is_quiet():
        yield notes_alone
    elif is_terminal(sys.stderr) and importlib.util.find_spec("rich") is not None:
        with _bar() as report:
            yield report
    else:
        yield PlainProgress()


def stage_text(stage: str) -> str:
    """What a stage of a build does."""
    return _STAGES.get(stage, stage)


def amount_text(event: "BuildEvent", elapsed_s: float) -> str:
    """How much of a stage is done, and the time left at its pace so far: "25% of 1.2 GB, 30 s left"."""
    if not event.total_bytes:
        return ""
    share = event.done_bytes / event.total_bytes
    counted = event.stage in ("measure", "compare")
    total = f"{event.total_bytes} runs" if counted else human_bytes(event.total_bytes)
    amount = f"{share:.0%} of {total}"
    if not event.done_bytes:
        return amount
    return f"{amount}, {human_duration(elapsed_s * (1 - share) / share)} left"


def notes_alone(event: "BuildEvent") -> None:
    """Tell the notes of a build, that a key was made say, and no progress; writes to standard error."""
    if event.note:
        tell(f"pyc: {event.note}")


class PlainProgress:
    """Writes a line at each new stage, and while one lasts at most one line in LINE_EVERY_S seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._started_s = 0.0
        self._written_s = 0.0

    def __call__(self, event: "BuildEvent") -> None:
        """Note an event; writes to standard error."""
        if event.note:
            tell(f"pyc: {event.note}")
            return
        now_s = self._clock()
        if event.stage != self._stage:
            self._stage, self._started_s, self._written_s = event.stage, now_s, now_s
            if event.stage != "done":
                tell(f"pyc: {stage_text(event.stage)}")
        elif event.total_bytes and now_s - self._written_s >= LINE_EVERY_S:
            self._written_s = now_s
            amount = amount_text(event, now_s - self._started_s)
            tell(f"pyc: {stage_text(event.stage)}: {amount}")


@contextmanager
def _bar() -> Iterator[Callable[["BuildEvent"], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[amount]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        stage = "ingest"
        started_s = time.monotonic()
        task = progress.add_task(stage_text(stage), total=None, amount="")

        def report(event: "BuildEvent") -> None:
            nonlocal stage, started_s
            if event.note:
                progress.console.print(printable(f"pyc: {event.note}"), markup=False, highlight=False, soft_wrap=True)
                return
            if event.stage == "done":
                return
            if event.stage != stage:
                stage, started_s = event.stage, time.monotonic()
                progress.reset(task, total=None, description=stage_text(stage))
            amount = amount_text(event, time.monotonic() - started_s)
            progress.update(task, completed=event.done_bytes, total=event.total_bytes or None, amount=amount)

        yield report
