"""runtime/text/json_objects.py."""

import json
import re

import pytest

from pyc.runtime.text.json_objects import unique_names


def test_names_that_occur_once():
    text = '{"b": 1, "a": {"b": [{}, {"b": 2}]}}'
    assert json.loads(text, object_pairs_hook=unique_names) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "'a'"),
        ('[{"a": {"": 1, "": 2}}]', "''"),
        ('{"a\\u001b": 1, "a\\u001B": 1}', r"'a\x1b'"),
        (f'{{"{"a" * 5000}": 1, "{"a" * 5000}": 1}}', f"'{'a' * 100}...'"),
    ],
)
def test_a_name_that_occurs_twice(text, shown):
    with pytest.raises(ValueError, match=f"^the name {re.escape(shown)} occurs twice in one object$"):
        json.loads(text, object_pairs_hook=unique_names)
