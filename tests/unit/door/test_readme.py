"""README.md and the pages: what there is to choose from is all there."""

import re
from pathlib import Path

import pytest

from gradwire.scenarios.components import PLACES, components

ROOT = Path(__file__).resolve().parents[3]
PAGES = {
    "topology": "topologies", "traffic": "traffic", "fault": "faults", "trace_format": "formats", "switch": "testbed",
}  # fmt: skip
"""The page that describes every component of a place, each in a row of a table or a heading."""


@pytest.mark.parametrize("place", sorted(set(PLACES) - {"queue"}))
def test_the_readme_names_all_there_is_to_choose_from(place: str):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## What there is to choose from\n")[1].split("\n## ")[0]
    assert set(components(place)) - set(re.findall(r"`(\w+)`", table)) == set()


@pytest.mark.parametrize("place", PAGES)
def test_its_page_describes_each(place: str):
    text = (ROOT / "docs" / f"{PAGES[place]}.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("| `", "* `", "**`", "#", "* **`"))]
    assert set(components(place)) - set(re.findall(r"`(\w+)[`:]", "\n".join(rows))) == set()
