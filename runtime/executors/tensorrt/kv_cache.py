"""The key-value cache on the device: f32 [2 * layers, sequences, kv_heads, capacity, features], by position.

For each layer its keys, then its values. It has room for the smallest of the program's capacities that holds the
longest sequence so far; a larger one takes the rows over. Where nothing was written there are zeros: what is not seen
is multiplied by 0, and must be a number.
"""

from __future__ import annotations

from pyc.runtime.errors import RunError
from pyc.runtime.executors.tensorrt.device import Device, Rows
from pyc.runtime.executors.tensorrt.program import TensorRtProgram

F32 = 4


class DeviceCache:
    """The cache of `sequences` sequences of at most `positions`."""

    def __init__(self, device: Device, program: TensorRtProgram, sequences: int, positions: int) -> None:
        """Raises RunError when the GPU has no room for its smallest form."""
        self._device, self._program = device, program
        self._sequences, self._positions = sequences, positions
        self.capacity = program.capacities[0]
        self._address = self._allocated(self.capacity)

    @property
    def inputs(self) -> dict[str, int]:
        """The place of each input among the cache's first dimension, by name."""
        layers = range(self._program.layers)
        names = [f"past_key_values.{layer}.{kind}" for layer in layers for kind in ("key", "value")]
        return {name: place for place, name in enumerate(names)}

    def address(self, place: int, sequence: int) -> int:
        """Where keys or values of a layer begin for a sequence; those of the next ones follow."""
        return self._address + (place * self._sequences + sequence) * self._sequence_bytes(self.capacity)

    def shape(self, count: int) -> tuple[int, int, int, int]:
        """The shape of keys or values of a layer for so many sequences."""
        return count, self._program.kv_heads, self.capacity, self._program.head_features

    def reserve(self, positions: int) -> bool:
        """Make room for so many positions a sequence; True when the cache has moved. Raises RunError."""
        larger = [capacity for capacity in self._program.capacities if capacity >= positions]
        if positions > self._positions or not larger:
            raise RunError(f"context: {positions} tokens, and the cache has room for {self._positions}")
        if positions <= self.capacity:
            return False
        device, old, before = self._device, self._address, self.capacity
        new = self._allocated(larger[0])
        rows = 2 * self._program.layers * self._sequences * self._program.kv_heads
        width, pitch = self._row_bytes(before), self._row_bytes(larger[0])
        device.copy_rows(Rows(new, pitch), Rows(old, width), width, rows)
        device.wait()
        device.free(old)
        self._address, self.capacity = new, larger[0]
        return True

    def store(self, rows: int, first: int, starts: list[int], length: int) -> None:
        """Put `length` rows of each of the sequences from `first` on to the positions `starts` and behind.

        `rows` is the address of f32 [2 * layers, sequences, kv_heads, length, features].
        """
        program, count = self._program, len(starts)
        width = length * program.head_features * F32
        heads = program.kv_heads
        into = self._sequences * self._sequence_bytes(self.capacity)
        for index, start in enumerate(starts):
            for head in range(heads):
                inside = head * self._row_bytes(self.capacity) + start * program.head_features * F32
                target = Rows(self.address(0, first + index) + inside, into)
                source = Rows(rows + (index * heads + head) * width, count * heads * width)
                self._device.copy_rows(target, source, width, 2 * program.layers)

    def _row_bytes(self, capacity: int) -> int:
        return capacity * self._program.head_features * F32

    def _sequence_bytes(self, capacity: int) -> int:
        return self._program.kv_heads * self._row_bytes(capacity)

    def _allocated(self, capacity: int) -> int:
        size_bytes = 2 * self._program.layers * self._sequences * self._sequence_bytes(capacity)
        return self._device.allocate(
            size_bytes, f"context: the cache of {self._sequences} sequences of {capacity} tokens"
        )
