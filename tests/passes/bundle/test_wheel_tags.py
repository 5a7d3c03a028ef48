"""The tags of wheels, compared with the rules of the `packaging` library, which pip follows."""

from itertools import product

import pytest
from packaging.tags import compatible_tags, cpython_tags

from pyc.passes.bundle.wheel_tags import fits

INTERPRETERS = (
    *("cp3", "cp31", "cp32", "cp39", "cp311", "cp312", "cp313", "pp311"),
    *("py2", "py3", "py39", "py312", "py313"),
)
ABIS = ("none", "abi3", "cp311", "cp312", "cp312t", "cp313t", "pypy311_pp73")
PLATFORMS = (
    *("any", "win_amd64", "macosx_11_0_arm64", "musllinux_1_2_x86_64"),
    *(f"{glibc}_{machine}" for glibc in ("linux", "manylinux_2_28") for machine in ("x86_64", "aarch64", "i686")),
)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_every_combination_of_tags(machine, minor):
    platforms = [f"{glibc}_{machine}" for glibc in ("manylinux_2_28", "manylinux2014", "linux")]
    wanted = {
        *cpython_tags((3, minor), [f"cp3{minor}"], platforms),
        *compatible_tags((3, minor), f"cp3{minor}", platforms),
    }
    texts = {str(tag) for tag in wanted}
    found = set()
    for tags in product(INTERPRETERS, ABIS, PLATFORMS):
        name = "-".join(tags)
        assert fits(f"demo-1.0-{name}.whl", machine, f"3.{minor}") == (name in texts), name
        found.add(name in texts)
    assert found == {True, False}


@pytest.mark.parametrize(
    ("name", "is_fitting"),
    [
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-2build-py3-none-any.whl", True),
        ("a-1-cp312-cp312-manylinux_2_17_aarch64.manylinux2014_x86_64.whl", True),
        ("a-1-cp312-cp312-manylinux1_x86_64.whl", True),
        ("a-1-cp311.cp313-abi3-linux_x86_64.whl", True),
        ("a-1-cp312-cp312-manylinux_x_x86_64.whl", False),
        ("a-1-none-any.whl", False),
        ("a-1-b-c-py3-none-any.whl", False),
        ("a.whl", False),
    ],
)
def test_names_of_files(name, is_fitting):
    assert fits(name, "x86_64", "3.12") == is_fitting
