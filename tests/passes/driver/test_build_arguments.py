"""What a Python program may pass to `build`, and that everything else is a RecipeError of one line."""

from pathlib import Path

import numpy as np
import pytest

from pyc.commands.building import attach, build
from pyc.passes.driver.build_arguments import check_overrides, check_workers
from pyc.runtime.errors import RecipeError

RECIPE = {"model": "nowhere"}


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"x"


class NumberPath:
    def __fspath__(self) -> int:
        return 5


@pytest.mark.parametrize("value", [None, True, 5, 1.5, b"x", ["x"], {"x"}, object(), BytesPath(), NumberPath()])
def test_what_is_no_recipe(value: object) -> None:
    with pytest.raises(RecipeError, match=r"^recipe: got .*, expected a path"):
        build(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("output", [5, True, b"x", ["x"], BytesPath(), NumberPath()]),
        ("key", [5, True, b"x", ["x"], BytesPath(), NumberPath()]),
        ("overrides", [None, 5, "a=b", b"a=b", {"a": "b"}, [5], ["model=x", None], iter([])]),
        ("dump_ir", [5, "\ud800", "a\0b", Path("a\0b"), BytesPath()]),
        ("workers", [0, -1, 1025, 1 << 70, True, 1.5, "3", [1], float("nan"), np.array([1, 2])]),
        ("progress", [5, "x", [], {}, 0]),
    ],
)
def test_what_is_no_argument(argument: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(RecipeError, match=rf"^{argument}(\[\d\])?: got .*, expected a ") as caught:
            build(RECIPE, **{argument: value})  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("argument", ["use_cache", "force", "download", "program_only"])
def test_what_is_neither_true_nor_false(argument: str) -> None:
    for value in (np.array([1, 2]), None, "no", 1):
        with pytest.raises(RecipeError, match=rf"^{argument}: got .*, expected True or False$"):
            build(RECIPE, **{argument: value})
    with pytest.raises(RecipeError, match="no such file"):
        build("nowhere.yaml", **{argument: np.bool_(False)})


@pytest.mark.parametrize("program", [None, 5, "\ud800", b"x"])
def test_what_is_no_program(program: object) -> None:
    with pytest.raises(RecipeError, match=r"^program: got .*, expected a path"):
        attach(program, RECIPE)  # type: ignore[arg-type]


def test_numbers_of_numpy_tuples_and_paths_are_taken() -> None:
    assert check_workers(np.int64(3)) == 3
    assert check_workers(None) >= 1
    assert check_overrides(("a=b",)) == ("a=b",)
    with pytest.raises(RecipeError, match="no such file"):
        build(Path("nowhere.yaml"), output=Path("x.pyca"), workers=2, progress=False)
