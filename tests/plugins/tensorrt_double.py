"""A stand-in for tensorrt, which does not run here: it refuses what the documents do not have.

tensorrt: classes, methods, parameters and members as in the source of the Python bindings of TensorRT 11.1
(NVIDIA/TensorRT, python/src/infer/pyCore.cpp and pyFoundationalTypes.cpp, python/src/parsers/pyOnnx.cpp; what they
mean: python/docstrings). All names that are here are in the bindings of 10.13, 11.0 and 11.4, too. What the parser
refuses is as in the source of onnx-tensorrt 10.1 (QuantDequantLinearHelper of onnxOpImporters.cpp) and its
docs/operators.md; which operators came later, as in the change log of TensorRT (Attention 10.14, RMSNormalization and
RotaryEmbedding 10.15). cuda.bindings.runtime: see `cuda_double`.

An engine is the parsed model with its weights; to execute it is to run that with ONNX Runtime.
"""
# ruff: noqa: A002

import enum
import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from cuda_double import Machine, module_of, of_type
from google.protobuf.message import DecodeError
from tensorrt_parser import byte_size, contradiction, filled, objections

VERSION = "11.1.0.106"
MAGIC = b"double of a TensorRT engine\n"
TIMINGS = b"double of a timing cache\n"


class NetworkDefinitionCreationFlag(enum.IntEnum):
    STRONGLY_TYPED = 1
    PREFER_AOT_PYTHON_PLUGINS = 2
    PREFER_JIT_PYTHON_PLUGINS = 3


BuilderFlag = enum.IntEnum(
    "BuilderFlag",
    "DEBUG GPU_FALLBACK REFIT DISABLE_TIMING_CACHE EDITABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS SAFETY_SCOPE DIRECT_IO "
    "VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME ERROR_ON_TIMING_CACHE_MISS DISABLE_COMPILATION_CACHE STRIP_PLAN "
    "REFIT_IDENTICAL WEIGHT_STREAMING REFIT_INDIVIDUAL STRICT_NANS MONITOR_MEMORY DISTRIBUTIVE_INDEPENDENCE",
)


class Strict:
    """What pybind11 binds takes no attributes but those that it has."""

    __slots__ = ()


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        self.is_made = True

    def log(self, severity, msg):
        raise NotImplementedError


def checked_logger(logger):
    of_type(logger, ILogger, "logger")
    if not getattr(logger, "is_made", False):
        raise TypeError("ILogger.__init__() must be called when overriding __init__")
    return logger


class HostMemory(bytes):
    """IHostMemory: it has the buffer protocol."""


def tensorrt_of(machine, version):
    class OptimizationProfile(Strict):
        __slots__ = ("shapes",)

        def __init__(self):
            self.shapes = {}

        def set_shape(self, input, min, opt, max):
            of_type(input, str, "input")
            if not len(min) == len(opt) == len(max) or any(
                not of_type(a, int, "min") <= of_type(b, int, "opt") <= of_type(c, int, "max")
                for a, b, c in zip(min, opt, max, strict=True)
            ):
                raise RuntimeError("Shape provided for opt is inconsistent with other shapes.")
            self.shapes[input] = [list(min), list(opt), list(max)]

    class TimingCache(Strict):
        __slots__ = ("data",)

        def __init__(self, data):
            self.data = data

        def serialize(self):
            return HostMemory(self.data)

    class BuilderConfig(Strict):
        __slots__ = ("flags_set", "inputs", "profiles", "timing_cache")

        def __init__(self):
            self.flags_set, self.profiles, self.timing_cache = {BuilderFlag.TF32}, [], None

        def set_flag(self, flag):
            self.flags_set.add(of_type(flag, BuilderFlag, "flag"))

        def clear_flag(self, flag):
            self.flags_set.discard(of_type(flag, BuilderFlag, "flag"))

        def create_timing_cache(self, serialized_timing_cache):
            data = bytes(of_type(serialized_timing_cache, bytes, "serialized_timing_cache"))
            return TimingCache(data or TIMINGS) if not data or data.startswith(TIMINGS) else None

        def set_timing_cache(self, cache, ignore_mismatch):
            of_type(ignore_mismatch, bool, "ignore_mismatch")
            self.timing_cache = of_type(cache, TimingCache, "cache")
            return True

        def add_optimization_profile(self, profile):
            self.profiles.append(of_type(profile, OptimizationProfile, "profile").shapes)
            return len(self.profiles) - 1

    class Network(Strict):
        __slots__ = ("is_strongly_typed", "model")

        def __init__(self, is_strongly_typed):
            self.is_strongly_typed, self.model = is_strongly_typed, None

    class ParserError(Strict):
        __slots__ = ("_description", "_node")

        def __init__(self, description, node=None):
            self._description, self._node = description, node

        def desc(self):
            return self._description

        def node_name(self):
            return self._node.name if self._node is not None else ""

        def node_operator(self):
            return self._node.op_type if self._node is not None else ""

    class OnnxParser(Strict):
        __slots__ = ("_errors", "_given", "_model", "_network")

        def __init__(self, network, logger):
            checked_logger(logger)
            self._network, self._model, self._given, self._errors = of_type(network, Network, "network"), None, {}, []

        @property
        def num_errors(self):
            return len(self._errors)

        def get_error(self, index):
            return self._errors[index]

        def load_model_proto(self, model, path=None):
            machine.calls.append("load_model_proto")
            if self._model is not None:
                return self._refuse("a model is loaded already")
            try:
                self._model = onnx.ModelProto.FromString(bytes(model))
            except DecodeError as error:
                return self._refuse(f"Failed to parse the ONNX model: {error}")
            return True

        def load_initializer(self, name, data, size):
            of_type(name, str, "name"), of_type(data, int, "data"), of_type(size, int, "size")
            found = next((i for i in self._model.graph.initializer if i.name == name), None) if self._model else None
            if found is None:
                return self._refuse(f"no initializer is called {name}")
            if size != byte_size(found):
                return self._refuse(f"{name} has {byte_size(found)} bytes")
            self._given[name] = data, size
            return True

        def parse_model_proto(self):
            # Where the weights lie is noted, as the parser does: they are read when the engine is built.
            self._network.model = self._model, self._given
            model = filled(self._model, self._given)
            self._errors += (ParserError(why, node) for why, node in objections(model))
            if not self._errors:
                onnx.checker.check_model(model, full_check=True)
            return not self._errors

        def _refuse(self, why):
            self._errors.append(ParserError(why))
            return False

    class Builder(Strict):
        __slots__ = ("_logger",)

        def __init__(self, logger):
            self._logger = checked_logger(logger)

        def create_network(self, flags=0):
            known = sum(1 << flag for flag in NetworkDefinitionCreationFlag)
            assert not of_type(flags, int, "flags") & ~known
            return Network(bool(flags & 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED))

        def create_builder_config(self):
            return BuilderConfig()

        def create_optimization_profile(self):
            return OptimizationProfile()

        def build_serialized_network(self, network, config):
            machine.calls.append("build_serialized_network")
            assert of_type(network, Network, "network").is_strongly_typed
            of_type(config, BuilderConfig, "config")
            model = filled(*network.model)
            for shapes in config.profiles:
                if why := contradiction(model, shapes):
                    self._logger.log(ILogger.ERROR, why)
                    return None
            if not config.profiles:
                self._logger.log(ILogger.ERROR, "Network has dynamic inputs, but no optimization profile")
                return None
            about = {
                "version": version,
                "gpu": machine.gpu,
                "profiles": config.profiles,
                "tf32": BuilderFlag.TF32 in config.flags_set,
            }
            data = model.SerializeToString()
            if config.timing_cache is not None:
                config.timing_cache.data += b"timed\n"
            return HostMemory(MAGIC + json.dumps(about).encode() + b"\n" + data)

    class ExecutionContext(Strict):
        __slots__ = ("_addresses", "_engine", "_profile", "_shapes")

        def __init__(self, engine):
            self._engine, self._profile, self._shapes, self._addresses = engine, None, {}, {}

        def set_optimization_profile_async(self, profile_index, stream_handle):
            assert of_type(stream_handle, int, "stream_handle") in machine.streams
            if not 0 <= of_type(profile_index, int, "profile_index") < len(self._engine.profiles):
                raise RuntimeError("Error in set optimization profile async.")
            self._profile = self._engine.profiles[profile_index]
            return True

        def set_input_shape(self, name, shape):
            of_type(name, str, "name"), of_type(shape, tuple, "shape")
            assert self._profile is not None, "no optimization profile was set"
            if name not in self._profile:
                return False
            least, _, most = self._profile[name]
            if len(shape) != len(least) or not all(
                a <= of_type(size, int, "shape") <= b for a, size, b in zip(least, shape, most, strict=True)
            ):
                return False
            self._shapes[name] = shape
            return True

        def set_tensor_address(self, name, memory):
            of_type(memory, int, "memory")
            if of_type(name, str, "name") not in self._engine.tensors:
                return False
            self._addresses[name] = memory
            return True

        def execute_async_v3(self, stream_handle):
            assert of_type(stream_handle, int, "stream_handle") in machine.streams
            assert set(self._addresses) == set(self._engine.tensors), "a tensor has no address"
            machine.calls.append("execute_async_v3")
            shapes, addresses = dict(self._shapes), dict(self._addresses)
            machine.submit(stream_handle, lambda: self._engine.execute(shapes, addresses))
            return True

    class CudaEngine(Strict):
        __slots__ = ("_session", "about", "profiles", "tensors")

        def __init__(self, about, data):
            self.about, self.profiles = about, about["profiles"]
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            # As the graph says: its optimizer would round the rows that matrices of codes are multiplied by.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            values = (*self._session.get_inputs(), *self._session.get_outputs())
            self.tensors = {value.name: value.type for value in values}

        @property
        def num_optimization_profiles(self):
            return len(self.profiles)

        def create_execution_context(self):
            machine.calls.append("create_execution_context")
            return ExecutionContext(self)

        def execute(self, shapes, addresses):
            """Run on what lies at the addresses now."""
            types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
            given = {}
            for value in self._session.get_inputs():
                dtype, shape = np.dtype(types[value.type]), shapes[value.name]
                data = machine.find(addresses[value.name], int(np.prod(shape)) * dtype.itemsize)
                given[value.name] = data.view(dtype).reshape(shape).copy()
            results = self._session.run(None, given)
            for value, result in zip(self._session.get_outputs(), results, strict=True):
                flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
                machine.find(addresses[value.name], flat.size)[:] = flat

    class Runtime(Strict):
        __slots__ = ("_logger",)

        def __init__(self, logger):
            self._logger = checked_logger(logger)

        def deserialize_cuda_engine(self, serialized_engine):
            of_type(serialized_engine, bytes, "serialized_engine")
            machine.calls.append("deserialize_cuda_engine")
            if not serialized_engine.startswith(MAGIC):
                self._logger.log(ILogger.ERROR, "Serialization assertion magicTagRead == kMAGIC_TAG failed.")
                return None
            said, _, data = serialized_engine[len(MAGIC) :].partition(b"\n")
            about = json.loads(said)
            if (about["version"], about["gpu"]) != (version, machine.gpu):
                self._logger.log(ILogger.ERROR, f"The engine plan file is of version {about['version']}.")
                return None
            return CudaEngine(about, data)

    module = module_of("tensorrt")
    module.__version__ = version
    for kind in (ILogger, NetworkDefinitionCreationFlag, BuilderFlag, Builder, OnnxParser, Runtime):
        setattr(module, kind.__name__, kind)
    return module


def install(monkeypatch, machine, version=VERSION):
    """Let `import tensorrt` and `import cuda.bindings.runtime` find the double."""
    cuda, bindings = module_of("cuda"), module_of("cuda.bindings")
    cuda.bindings, bindings.runtime = bindings, machine.cuda
    modules = {"cuda": cuda, "cuda.bindings": bindings, "cuda.bindings.runtime": machine.cuda}
    for name, module in {**modules, "tensorrt": tensorrt_of(machine, version)}.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, TensorRT and CUDA, as the double is."""
    machine = Machine()
    install(monkeypatch, machine)
    return machine
