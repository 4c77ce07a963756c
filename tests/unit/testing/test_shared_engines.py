"""Tests share six engines: any other is listed with a reason, or is not compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import engines
import pytest

from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.engine.specialization import Combination, combination_of

ROOT = Path(__file__).resolve().parents[3]
TEST = "tests/unit/workload/test_some.py::test_something"
RUN = """
import engines, json
engines.install()
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.engine import fabric, specialization
from gradwire.sim.simulate import simulate
loaded = []
load = fabric.load_engine
fabric.load_engine = lambda combination, compiled: loaded.append(compiled) or load(combination, False)
for tables in json.loads(TABLES):
    simulate(build_scenario(tables))
print(loaded)
"""


def tables(transport: str) -> dict[str, object]:
    return {
        "name": "x", "topology": {"kind": "star", "hosts": 4}, "transport": {"kind": transport},
        "traffic": [{"name": "t", "kind": "permutation", "size": "10kB"}],
    }  # fmt: skip


def combination(transport: str) -> Combination:
    return combination_of(build_scenario(tables(transport)))


def test_six_engines_are_canonical_and_each_other_one_has_a_reason() -> None:
    reasons = engines.listed_engines().values()
    assert Counter(reasons)[engines.CANONICAL] == 6
    assert all(reason == engines.CANONICAL or reason.split(": ")[0] in ("size", "threads") for reason in reasons)
    assert all((ROOT / place).exists() and len(reason) > 10 for place, reason in engines.listed_places().items())


def test_engine_is_compiled_if_it_or_the_place_of_the_test_is_listed() -> None:
    assert engines.is_listed(combination("dctcp"), TEST)
    assert not engines.is_listed(combination("timely"), TEST)
    assert engines.is_listed(combination("timely"), "tests/unit/cli/test_cli.py::test_run")
    assert engines.is_listed(combination("timely"), "tests/unit/protocols/test_machine_code.py::test_code")


def test_test_of_threads_fails_with_an_engine_that_is_not_listed() -> None:
    name = "tests/property/test_some.py::test_results_do_not_depend_on_threads[2]"
    engines.check_threads(1, combination("timely"), name)
    engines.check_threads(2, combination("timely"), TEST)
    with pytest.raises(AssertionError, match=r'engines\.toml does not list: {"transports": \["timely"\]'):
        engines.check_threads(2, combination("timely"), name)


@pytest.mark.parametrize(
    ("mode", "compiled"), [("few", [True, False]), ("plain", [False, False]), ("all", [True, True])]
)
def test_mode_decides_which_engines_are_compiled(mode: str, compiled: list[bool]) -> None:
    """Of two engines the first is listed. None is compiled here, whatever is asked for."""
    environment = os.environ | {
        engines.MODE: mode, "PYTEST_CURRENT_TEST": f"{TEST} (call)", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"
    }  # fmt: skip
    code = RUN.replace("TABLES", repr(json.dumps([tables("dctcp"), tables("timely")])))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.lower()) == compiled
