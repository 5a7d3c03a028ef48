"""Weights in the memory of a device: an artifact's, by way of a few pinned buffers, or random ones, made there."""

from __future__ import annotations

from collections.abc import Iterable

from pyc.runtime.artifact.chunk_stream import stream_tensors
from pyc.runtime.artifact.format import MAX_CHUNK_BYTES, Header
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.cuda.device import Device
from pyc.runtime.executors.protocol import RandomWeights

STAGING_BUFFERS = 4
"""Chunks that are in this process's memory while weights go to the device."""


def upload_weights(device: Device, artifact: Artifact, names: Iterable[str]) -> dict[str, int]:
    """Return where tensors lie on the device, copied there chunk by chunk as they are verified. Raises RunError and
    ArtifactError."""
    wanted = list(names)
    found = _allocated(device, artifact.header, wanted)
    staging = [device.pinned(MAX_CHUNK_BYTES) for _ in range(STAGING_BUFFERS)]
    copied = [device.event() for _ in staging]
    try:
        before: int | None = None
        for part in stream_tensors(artifact, wanted, [buffer.data for buffer in staging]):
            address = found[part.tensor.name] + part.offset
            device.upload(staging[part.buffer].ctypes.data, address, part.size_bytes)
            device.record(copied[part.buffer])
            if before is not None:
                device.wait_for(copied[before])
            before = part.buffer
    finally:
        device.wait()
        for buffer in staging:
            device.release_pinned(buffer)
    return found


def make_weights(device: Device, header: Header, names: Iterable[str], weights: RandomWeights) -> dict[str, int]:
    """Return where tensors lie on the device, filled with `weights`: these are copied there once, and then on the
    device, twice as many each time. Raises RunError and ArtifactError."""
    wanted = list(names)
    found = _allocated(device, header, wanted)
    by_name = {tensor.name: tensor for tensor in header.tensors}
    for name in wanted:
        tensor = by_name[name]
        size_bytes, pattern = tensor_bytes(tensor.dtype, tensor.shape), weights(tensor)
        done = min(pattern.nbytes, size_bytes)
        device.upload(pattern.ctypes.data, found[name], done)
        device.wait()  # the pattern may be gone next
        while done < size_bytes:
            part = min(done, size_bytes - done)
            device.copy(found[name], found[name] + done, part)
            done += part
    device.wait()
    return found


def _allocated(device: Device, header: Header, names: Iterable[str]) -> dict[str, int]:
    by_name = {tensor.name: tensor for tensor in header.tensors}
    found: dict[str, int] = {}
    for name in names:
        if name not in by_name:
            raise ArtifactError(f"the program for CUDA reads {name[:100]!a}, which the artifact does not have")
        found[name] = device.allocate(tensor_bytes(by_name[name].dtype, by_name[name].shape), f"the weight {name}")
    return found
