"""Several runs as one: nothing is lost, nothing is mixed up, and figures are those of all."""

from __future__ import annotations

import numpy as np
import pytest
from fidelity_cases import SIM, STRICT, compared_result, count, later, result, tables
from star_cases import star_scenario

from gradwire.analysis.comparison.pooled_runs import pooled
from gradwire.analysis.fidelity.fidelity import agreement
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError
from gradwire.sim.simulate import simulate

LOSSY = {
    "link": {"rate": "1Gbps", "latency": "10us", "loss": 0.05}, "transport": {"kind": "dlcp", "payload": "1400B"},
    "host": {"software_latency": "50us"}, "job": [],
    "traffic": [{"kind": "all_to_all", "name": "all", "size": "60kB", "bound": 0.1, "droppable": True}],
}  # fmt: skip


def simulated(seed: int) -> Result:
    return simulate(star_scenario(seed=seed, **LOSSY))


def test_pooling_one_run_returns_the_same_run():
    assert pooled([SIM]) is SIM


def test_pooling_without_runs_is_refused():
    with pytest.raises(ResultError, match="pooled"):
        pooled([])


def test_pooled_messages_keep_completion_times_and_losses():
    runs = [simulated(seed) for seed in (1, 2, 3)]
    together = pooled(runs)
    assert together.messages.num_rows == sum(run.messages.num_rows for run in runs)
    assert len(set(together.messages["message"].to_pylist())) == together.messages.num_rows
    took = [
        np.subtract(run.messages["end_ps"].to_numpy(), run.messages["start_ps"].to_numpy()) for run in (*runs, together)
    ]
    assert took[-1].tolist() == np.concatenate(took[:-1]).tolist()
    assert sum(run.missing.num_rows for run in runs) == together.missing.num_rows > 0
    assert not check_loss_invariant(together)  # what is missing is missing of the right message
    starts, ends = (together.messages[name].to_numpy() for name in ("start_ps", "end_ps"))
    first = runs[0].messages.num_rows
    assert starts[first:].min() > ends[:first].max(), "the second run begins when the first one is over"
    for name in ("packets", "drops_loss", "marks"):
        assert sum(together.ports[name].to_pylist()) == sum(sum(run.ports[name].to_pylist()) for run in runs)
    assert max(together.ports["peak_queue_bytes"].to_pylist()) == max(
        max(run.ports["peak_queue_bytes"].to_pylist()) for run in runs
    )


def test_undelivered_messages_stay_undelivered_in_the_pool():
    def never(changed):
        changed["messages"]["end_ps"][5] = -1

    together = pooled([SIM, compared_result(never)])
    assert together.messages["end_ps"].to_pylist()[SIM.messages.num_rows + 5] == -1


def test_counter_unknown_in_one_run_is_unknown_in_the_pool():
    together = pooled([SIM, compared_result(count("marks", 1, -1)), SIM])
    assert together.ports["marks"].to_pylist() == [0, -1]


def test_faults_of_pooled_runs_name_the_seed():
    def change(changed):
        changed["messages"]["end_ps"][25] = -1
        for column in changed["iterations"].values():
            del column[5]

    seeds = [result(seed=seed) for seed in (7, 8)]
    changed = tables()
    change(changed)
    emulated = [result(seed=7), result(changed, seed=8)]
    assert agreement(pooled(seeds), pooled(emulated), STRICT).faults == [
        "1 messages were delivered in the simulated run only: seed 8: train/push/0/5/0/h1/h2",
        "1 iterations were simulated only: seed 8: train/1/2",
    ]


def test_pooled_measures_cover_messages_of_all_runs():
    emulated = [compared_result(later(factor)) for factor in (1.3, 0.7)]
    found = agreement(pooled([SIM, SIM]), pooled(emulated), STRICT)
    differences = {each.what: each.difference for each in found.measures}
    assert not found.faults and found.matched == 2 * SIM.messages.num_rows
    assert differences["completion_mean"] == pytest.approx(0, abs=1e-9)
    assert differences["completion_p99"] == pytest.approx(0.3, rel=0.02)
    assert differences["iteration"] == 0
    assert (
        next(each.note for each in found.measures if each.what == "iteration") == "12 worker-iterations"
    )  # six of each run


def test_pool_with_a_disturbed_run_is_invalid():
    bad = result(engine={"valid": False, "disturbed": ["it stood still"]}, seed=4)
    found = agreement(pooled([SIM, SIM]), pooled([SIM, bad]), STRICT)
    assert found.invalid == ["seed 4: it stood still"] and not found.is_within


@pytest.mark.parametrize("ends, ended", [(("duration", "duration"), "duration"), (("duration", "done"), "done")])
def test_pool_ended_by_duration_only_if_all_runs_did(ends, ended):
    assert pooled([result(totals={"ended_by": end}) for end in ends]).summary["totals"]["ended_by"] == ended


@pytest.mark.parametrize("cut", [lambda i: i < 10, lambda i: False])
def test_messages_of_later_seeds_match_if_an_earlier_seed_was_cut(cut):
    def shorter(changed):
        for name in ("messages", "iterations"):
            kept = [i for i, number in enumerate(changed[name]["iteration"]) if number == 0 and cut(i)]
            changed[name] = {column: [values[i] for i in kept] for column, values in changed[name].items()}

    begun, second = compared_result(shorter), compared_result(later(2.0))
    found = agreement(pooled([SIM, second]), pooled([begun, second]), STRICT)
    assert found.matched == begun.messages.num_rows + SIM.messages.num_rows
    lacking = SIM.messages.num_rows - begun.messages.num_rows
    assert [each for each in found.faults if "messages" in each and each.startswith(f"{lacking} ")] and not any(
        "emulated only" in each for each in found.faults
    )
    assert all(each.difference == 0 for each in found.measures if each.what.startswith("completion"))
