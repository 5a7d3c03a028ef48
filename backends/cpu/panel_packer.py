"""Packs rows of f32 into panels by compiled code: templates/cpu/int4_panels.c, for the machine that builds.

The bytes are those of `packing.store_panels`, which does what is left: other schemes, machines that no
instruction set is known of, and rows with a fault, which it refuses by name.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from threading import Lock

import numpy as np
from blake3 import blake3

from pyc.backends.cpu.constants import HEADER, constants_header
from pyc.backends.cpu.isa import Isa, host_isa
from pyc.backends.cpu.layouts import Layout
from pyc.backends.cpu.packing import store_panels
from pyc.backends.cpu.toolchain.zig import COMPILE_FLAGS, LINK_FLAGS, Toolchain
from pyc.compiler.files.cache import Cache
from pyc.compiler.quantization import Bytes, Floats
from pyc.compiler.schemes import Int4Group
from pyc.runtime.executors.cpu.libraries import load_bytes, unload_with
from pyc.templates.rendering import source_text

SOURCE = "cpu/int4_panels.c"

PackInt4 = Callable[..., int]


class PanelPacker:
    """Packs rows, on several threads at once. Its code is compiled, or taken from the cache, once it is needed."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._isa = host_isa()
        self._lock = Lock()
        self._pack_int4: PackInt4 | None = None

    def __call__(self, rows: Floats, layout: Layout) -> Bytes:
        """Return f32 `rows` [rows, K] as panels u8 [ceil(rows / 16), panel_bytes] of `layout`.

        Raises QuantizeError as `store_rows` does, and LowerError when the compiler fails.
        """
        scheme = layout.scheme
        if self._isa is not None and isinstance(scheme, Int4Group) and scheme.symmetric:
            panels = np.empty((layout.panels(len(rows)), layout.panel_bytes), np.uint8)
            if self._int4(rows, layout, scheme.group_size, panels, self._isa):
                return panels
        return store_panels(rows, layout)

    def _int4(self, rows: Floats, layout: Layout, group: int, panels: Bytes, isa: Isa) -> bool:
        """Fill `panels`; return whether all rows could be quantized."""
        assert layout.row_exponents is not None
        rows = np.ascontiguousarray(rows)
        panels[:, layout.row_exponents.end : layout.data.offset] = 0
        panels[:, layout.data.end :] = 0
        scales = np.empty(max(layout.inputs // group, 1), np.uint32)
        sizes = (layout.panel_bytes, layout.row_exponents.offset, layout.data.offset)
        pack = self._compiled(isa)
        given = (rows.ctypes.data, len(rows), layout.inputs, group, panels.ctypes.data, *sizes, scales.ctypes.data)
        return pack(*given) == 0

    def _compiled(self, isa: Isa) -> PackInt4:
        with self._lock:
            if self._pack_int4 is None:
                library = load_bytes("int4_panels", _library(self._cache, isa))
                unload_with(self, library)
                function = library.pyc_int4_panels
                pointer, number = ctypes.c_void_p, ctypes.c_int64
                function.argtypes = [pointer, number, number, number, pointer, number, number, number, pointer]
                function.restype = ctypes.c_int32
                self._pack_int4 = function
            return self._pack_int4


def _library(cache: Cache, isa: Isa) -> bytes:
    source, headers = source_text(SOURCE), {HEADER: constants_header()}
    toolchain = Toolchain(cache.directory)
    key = blake3(repr((source, headers, isa, toolchain.version, COMPILE_FLAGS, LINK_FLAGS)).encode()).hexdigest()
    library = cache.get(key)
    if library is None:
        with contextlib.closing(toolchain):
            library = toolchain.link_shared([toolchain.compile_object(source, isa, headers)], isa, "int4_panels.so")
        cache.put(key, library)
    return library
