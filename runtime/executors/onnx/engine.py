"""ONNX Runtime as the executor sees it: sessions over weights in memory, providers by name, and errors of pyc's own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.onnx.process_end import keep_in_children, running
from pyc.runtime.executors.onnx.program import Graph, Initializer
from pyc.runtime.executors.protocol import Provider
from pyc.runtime.host.extras import install_line, interruption
from pyc.runtime.host.native_modules import unloadable_remedy
from pyc.runtime.host.signal_handlers import unless_signalled

_BF16 = 16
"""ONNX's number of that type, which numpy lacks."""

_STORED = {"f32": ("float32", "float16", "uint16"), "f16": ("float16",), "bf16": ("uint16",), "u8": ("uint8",)}
"""What tensors of the artifact become which dtype of an initializer; bf16 is stored as uint16."""

NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""Read by ONNX Runtime's wheels when they are imported: without it they report to their maker, and leave a file."""

DEFAULT_PROVIDERS: tuple[Provider, ...] = (("CPUExecutionProvider", {}),)


def check_machine() -> None:
    """Raise RunError where onnxruntime is not installed, and import nothing."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise _not_installed()


def _not_installed() -> RunError:
    return RunError(f"backend onnx: the package onnxruntime is not installed; to install it, {install_line('onnx')}")


def import_onnxruntime() -> Any:
    """Return the package, which reports to nobody when it is imported so. Raises RunError where it cannot be had."""
    os.environ.setdefault(NO_TELEMETRY, "1")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise _not_installed() from error
    except ImportError as error:
        if interrupted := interruption(error):
            raise interrupted from None
        raise RunError(
            f"backend onnx: the package onnxruntime cannot be loaded: {_first_line(error)}; {unloadable_remedy(error)}"
        ) from error
    return onnxruntime


class Engine:
    """What is common to the sessions of an artifact."""

    def __init__(self, threads: int, providers: Sequence[Provider]) -> None:
        """Raises RunError when onnxruntime is not installed or cannot be loaded, or lacks one of `providers`."""
        onnxruntime = import_onnxruntime()
        self._ort = onnxruntime
        self._threads = threads
        self._providers = list({name: (name, options) for name, options in providers or DEFAULT_PROVIDERS}.values())
        available = onnxruntime.get_available_providers()
        for name, _ in self._providers:
            if name not in available:
                raise RunError(
                    f"provider {name!r}: onnxruntime {onnxruntime.__version__} here has {', '.join(available)}; "
                    "install the onnxruntime package that has it"
                )

    def session(self, graph: Graph, tensors: Mapping[str, NDArray[np.generic]]) -> Session:
        """Return a session of a graph over an artifact's tensors. Raises ArtifactError and RunError."""
        ort = self._ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what is wrong arrives as an exception
        # Threads of one session would keep the cores busy while another runs.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # No file is opened for weights: a place that is there, as ONNX Runtime asks for one.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/dev")
        values = [self._add(options, graph, initializer, tensors) for initializer in graph.initializers]
        with running():
            try:
                # Without fallback: it takes the CPU for a provider that fails, and prints so to standard output.
                made = ort.InferenceSession(graph.model, options, providers=self._providers, enable_fallback=0)
            except unless_signalled(Exception) as error:
                raise self._refused(graph, error) from error
        self._check_providers(made.get_providers())
        return Session(self, made, values)

    def _add(
        self, options: Any, graph: Graph, initializer: Initializer, tensors: Mapping[str, NDArray[np.generic]]
    ) -> Any:
        """Hand a weight over, and return it. Raises ArtifactError when the tensor is not what is asked for."""
        try:
            seen = _seen(tensors[initializer.tensor], initializer)
            if initializer.scales:
                seen = widened(seen, tensors[initializer.scales], initializer.format, initializer.block)
            value = self._value(seen, initializer.dtype)
            options.add_initializer(initializer.name, value)
        except (ValueError, IndexError, TypeError, OverflowError, RuntimeError) as error:
            raise ArtifactError(
                f"the program for ONNX Runtime is not valid: graph {graph.name!r}, weight {initializer.name!r}: "
                f"{_first_line(error)}"
            ) from error
        return value

    def _check_providers(self, started: Sequence[str]) -> None:
        """Raise RunError when ONNX Runtime went on without a provider: it only logs that one does not start."""
        for name, _ in self._providers:
            if name not in started:
                raise RunError(
                    f"provider {name!r}: onnxruntime {self._ort.__version__} has it, but it does not start here: its "
                    "device, driver or a library of it is missing; leave the provider out to run on the CPU"
                )

    def memory(self, array: NDArray[np.generic]) -> Any:
        """Return an array as a value that shares its memory."""
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def _value(self, array: NDArray[np.generic], dtype: str) -> Any:
        """Return an array as a value of `dtype`; bf16 comes as u16."""
        if array.dtype.name not in _STORED.get(dtype, ()):
            raise ValueError(f"it is stored as {array.dtype.name}, which does not become {dtype}")
        if dtype == "bf16":
            return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BF16)
        if dtype == "f32" and array.dtype == np.uint16:
            array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif dtype == "f32" and array.dtype != np.float32:
            array = array.astype(np.float32)
        return self.memory(array)

    def _refused(self, graph: Graph, error: Exception) -> ArtifactError | RunError:
        said = _first_line(error)
        version = self._ort.__version__
        if "opset" in said.lower() or "not a registered function" in said or "NOT_IMPLEMENTED" in said:
            return RunError(
                f"onnxruntime {version} lacks something that the artifact's graph {graph.name!r} needs: {said}; "
                "install a newer onnxruntime"
            )
        names = ", ".join(name for name, _ in self._providers)
        return RunError(f"onnxruntime {version} with {names} does not take the graph {graph.name!r}: {said}")


class Session:
    """A graph that is ready to run."""

    def __init__(self, engine: Engine, session: Any, held: Sequence[Any]) -> None:
        """`held` are values that the session reads, and does not keep."""
        self._engine, self._session, self._held = engine, session, held
        self._process = os.getpid()
        keep_in_children(session)

    def check_process(self) -> None:
        """Raise RunError in a child of the process that made this: threads, which it would wait for, are not copied."""
        if os.getpid() != self._process:
            raise RunError("onnxruntime: this model was loaded by another process, whose child this is; load it here")

    def check_width(self, graph: str, width: int) -> None:
        """Raise ArtifactError when the first output does not have rows of `width` values, before any is made."""
        shape = self._session.get_outputs()[0].shape
        if not shape or shape[-1] != width:
            raise ArtifactError(
                f"the program for ONNX Runtime is not valid: graph {graph!r} gives {shape}, expected rows of {width}"
            )

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        """Return the first output. Raises RunError."""
        self.check_process()
        with running():
            try:
                return cast("NDArray[np.float32]", self._session.run(None, dict(inputs))[0])
            except unless_signalled(Exception) as error:
                raise _failed(error) from error

    def bind(self, inputs: Mapping[str, NDArray[np.generic]], outputs: Mapping[str, NDArray[np.generic]]) -> Binding:
        """Return a run over memory that stays: what stands in `inputs` when it runs is read, `outputs` are written.

        Raises RunError.
        """
        with running():
            binding = self._session.io_binding()
            try:
                for name, array in inputs.items():
                    binding.bind_ortvalue_input(name, self._engine.memory(array))
                for name, array in outputs.items():
                    binding.bind_ortvalue_output(name, self._engine.memory(array))
            except Exception as error:
                raise _failed(error) from error
        return Binding(self, self._session, binding, (*inputs.values(), *outputs.values()))


class Binding:
    """A run of a session over memory that stays."""

    def __init__(self, owner: Session, session: Any, binding: Any, held: Sequence[NDArray[np.generic]]) -> None:
        self._owner, self._session, self._binding, self._held = owner, session, binding, held

    def run(self) -> None:
        """Run once. Raises RunError."""
        self._owner.check_process()
        with running():
            try:
                self._session.run_with_iobinding(self._binding)
            except unless_signalled(Exception) as error:
                raise _failed(error) from error


def _seen(array: NDArray[np.generic], initializer: Initializer) -> NDArray[np.generic]:
    if initializer.row is not None and not 0 <= initializer.row < len(array):
        raise ArtifactError(f"{initializer.tensor}: it is {list(array.shape)}, the graph wants row {initializer.row}")
    rows = array if initializer.row is None else array[initializer.row]
    if rows.size != int(np.prod(initializer.shape)):
        raise ArtifactError(
            f"{initializer.tensor}: it is {list(array.shape)}, the graph expects {list(initializer.shape)}"
        )
    return rows.reshape(initializer.shape)


_HALF_SHIFTS = {"e4m3": (7, np.float32(2**8)), "e5m2": (8, np.float32(1))}
"""How far the bits of a code's magnitude are from those of an f16, and what that is then less by."""


def widened(
    codes: NDArray[np.generic], scales: NDArray[np.generic], float_format: str, block: int
) -> NDArray[np.float32]:
    """Return the f32 values [rows, columns] of codes u8 of 8-bit floating point, times their scales.

    Raises ValueError for what a damaged program asks for.
    """
    if codes.dtype != np.uint8 or codes.ndim != 2 or scales.dtype != np.float32 or float_format not in _HALF_SHIFTS:
        raise ValueError(f"codes {codes.dtype.name} of {float_format!r} by scales {scales.dtype.name}")
    columns = codes.shape[1]
    groups = -(-columns // block) if block > 0 else 1
    if scales.shape != (len(codes), groups):
        raise ValueError(f"scales are {list(scales.shape)}, expected {[len(codes), groups]}")
    shift, factor = _HALF_SHIFTS[float_format]
    every = np.arange(256, dtype=np.uint16)
    bits = (every & 0x80) << np.uint16(8) | (every & 0x7F) << np.uint16(shift)
    with np.errstate(invalid="ignore"):  # of the codes that are no numbers
        values: NDArray[np.float32] = (bits.view(np.float16).astype(np.float32) * factor)[codes]
    by_row = scales.astype(np.float32, copy=False)
    values *= by_row if groups == 1 else np.repeat(by_row, block, axis=1)[:, :columns]
    return values


def _failed(error: Exception) -> RunError:
    return RunError(f"onnxruntime: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    """What an exception of ONNX Runtime says, on one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__
