"""The wheel holds the tree: nothing is forgotten in pyproject.toml, and nothing generic is installed."""

import os
import tomllib
import zipfile
from pathlib import Path

import pytest

from pyc.compiler.recipe.schema import schema_text

ROOT = Path(__file__).parents[2]


def is_demo_data(path: Path) -> bool:
    """The demo's weights and texts stay in the repository: a machine that runs artifacts has no use for 10 MB."""
    return path.parts[:2] == ("models", "demo") and path.suffix != ".py"


@pytest.fixture(scope="module")
def tree(source: Path, package_dir: dict[str, str]) -> dict[str, Path]:
    """Where each file of the package folders belongs in the wheel: wheel path -> file."""
    files = {}
    tops = {name: folder for name, folder in package_dir.items() if "/" not in folder}
    for name, folder in tops.items():
        for path in (source / folder).rglob("*"):
            if path.is_file() and not is_demo_data(path.relative_to(source)):
                files[f"{name.replace('.', '/')}/{path.relative_to(source / folder)}"] = path
    return files


def test_the_wheel_holds_every_file_and_no_other(wheel, tree):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == set(tree), "list the folder or the file type in pyproject.toml"


def test_the_schema_of_recipes_travels_with_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        schema = archive.read("pyc/compiler/recipe/recipe.schema.json").decode()
    assert schema == schema_text()


def test_the_files_in_the_wheel_are_those_of_the_tree(wheel, tree):
    with zipfile.ZipFile(wheel) as archive:
        packed = [name for name in archive.namelist() if name in tree]
        different = [name for name in packed if archive.read(name) != tree[name].read_bytes()]
    assert packed
    assert different == []


def test_nothing_but_pyc_is_installed_at_top_level(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pyc"}


def test_the_licence_and_the_notice_travel_with_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in ("LICENSE", "NOTICE"):
        assert any(entry.endswith(f".dist-info/licenses/{name}") for entry in names)


def test_both_tables_list_the_same_packages(package_dir):
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["packages"] == list(package_dir)


def test_every_package_folder_is_a_real_package(package_dir):
    missing = [folder for folder in package_dir.values() if not (ROOT / folder / "__init__.py").is_file()]
    assert missing == [], "an editable install cannot import a folder without __init__.py"


def test_every_folder_with_code_is_listed(package_dir):
    tops = {folder.partition("/")[0] for folder in package_dir.values()}
    with_code = {
        os.path.relpath(path.parent, ROOT)
        for top in tops
        for path in (ROOT / top).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert with_code == set(package_dir.values())
