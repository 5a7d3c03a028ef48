"""Turns of engines: each a process on a machine at rest, with the machine's limits before and after."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine_limits import LimitMeter
from peer_engines import PEERS, Engine
from peer_files import WORKERS, PeerError, Place

Document = dict[str, Any]


class Turns:
    """Engines one after another, the limits of the machine measured between them, after `pause_s` seconds of rest."""

    def __init__(self, place: Place, pythons: Mapping[str, Path], meter: LimitMeter, pause_s: float) -> None:
        self._place, self._pythons, self._meter, self._pause_s = place, pythons, meter, pause_s
        self._before = self._rest()

    def take(self, engine: Engine, job: Document) -> Document:
        """A worker's answer with the limits of its turn, the better of those before and after; runs have both reads.

        Raises PeerError.
        """
        before = self._before
        try:
            answer = _run_worker(self._place, self._pythons, engine, job)
        finally:
            after = self._before = self._rest()
        for run in answer["runs"]:
            run["reads"] = [before["read"], after["read"]]
        return {**answer, "limits": {name: max(before[name] or 0, after[name] or 0) for name in before}}

    def _rest(self) -> dict[str, float | None]:
        time.sleep(self._pause_s)
        return self._meter.now()


def _run_worker(place: Place, pythons: Mapping[str, Path], engine: Engine, job: Document) -> Document:
    """One turn of an engine. Raises PeerError."""
    weights = place.work / engine.weights if engine.weights else place.checkpoint
    python, peer_options = pythons[engine.peer], dict(engine.options)
    if any(peer.name == engine.peer and peer.module is None for peer in PEERS):
        python, peer_options = Path(sys.executable), {**peer_options, "program": str(python)}
    task = {**job, "weights": str(weights), "options": peer_options}
    lines = place.run((str(python), str(WORKERS / engine.worker)), json.dumps(task)).strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise PeerError("the worker's last line is not JSON") from error
