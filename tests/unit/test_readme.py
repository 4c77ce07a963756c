"""README.md: what it shows is what happens, and what there is to choose from is all there."""

import re
from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.load import load_scenario
from scenarios.schema import BALANCERS, json_schema
from sim.transports import KINDS

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_refusal_in_the_readme_is_the_real_one():
    with pytest.raises(ScenarioError) as caught:
        load_scenario("demo", set=["transport=ndp", "switch.pfc=true"])
    shown = README.read_text(encoding="utf-8").split("--set transport=ndp --set switch.pfc=true\n")[1]
    said = [line.strip() for line in shown.split("\n\n")[0].splitlines()]
    assert said[1:] == [str(mistake) for mistake in caught.value.mistakes]


def test_the_readme_names_all_there_is_to_choose_from():
    table = README.read_text(encoding="utf-8").split("## What there is to choose from\n")[1].split("\n## ")[0]
    kinds = [
        definition["properties"]["kind"]["const"]
        for definition in json_schema()["$defs"].values()
        if "const" in definition.get("properties", {}).get("kind", {})
    ]
    assert {*kinds, *BALANCERS} - set(re.findall(r"`(\w+)`", table)) == set()
    assert set(KINDS) <= set(kinds)
