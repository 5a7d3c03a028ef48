"""The wheel of this tree, built once, without network."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")


@pytest.fixture(scope="session")
def package_dir() -> dict[str, str]:
    """Package name -> folder, as pyproject.toml lists it."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    return {str(name): str(folder) for name, folder in table.items()}


@pytest.fixture(scope="session")
def source(package_dir: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, so that no leftover of an earlier build gets in."""
    source = tmp_path_factory.mktemp("source")
    for folder in {folder.partition("/")[0] for folder in package_dir.values()}:
        shutil.copytree(ROOT / folder, source / folder, ignore=LEFT_OUT)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="session")
def wheel(source: Path) -> Path:
    """The wheel of that copy."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "-w", source / "dist", source], check=True, capture_output=True)
    (built,) = (source / "dist").glob("*.whl")
    return built
