"""Random scenarios over the whole schema: what `check` accepts, `run` runs, the same on 1, 2 and 3 threads, and packet by
packet as the oracle does. A sample; `python -m tests.soak` goes on for as long as one likes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from profiles import is_usual

from gradwire.scenarios.components import components
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.load import build_scenario
from gradwire.sim.fabric.specialise import Combination, combination_of
from tests.soak import ANSWERS
from tests.soak.drawn import COMMON, Scenarios, combination
from tests.soak.played import Difference, play
from tests.soak.schema import SCHEMA

KEPT = sorted((Path(__file__).parents[1] / "data" / "soak").glob("*.json"))


MOST_ENGINES = 2
"""Of a combination of transports, balancer and switches; their keys ask for up to five, of seconds to compile each. The
thorough profile takes all."""


@pytest.mark.parametrize("seed", range(3))
def test_what_check_accepts_runs_and_is_what_the_oracle_does(seed, tmp_path):
    made = Scenarios(tmp_path, combination(Random(seed)))
    most = MOST_ENGINES if is_usual() else 1000
    answers: list[str] = []
    engines: set[Combination] = set()
    for member in range(100):
        tables = made.tables(member, 0.1 if member % 4 == 3 else 0.0)
        needed = engines | engines_of(tables, tmp_path)
        if len(needed) > most:
            continue
        engines = needed
        answers.append(play(tables, tmp_path))
        if len(answers) >= 20 and answers.count("ok") > 10:
            break
    assert set(answers) <= set(ANSWERS)
    assert answers.count("ok") > 10


def engines_of(tables, folder):
    """The engines that a scenario needs, as far as it is one."""
    try:
        return {combination_of(each) for each in build_scenario(tables).at(folder).variants()}
    except ScenarioError:
        return set()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_was_found_once(path, tmp_path):
    """Scenarios in which engine and oracle differed, or that `check` accepted and `run` refused."""
    Scenarios(tmp_path, COMMON)
    assert play(json.loads(path.read_text()), tmp_path) in ("ok", "refused")


def test_a_difference_is_found(tmp_path, monkeypatch):
    """An oracle that does not mark is found out."""
    Scenarios(tmp_path, COMMON)
    tables = {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "switch": {"ecn_threshold": "3kB"},
        "traffic": [{"name": "t", "kind": "incast", "fan_in": 3, "size": "100kB"}],
    }  # fmt: skip
    assert play(tables, tmp_path) == "ok"
    monkeypatch.setattr("gradwire.testing.oracle.port.Port.above", lambda *_: False)
    with pytest.raises(Difference):
        play(tables, tmp_path)


NAMES = {"switch": "Switch", "output": "Output", "link": "Link", "job": "Job", "link_override": "LinkOverride", "host": "Host"}


def test_every_table_and_every_field_is_drawn():
    seen: dict[str, set[str]] = {}

    def note(value, name):
        """A table counts for its kind if it has one, else for the name of its field."""
        for table in value if isinstance(value, list) else [value]:
            if isinstance(table, dict):
                seen.setdefault(str(table.get("kind", name)), set()).update(table)
                for field, inner in table.items():
                    note(inner, NAMES.get(field, field))

    folder = Path("files")
    folder.mkdir()
    for seed in range(800):
        note(Scenarios(folder, combination(Random(seed))).tables(seed, 0.2 * (seed % 2)), "Scenario")
    wanted = {"Scenario": SCHEMA, **{name: SCHEMA["$defs"][name] for name in NAMES.values()}}
    for model in SCHEMA["$defs"].values():
        kind = model.get("properties", {}).get("kind", {}).get("const")
        trained = {*components("reducer"), *components("system")}  # what nothing here is sent by
        if kind and kind != "bbr" and kind not in trained:  # bbr is the kernel's
            wanted[kind] = model
    missed = {name: set(model["properties"]) - seen.get(name, set()) for name, model in wanted.items()}
    assert not {name: fields for name, fields in missed.items() if fields}
