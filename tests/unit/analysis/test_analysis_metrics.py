"""Metrics against tables small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from analysis_cases import iterations, messages, ports, small_result

from gradwire.analysis.metrics import DROPS, measure, percentile
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import CAUSES, TABLES


def test_iteration_time_and_exposed_communication_match_hand_computation():
    found = measure(small_result())[0]
    # Two workers, two iterations: 100, 300 and 120, 280 ps; 60 ps of each computing.
    assert found.iteration.count == 4
    assert found.iteration.mean_ps == 200
    assert found.iteration.p50_ps == 120
    assert (found.iteration.p99_ps, found.iteration.max_ps) == (None, 300)
    assert found.exposed.mean_ps == 140
    assert found.exposed_share == pytest.approx(560 / 800)


def test_completion_by_kind_excludes_undelivered_messages():
    found = measure(small_result())[0]
    # push: 10, 20, 30 ps; pull: 40 ps and one under way
    assert list(found.completion) == ["all", "push", "pull"]
    push, pull, everything = (found.completion[kind] for kind in ("push", "pull", "all"))
    assert (push.count, push.p50_ps, push.p99_ps, push.mean_ps) == (3, 20, None, 20)
    assert (pull.count, pull.p50_ps, pull.p99_ps) == (1, 40, None)
    assert (everything.count, everything.p50_ps, everything.mean_ps) == (4, 20, 25)
    assert found.under_way == 1


def test_drops_and_marks_are_sums_over_ports():
    found = measure(small_result())[0]
    assert (found.drops_tail, found.drops_selective, found.drops_loss, found.marks) == (3, 5, 1, 30)
    assert (found.drops_evicted, found.drops_down, found.drops_no_route) == (2, 7, 1)
    assert found.dropped == 19
    assert (found.trimmed, found.pauses) == (4, 3)


def test_every_drop_cause_has_a_counter():
    assert set(DROPS) == {column for column in TABLES["ports"] if column.startswith("drops_")}
    assert len(DROPS) == len(CAUSES)


def test_metrics_hold_packet_counts_speed_and_provenance():
    found = measure(small_result())[0]
    assert (found.sent_packets, found.retransmitted, found.data_packets) == (56, 3, 50)
    assert (found.packet_hops, found.hops_per_s, found.simulated_ps) == (1234, 5e6, 700)
    assert (found.name, found.policy, found.label, found.job) == ("case", "p", "Policy", "j")
    assert found.finished


def test_worst_loss_is_the_message_nearest_to_its_bound():
    # 50 of 1000 bytes with a bound of 0.1 is half of it; 30 of 1000 with a bound of 0.04 is three quarters.
    loss = measure(small_result())[0].loss
    assert (loss.message, loss.lost_bytes, loss.allowed_bytes, loss.bytes) == (2, 30, 40, 1000)
    assert loss.share == 0.03
    assert loss.used == 0.75
    assert loss.total_bytes == 80
    assert loss.total_share == 80 / 4000  # the fifth message has not been delivered


def test_loss_with_zero_bound_is_the_worst_loss():
    broken = small_result(messages(bound=[0.1, 0.1, 0.0, 0.0, 0.0]))
    loss = measure(broken)[0].loss
    assert (loss.message, loss.lost_bytes, loss.allowed_bytes, loss.used) == (2, 30, 0, float("inf"))


def test_worst_loss_of_a_lossless_run_is_zero():
    loss = measure(small_result(messages(lost_bytes=[0] * 5, received_bytes=[1000] * 5)))[0].loss
    assert (loss.message, loss.lost_bytes, loss.used, loss.total_share) == (-1, 0, 0.0, 0.0)


def test_metrics_are_computed_per_job():
    result = small_result(
        messages(job=["a", "a", "b", "b", "b"]), iterations(job=["b", "a", "b", "a"], exposed_ps=[1, 2, 3, 4])
    )
    first, second = measure(result)
    assert (first.job, second.job) == ("b", "a")
    assert (first.completion["all"].count, second.completion["all"].count) == (2, 2)
    assert (first.exposed.mean_ps, second.exposed.mean_ps) == (2.0, 3.0)
    assert first.marks == second.marks == 30  # ports know no jobs


def test_empty_result_yields_zero_metrics():
    found = measure(Result.build({}, {}))
    assert len(found) == 1
    assert found[0].iteration.count == found[0].completion["all"].count == found[0].packet_hops == 0
    assert found[0].exposed_share == 0


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5], 0.99, 5),
        ([1, 2, 3, 4], 0.5, 2),
        ([4, 3, 2, 1], 0.51, 3),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 102)), 0.99, 100),
        (list(range(1, 1001)), 0.5, 500),
        ([1, 2, 3], 1.0, 3),
    ],
)
def test_percentile_matches_known_values(values: list[int], share: float, expected: int):
    assert percentile(np.array(values, dtype=np.int64), share) == expected


def test_percentile_matches_its_definition_on_random_values():
    generator = np.random.default_rng(7)
    for _ in range(50):
        values = generator.integers(0, 20, generator.integers(1, 40))
        for share in (0.1, 0.5, 0.9, 0.99):
            enough = [value for value in values if np.mean(values <= value) >= share - 1e-12]
            assert percentile(values, share) == min(enough)


def test_metrics_mark_an_interrupted_run_as_unfinished():
    result = small_result()
    result.summary["totals"] = {"finished": False, "simulated_ps": 9}
    assert not measure(result)[0].finished


def test_metrics_are_json_serialisable():
    import json

    data: dict[str, Any] = json.loads(json.dumps(measure(small_result())[0].as_dict()))
    assert data["completion"]["push"]["p50_ps"] == 20
    assert data["loss"]["lost_bytes"] == 30


def test_metrics_handle_missing_port_counters():
    result = small_result(port_columns={})
    assert measure(result)[0].drops_tail == 0
    assert ports()["port"] == ["a->b", "b->c"]
