"""The page on scenarios names every scenario of the library."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_scenario_page_lists_every_library_scenario() -> None:
    text = (ROOT / "docs" / "scenario.md").read_text()
    (listed,) = re.findall(r"come with gradwire are in.*?\. A name", text, re.S)
    assert set(re.findall(r"`([\w-]+)`", listed)) == {path.stem for path in (ROOT / "scenarios/library").glob("*.toml")}
