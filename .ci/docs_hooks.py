"""Hooks of mkdocs: pages of the site that lie outside docs/, and lists of decisions and of lab pages.

Links are written for a reader of the repository: README.md says `docs/quickstart.md`, docs/recipe.md says
`../compiler/recipe/recipe.schema.json`. Here they become links of the site. The strict build fails where one leads to
nothing.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "models/demo/README.md": "demo-model.md",
    "compiler/recipe/recipe.schema.json": "recipe.schema.json",
}
"""File of the repository -> its place in the site."""
LISTS = {
    "adr": "# Decisions\n\nWhat was decided, what else was considered, and what follows.\n\n",
    "lab": "# Lab\n\nWhat was tried and measured, with what did not work. Nobody needs it to use pyc.\n\n",
}
"""Folder of docs -> how its list of pages begins."""
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of OUTSIDE and LISTS."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for folder, beginning in LISTS.items():
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        entries = (f"- [{page.read_text('utf-8').splitlines()[0].removeprefix('# ')}]({page.name})" for page in pages)
        files.append(File.generated(config, f"{folder}/index.md", content=beginning + "\n".join(entries) + "\n"))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links of the site in place of links of the repository."""
    place = page.file.src_uri
    source = next((source for source, target in OUTSIDE.items() if target == place), f"docs/{place}")

    def in_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        if target in ("docs/adr", "docs/lab"):
            target += "/index.md"
        found = OUTSIDE.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if found is None:
            return link[0]
        return f"]({posixpath.relpath(found, posixpath.dirname(place) or '.')}{link[2] or ''})"

    return LINK.sub(in_site, markdown)
