"""passes/driver/build_calibration.py: what is said of a text that changes nothing."""

import pytest
from built_models import recipe_for

from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build_calibration import warn_of_unread_text


@pytest.mark.parametrize(
    ("quantize", "is_said"),
    [
        ({"calibration": {"text": "none.txt"}}, True),
        ({"calibration": {"generate": 512}}, True),
        ({"calibration": {"tokens": 512}}, False),
        ({"calibration": {"text": "none.txt"}, "algorithm": "gptq"}, False),
        ({"calibration": {"text": "none.txt"}, "overrides": [{"match": "a", "algorithm": "awq-gptq"}]}, False),
    ],
)
def test_a_calibration_text_that_nothing_reads_is_a_warning(quantize, is_said, tmp_path, caplog):
    quantize = {"scheme": "int4-g32", **quantize}
    for override in quantize.get("overrides", ()):
        override["scheme"] = "int4-g32"
    warn_of_unread_text(recipe_from(recipe_for(tmp_path, quantize=quantize), folder=tmp_path, name="m"))
    assert ("quantize.calibration: its text changes nothing, as quantize.algorithm is rtn" in caplog.text) == is_said
