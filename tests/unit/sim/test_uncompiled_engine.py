"""The engine as plain Python: the same results, and a place for prints and breakpoints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engine_cases import scenario

from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ScenarioError
from gradwire.sim.simulate import simulate

EXAMPLE = Path(__file__).parents[3] / "examples" / "constant_rate.py"
OWN = """
name = "own"
transport = { kind = "own:ConstantRate", percent = 60 }
topology = { kind = "star", hosts = 4 }
traffic = [{ name = "to-one", kind = "incast", fan_in = 3, size = "30kB" }]
"""
RULE = "def pull(params, flow: RateFlow, now):\n"


def same(one, other) -> bool:
    return one.summary == other.summary and all(getattr(one, name).equals(getattr(other, name)) for name in TABLES)


def own_transport(folder: Path, line: str) -> Path:
    """A scenario whose transport has one line more in `pull`; its path."""
    text = EXAMPLE.read_text()
    assert text.count(RULE) == 1
    (folder / "own.py").write_text(text.replace(RULE, f"{RULE}    {line}\n"))
    (folder / "own.toml").write_text(OWN)
    return folder / "own.toml"


def test_uncompiled_run_gives_the_result_of_the_compiled_one():
    small = scenario()
    compiled, plain = simulate(small), simulate(small, compiled=False, threads=2)
    assert same(compiled, plain)
    assert plain.summary["totals"]["finished"]


def test_uncompiled_job_gives_the_result_of_the_compiled_one():
    tables = {
        "topology": {"kind": "star", "hosts": 3},
        "traffic": [],
        "job": [
            {
                "name": "j",
                "trace": "resnet20",
                "workers": 2,
                "servers": 1,
                "iterations": 4,
                "exchange": {"kind": "parameter_server"},
            }
        ],
    }
    compiled, plain = (simulate(scenario(**tables), compiled=each) for each in (True, False))
    assert same(compiled, plain)


def test_print_in_a_rule_works_uncompiled(tmp_path):
    made = own_transport(tmp_path, "print('pull at', now)")
    done = subprocess.run(
        [sys.executable, "-m", "gradwire", "run", str(made), "--uncompiled", "--threads", "2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pull at") == 3 * (8 + 1)
    assert "--threads has no effect with --uncompiled" in done.stderr
    refused = subprocess.run(
        [sys.executable, "-m", "gradwire", "run", str(made)], capture_output=True, text=True, cwd=tmp_path
    )
    assert refused.returncode == 2 and "compiled rules cannot print; gradwire run --uncompiled" in refused.stderr


def test_breakpoint_in_a_rule_sees_its_records(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["flow"].packets))
    simulate(own_transport(tmp_path, "breakpoint()"), compiled=False)
    assert seen == [8] * 3 * (8 + 1)


@pytest.mark.parametrize(
    ("rule", "error"), [("1 // (now - now)", "ZeroDivisionError: "), ("flow.gap = 0.5", "TypeError: 'float' object ")]
)
def test_exception_in_a_rule_is_reported_with_its_line(tmp_path, rule, error):
    """The engine itself raises the second one, when the rule writes to a record."""
    made = own_transport(tmp_path, rule)
    own = made.with_name("own.py")
    line = 1 + own.read_text().partition(rule)[0].count("\n")
    with pytest.raises(
        ScenarioError, match=rf"{own}:{line}: a rule has raised {error}.*; expected rules that raise no"
    ):
        simulate(made, compiled=False)
