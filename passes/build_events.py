"""What a build tells of its progress."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

Stage = Literal[
    "download", "ingest", "measure", "compare", "calibrate", "lower", "emit", "compile", "reference", "evaluate", "done"
]
"""What a build waits for, in this order; programs are compiled from "lower" on."""


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """Progress of a build: the stage, and bytes of weights written (or downloaded, or weights calibrated, or runs of
    a model that measure schemes, or bytes of a gate's text that are scored) of all.

    `note` is a line for the user about something that he did not ask for in so many words; mostly empty.
    """

    stage: Stage
    done_bytes: int
    total_bytes: int
    note: str = ""


def log_note(event: BuildEvent) -> None:
    """Log a note, for callers who are told of no progress: the others show it."""
    if event.note:
        logger.info("%s", event.note)
