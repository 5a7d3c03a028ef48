"""compiler/digest.py: equal digests only for equal values, wherever the files lie."""

from dataclasses import replace

import pytest

from pyc.compiler.digest import expression_digest
from pyc.compiler.schemes import SCHEMES, Dense, Int4Group
from pyc.compiler.weights import (
    Blended,
    Constant,
    LowRank,
    Packed,
    ScaledColumns,
    ScaledRows,
    Source,
    Stacked,
    Stored,
    Transposed,
)

FILES = {"/a": "11" * 32, "/b": "22" * 32, "/elsewhere/a": "11" * 32}
A = Source("/a", "w", "f32", (4, 8), 100, 128)
B = replace(A, path="/b")
V = Source("/a", "v", "f32", (8,), 300, 32)
DIFFERENT = {
    "source": A,
    "another file": B,
    "another offset": replace(A, offset=228),
    "another dtype": replace(A, dtype="bf16", size_bytes=64),
    "another shape": replace(A, shape=(8, 4)),
    "a vector": V,
    "constant": Constant((1.0, 2.0)),
    "another constant": Constant((1.0, 2.5)),
    "transposed": Transposed(A),
    "transposed twice": Transposed(Transposed(A)),
    "low rank": LowRank(A, A, B, 1.0),
    "low rank, factors swapped": LowRank(A, B, A, 1.0),
    "low rank, another scale": LowRank(A, A, B, 1.0 + 2**-52),
    "rows": ScaledRows(A, V),
    "columns": ScaledColumns(A, V),
    "blended": Blended(V, 0.5),
    "blended by another weight": Blended(V, 0.25),
    "stack": Stacked((A, B)),
    "stack the other way": Stacked((B, A)),
    "stack of three": Stacked((A, B, B)),
    "stacks nested to the left": Stacked((Stacked((A, B)), B)),
    "stacks nested to the right": Stacked((A, Stacked((B, B)))),
    **{f"stored {name}": Stored(A, scheme) for name, scheme in SCHEMES.items()},
    "stored, f32 activations": Stored(A, Int4Group(32, True, "f32")),
    "stack of stored": Stacked((Stored(A, Dense("f32")), Stored(B, Dense("f32")))),
    "stored stack": Stored(Stacked((A, B)), Dense("f32")),
    "packed": Packed(Stored(A, Dense("f32")), "panel16"),
    "packed otherwise": Packed(Stored(A, Dense("f32")), "panel32"),
}


def test_different_expressions_have_different_digests():
    digests = {name: expression_digest(expression, FILES) for name, expression in DIFFERENT.items()}
    assert len(set(digests.values())) == len(DIFFERENT)
    assert all(len(digest) == 64 for digest in digests.values())


def test_where_a_file_lies_and_what_the_tensor_is_called_do_not_count():
    moved = replace(A, path="/elsewhere/a", tensor="other")
    assert expression_digest(moved, FILES) == expression_digest(A, FILES)


def test_the_content_of_a_file_counts():
    assert expression_digest(A, FILES) != expression_digest(A, {"/a": "33" * 32})


def test_a_file_that_was_not_digested_is_a_defect():
    with pytest.raises(KeyError):
        expression_digest(A, {})
