"""How compiled programs expect to be called, which changes from one version of pyc to another (`abi` of a program)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyc.backends.registry import BACKENDS
from pyc.runtime.artifact.format import Program
from pyc.runtime.executors.cuda.program import CONVENTION as CUDA
from pyc.runtime.executors.onnx.program import CONVENTION as ONNX
from pyc.runtime.executors.protocol import STEP_CONVENTION
from pyc.runtime.executors.tensorrt.program import CONVENTION as TENSORRT

CONVENTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"cpu": STEP_CONVENTION, "cuda": CUDA, "onnx": ONNX, "tensorrt": TENSORRT}
)
"""The convention of each backend, as its programs record it now."""


@dataclass(frozen=True, slots=True)
class OtherConvention:
    """A program that this pyc does not run: `recorded` says how it is called, `ours` how this pyc calls one.

    `ours` is None where this pyc has no such backend.
    """

    program: Program
    recorded: str
    ours: str | None

    def told(self) -> str:
        """Return it as a part of a sentence."""
        what = f"its program {self.program.backend} {self.program.arch} {self.program.isa}"
        if self.ours is None:
            return f"{what} is of another pyc ({self.recorded}); this one has no backend {self.program.backend}"
        return f"{what} is of another pyc ({self.recorded}); this one has {self.ours}"


def other_conventions(programs: Iterable[Program]) -> list[OtherConvention]:
    """Return the programs that are called in another way than this pyc calls them, each with what it records."""
    found = []
    for program in programs:
        tools = {tool.name: tool.version for tool in program.abi}
        if program.backend not in CONVENTIONS:
            if program.backend not in BACKENDS:
                said = (f"{name} {version}" for name, version in tools.items() if name.startswith("pyc-"))
                found.append(OtherConvention(program, next(said, "unknown"), None))
            continue
        name, version = CONVENTIONS[program.backend]
        recorded = tools.get(name, "1")  # the first recorded none
        if recorded != version:
            found.append(OtherConvention(program, f"{name} {recorded}", f"{name} {version}"))
    return found
