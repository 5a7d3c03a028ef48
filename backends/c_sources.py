"""C sources of a library: files of templates/c, rendered where they are templates."""

from __future__ import annotations

from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined


@cache
def source_text(name: str) -> str:
    """Return the text of the file `name`."""
    return (resources.files("pyc.templates.c") / name).read_text("utf-8")


def render_source(name: str, context: object) -> str:
    """Return the template `name` rendered with `context`; a name that it lacks is an error."""
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.from_string(source_text(name)).render(context=context)
