"""backends/cpu/constants.py: C has the numbers of Python, and none of its own in their place."""

import re
from pathlib import Path

from pyc.backends.cpu.constants import CACHE_BLOCK_TOKENS, FOLDED_TOKENS, HEADER, LANES, constants_header
from pyc.backends.cpu.kernels.translation_units import headers
from pyc.compiler.quantization import BLOCK

TEMPLATES = Path(__file__).resolve().parents[3] / "templates" / "cpu"
DEFINED = re.compile(r"^ *# *define +(\w+)", re.MULTILINE)


def test_the_header_has_the_numbers():
    found = dict(re.findall(r"#define (\w+) (\d+)", constants_header()))
    assert found["PYC_PANEL"] == str(LANES)
    assert found["PYC_BLOCK"] == str(BLOCK)
    assert found["PYC_POSITIONS"] == str(CACHE_BLOCK_TOKENS)
    assert found["PYC_INTERLEAVED_LEAST"] == str(FOLDED_TOKENS)
    assert headers()[HEADER] == constants_header()


def test_nothing_defines_them_again():
    shared = set(DEFINED.findall(constants_header()))
    assert len(shared) > 6
    for path in (*TEMPLATES.rglob("*.h"), *TEMPLATES.rglob("*.c"), *TEMPLATES.rglob("*.j2")):
        assert not shared & set(DEFINED.findall(path.read_text())), path
