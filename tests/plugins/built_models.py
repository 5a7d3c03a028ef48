"""Models built by pyc for comparison with independent references, and the measures of that comparison."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pyc.backends.cpu.isa import ISAS
from pyc.passes.driver.build import BuildResult, build
from pyc.runtime.executors.cpu.features import allow_tiles, cpu_features
from pyc.runtime.model import Model, load

SMALL_SHAPES = {"tokens": [1, 4, 16], "logits": [1, 16]}


def runnable_isas() -> tuple[str, ...]:
    """The instruction sets that this CPU runs, the fastest first."""
    machine, features = platform.machine(), cpu_features()
    found = [isa for isa in ISAS.values() if isa.arch == machine and set(isa.features) <= features]
    if not allow_tiles():
        found = [isa for isa in found if "amx_tile" not in isa.features]
    assert found, f"pyc has no instruction set for {machine}"
    return tuple(isa.name for isa in sorted(found, key=lambda isa: -isa.rank))


def target_of(*isas: str) -> list[dict[str, object]]:
    """The recipe's targets for instruction sets of this machine (none: the fastest)."""
    return [{"arch": platform.machine(), "isa": list(isas or runnable_isas()[:1])}]


def recipe_for(checkpoint: Path, **recipe: object) -> dict[str, object]:
    """A recipe for the fastest instruction set of this machine and few, small buckets."""
    return {"model": str(checkpoint), "shapes": SMALL_SHAPES, "targets": target_of(), **recipe}


ModelFactory = Callable[..., Model]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., BuildResult]:
    """`artifacts(checkpoint, **recipe)`: the build of a recipe, in a file of its own, once a session."""
    done: dict[str, BuildResult] = {}
    folder = tmp_path_factory.mktemp("artifacts")

    def make(checkpoint: Path, **recipe: object) -> BuildResult:
        key = repr((checkpoint, sorted(recipe.items())))
        if key not in done:
            done[key] = build(recipe_for(checkpoint, **recipe), output=folder / f"{len(done)}.pyca")
        return done[key]

    return make


@pytest.fixture
def built(artifacts: Callable[..., BuildResult]) -> Iterator[ModelFactory]:
    """`built(checkpoint, *, threads=1, isa=None, **recipe)`: the loaded model; closed after the test."""
    opened: list[Model] = []

    def make(checkpoint: Path, *, threads: int = 1, isa: str | None = None, **recipe: object) -> Model:
        opened.append(load(artifacts(checkpoint, **recipe).path, threads=threads, isa=isa))
        return opened[-1]

    yield make
    for model in opened:
        model.close()


@dataclass(frozen=True)
class Difference:
    """How far logits [tokens, vocab] lie from a reference's."""

    mean_kl: float
    top1_agreement: float
    largest: float
    spread: float


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log-softmax in float64."""
    wide = np.asarray(logits, np.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def difference(reference: np.ndarray, got: np.ndarray) -> Difference:
    """KL(reference || got) a token in nats, agreement of the best token, largest error, spread of the reference."""
    assert reference.shape == got.shape, (reference.shape, got.shape)
    assert np.isfinite(got).all()
    p, q = log_probabilities(reference), log_probabilities(got)
    return Difference(
        mean_kl=float((np.exp(p) * (p - q)).sum(-1).mean()),
        top1_agreement=float((reference.argmax(-1) == got.argmax(-1)).mean()),
        largest=float(np.abs(reference - got).max()),
        spread=float(reference.std()),
    )


def margins(logits: np.ndarray) -> np.ndarray:
    """The best logit's lead over the second, for each row."""
    best = np.sort(np.asarray(logits, np.float64), axis=-1)[:, -2:]
    return best[:, 1] - best[:, 0]


def single_steps(model: Model, ids: list[int]) -> np.ndarray:
    """Logits [tokens, vocab], one token fed at a time."""
    session = model.session
    slot = session.acquire()
    try:
        rows = [np.array(session.logits(session.prefill([token], slot))[0]) for token in ids]
    finally:
        session.release(slot)
    return np.stack(rows)


def random_ids(model: Model, count: int, seed: int = 0) -> list[int]:
    """Token ids that are neither padding nor end of text."""
    return np.random.default_rng(seed).integers(3, model.info.vocab_size, count).tolist()
