"""What a cubin says of its kernels: registers, memory, and by them how many blocks a multiprocessor runs at once.

A cubin is an ELF file of 64 bits. A kernel is a section .text.SYMBOL; its static shared memory is the size of
.nv.shared.SYMBOL, less what the system keeps of a block where there is a section .nv.shared.reserved.0. The section
.nv.info is a row of attributes, each u8 format, u8 attribute, and then for format 4 u16 size and as many bytes, for
others two bytes. Of those about a kernel the first u32 is its index in the table of symbols.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pyc.backends.cuda.archs import Arch
from pyc.backends.cuda.kernels.kernel import WARP
from pyc.runtime.errors import LowerError
from pyc.runtime.host.rounding import round_up

SIZED = 4
"""The format of attributes that have a size."""
FRAME_SIZE = 0x11
REGISTERS = 0x2F

REGISTER_UNIT = 256
SHARED_UNIT = 128
RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a thread or block of a kernel takes: registers and bytes of local memory (spilled registers and arrays) of a
    thread, bytes of static shared memory of a block, bytes of code."""

    symbol: str
    registers: int
    local_bytes: int
    shared_bytes: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks that a multiprocessor runs at once, their share of its threads, and what more would lack."""

    blocks: int
    share: float
    limit: str


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    data: bytes
    size: int


def kernels_of(cubin: bytes) -> dict[str, KernelResources]:
    """Return what each kernel of a cubin takes, by symbol; raises LowerError where it is no cubin."""
    try:
        sections = list(_sections(cubin))
        by_name = {section.name: section for section in sections}
        symbols = _symbols(by_name[".symtab"].data, by_name[".strtab"].data)
        registers: dict[str, int] = {}
        frames: dict[str, int] = {}
        for attribute, value in _attributes(by_name[".nv.info"].data):
            if attribute in (REGISTERS, FRAME_SIZE):
                index, number = struct.unpack_from("<II", value)
                (registers if attribute == REGISTERS else frames)[symbols[index]] = number
        reserved = RESERVED_SHARED_BYTES if ".nv.shared.reserved.0" in by_name else 0
        found = {}
        for section in sections:
            if not section.name.startswith(".text."):
                continue
            symbol = section.name.removeprefix(".text.")
            shared = by_name.get(f".nv.shared.{symbol}")
            static = max(shared.size - reserved, 0) if shared else 0
            found[symbol] = KernelResources(symbol, registers[symbol], frames.get(symbol, 0), static, section.size)
    except (KeyError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise LowerError(f"the CUDA compiler wrote no cubin that can be read: {error!r}") from error
    return found


def occupancy(resources: KernelResources, threads: int, dynamic_shared_bytes: int, arch: Arch) -> Occupancy:
    """Return how many blocks of `threads` threads a multiprocessor runs at once."""
    warps = threads // WARP
    registers_of_warp = round_up(resources.registers * WARP, REGISTER_UNIT)
    shared = round_up(resources.shared_bytes + dynamic_shared_bytes + RESERVED_SHARED_BYTES, SHARED_UNIT)
    limits = {
        "threads": arch.threads // threads,
        "blocks": arch.blocks,
        "registers": arch.registers // registers_of_warp // warps,
        "shared memory": arch.shared_bytes // shared,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limits[limit] * threads / arch.threads, limit)


def _sections(cubin: bytes) -> Iterator[_Section]:
    if not cubin.startswith(b"\x7fELF\x02\x01"):
        raise LowerError("the CUDA compiler wrote no cubin: it does not begin as an ELF file of 64 bits")
    table, entry_bytes, count, names_index = struct.unpack_from("<Q10xHHH", cubin, 40)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + index * entry_bytes) for index in range(count)]
    names = headers[names_index]
    for name, kind, _, _, offset, size in headers:
        start = names[4] + name
        text = cubin[start : cubin.index(b"\0", start)].decode("ascii")
        yield _Section(text, b"" if kind == 8 else cubin[offset : offset + size], size)  # 8: no bytes in the file


def _symbols(table: bytes, names: bytes) -> list[str]:
    found = []
    for (start,) in struct.iter_unpack("<I20x", table):
        found.append(names[start : names.index(b"\0", start)].decode("ascii"))
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            yield attribute, data[at : at + size]
            at += size
