"""A comparison reads columns, some rows at a time: its figures do not depend on how many, nor on how they are kept."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.analysis.comparison.compare import compare
from gradwire.result_store import lazy_table, row_blocks
from gradwire.result_store.result import Result
from gradwire.scenarios.loading.load import load_scenario
from gradwire.sim.simulate import simulate


def told(result: Result) -> dict[str, Any]:
    found = compare([result]).as_dict()
    (run,) = found["runs"]
    del run["timing"]
    for job in run["jobs"]:
        del job["hops_per_s"]
    return found


@pytest.mark.parametrize(
    ("name", "policy", "changes"),
    [("incast", "dlcp", ["job.iterations=3"]), ("loss", "step", ["job.iterations=2"]), ("incast-mix", "dlcp", [])],
)
def test_blockwise_comparison_equals_whole_table_comparison(
    name: str, policy: str, changes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    scenario = load_scenario(name, policy=policy, set=changes)
    whole = told(Result.read(simulate(scenario).write(tmp_path / "whole")))
    monkeypatch.setattr(row_blocks, "ROWS", 300)
    monkeypatch.setattr(lazy_table, "GROUP", 177)
    result = simulate(scenario)
    assert result.stored_rows("messages").num_rows > 1000
    assert told(result) == whole
    for table in ("messages", "drops", "missing"):  # nobody has asked for all of it
        assert getattr(result.stored_rows(table), "_table") is None, table  # noqa: B009
