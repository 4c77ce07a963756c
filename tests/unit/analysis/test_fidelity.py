"""Fidelity: two runs side by side. Results with known differences; every tolerance and every fault can fail."""

from __future__ import annotations

from copy import deepcopy

import pytest
from fidelity_cases import SIM, STRICT, US, compared, compared_result, count, later, missed, result, tables

from gradwire.analysis.fidelity.fidelity import agreement, relative_differences
from gradwire.analysis.fidelity.fidelity_measure import PACKETS, Measure, relative
from gradwire.scenarios.schema.fidelity import Fidelity

# --- figures ----------------------------------------------------------------------------------------------------------


def test_a_run_agrees_with_itself():
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
def test_the_mean_of_completion_times(factor, passed):
    found = compared(later(factor), Fidelity(completion_mean=0.02))
    assert found.is_within is passed and missed(found) == ([] if passed else ["completion_mean"])


def test_the_median_alone():
    # of twenty, 107 to 111 us become 112.35, 113.4, ... 116.55: the tenth is behind 100 ... 106, 112 and 112.35
    found = compared(later(1.05, lambda i: 7 <= i % 20 <= 11))
    assert missed(found) == ["completion_p50"]
    assert (
        "missed: completion, p50 of train, push: 113 us emulated, 109 us simulated (+3.67 %, allowed 2 %)"
        in found.verdicts()
    )


def test_the_slowest_alone():
    found = compared(later(1.1, lambda i: i == 39))
    assert missed(found) == ["completion_p99"]


def test_iteration_times_alone():
    def change(changed):
        changed["iterations"]["end_ps"] = [end + 3 * 10**8 for end in changed["iterations"]["end_ps"]]

    found = compared(change)
    assert missed(found) == ["iteration"]
    assert found.missed[0].difference == pytest.approx(0.03)


def test_throughput_of_pairs_does_not_cancel_out():
    """Messages of one pair 5 % slower, of the other 5 % faster: no mean of completion times tells."""

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


def test_pairs_of_hosts_are_compared_by_rank():
    """Which of two equal senders was the faster one is no difference."""

    def change(faster):
        return lambda changed: later(0.5, lambda i: i // 20 == faster)(changed)

    found = agreement(compared_result(change(0)), compared_result(change(1)), STRICT)
    measure = next(each for each in found.measures if each.what == "throughput")
    assert found.is_within and measure.difference == 0
    assert "max difference of a pair 100.0 % (h1->h2)" in measure.note


def test_throughput_counts_the_time_with_messages_under_way():
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
def test_drops_and_marks(counter, what, value, passed):
    """1,500 drops in all: 45 are 3 %."""
    found = compared(count(counter, 1, value))
    assert missed(found) == ([] if passed else [what])


def test_one_cause_in_place_of_another_is_shown_and_no_difference():
    def change(changed):
        changed["ports"]["drops_tail"] = [0, 900]
        changed["ports"]["drops_selective"] = [0, 600]

    found = compared(change)
    assert found.is_within
    shown = {each.title: (each.sim, each.emu, each.verdict()) for each in found.measures}
    assert shown["drops of all ports, tail"] == (1000, 900, "not judged")
    assert shown["drops of all ports"] == (1500, 1500, "ok")


def test_what_simulations_scatter_over_is_not_held_against_the_emulation():
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
def test_the_scatter_of_simulations_has_two_ends(emulated, passed):
    others = [compared_result(count("marks", 1, marks)) for marks in (1700, 2300, 2100)]
    found = agreement(SIM, compared_result(count("marks", 1, emulated)), STRICT, others)
    assert found.is_within is passed
    marks = next(each for each in found.measures if each.title == "marks of all ports")
    assert (marks.low, marks.high) == (1700, 2300)


def test_what_a_simulation_has_not_counted_is_no_end_of_the_scatter():
    others = [compared_result(count("marks", 1, marks)) for marks in (-1, 2500)]
    found = agreement(SIM, compared_result(count("marks", 1, 1000)), STRICT, others)
    assert missed(found) == ["marks"] and found.missed[0].low is None


def test_a_few_packets_are_no_difference():
    def change(changed):
        changed["ports"]["drops_tail"] = [0, 0]
        changed["ports"]["drops_selective"] = [0, 4]

    sim = tables()
    sim["ports"]["drops_tail"] = [0, 0]
    sim["ports"]["drops_selective"] = [0, 14]
    assert agreement(result(sim), compared_result(change), STRICT).is_within
    fewer = STRICT.model_copy(update={"drops_packets": 9})
    assert missed(agreement(result(sim), compared_result(change), fewer)) == ["drops"]


def test_ports_are_judged_if_asked_for():
    def change(changed):
        changed["ports"]["marks"] = [100, 1900]

    assert compared(change).is_within
    found = compared(change, STRICT.model_copy(update={"per_port": True}))
    assert [each.where for each in found.missed] == ["h0->s0", "s0->h2"]
    assert found.missed[0].difference is None and found.missed[0].difference_text() == "from none"


def test_drops_of_ports_are_judged_if_asked_for():
    """The sum of all causes of each port, as far as it is more than some packets."""

    def change(changed):
        changed["ports"]["drops_tail"] = [40, 910]
        changed["ports"]["drops_loss"] = [0, 50]

    assert compared(change).is_within
    found = compared(change, STRICT.model_copy(update={"per_port": True}))
    assert [(each.what, each.where, each.sim, each.emu) for each in found.missed] == [("drops", "h0->s0", 0, 40)]


def test_loss_of_messages_does_not_cancel_out():
    def change(changed):
        m = changed["messages"]
        for i in range(40):
            m["lost_bytes"][i] += 30 * (1 if i % 2 else -1)
            m["received_bytes"][i] = 1000 - m["lost_bytes"][i]

    found = compared(change, STRICT.model_copy(update={"throughput": None}))
    assert missed(found) == ["loss"]
    assert found.missed[0].difference == pytest.approx(0.03) and found.missed[0].sim == found.missed[0].emu


def test_what_is_off_is_shown_and_not_judged():
    off = Fidelity(**dict.fromkeys(("completion_mean", "completion_p50", "completion_p99", "throughput"), "off"))
    found = compared(later(3), off)
    assert found.is_within
    assert [each.verdict() for each in found.measures].count(
        "not judged"
    ) == 4 + 2 + 3  # causes, and three lines of a port
    assert found.verdicts()[-1] == "case: passed, 4 of 4 figures within their tolerances"


def test_what_was_not_counted_is_unknown():
    found = compared(count("marks", 1, -1))
    measure = next(each for each in found.measures if each.what == "marks")
    assert measure.unknown and measure.is_within is None and measure.text(measure.emu) == "unknown"
    assert found.is_within and "unknown: marks of all ports was not counted by both" in found.verdicts()


def test_classes():
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


def test_numbers_of_messages_and_their_order_mean_nothing():
    def change(changed):
        for name, column in changed["messages"].items():
            column.reverse()
            if name == "message":
                column[:] = [1000 + 3 * i for i in range(40)]

    assert compared(change).is_within


def test_messages_without_a_partner():
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
def test_every_part_of_what_a_message_is_counts(name):
    def change(changed):
        changed["messages"][name][0] = {"job": "x", "kind": "pull", "src": "h9", "dst": "h9"}.get(name, 99)

    assert any("emulated only" in fault for fault in compared(change).faults)


def test_messages_that_are_alike_are_paired_in_order():
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


def test_messages_of_other_sizes():
    found = compared(lambda changed: changed["messages"]["bytes"].__setitem__(0, 1001))
    assert "1 messages have different sizes: train/push/0/0/0/h0/h2" in found.faults


def test_messages_that_one_run_has_not_delivered():
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
def test_a_run_that_alone_was_cut_is_another_run(cut):
    changed = tables()
    changed["messages"]["end_ps"][0] = -1
    totals = [{"ended_by": "done"}, {"ended_by": "done"}]
    totals[cut] = {"ended_by": "duration"}
    found = agreement(result(totals=totals[0]), result(changed, totals=totals[1]), STRICT)
    assert found.faults == ["1 messages were delivered in the simulated run only: train/push/0/0/0/h0/h2"]


def test_iterations_that_the_end_has_cut_off_are_no_difference():
    changed = tables()
    for column in changed["iterations"].values():
        del column[5]
    ended = {"totals": {"ended_by": "duration"}}
    assert agreement(result(**ended), result(changed, **ended), STRICT).is_within


def test_nothing_at_all_is_no_agreement():
    def change(changed):
        changed["messages"]["end_ps"] = [-1] * 40
        changed["iterations"] = {}

    ended = {"totals": {"ended_by": "duration"}}
    nothing = tables()
    change(nothing)
    found = agreement(result(nothing, **ended), result(nothing, **ended), STRICT)
    assert found.faults == ["no message was delivered in both runs"] and not found.is_within


def test_iterations_and_ports_without_a_partner():
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
def test_runs_of_different_things(key):
    found = compared(**{key: "other"})
    assert not found.is_within and "runs are of different" in found.faults[0]


def test_a_broken_bound_is_a_fault():
    def change(changed):
        changed["messages"]["lost_bytes"][3], changed["messages"]["received_bytes"][3] = 101, 899

    found = compared(change)
    assert "1 messages of the emulated run lost more than their bound" in found.faults[0]


def test_a_disturbed_run_never_passes():
    found = compared(engine={"valid": False, "disturbed": ["the scheduler stalled for 31 ms"]})
    assert not found.missed and not found.faults and not found.is_within
    assert found.verdicts()[0] == "invalid: the scheduler stalled for 31 ms"
    assert "INVALID" in found.verdicts()[-1] and "passed" not in found.verdicts()[-1]
    assert compared(engine={"valid": False}).invalid == ["the testbed was disturbed"]
    assert compared(engine={"valid": True}).is_within


# --- small things -----------------------------------------------------------------------------------------------------


def test_differences():
    assert [relative(2, 3), relative(4, 3), relative(0, 0), relative(0, 1)] == [0.5, -0.25, 0, None]
    assert relative_differences([2, 4, 0, 0], [3, 3, 0, 5]).tolist() == [0.5, 0.25, 0, 1]


def test_exactly_the_tolerance_passes():
    assert Measure("marks", "x", PACKETS, 1000, 1030, relative(1000, 1030), 0.03).is_within
    assert Measure("loss", "x", "share", 0.1, 0.1 + 0.02, 0.1 + 0.02 - 0.1, 0.02).is_within
