"""Build `.links/pyc`: the package as it installs, made of links.

mypy and import-linter look for `pyc.compiler` in `pyc/compiler`, but the folder is called `compiler`
(docs/adr/0001-package-dir-mapping.md). This writes `.links/pyc/compiler -> ../../compiler` and so on.
"""

import tomllib
from pathlib import Path


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    package_dir = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    door = root / ".links" / "pyc"
    door.mkdir(parents=True, exist_ok=True)
    for link in door.iterdir():
        if not link.exists():
            link.unlink()
    folders = [root / path for path in package_dir.values() if "/" not in path and path != "pyc"]
    for target in [*(root / "pyc").iterdir(), *folders]:
        if not (door / target.name).is_symlink():
            (door / target.name).symlink_to(Path("../..") / target.relative_to(root))


if __name__ == "__main__":
    main()
