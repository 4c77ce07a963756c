"""docs/choices.md and the pages name every component."""

import re
from pathlib import Path

import pytest

from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, components

ROOT = Path(__file__).resolve().parents[3]
PAGES = {
    "topology": "topologies", "traffic": "traffic", "fault": "faults", "trace_format": "formats", "switch": "testbed",
}  # fmt: skip
"""The page that describes every component of a place, each in a row of a table or a heading."""


@pytest.mark.parametrize("place", sorted(set(COMPONENT_PACKAGES) - {"queue"}))
def test_choices_page_names_every_component(place: str):
    text = (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")
    assert set(components(place)) - set(re.findall(r"`(\w+)`", text)) == set()


@pytest.mark.parametrize("place", PAGES)
def test_component_pages_describe_every_component(place: str):
    text = (ROOT / "docs" / f"{PAGES[place]}.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("| `", "* `", "**`", "#", "* **`"))]
    assert set(components(place)) - set(re.findall(r"`(\w+)[`:]", "\n".join(rows))) == set()
