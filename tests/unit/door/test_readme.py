"""README.md: what there is to choose from is all there."""

import re
from pathlib import Path

from gradwire.components.transports import KINDS
from gradwire.scenarios.schema.scenario import BALANCERS, json_schema

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_readme_names_all_there_is_to_choose_from():
    table = README.read_text(encoding="utf-8").split("## What there is to choose from\n")[1].split("\n## ")[0]
    kinds = [
        definition["properties"]["kind"]["const"]
        for definition in json_schema()["$defs"].values()
        if "const" in definition.get("properties", {}).get("kind", {})
    ]
    assert {*kinds, *BALANCERS} - set(re.findall(r"`(\w+)`", table)) == set()
    assert set(KINDS) <= set(kinds)
