"""Packs rows of f32 into panels by compiled code: templates/cpu/{int4,lookup}_panels.c, for the machine that builds.

The bytes are those of `packing.store_panels`, which does what is left: other schemes, machines that no
instruction set is known of or without a compiler, and rows with a fault, which it refuses by name.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from threading import Lock
from typing import ClassVar

import numpy as np
from blake3 import blake3

from pyc.backends.cpu.constants import HEADER, constants_header
from pyc.backends.cpu.isa import Isa, host_isa
from pyc.backends.cpu.layouts import Layout
from pyc.backends.cpu.packing import store_panels
from pyc.backends.cpu.toolchain.zig import COMPILE_FLAGS, ENVIRONMENT, LINK_FLAGS, Toolchain, has_compiler
from pyc.compiler.codebooks import Codebook
from pyc.compiler.files.cache import Cache
from pyc.compiler.lookup import codebook_of
from pyc.compiler.scales import Bytes, Floats
from pyc.compiler.schemes import Int4Group, LookupGroup
from pyc.runtime.executors.cpu.libraries import load_bytes, unload_with
from pyc.templates.rendering import source_text

PackPanels = Callable[..., int]

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_ROWS: tuple[type, ...] = (_POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER)
_MOST_ENTRIES, _MOST_STEPS = 32, 8


class _Codebook(ctypes.Structure):
    """`struct codebook` of lookup_panels.c."""

    _fields_: ClassVar = [
        ("bits", ctypes.c_int32),
        ("shift", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("entries", ctypes.c_int32 * _MOST_ENTRIES),
        ("step", ctypes.c_int32 * _MOST_STEPS),
    ]


class PanelPacker:
    """Packs rows, on several threads at once. Its code is compiled, or taken from the cache, once it is needed."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._isa = host_isa() if has_compiler() else None
        self._lock = Lock()
        self._functions: dict[str, PackPanels] = {}

    def __call__(self, rows: Floats, layout: Layout) -> Bytes:
        """Return f32 `rows` [rows, K] as panels u8 [ceil(rows / 16), panel_bytes] of `layout`.

        Raises QuantizeError as `store_rows` does, and LowerError when the compiler fails.
        """
        scheme = layout.scheme
        if self._isa is None:
            return store_panels(rows, layout)
        is_short = isinstance(scheme, LookupGroup) and scheme.scales == "short"
        if is_short or (isinstance(scheme, Int4Group) and scheme.symmetric):
            assert isinstance(scheme, LookupGroup | Int4Group)
            panels = np.empty((layout.panels(len(rows)), layout.panel_bytes), np.uint8)
            if self._pack(rows, layout, scheme, panels, self._isa):
                return panels
        return store_panels(rows, layout)

    def _pack(self, rows: Floats, layout: Layout, scheme: Int4Group | LookupGroup, panels: Bytes, isa: Isa) -> bool:
        """Fill `panels`; return whether all rows could be quantized."""
        assert layout.row_exponents is not None
        rows = np.ascontiguousarray(rows)
        panels[:, layout.row_exponents.end : layout.data.offset] = 0
        panels[:, layout.data.end :] = 0
        groups = max(layout.inputs // scheme.group_size, 1)
        scales = np.empty(groups, np.uint32)
        sizes = (layout.panel_bytes, layout.row_exponents.offset, layout.data.offset)
        shape = (len(rows), layout.inputs, scheme.group_size)
        given = (rows.ctypes.data, *shape, panels.ctypes.data, *sizes, scales.ctypes.data)
        if isinstance(scheme, Int4Group):
            return self._function("int4_panels", _ROWS, isa)(*given) == 0
        taken, book = np.empty(groups, np.uint8), _codebook(codebook_of(scheme))
        pack = self._function("lookup_panels", (*_ROWS, _POINTER, _POINTER), isa)
        return pack(*given, taken.ctypes.data, ctypes.addressof(book)) == 0

    def _function(self, name: str, argument_types: tuple[type, ...], isa: Isa) -> PackPanels:
        with self._lock:
            if name not in self._functions:
                library = load_bytes(name, _library(self._cache, name, isa))
                unload_with(self, library)
                function = getattr(library, f"pyc_{name}")
                function.argtypes = argument_types
                function.restype = ctypes.c_int32
                self._functions[name] = function
            return self._functions[name]


def _codebook(codebook: Codebook) -> _Codebook:
    entries, steps = list(codebook.entries), list(codebook.steps)
    return _Codebook(
        codebook.bits,
        codebook.shift,
        len(steps),
        (ctypes.c_int32 * _MOST_ENTRIES)(*entries),
        (ctypes.c_int32 * _MOST_STEPS)(*steps),
    )


def _library(cache: Cache, name: str, isa: Isa) -> bytes:
    source, headers = source_text(f"cpu/{name}.c"), {HEADER: constants_header()}
    toolchain = Toolchain(cache.directory)
    parts = source, headers, isa, toolchain.version, COMPILE_FLAGS, LINK_FLAGS, ENVIRONMENT
    key = blake3(repr(parts).encode()).hexdigest()
    library = cache.get(key)
    if library is None:
        with contextlib.closing(toolchain):
            library = toolchain.link_shared([toolchain.compile_object(source, isa, headers)], isa, f"{name}.so")
        cache.put(key, library)
    return library
