"""Fidelity: two runs side by side. Results with known differences; every tolerance and every fault can fail."""

from __future__ import annotations

from copy import deepcopy

import pytest
from fidelity_cases import SIM, STRICT, US, compared, compared_result, count, later, missed, result, tables

from gradwire.analysis.fidelity.fidelity import agreement, relative_differences
from gradwire.analysis.fidelity.fidelity_measure import PACKETS, Measure, relative
from gradwire.scenarios.schema.fidelity import Fidelity

# --- figures ----------------------------------------------------------------------------------------------------------


def test_identical_runs_agree():
    found = compared()
    assert found.is_within and found.verdicts() == ["case: passed, 8 of 8 figures within their tolerances"]
    assert all(each.difference == 0 for each in found.measures)
    assert found.matched == 40 and set(found.ratios.tolist()) == {1.0}
    shown = {each.title: (each.sim, each.emu) for each in found.measures}
    assert shown["completion, mean of train, push"] == (109.5 * US, 109.5 * US)
    assert shown["completion, p50 of train, push"] == (109 * US, 109 * US)
    assert shown["completion, p99 of train, push"] == (119 * US, 119 * US)
    assert shown["iteration time of train"] == (10**10, 10**10)
    assert shown["throughput of train"][0] == pytest.approx(950 * 20 * 8 / (2190e-6))
    assert shown["loss of train"] == (0.05, 0.05)
    assert shown["drops of all ports, tail"] == (1000, 1000)


@pytest.mark.parametrize(("factor", "passed"), [(1.0199, True), (1.0201, False), (0.9801, True), (0.9799, False)])
def test_mean_completion_time_is_judged_against_its_tolerance(factor, passed):
    found = compared(later(factor), Fidelity(completion_mean=0.02))
    assert found.is_within is passed and missed(found) == ([] if passed else ["completion_mean"])


def test_median_completion_time_can_fail_alone():
    # of twenty, 107 to 111 us become 112.35, 113.4, ... 116.55: the tenth is behind 100 ... 106, 112 and 112.35
    found = compared(later(1.05, lambda i: 7 <= i % 20 <= 11))
    assert missed(found) == ["completion_p50"]
    assert (
        "missed: completion, p50 of train, push: 113 us emulated, 109 us simulated (+3.67 %, allowed 2 %)"
        in found.verdicts()
    )


def test_p99_completion_time_can_fail_alone():
    found = compared(later(1.1, lambda i: i == 39))
    assert missed(found) == ["completion_p99"]


def test_iteration_time_can_fail_alone():
    def change(changed):
        changed["iterations"]["end_ps"] = [end + 3 * 10**8 for end in changed["iterations"]["end_ps"]]

    found = compared(change)
    assert missed(found) == ["iteration"]
    assert found.missed[0].difference == pytest.approx(0.03)


def test_opposite_throughput_errors_of_pairs_do_not_cancel():
    """One pair is 5 % slower and the other 5 % faster, so mean completion times agree."""

    def change(changed):
        later(1.05, lambda i: i < 20)(changed)
        later(0.95, lambda i: i >= 20)(changed)

    loose = STRICT.model_copy(update={"completion_p50": None, "completion_p99": None})
    found = compared(change, loose)
    # they start when they started: slower ones overlap with the next, so that only the last makes their time longer
    measure = next(each for each in found.measures if each.what == "throughput")
    slow, fast = 2190 / (2190 + 0.05 * 119), 1 / 0.95
    assert measure.difference == pytest.approx(((1 - slow) + (fast - 1)) / 2, rel=1e-6)
    assert missed(found) == ["throughput"]
    assert "2 pairs, max difference of a pair 5.3 % (h1->h2)" in measure.note


def test_host_pairs_are_compared_by_throughput_rank():
    """Swapping two equal senders is not a difference."""

    def change(faster):
        return lambda changed: later(0.5, lambda i: i // 20 == faster)(changed)

    found = agreement(compared_result(change(0)), compared_result(change(1)), STRICT)
    measure = next(each for each in found.measures if each.what == "throughput")
    assert found.is_within and measure.difference == 0
    assert "max difference of a pair 100.0 % (h1->h2)" in measure.note


def test_throughput_excludes_idle_time():
    def change(changed):
        m = changed["messages"]
        for i in range(40):  # everything later by an hour, and the second iteration by a day: nothing was slower
            for name in ("start_ps", "end_ps"):
                m[name][i] += 3600 * 10**12 * (1 + 24 * (m["iteration"][i] == 1))

    assert compared(change).is_within


@pytest.mark.parametrize(
    ("counter", "what", "value", "passed"),
    [("drops_tail", "drops", 1045, True), ("drops_tail", "drops", 1046, False), ("drops_tail", "drops", 954, False),
     ("drops_selective", "drops", 545, True), ("drops_selective", "drops", 546, False),
     ("drops_loss", "drops", 45, True), ("drops_loss", "drops", 46, False), ("drops_down", "drops", 46, False),
     ("marks", "marks", 2060, True), ("marks", "marks", 2061, False)],
)  # fmt: skip
def test_drops_and_marks_are_judged_against_their_tolerance(counter, what, value, passed):
    """45 of 1,500 drops are 3 %."""
    found = compared(count(counter, 1, value))
    assert missed(found) == ([] if passed else [what])


def test_drop_causes_are_shown_but_not_judged():
    def change(changed):
        changed["ports"]["drops_tail"] = [0, 900]
        changed["ports"]["drops_selective"] = [0, 600]

    found = compared(change)
    assert found.is_within
    shown = {each.title: (each.sim, each.emu, each.verdict()) for each in found.measures}
    assert shown["drops of all ports, tail"] == (1000, 900, "not judged")
    assert shown["drops of all ports"] == (1500, 1500, "ok")


def test_differences_within_the_simulation_spread_pass():
    def change(changed):
        changed["ports"]["marks"] = [0, 2200]

    emu = compared_result(change)
    assert missed(agreement(SIM, emu, STRICT)) == ["marks"]
    for highest, passed in ((2199, False), (2200, True), (2500, True)):
        other = tables()
        other["ports"]["marks"] = [0, highest]
        found = agreement(SIM, emu, STRICT, [result(other)])
        assert found.is_within is passed
        marks = next(each for each in found.measures if each.title == "marks of all ports")
        assert (marks.low, marks.high) == (2000, highest)
    completion = later(1.5)
    changed = tables()
    completion(changed)
    assert not agreement(SIM, result(changed), STRICT, [SIM]).is_within


@pytest.mark.parametrize(("emulated", "passed"), [(1700, True), (1699, False), (2300, True), (2301, False)])
def test_simulation_spread_has_lower_and_upper_limits(emulated, passed):
    others = [compared_result(count("marks", 1, marks)) for marks in (1700, 2300, 2100)]
    found = agreement(SIM, compared_result(count("marks", 1, emulated)), STRICT, others)
    assert found.is_within is passed
    marks = next(each for each in found.measures if each.title == "marks of all ports")
    assert (marks.low, marks.high) == (1700, 2300)


def test_unknown_simulation_counters_disable_the_spread():
    others = [compared_result(count("marks", 1, marks)) for marks in (-1, 2500)]
    found = agreement(SIM, compared_result(count("marks", 1, 1000)), STRICT, others)
    assert missed(found) == ["marks"] and found.missed[0].low is None


def test_drop_differences_up_to_drops_packets_pass():
    def change(changed):
        changed["ports"]["drops_tail"] = [0, 0]
        changed["ports"]["drops_selective"] = [0, 4]

    sim = tables()
    sim["ports"]["drops_tail"] = [0, 0]
    sim["ports"]["drops_selective"] = [0, 14]
    assert agreement(result(sim), compared_result(change), STRICT).is_within
    fewer = STRICT.model_copy(update={"drops_packets": 9})
    assert missed(agreement(result(sim), compared_result(change), fewer)) == ["drops"]


def test_marks_per_port_are_judged_on_request():
    def change(changed):
        changed["ports"]["marks"] = [100, 1900]

    assert compared(change).is_within
    found = compared(change, STRICT.model_copy(update={"per_port": True}))
    assert [each.where for each in found.missed] == ["h0->s0", "s0->h2"]
    assert found.missed[0].difference is None and found.missed[0].difference_text() == "from none"


def test_drops_per_port_are_judged_on_request():
    """Drops of all causes are summed per port; differences of a few packets pass."""

    def change(changed):
        changed["ports"]["drops_tail"] = [40, 910]
        changed["ports"]["drops_loss"] = [0, 50]

    assert compared(change).is_within
    found = compared(change, STRICT.model_copy(update={"per_port": True}))
    assert [(each.what, each.where, each.sim, each.emu) for each in found.missed] == [("drops", "h0->s0", 0, 40)]


def test_opposite_loss_errors_of_messages_do_not_cancel():
    def change(changed):
        m = changed["messages"]
        for i in range(40):
            m["lost_bytes"][i] += 30 * (1 if i % 2 else -1)
            m["received_bytes"][i] = 1000 - m["lost_bytes"][i]

    found = compared(change, STRICT.model_copy(update={"throughput": None}))
    assert missed(found) == ["loss"]
    assert found.missed[0].difference == pytest.approx(0.03) and found.missed[0].sim == found.missed[0].emu


def test_disabled_tolerances_are_shown_but_not_judged():
    off = Fidelity(**dict.fromkeys(("completion_mean", "completion_p50", "completion_p99", "throughput"), "off"))
    found = compared(later(3), off)
    assert found.is_within
    assert [each.verdict() for each in found.measures].count(
        "not judged"
    ) == 4 + 2 + 3  # causes, and three lines of a port
    assert found.verdicts()[-1] == "case: passed, 4 of 4 figures within their tolerances"


def test_uncounted_marks_are_unknown_and_not_judged():
    found = compared(count("marks", 1, -1))
    measure = next(each for each in found.measures if each.what == "marks")
    assert measure.unknown and measure.is_within is None and measure.text(measure.emu) == "unknown"
    assert found.is_within and "unknown: marks of all ports was not counted by both" in found.verdicts()


def test_drops_and_marks_are_counted_per_priority():
    def change(changed):
        changed["messages"]["marked"] = [2 * (p == 1) for p in changed["messages"]["priority"]]
        changed["drops"] = {
            "message": [0] * 1500, "packet": [0] * 1500, "port": ["s0->h2"] * 1500, "time_ps": [0] * 1500,
            "cause": ["tail"] * 1500, "important": [True] * 1500, "priority": [3] * 1500,
        }  # fmt: skip

    assert compared(change).classes == [
        {"priority": 0, "drops": [-1, 0], "marked": [20, 0]},
        {"priority": 1, "drops": [-1, 0], "marked": [20, 40]},
        {"priority": 3, "drops": [-1, 1500], "marked": [0, 0]},
    ]
    assert compared(lambda changed: changed["messages"]["marked"].__setitem__(3, -1)).classes[0]["marked"] == [20, -1]


# --- what cannot be compared ------------------------------------------------------------------------------------------


def without(row: int):
    def change(changed):
        for column in changed["messages"].values():
            del column[row]

    return change


def test_message_numbers_and_order_do_not_matter():
    def change(changed):
        for name, column in changed["messages"].items():
            column.reverse()
            if name == "message":
                column[:] = [1000 + 3 * i for i in range(40)]

    assert compared(change).is_within


def test_unmatched_messages_are_faults():
    found = compared(without(5))
    assert not found.is_within and not found.missed
    assert found.faults == ["1 messages were simulated only: train/push/0/5/0/h0/h2"]

    def change(changed):
        changed["messages"]["tensor"][39] = 77

    faults = compared(change).faults
    assert faults == [
        "1 messages were simulated only: train/push/1/9/0/h1/h2",
        "1 messages were emulated only: train/push/1/77/0/h1/h2",
    ]


@pytest.mark.parametrize("name", ["job", "kind", "iteration", "tensor", "part", "src", "dst"])
def test_every_key_field_distinguishes_messages(name):
    def change(changed):
        changed["messages"][name][0] = {"job": "x", "kind": "pull", "src": "h9", "dst": "h9"}.get(name, 99)

    assert any("emulated only" in fault for fault in compared(change).faults)


def test_messages_with_equal_keys_are_paired_in_order():
    def change(changed):
        m = changed["messages"]
        m["iteration"], m["tensor"] = [0] * 40, [-1] * 40

    changed = tables()
    change(changed)
    one, other = result(changed), deepcopy(changed)
    assert agreement(one, result(other), STRICT).ratios.tolist() == [1.0] * 40
    for column in other["messages"].values():
        del column[19]
    found = agreement(one, result(other), STRICT)
    assert found.faults == ["1 messages were simulated only: train/push/0/-1/0/h0/h2"]
    assert (found.ratios == 1).sum() == 39


def test_messages_of_different_size_are_faults():
    found = compared(lambda changed: changed["messages"]["bytes"].__setitem__(0, 1001))
    assert "1 messages have different sizes: train/push/0/0/0/h0/h2" in found.faults


def test_messages_delivered_in_one_run_only_are_faults():
    def change(changed):
        changed["messages"]["end_ps"][0] = -1

    assert compared(change).faults == ["1 messages were delivered in the simulated run only: train/push/0/0/0/h0/h2"]
    assert agreement(compared_result(change), SIM, STRICT).faults == [
        "1 messages were delivered in the emulated run only: train/push/0/0/0/h0/h2"
    ]
    ended = {"totals": {"ended_by": "duration"}}
    changed = tables()
    change(changed)
    cut = agreement(result(**ended), result(changed, **ended), Fidelity())
    assert cut.is_within and cut.matched == 39


@pytest.mark.parametrize("cut", [0, 1])
def test_undelivered_message_is_a_fault_if_only_one_run_was_cut(cut):
    changed = tables()
    changed["messages"]["end_ps"][0] = -1
    totals = [{"ended_by": "done"}, {"ended_by": "done"}]
    totals[cut] = {"ended_by": "duration"}
    found = agreement(result(totals=totals[0]), result(changed, totals=totals[1]), STRICT)
    assert found.faults == ["1 messages were delivered in the simulated run only: train/push/0/0/0/h0/h2"]


def test_iterations_cut_off_by_the_duration_are_ignored():
    changed = tables()
    for column in changed["iterations"].values():
        del column[5]
    ended = {"totals": {"ended_by": "duration"}}
    assert agreement(result(**ended), result(changed, **ended), STRICT).is_within


def test_runs_without_delivered_messages_do_not_agree():
    def change(changed):
        changed["messages"]["end_ps"] = [-1] * 40
        changed["iterations"] = {}

    ended = {"totals": {"ended_by": "duration"}}
    nothing = tables()
    change(nothing)
    found = agreement(result(nothing, **ended), result(nothing, **ended), STRICT)
    assert found.faults == ["no message was delivered in both runs"] and not found.is_within


def test_unmatched_iterations_and_ports_are_faults():
    def change(changed):
        for column in changed["iterations"].values():
            del column[5]
        changed["ports"]["port"][0] = "h0->s1"

    assert compared(change).faults == [
        "1 iterations were simulated only: train/1/2",
        "1 ports were simulated only: h0->s0",
        "1 ports were emulated only: h0->s1",
    ]


@pytest.mark.parametrize("key", ["scenario_hash", "trace_hash", "seed"])
def test_runs_of_different_scenarios_traces_or_seeds_do_not_agree(key):
    found = compared(**{key: "other"})
    assert not found.is_within and "runs are of different" in found.faults[0]


def test_loss_bound_violation_is_a_fault():
    def change(changed):
        changed["messages"]["lost_bytes"][3], changed["messages"]["received_bytes"][3] = 101, 899

    found = compared(change)
    assert "1 messages of the emulated run lost more than their bound" in found.faults[0]


def test_disturbed_run_never_passes():
    found = compared(engine={"valid": False, "disturbed": ["the scheduler stalled for 31 ms"]})
    assert not found.missed and not found.faults and not found.is_within
    assert found.verdicts()[0] == "invalid: the scheduler stalled for 31 ms"
    assert "INVALID" in found.verdicts()[-1] and "passed" not in found.verdicts()[-1]
    assert compared(engine={"valid": False}).invalid == ["the testbed was disturbed"]
    assert compared(engine={"valid": True}).is_within


# --- small things -----------------------------------------------------------------------------------------------------


def test_relative_differences_handle_zero_values():
    assert [relative(2, 3), relative(4, 3), relative(0, 0), relative(0, 1)] == [0.5, -0.25, 0, None]
    assert relative_differences([2, 4, 0, 0], [3, 3, 0, 5]).tolist() == [0.5, 0.25, 0, 1]


def test_difference_equal_to_the_tolerance_passes():
    assert Measure("marks", "x", PACKETS, 1000, 1030, relative(1000, 1030), 0.03).is_within
    assert Measure("loss", "x", "share", 0.1, 0.1 + 0.02, 0.1 + 0.02 - 0.1, 0.02).is_within
