"""Lets the tests of this folder import artifact_forge, which they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
