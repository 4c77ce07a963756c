"""What lost packets cost a collective's result, from a Result: against arrays moved along the same program."""

from __future__ import annotations

import numpy as np
import pytest
from sim_cases import make_trace, ring_job, scenario

from gradwire.analysis.training.lost_values import lost_values
from gradwire.sim.simulate import simulate

TRACE = make_trace([[3000], [40_000, 500], [90_001]])
SWITCH = {"queues": 8, "buffer": "60KB", "ecn_threshold": "20KB", "selective_drop": True}
LOSSY = {"push_bound": 0.3, "pull_bound": 0.2, "pull_important": False, "tagging": {"magnitude": True}}


def run(exchange, workers, loss=0.02, **fields):
    job = {"workers": workers, "exchange": {"bucket": "100KB", **exchange}, **LOSSY, **fields}
    case = scenario(job, transport="dlcp", switch=SWITCH, link={"loss": loss})
    return case, simulate(case, TRACE)


def test_lost_values_of_a_ring_of_two_follow_from_lost_bytes():
    """A worker sends its own values of a segment and receives the sum."""
    case, result = run({"kind": "ring"}, 2)
    assert result.missing.num_rows > 0
    found = {(each.worker, each.tensor): each.share for each in lost_values(case, result, TRACE)}
    assert len(found) == 2 * 4 and all(0 <= share < 0.5 for share in found.values())
    # values that went missing on the way there: half a sum at the receiver, and at the sender, too, unless ...
    lost = {row["message"]: 0 for row in result.messages.to_pylist()}
    for row in result.missing.to_pylist():
        lost[row["message"]] += row["bytes"] // 4
    kinds = {row["message"]: row["kind"] for row in result.messages.to_pylist()}
    forth = sum(count for message, count in lost.items() if kinds[message] == "reduce_scatter")
    back = sum(count for message, count in lost.items() if kinds[message] == "all_gather")
    total = sum(found[w, t] * TRACE.tensors[t].numel * 2 for w in range(2) for t in range(4))
    # ... the sum itself is lost on the way back, which is then all there is to lose
    assert 2 * forth + 2 * back - 2 * min(forth, back) <= total + 2 <= 2 * forth + 2 * back + 4


@pytest.mark.parametrize(
    ("exchange", "workers", "fields"),
    [
        ({"kind": "halving_doubling"}, 4, {}), ({"kind": "transpose"}, 4, {}), ({"kind": "double_tree", "chunks": 2}, 5, {}),
        ({"kind": "ring"}, 3, {"bound_per": "exchange"}),
    ],
)  # fmt: skip
def test_lost_values_stay_below_the_loss_bounds(exchange, workers, fields):
    case, result = run(exchange, workers, **fields)
    found = lost_values(case, result, TRACE)
    assert {each.tensor for each in found} == {0, 1, 2, 3} and {each.worker for each in found} == set(range(workers))
    sizes = np.array([tensor.numel for tensor in TRACE.tensors])
    mean = np.average([each.share for each in found], weights=[sizes[each.tensor] for each in found])
    assert 0 < mean < (0.5 if "bound_per" in fields else 1)


def test_lossless_exchange_has_no_lost_values():
    case, result = run({"kind": "ring"}, 3, loss=0.0, push_bound=0.0, pull_bound=0.0)
    assert {each.share for each in lost_values(case, result, TRACE)} == {0.0}


def test_lost_values_of_tensor_slices_are_combined():
    job = ring_job(2, scheduler={"kind": "p3", "slice": "100kB"}, **LOSSY)
    case = scenario(job, transport="dlcp", switch=SWITCH, link={"loss": 0.02})
    found = lost_values(case, simulate(case, TRACE), TRACE)
    assert [each.tensor for each in found if each.worker == 0] == [0, 1, 2, 3]
    assert 0 < max(each.share for each in found) < 0.5
