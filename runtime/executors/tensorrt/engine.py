"""The calls that run an engine: TensorRT's Runtime, ICudaEngine and IExecutionContext, and no others.

None of this has run with TensorRT. Tests hand it to a double that has the documented names and no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyc.runtime.errors import RunError
from pyc.runtime.executors.tensorrt.documented import ExecutionContext, Shape
from pyc.runtime.executors.tensorrt.toolkit import Toolkit


class Engine:
    """An engine that is ready for contexts."""

    def __init__(self, toolkit: Toolkit, name: str, data: bytes, profiles: int) -> None:
        """`profiles` are those that it was built with. Raises RunError for what this TensorRT or GPU does not take."""
        self._toolkit, self._name = toolkit, name
        self._runtime = toolkit.tensorrt.Runtime(toolkit.log)
        engine = self._runtime.deserialize_cuda_engine(data)
        if engine is None or engine.num_optimization_profiles != profiles:
            raise RunError(
                f"TensorRT {toolkit.version} on {toolkit.device.name} does not load the engine of {name!r}: "
                f"{toolkit.remarks()}; build it again: pyc install --again ARTIFACT"
            )
        self._engine = engine

    def context(self, profile: int) -> Context:
        """Return a context for a profile. Raises RunError."""
        made = self._engine.create_execution_context()
        if made is None:
            raise RunError(
                f"{self._toolkit.device.name}: no memory for a context of {self._name!r}: {self._toolkit.remarks()}; "
                "build the artifact with fewer shapes.tokens, or end what else uses the GPU"
            )
        try:
            made.set_optimization_profile_async(profile, self._toolkit.device.stream)
        except RuntimeError as error:
            raise RunError(f"TensorRT: profile {profile} of {self._name!r}: {error}") from error
        return Context(self._toolkit, self._name, made)


class Context:
    """A run of an engine over memory of the device."""

    def __init__(self, toolkit: Toolkit, name: str, context: ExecutionContext) -> None:
        self._toolkit, self._name, self._context = toolkit, name, context

    def bind(self, inputs: Mapping[str, tuple[Shape, int]], outputs: Mapping[str, int]) -> None:
        """Say the shape and address of each input, and the address of each output. Raises RunError."""
        for name, (shape, address) in inputs.items():
            if not self._context.set_input_shape(name, shape):
                raise RunError(f"TensorRT: {name} of {self._name!r} is {list(shape)}, outside its profile")
            self._place(name, address)
        for name, address in outputs.items():
            self._place(name, address)

    def _place(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise RunError(f"TensorRT: the engine of {self._name!r} takes no {name}: {self._toolkit.remarks()}")

    def run(self) -> None:
        """Put the work into the device's stream. Raises RunError."""
        if not self._context.execute_async_v3(self._toolkit.device.stream):
            raise RunError(f"TensorRT: {self._name!r} does not run: {self._toolkit.remarks()}")
