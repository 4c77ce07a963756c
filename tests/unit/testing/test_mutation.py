"""Mutants change one place each, and a trial says what became of them."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mutation import trial
from tests.mutation.hits import marked, take
from tests.mutation.mutants import KINDS, draw, mutants_of
from tests.mutation.reach import Reach

ROOT = Path(__file__).resolve().parents[3]
SOURCE = b'''
LIMIT = 3  # not in a function


def rule(flow, now: int = 7) -> int:
    """A docstring."""
    if now < flow.start and flow.packets:
        return max(now, 1)
    flow.packets += 2
    window = flow.window << (4 if flow.fast else 0)
    flow.timer = now - window
    if flow.lost:
        raise ValueError(f"{flow.lost + 1} lost")
    return window
'''


def test_mutants_of_a_function_are_these() -> None:
    found = {(mutant.kind, mutant.before, mutant.after) for mutant in mutants_of("rule.py", SOURCE)}
    assert found == {
        ("comparison", "now < flow.start", "(now <= flow.start)"),
        ("branch", "now < flow.start and flow.packets", "(not (now < flow.start and flow.packets))"),
        ("branch", "now < flow.start and flow.packets", "(now < flow.start or flow.packets)"),
        ("deletion", "return max(now, 1)", "pass"),
        ("arithmetic", "max", "min"),
        ("constant", "1", "2"),
        ("deletion", "flow.packets += 2", "pass"),
        ("arithmetic", "flow.packets += 2", "flow.packets -= 2"),
        ("constant", "2", "3"),
        ("arithmetic", "flow.window << (4 if flow.fast else 0)", "(flow.window >> (4 if flow.fast else 0))"),
        ("branch", "flow.fast", "(not flow.fast)"),
        ("constant", "4", "5"),
        ("constant", "0", "1"),
        ("deletion", "flow.timer = now - window", "pass"),
        ("arithmetic", "now - window", "(now + window)"),
        ("branch", "flow.lost", "(not flow.lost)"),
        ("deletion", "return window", "pass"),
    }


def test_drawn_mutants_are_valid_and_the_same_again() -> None:
    drawn = draw(ROOT, 7, 60)
    assert drawn == draw(ROOT, 7, 60) != draw(ROOT, 8, 60)
    assert [mutant.kind for mutant in drawn] == list(KINDS) * 12 and len(set(drawn)) == 60
    for mutant in drawn:
        source = (ROOT / mutant.path).read_bytes()
        assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    with pytest.raises(ValueError, match="is not what the mutant was made of"):
        drawn[0].apply(b"\n" + source)


def test_marks_name_the_lines_that_have_run() -> None:
    source, lines = marked(SOURCE.decode(), 100)
    names: dict[str, Any] = {}
    exec(source, names)
    take()
    flow = SimpleNamespace(start=5, packets=0, window=1, fast=False, lost=0)
    assert names["rule"](flow, 9) == 1 and flow.packets == 2
    assert [lines[number - 100] for number in take()] == [7, 9, 10, 11, 12, 14]
    assert take() == []
    assert marked("LIMIT = 3\n", 100) == ("LIMIT = 3\n", [])


def test_fastest_cases_of_different_functions_come_first() -> None:
    (mutant,) = (each for each in mutants_of("rule.py", SOURCE) if each.before == "now - window")
    tests = [("t::a[0]", 0.1), ("t::a[1]", 0.2), ("t::b", 0.3), ("t::c", 2.0), ("t::elsewhere", 0.1)]
    reach = Reach(tests, {"rule.py": {11: [0, 1, 2, 3], 12: [4]}, "other.py": {11: [4]}})
    assert [name for name, _ in reach.tests_of(mutant, 10.0)] == ["t::a[0]", "t::b", "t::c", "t::a[1]"]
    assert [name for name, _ in reach.tests_of(mutant, 1.0)] == ["t::a[0]", "t::b", "t::a[1]"]


TESTED = b"""
def double(value):
    return 2 * value


def count(most):
    number = 0
    while number < most:
        number += 1
    return number


def unused():
    return 1
"""
TEST = """
from protocols.rule import count, double

def test_double(): assert double(2) == 4
def test_count(): assert count(3) == 3
def test_failing(): assert double(1) == 3
"""


def test_trials_tell_killed_survived_timed_out_and_unreached_mutants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "GRACE_S", 1)
    tree, work = tmp_path / "project", tmp_path / "work"
    files = {
        "protocols/__init__.py": b"",
        "protocols/rule.py": TESTED,
        "tests/test_rule.py": TEST.encode(),
        "pytest.ini": b"[pytest]\n",
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(text)
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    copy = trial.Copy(tree, work)
    copy.record(work / "reach.json", ["tests"])
    reach = Reach.read(work / "reach.json")
    assert {name for name, _ in reach.tests} == {"tests/test_rule.py::test_double", "tests/test_rule.py::test_count"}
    verdicts = {}
    for mutant in mutants_of("protocols/rule.py", TESTED):
        verdicts[mutant.before, mutant.after] = copy.try_out(mutant, reach.tests_of(mutant, 10.0))
        assert (copy.root / "protocols/rule.py").read_bytes() == TESTED
    found = {change: verdict.verdict for change, verdict in verdicts.items()}
    assert found["2 * value", "(2 + value)"] == trial.SURVIVED  # 2 + 2 is 4
    assert found["2", "3"] == trial.KILLED and verdicts["2", "3"].killer.startswith(
        "FAILED tests/test_rule.py::test_double"
    )
    assert found["number += 1", "pass"] == trial.TIMED_OUT
    assert verdicts["number += 1", "pass"].killer == "TIMED OUT tests/test_rule.py::test_count"
    assert found["return 1", "pass"] == trial.UNREACHED
