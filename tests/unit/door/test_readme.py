"""README.md: what there is to choose from is all there."""

import re
from pathlib import Path

from gradwire.scenarios.components import PLACES, components

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_readme_names_all_there_is_to_choose_from():
    table = README.read_text(encoding="utf-8").split("## What there is to choose from\n")[1].split("\n## ")[0]
    named = re.findall(r"`(\w+)`", table)
    for place in set(PLACES) - {"queue"}:
        assert set(components(place)) - set(named) == set(), place
