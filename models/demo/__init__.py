"""The embedded demo model: a 4.5 M parameter Qwen3-type language model of Python source code.

`checkpoint/` is an ordinary Hugging Face checkpoint (bfloat16), `heldout.txt` is text it never saw, and
`train.py` is the recipe that made both. See README.md for the numbers.
"""

from pathlib import Path

DEMO_DIR = Path(__file__).parent
