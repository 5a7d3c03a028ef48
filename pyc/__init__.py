"""pyc compiles a Hugging Face checkpoint into one artifact and runs it.

>>> import pyc
>>> result = pyc.build("model.yaml")
>>> model = pyc.load(result.path)
>>> for token in model.generate("def ", max_tokens=32): print(token.text, end="")

Importing this package imports neither the compiler nor the runtime: each name below is imported at first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyc.passes.build import BuildResult, build
    from pyc.runtime.errors import PycError
    from pyc.runtime.model import Model, load

__version__ = "0.1.0"
__all__ = ["BuildResult", "Model", "PycError", "__version__", "build", "load"]

_HOMES = {
    "build": "pyc.passes.build",
    "BuildResult": "pyc.passes.build",
    "load": "pyc.runtime.model",
    "Model": "pyc.runtime.model",
    "PycError": "pyc.runtime.errors",
}


def __getattr__(name: str) -> object:
    """The public name, imported from its home (PEP 562). Raises AttributeError for any other name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyc' has no attribute {name!r}; public names are {', '.join(__all__)}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
