"""Programs of torch.export that pyc makes of checkpoints, and how decoders among them are run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from pyc.backends.torch_tensorrt.export import export_program
from pyc.backends.torch_tensorrt.interface import Interface, interface_of
from pyc.backends.torch_tensorrt.module import reference_module
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.passes.driver.build import parse
from pyc.passes.driver.lower_recipe import lower_recipe

SMALL_SHAPES = {"tokens": [1, 16], "batch": [1, 3]}


def lowered(checkpoint: Path, **recipe: object) -> tuple[Module, torch.nn.Module, Interface]:
    """The common module of a recipe, the torch module of that, and its interface."""
    parsed = parse({"model": str(checkpoint), "shapes": SMALL_SHAPES, **recipe})
    with SourceFiles() as files:
        module = lower_recipe(parsed, files, backends={}).common
        reference = reference_module(module, files)
    return module, reference, interface_of(module.info, parsed.shapes.tokens, parsed.shapes.batch)


@dataclass
class Decoder:
    """Runs a decoder's program, a batch of sequences with a cache that grows."""

    run: Callable[..., tuple[torch.Tensor, ...]]
    interface: Interface

    def cache(self, batch: int = 1, positions: int = 0) -> list[torch.Tensor]:
        """A cache of so many positions, of noise: whoever attends to them shows it."""
        generator = torch.Generator().manual_seed(5)
        shapes = [given.dimensions for given in self.interface.inputs if given.name.startswith("past_key_values.")]
        return [torch.randn((batch, heads, positions, dim), generator=generator) for _, heads, _, dim in shapes]

    def step(self, ids, positions, mask, cache):
        """Logits [batch, tokens, V] and the cache behind the step."""
        numbers = [torch.as_tensor(np.array(value), dtype=torch.int64) for value in (ids, positions, mask)]
        with torch.no_grad():
            logits, *present = self.run(*numbers, *cache)
        return logits.numpy(), present

    def logits(self, ids, steps=None):
        """Logits [tokens, V] of one sequence, fed in steps of so many tokens (the whole at once without them)."""
        cache, rows, start = self.cache(), [], 0
        for count in steps or [len(ids)]:
            stop = start + count
            found, cache = self.step([ids[start:stop]], [range(start, stop)], [[1] * stop], cache)
            rows.append(found[0])
            start = stop
        assert start == len(ids)
        return np.concatenate(rows)


@pytest.fixture(scope="session")
def exported() -> Callable[..., Decoder]:
    """`exported(checkpoint, **recipe)`: a decoder, exported; once a session."""
    made: dict[str, Decoder] = {}

    def make(checkpoint: Path, **recipe: object) -> Decoder:
        key = repr((checkpoint, sorted(recipe.items())))
        if key not in made:
            _, reference, interface = lowered(checkpoint, **recipe)
            made[key] = Decoder(export_program(reference, interface).module(), interface)
        return made[key]

    return make
