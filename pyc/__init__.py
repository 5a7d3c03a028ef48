"""pyc compiles a Hugging Face checkpoint into one artifact and runs it.

>>> import pyc
>>> result = pyc.build("model.yaml")
>>> model = pyc.load(result.path)

Importing this package imports neither the compiler nor the runtime; each is imported at first use.
"""

__version__ = "0.1.0"
