"""The changes between two artifacts for readers: lines, tables of markdown, and a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from pyc.commands.eval_text import figure
from pyc.commands.tables import markdown_table, plain_table, terminal_width
from pyc.passes.comparison.changes import Change
from pyc.passes.comparison.compare_artifacts import Comparison, TensorChange
from pyc.runtime.host.sizes import human_bytes
from pyc.runtime.text.counted import counted
from pyc.runtime.text.printable import printable
from pyc.templates.rendering import render_html

TEMPLATE = "diff.html.j2"
CHANGE_HEADER = ("", "before", "after")
TENSOR_HEADER = ("tensor", "before", "after", "bytes", "distance")
LONGEST = 200
"""Characters of a value that are shown."""
AHEAD = 40
"""Characters that are shown before the first difference of two long values."""
MOST_TENSORS = 20
"""Tensors that lines show, those that moved furthest first; a page and JSON have all."""


def lines_of(names: tuple[str, str], found: Comparison, *, markdown: bool) -> list[str]:
    """Return the lines for a terminal, or for a comment of a pull request. Nothing in them is unprintable."""
    lines = [f"**{_sentence(names, found)}**" if markdown else _sentence(names, found), ""]
    width = None if markdown else terminal_width()
    for name, changes in found.groups.items():
        lines += _table(name, CHANGE_HEADER, change_rows(changes), (), width, markdown=markdown)
    shown = sorted(found.tensors, key=_order)[:MOST_TENSORS]
    if shown:
        lines += _table("tensors", TENSOR_HEADER, tensor_rows(shown), (3, 4), width, markdown=markdown)
    if len(found.tensors) > len(shown):
        lines += [f"and {counted(len(found.tensors) - len(shown), 'more tensor')}", ""]
    return lines[:-1]


def page_of(names: tuple[str, str], found: Comparison, version: str) -> str:
    """Return the page. What files hold is text in it, never markup."""
    page = {
        "title": f"{printable(names[0])} to {printable(names[1])}",
        "summary": _sentence(names, found),
        "version": version,
        "change_header": CHANGE_HEADER,
        "groups": [(name, change_rows(changes)) for name, changes in found.groups.items()],
        "tensor_header": TENSOR_HEADER,
        "tensors": tensor_rows(sorted(found.tensors, key=_order)),
    }
    return render_html(TEMPLATE, {"page": page})


def change_rows(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return a row of CHANGE_HEADER for each change."""
    return [(printable(each.name), *_pair(each.before, each.after)) for each in changes]


def tensor_rows(tensors: Sequence[TensorChange]) -> list[tuple[str, ...]]:
    """Return a row of TENSOR_HEADER for each tensor."""
    return [
        (
            printable(each.name),
            _shown(each.before),
            "the same" if each.after == each.before else _shown(each.after),
            f"{each.bytes_after - each.bytes_before:+,}",
            each.why_no_distance or "" if each.distance is None else figure(each.distance),
        )
        for each in tensors
    ]


def _sentence(names: tuple[str, str], found: Comparison) -> str:
    """What a reader wants to know first."""
    before, after = (printable(name) for name in names)
    if found.is_same:
        size = human_bytes(found.bytes_after)
        return f"{before} and {after} are the same by the digests in their headers: {size}; pyc verify reads all bytes"
    step = found.bytes_after - found.bytes_before
    share = f" ({100 * step / found.bytes_before:+.1f} %)" if step else ""
    verb = "is" if found.equal_tensors == 1 else "are"
    equal = f"{counted(found.equal_tensors, 'tensor')} of {human_bytes(found.equal_bytes)} {verb} equal"
    if found.equal_tensors and not found.equal_bytes:  # there are no weights to compare
        equal = f"{counted(found.equal_tensors, 'tensor')} {verb} of the same type and shape"
    also = f"; {', '.join(found.groups)} changed" if found.groups else ""
    return (
        f"{before} to {after}: {human_bytes(found.bytes_before)} to {human_bytes(found.bytes_after)}{share}; "
        f"{equal}, {len(found.tensors)} {'is' if len(found.tensors) == 1 else 'are'} not{also}"
    )


def _order(tensor: TensorChange) -> tuple[bool, float]:
    """Those first that only one artifact has, then those that moved furthest."""
    both = tensor.before is not None and tensor.after is not None
    return both, -(tensor.distance or 0.0)


def _pair(before: str | None, after: str | None) -> tuple[str, str]:
    """Two values; of long ones what comes shortly before the first difference and after it."""
    if before is None or after is None or max(len(before), len(after)) <= LONGEST:
        return _shown(before), _shown(after)
    pairs = enumerate(zip(before, after, strict=False))
    alike = next((place for place, (one, two) in pairs if one != two), min(len(before), len(after)))
    start = alike - AHEAD if alike + AHEAD > LONGEST else 0
    ahead = "..." if start else ""
    return f"{ahead}{_shown(before[start:])}", f"{ahead}{_shown(after[start:])}"


def _shown(value: str | None) -> str:
    if value is None:
        return "-"
    text = printable(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int],
    width: int | None,
    *,
    markdown: bool,
) -> list[str]:
    if markdown:
        return [f"#### {title}", "", *markdown_table(header, rows, right=right), ""]
    return plain_table(title, header, rows, right=right, width=width)
