"""runtime/executors/tensorrt: device, toolkit and cache by the double of CUDA."""

import gc
import sys

import numpy as np
import pytest
from cuda_double import Machine, cudaError_t, module_of

from pyc.runtime.errors import RunError
from pyc.runtime.executors.tensorrt import device as device_module
from pyc.runtime.executors.tensorrt import toolkit
from pyc.runtime.executors.tensorrt.device import Device, Rows
from pyc.runtime.executors.tensorrt.kv_cache import DeviceCache
from pyc.runtime.executors.tensorrt.program import TensorRtProgram

PROGRAM = TensorRtProgram((), True, layers=2, kv_heads=3, head_features=4, capacities=(8, 16, 24))


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def device(machine):
    return Device(machine.cuda)


def read(device, address, shape):
    array = np.empty(shape, np.float32)
    device.download(address, array)
    device.wait()
    return array


def test_what_the_device_is(device):
    assert (device.name, device.capability, device.driver) == ("Double GPU", "9.0", "13.0")


def test_no_driver(machine):
    machine.driver = 0
    with pytest.raises(RunError, match=r"needs an NVIDIA GPU .* finds none \(cudaErrorInsufficientDriver: in words"):
        Device(machine.cuda)


def test_no_gpu(machine):
    machine.devices = 0
    with pytest.raises(RunError, match=r"CUDA finds none; run it where there is one, or run another program"):
        Device(machine.cuda)


def test_memory_that_there_is_not(device):
    wanted = r"^context: the cache takes 20\.00 GB, which Double GPU with 9 GB has not free; load with a smaller"
    with pytest.raises(RunError, match=wanted):
        device.allocate(20_000_000_000, "context: the cache")


def test_what_cuda_refuses_has_its_words(device):
    with pytest.raises(RunError, match=r"^CUDA: cudaErrorInvalidValue: in words: cudaErrorInvalidValue$"):
        device._done((cudaError_t.cudaErrorInvalidValue,))


def test_memory_and_stream_go_back_with_the_device(machine):
    device = Device(machine.cuda)
    first, _ = device.allocate(16, "a"), device.allocate(16, "b")
    device.free(first)
    assert (len(machine.memory), len(machine.streams)) == (1, 1)
    del device
    gc.collect()
    assert (machine.memory, machine.streams) == ({}, {})


@pytest.mark.parametrize("largest", [device_module.LARGEST_PITCH, 8])
def test_rows_are_copied_between_pitches(device, monkeypatch, largest):
    """Pitches that CUDA refuses are copied row by row."""
    monkeypatch.setattr(device_module, "LARGEST_PITCH", largest)
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    source, target = device.allocate(values.nbytes, "a"), device.allocate(4 * 5 * 4, "b")
    device.upload(values, source)
    device.copy_rows(Rows(target + 4, 20), Rows(source + 8, 24), 12, 4)
    expected = np.zeros((4, 5), np.float32)
    expected[:, 1:4] = values[:, 2:5]
    assert np.array_equal(read(device, target, (4, 5)), expected)


def test_captured_work_is_done_when_it_is_launched(device, machine):
    values = np.ones(4, np.float32)
    address = device.allocate(16, "a")
    captured = device.captured(lambda: device.upload(values, address))
    assert not read(device, address, 4).any()
    values += 1
    device.launch(captured)
    assert read(device, address, 4).tolist() == [2.0] * 4
    device.drop(captured)
    assert not machine.graphs


def test_the_cache_keeps_rows_where_it_grows(device, machine):
    """Against an array: rows of two sequences, at different positions, before and after the cache has moved."""
    cache = DeviceCache(device, PROGRAM, 3, 20)
    expected = np.zeros((4, 3, 3, 24, 4), np.float32)
    random = np.random.default_rng(0)

    def store(first, starts, length):
        rows = random.normal(size=(4, len(starts), 3, length, 4)).astype(np.float32)
        address = device.allocate(rows.nbytes, "rows")
        device.upload(rows, address)
        cache.store(address, first, starts, length)
        for index, start in enumerate(starts):
            expected[:, first + index, :, start : start + length] = rows[:, index]
        device.wait()

    def found():
        return read(device, cache.address(0, 0), (4, 3, 3, cache.capacity, 4))

    store(0, [0], 7)
    store(1, [2, 5], 1)
    assert (cache.capacity, cache.shape(2)) == (8, (2, 3, 8, 4))
    assert np.array_equal(found(), expected[:, :, :, :8])
    assert not cache.reserve(8)
    assert cache.reserve(9)
    store(0, [7, 3, 6], 1)
    assert cache.capacity == 16
    assert np.array_equal(found(), expected[:, :, :, :16])
    assert cache.reserve(20)
    assert np.array_equal(found(), expected)
    assert cache.address(1, 2) - cache.address(0, 0) == 4 * (3 + 2) * 3 * 24 * 4
    with pytest.raises(RunError, match="context: 21 tokens, and the cache has room for 20"):
        cache.reserve(21)


def test_a_cache_that_no_gpu_has(device):
    huge = TensorRtProgram((), True, layers=80, kv_heads=64, head_features=128, capacities=(1 << 20,))
    with pytest.raises(RunError, match=r"the cache of 4 sequences of 1048576 tokens takes 21\d\d\d\.\d+ GB"):
        DeviceCache(device, huge, 4, 1 << 20)


def test_nothing_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    for check in (toolkit.open_toolkit, toolkit.check_machine):
        with pytest.raises(RunError, match=r"CUDA's bindings for Python \(cuda\) is not installed.*'\.\[tensorrt\]'"):
            check()


def installed(monkeypatch, machine, tensorrt):
    for name, module in (
        ("cuda", module_of("cuda")),
        ("cuda.bindings", module_of("cuda.bindings")),
        ("cuda.bindings.runtime", machine.cuda),
        ("tensorrt", tensorrt),
    ):
        monkeypatch.setitem(sys.modules, name, module)


def test_tensorrt_is_not_installed(monkeypatch, machine):
    installed(monkeypatch, machine, None)
    for check in (toolkit.open_toolkit, toolkit.check_machine):
        with pytest.raises(RunError, match=r"TensorRT \(tensorrt\) is not installed; .* another program of"):
            check()


def test_a_tensorrt_whose_parser_lacks_operators(monkeypatch, machine):
    old = module_of("tensorrt")
    old.__version__ = "10.13.3.9"
    installed(monkeypatch, machine, old)
    with pytest.raises(RunError, match=r"TensorRT 10\.13\.3\.9 is too old: .*; install 10\.15 or newer"):
        toolkit.open_toolkit()


def test_a_library_that_does_not_load(monkeypatch, machine):
    installed(monkeypatch, machine, module_of("tensorrt"))

    def fail(name):
        if name == "tensorrt":
            raise ImportError("libnvinfer.so.11: cannot open shared object file")
        return sys.modules[name]

    monkeypatch.setattr(toolkit.importlib, "import_module", fail)
    with pytest.raises(RunError, match=r"TensorRT cannot be loaded: libnvinfer\.so\.11: cannot open.* file\. It runs"):
        toolkit.open_toolkit()
