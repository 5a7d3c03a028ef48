"""pyc compiles a Hugging Face checkpoint into one artifact and runs it.

>>> import pyc
>>> result = pyc.build("model.yaml", progress=True)
>>> model = pyc.load(result.path)
>>> for token in model.generate("def ", max_tokens=32): print(token.text, end="")

Errors that pyc raises on purpose are PycError; its kinds (RecipeError, ArtifactError, ...) are here too.

Importing this package imports neither the compiler nor the runtime: each name below is imported at first use.

In a checkout the other rooms lie beside this folder, not in it. There Python finds this folder before an installed
package, so that a checkout runs its own rooms, whatever is installed (docs/adr/0001-package-dir-mapping.md).
"""

import os

TYPE_CHECKING = False  # the name that type checkers know; importing it takes longer than all else here
if TYPE_CHECKING:
    from pyc.commands.building import attach, build
    from pyc.passes.build_events import BuildEvent
    from pyc.passes.driver.build import BuildResult
    from pyc.runtime.errors import (
        AdapterError,
        ArtifactError,
        ClusterError,
        FetchError,
        IngestError,
        LowerError,
        MissingArtifactError,
        MissingExtraError,
        PycError,
        QualityError,
        QuantizeError,
        RecipeError,
        RunError,
        TrustError,
        UnsignedArtifactError,
        UntrustedArtifactError,
    )
    from pyc.runtime.model import Model, load

_HERE = os.path.dirname(os.path.abspath(__file__))
_CHECKOUT = os.path.dirname(_HERE)
if not os.path.isdir(os.path.join(_HERE, "runtime")) and os.path.isfile(os.path.join(_CHECKOUT, "runtime", "model.py")):
    __path__.append(_CHECKOUT)

__version__ = "0.1.0"
__all__ = [
    "AdapterError",
    "ArtifactError",
    "BuildEvent",
    "BuildResult",
    "ClusterError",
    "FetchError",
    "IngestError",
    "LowerError",
    "MissingArtifactError",
    "MissingExtraError",
    "Model",
    "PycError",
    "QualityError",
    "QuantizeError",
    "RecipeError",
    "RunError",
    "TrustError",
    "UnsignedArtifactError",
    "UntrustedArtifactError",
    "__version__",
    "attach",
    "build",
    "load",
]

_ERRORS = (
    "PycError",
    "RecipeError",
    "IngestError",
    "AdapterError",
    "QuantizeError",
    "LowerError",
    "QualityError",
    "ArtifactError",
    "MissingArtifactError",
    "UnsignedArtifactError",
    "UntrustedArtifactError",
    "TrustError",
    "FetchError",
    "ClusterError",
    "MissingExtraError",
    "RunError",
)
_HOMES = {
    "attach": "pyc.commands.building",
    "build": "pyc.commands.building",
    "BuildEvent": "pyc.passes.build_events",
    "BuildResult": "pyc.passes.driver.build",
    "load": "pyc.runtime.model",
    "Model": "pyc.runtime.model",
    **dict.fromkeys(_ERRORS, "pyc.runtime.errors"),
}


def __getattr__(name: str) -> object:
    """The public name, imported from its home (PEP 562). Raises AttributeError for any other name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyc' has no attribute {name!r}; public names are {', '.join(__all__)}")
    import importlib

    from pyc.runtime.host.whole_imports import import_whole

    import_whole(home)
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
