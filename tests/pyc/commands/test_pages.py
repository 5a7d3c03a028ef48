"""pages.py: every page that pyc writes is known as one."""

from importlib import resources
from pathlib import Path

import pytest

from pyc.commands.pages import PAGE_START, page_file, write_page
from pyc.runtime.errors import ArtifactError
from pyc.templates.rendering import source_text


@pytest.mark.parametrize("name", ["diff", "eval", "report"])
def test_every_template_of_a_page_begins_as_pages_do(name):
    assert source_text(f"{name}.html.j2").encode().startswith(PAGE_START)
    pages = [each.name for each in resources.files("pyc.templates").iterdir() if each.name.endswith(".html.j2")]
    assert len(pages) == 3, "and there is no other"


def test_a_page_comes_over_one_of_pyc_alone(tmp_path):
    place = tmp_path / "page.html"
    write_page(page_file(place, (), "a source", force=False), PAGE_START.decode() + " -->first")
    write_page(page_file(place, (), "a source", force=False), PAGE_START.decode() + " -->second")
    assert place.read_text().endswith("second")
    place.write_text("<!DOCTYPE html><p>mine")
    with pytest.raises(ArtifactError, match="is not a page of pyc"):
        page_file(place, (), "a source", force=False)
    with pytest.raises(ArtifactError, match="is a source, which is read here"):
        page_file(place, (None, Path("-"), place), "a source", force=True)
