"""Random scenarios over the whole schema: what `check` accepts, `run` runs, the same on 1, 2 and 3 threads, and packet by
packet as the oracle does, by machine code and by the engine as plain Python. A sample of what `python -m tests.soak` tries
for as long as one likes."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import settings
from profiles import is_usual

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.engine.specialization import Combination, combination_of
from tests.soak import ANSWERS, uncompiled
from tests.soak.coverage import Coverage, Features, excludes
from tests.soak.drawn import COMMON, Scenarios, accepted, combination
from tests.soak.played import Difference, play
from tests.soak.schema import SCHEMA

KEPT = sorted((Path(__file__).parents[1] / "data" / "soak").glob("*.json"))


MOST_ENGINES = 2
"""Of a combination of transports, balancer and switches; their keys ask for up to five, of seconds to compile each. The
thorough profile takes all."""


@pytest.mark.parametrize("seed", range(3))
def test_scenarios_accepted_by_check_run_and_match_oracle(seed, tmp_path):
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


@pytest.mark.parametrize("seed", range(3))
def test_uncompiled_engine_matches_oracle_for_many_combinations(seed):
    """Each scenario has components of its own, which nothing has to be compiled for."""
    answers = [case() for _, case in islice(uncompiled.cases(seed), min(settings.default.max_examples, 100))]
    assert set(answers) <= set(ANSWERS)
    assert answers.count("ok") > 10


def engines_of(tables, folder):
    """The engines that a scenario needs, as far as it is one."""
    try:
        return {combination_of(each) for each in build_scenario(tables).at(folder).variants()}
    except ScenarioError:
        return set()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_recorded_soak_failures_stay_fixed(path, tmp_path):
    """In these scenarios engine and oracle differed, or `check` accepted and `run` rejected."""
    Scenarios(tmp_path, COMMON)
    assert play(json.loads(path.read_text()), tmp_path) in ("ok", "refused")


def test_play_detects_a_faulty_oracle(tmp_path, monkeypatch):
    """The oracle does not mark packets."""
    Scenarios(tmp_path, COMMON)
    tables = {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "switch": {"ecn_threshold": "3kB"},
        "traffic": [{"name": "t", "kind": "incast", "fan_in": 3, "size": "100kB"}],
    }  # fmt: skip
    assert play(tables, tmp_path) == "ok"
    monkeypatch.setattr("gradwire.testing.oracle.port.OraclePort.is_above", lambda *_: False)
    with pytest.raises(Difference):
        play(tables, tmp_path)


def covered(features: Features, scenarios: int = 3200) -> Coverage:
    """The features of so many valid scenarios of the soak's generator."""
    coverage = Coverage(features)
    for tables in islice(accepted(), scenarios):
        coverage.note(tables)
    return coverage


@pytest.mark.slow  # 3,200 scenarios are drawn and checked, since the rarest feature is in a few of them alone
def test_generator_covers_all_schema_features_and_most_pairs():
    """A key that the generator never draws is reported."""
    schema = json.loads(json.dumps(SCHEMA))
    schema["$defs"]["Switch"]["properties"]["brand_new"] = {"type": "boolean"}
    coverage = covered(Features(schema))
    assert coverage.missing() == ["switch.brand_new=False", "switch.brand_new=True"]
    known = Features()
    old = [coverage.features.index[name] for name in known.names]
    counts = coverage.pairs[np.ix_(old, old)]
    possible = np.triu(~excludes(known.names), 1)
    assert (counts[possible] > 0).mean() > 0.7
    host = known.index["host.gpus>1"]  # what could not be drawn together with several accelerators, once
    for name in (
        "transport.cubic.timers=ticks",
        "placement.workers",
        "link_override",
        "fault=link_down",
        "load_balancing=reps",
    ):
        assert counts[host, known.index[name]] > 0, name


def test_features_are_counted_by_kind_and_value():
    features = Features()
    found = features.of({
        "name": "x", "topology": {"kind": "rail", "cards": 2}, "load_balancing": "reps", "host": {"gpus": 2},
        "switch": {"pfc": True, "buffer": "60kB"}, "transport": {"kind": "dctcp", "timers": "ticks"},
        "traffic": [{"kind": "incast", "size": "1kB", "transport": {"kind": "cubic"}}],
    })  # fmt: skip
    assert found == {
        "topology=rail", "topology.rail.cards>1", "load_balancing=reps", "host", "host.gpus>1", "switch", "switch.pfc=True",
        "switch.buffer", "transport=dctcp", "transport.dctcp.timers=ticks", "traffic=incast", "traffic.incast.size", "transport=cubic",
    }  # fmt: skip
    one, other = Coverage(features), Coverage(features)
    one.note({"load_balancing": "reps", "host": {"gpus": 2}})
    other.note({"load_balancing": "ecmp", "host": {"gpus": 1}})
    one.add(other)
    numbers = [features.index[name] for name in ("load_balancing=reps", "host.gpus>1", "host.gpus=1", "host")]
    assert one.pairs[np.ix_(numbers, numbers)].tolist() == [[1, 1, 0, 1], [1, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 2]]
    assert one.scenarios == 2 and "2 scenarios; " in one.lines()[0]
