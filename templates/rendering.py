"""Text out of what lies here: as it is, or a template with values put in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def source_text(path: str) -> str:
    """Return the text of a file by its path in this folder, such as "cpu/thread_pool.c"."""
    return resources.files("pyc.templates").joinpath(path).read_text("utf-8")


def render(path: str, values: Mapping[str, object]) -> str:
    """Return the template at `path` rendered with `values`; a name that they lack is an error."""
    return _rendered(path, values, is_html=False)


def render_html(path: str, values: Mapping[str, object]) -> str:
    """Return the template at `path`, a page, with `values` as text in it: what they hold is never markup."""
    return _rendered(path, values, is_html=True)


def _rendered(path: str, values: Mapping[str, object], *, is_html: bool) -> str:
    return _template(path, is_html).render(values)


@cache
def _template(path: str, is_html: bool) -> Template:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(source_text),  # of what a template includes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=is_html,
    )
    return environment.from_string(source_text(path))
