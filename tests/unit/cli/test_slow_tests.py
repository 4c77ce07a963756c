"""The list of slow tests names tests that exist, and a report of times gives that list."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.slow_tests import LIST, listed_tests, slow_functions

ROOT = Path(__file__).resolve().parents[3]


def functions(path: Path) -> set[str]:
    """Return the functions of a test module, those of classes as "Class::function"."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_listed_slow_tests_exist() -> None:
    listed = listed_tests()
    assert len(listed) > 100 and LIST.read_text(encoding="utf-8").split() == sorted(listed)
    by_file: dict[str, set[str]] = {}
    for name in listed:
        path, function = name.split("::", 1)
        by_file.setdefault(path, set()).add(function)
    missing = {path: wanted - functions(ROOT / path) for path, wanted in by_file.items()}
    assert {path: names for path, names in missing.items() if names} == {}


def test_slow_functions_are_chosen_by_their_slowest_case(tmp_path: Path) -> None:
    case = '<testcase classname="{}" name="{}" time="{}"/>'
    report = tmp_path / "times.xml"
    cases = [
        case.format("tests.unit.sim.test_a", "test_x[1]", 0.1),
        case.format("tests.unit.sim.test_a", "test_x[2]", 3.0),
        case.format("tests.unit.sim.test_a", "test_y", 1.0),
        case.format("tests.unit.sim.test_a.TestZ", "test_z", 2.0),
        case.format("tests.property.test_b", "test_x", 90.0),
    ]
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    slow = {"tests/unit/sim/test_a.py::TestZ::test_z", "tests/unit/sim/test_a.py::test_x"}
    assert set(slow_functions(report, 1.7)) == slow | listed_tests(), "a report keeps what it does not measure"
