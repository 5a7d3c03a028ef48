"""Functions on the device: the launches of one, or of several that follow each other, as one CUDA graph.

An edge says that a launch begins when another has ended. Where kernels wait by themselves (`CudaProgram.kernels_wait`)
the only edge to a launch is programmatic: the launch begins once the other has begun, and starts its blocks and copies
its first weights meanwhile. All its threads wait before they touch what launches write. With several edges to a launch,
all are plain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass

from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.cuda.device import Device
from pyc.runtime.executors.cuda.driver import MAX_DYNAMIC_SHARED, KernelNode, handles
from pyc.runtime.executors.cuda.program import WAITING_CAPABILITY, Buffer, CudaProgram, DeviceFunction, Launch

PLAIN_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a kernel may have without saying so before."""


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """A launch, the numbers of those that it waits for, and where its arguments stand."""

    launch: Launch
    after: tuple[int, ...]
    parameters: ctypes.Array[c_void_p]


def _parameters(
    launch: Launch, function: DeviceFunction, addresses: Mapping[Buffer, int]
) -> ctypes.Array[c_void_p]:
    """Return where the arguments of a launch stand: pointers to addresses of arrays."""
    given = [addresses[function.buffers[index]] for index in launch.buffers]
    values = (ctypes.c_uint64 * len(given))(*given)
    start, width = ctypes.addressof(values), ctypes.sizeof(ctypes.c_uint64)
    pointers = (c_void_p * len(given))(*(start + index * width for index in range(len(given))))
    pointers.values = values  # type: ignore[attr-defined]  # it lives as long as they do
    return pointers


class Kernels:
    """The kernels of a program, loaded."""

    def __init__(self, device: Device, program: CudaProgram) -> None:
        """Raises RunError for code that the driver does not take, ArtifactError for a kernel that is not in it."""
        modules = [device.module(code) for code in program.code]
        self.records = program.kernels
        self.begin_early = (
            program.kernels_wait and device.capability >= WAITING_CAPABILITY and device.driver.has_programmatic_edges
        )
        """Whether a launch may begin before the only one that it waits for has ended."""
        self.functions: list[int] = []
        for kernel in program.kernels:
            found = c_void_p()
            module = modules[kernel.unit]
            status = device.driver.status("cuModuleGetFunction", byref(found), module, kernel.symbol.encode())
            if status or not found.value:
                raise ArtifactError(
                    f"the program for CUDA is not valid: its code has no kernel {kernel.symbol[:100]!a} "
                    f"({device.driver.error_text(status)})"
                )
            if kernel.shared_bytes > PLAIN_SHARED_BYTES:
                device.driver.call("cuFuncSetAttribute", found, MAX_DYNAMIC_SHARED, kernel.shared_bytes)
            self.functions.append(found.value)


Part = tuple[DeviceFunction, Mapping[Buffer, int]]
"""A function, and where its buffers lie."""


class BoundFunctions:
    """Functions over memory that stays where it is: the addresses are in their graph, which `run` launches."""

    def __init__(self, device: Device, kernels: Kernels, parts: Sequence[Part]) -> None:
        """`parts` run one after another."""
        self._device, self._kernels = device, kernels
        self._launches: list[BoundLaunch] = []
        ends: tuple[int, ...] = ()
        for function, addresses in parts:
            start = len(self._launches)
            for launch in function.launches:
                after = tuple(start + number for number in launch.after) or ends
                self._launches.append(BoundLaunch(launch, after, _parameters(launch, function, addresses)))
            waited_for = {number for launch in function.launches for number in launch.after}
            ends = tuple(start + number for number in range(len(function.launches)) if number not in waited_for)
        self._graph = 0
        self.launched = 0
        """How often its graph was launched."""

    def run(self) -> None:
        """Put all launches into the stream, as a graph, which is made the first time. Raises RunError."""
        if not self._graph:
            self._graph = self._instantiated()
        self._device.driver.call("cuGraphLaunch", self._graph, self._device.stream)
        self.launched += 1

    def run_plainly(self) -> None:
        """Put the launches into the stream one after another, without a graph. Raises RunError."""
        for bound in self._launches:
            kernel = self._kernels.records[bound.launch.kernel]
            self._device.driver.call(
                "cuLaunchKernel",
                self._kernels.functions[bound.launch.kernel],
                *bound.launch.grid,
                kernel.threads,
                1,
                1,
                kernel.shared_bytes,
                self._device.stream,
                bound.parameters,
                None,
            )

    def _instantiated(self) -> int:
        driver = self._device.driver
        graph = driver.made("cuGraphCreate", 0)
        try:
            nodes: list[int] = []
            programmatic: list[tuple[int, int]] = []
            for bound in self._launches:
                before = [nodes[number] for number in bound.after]
                is_early = self._kernels.begin_early and len(before) == 1
                nodes.append(self._node(graph, bound, [] if is_early else before))
                if is_early:
                    programmatic.append((before[0], nodes[-1]))
            driver.add_programmatic_edges(graph, programmatic)
            made = driver.made("cuGraphInstantiateWithFlags", graph, 0)
        finally:
            driver.call("cuGraphDestroy", graph)
        self._device.own_graph(made)
        return made

    def _node(self, graph: int, bound: BoundLaunch, after: Sequence[int]) -> int:
        kernel = self._kernels.records[bound.launch.kernel]
        node = KernelNode(
            self._kernels.functions[bound.launch.kernel],
            *bound.launch.grid,
            kernel.threads,
            1,
            1,
            kernel.shared_bytes,
            ctypes.cast(bound.parameters, ctypes.POINTER(c_void_p)),
            None,
            None,
            None,
        )
        return self._device.driver.made(
            "cuGraphAddKernelNode_v2", graph, handles(after), len(after), ctypes.cast(byref(node), c_void_p)
        )
