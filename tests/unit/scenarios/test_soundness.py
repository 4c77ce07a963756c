"""Soundness: budgets of several messages, however many rows are looked at together."""

from __future__ import annotations

from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st

from gradwire.result_store import lazy_table
from gradwire.result_store.loss_bound_check import check_loss_invariant, overdrafts
from gradwire.result_store.result import Result
from gradwire.scenarios.loss import allowed_loss

KEYS = ("job", "kind", "iteration", "src", "dst")


def row(draw: Any, number: int) -> dict[str, Any]:
    size = draw(st.sampled_from((10, 1000)))
    lost = draw(st.integers(0, size // 5))
    return {
        "message": number, "job": draw(st.sampled_from("jk")), "iteration": draw(st.integers(0, 2)), "tensor": 0, "layer": 0,
        "part": 0, "kind": draw(st.sampled_from(("push", "pull"))), "src": draw(st.sampled_from(("h0", "h1"))), "dst": "h2",
        "bytes": size, "packets": 1, "priority": 0, "start_ps": 0, "released_ps": 0, "end_ps": draw(st.sampled_from((-1, 5, 6, 7))),
        "received_bytes": size - lost, "lost_bytes": lost, "bound": draw(st.sampled_from((0.1, 0.2, 1.0))),
        "share": draw(st.sampled_from((0.05, 0.1))), "retransmitted": 0, "sent_packets": 1, "marked": 0, "trimmed": 0,
        "timeouts": 0,
    }  # fmt: skip


@st.composite
def tables(draw: Any) -> list[dict[str, Any]]:
    return [row(draw, number) for number in range(draw(st.integers(1, 25)))]


@budget(0.5)
@given(rows=tables(), group=st.sampled_from((1, 3, 1000)))
def test_loss_invariant_equals_row_by_row_reference(rows: list[dict[str, Any]], group: int):
    """The reference follows the rule row by row."""
    result = Result.build({}, {"messages": {name: [each[name] for each in rows] for name in rows[0]}})
    delivered = [each for each in rows if each["end_ps"] >= 0]
    broken = [each["message"] for each in delivered if each["lost_bytes"] > allowed_loss(each["bytes"], each["bound"])]
    expected = []
    for key in dict.fromkeys(tuple(each[name] for name in KEYS) for each in delivered):
        group_rows = [each for each in delivered if tuple(each[name] for name in KEYS) == key]
        for end in sorted({each["end_ps"] for each in group_rows}):
            by_then = [each for each in group_rows if each["end_ps"] <= end]
            lost = sum(each["lost_bytes"] for each in by_then)
            allowed = sum(allowed_loss(each["bytes"], each["share"]) for each in by_then)
            if lost > allowed:
                expected.append((*key, lost, allowed, end))
                break
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_table, "GROUP", group)
        found = check_loss_invariant(result)
        assert [tuple(each) for each in overdrafts(result)] == expected
    assert [each.message for each in found[: len(broken)]] == broken
    assert [tuple(each) for each in found[len(broken) :]] == expected


def test_shared_budgets_are_checked_only_if_share_differs_from_bound():
    """A share equal to the bound is no budget: messages within their bounds are then within it together."""
    given = {"share": [0.1] * 2, "bound": [0.1] * 2, "lost_bytes": [150, 0], "received_bytes": [850, 1000]}
    rows = {
        "message": [0, 1], "job": ["j"] * 2, "iteration": [0] * 2, "tensor": [0] * 2, "layer": [0] * 2, "part": [0] * 2,
        "kind": ["push"] * 2, "src": ["a"] * 2, "dst": ["b"] * 2, "bytes": [1000] * 2, "packets": [1] * 2, "priority": [0] * 2,
        "start_ps": [0] * 2, "released_ps": [0] * 2, "end_ps": [1] * 2, "retransmitted": [0] * 2, "sent_packets": [1] * 2,
        "marked": [0] * 2, "trimmed": [0] * 2, "timeouts": [0] * 2, **given,
    }  # fmt: skip
    assert len(check_loss_invariant(Result.build({}, {"messages": rows}))) == 1
    assert not overdrafts(Result.build({}, {"messages": rows}))
    halves = rows | {"share": [0.05] * 2}
    assert len(overdrafts(Result.build({}, {"messages": halves}))) == 1
