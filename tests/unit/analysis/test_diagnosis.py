"""Diagnosis of jobs from logs of their collectives, on logs by hand and on invented jobs with a known fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from log_cases import log_of

from gradwire.analysis.diagnosis.call_times import call_times
from gradwire.analysis.diagnosis.diagnosis import diagnose_log
from gradwire.analysis.diagnosis.hangs import stuck_calls
from gradwire.analysis.diagnosis.interruptions import stalls
from gradwire.analysis.diagnosis.lateness import waits
from gradwire.analysis.diagnosis.ring_hops import ring_hops, stalled_members
from gradwire.analysis.diagnosis.slow_links import locate, slow_groups
from gradwire.traces.collective_logs.example_job import (
    LAYOUTS,
    Fault,
    JobShape,
    example_job,
    random_fault,
    random_shape,
)

FOUR = (0, 1, 2, 3)
VERDICTS = {"healthy": "healthy", "straggler": "straggler", "slow_link": "slow_link", "flapping_nic": "flapping_link"}
"""The verdict of each injected fault."""


def same(durations: list[float]) -> dict[int, float | None]:
    return dict(enumerate(durations))


def test_waits_are_counted_from_the_shortest_duration() -> None:
    times = call_times(log_of([(0, "all_reduce", 10**6, same([5.0, 7.0, 8.0, 9.0]))] * 3, [FOUR]))
    assert [call.transfer for call in times.calls] == [5_000_000] * 3
    sums = waits(times, times.calls)
    assert sums.total.tolist() == [0, 6e6, 9e6, 12e6] and sums.caused.tolist() == [6e6, 0, 0, 0]
    assert sums.last.tolist() == [3, 0, 0, 0]


def test_the_rank_that_all_wait_for_is_late() -> None:
    calls = [(0, "all_reduce", 10**6, same([205.0, 5.0, 203.0, 204.0]))] * 8
    (finding,) = diagnose_log(log_of(calls, [FOUR])).findings
    assert (finding.kind, finding.ranks) == ("straggler", (1,))
    assert finding.share == pytest.approx(8 * 198 / 7000)


def test_ranks_that_share_a_group_with_a_late_one_are_not_named() -> None:
    """Rank 0 is late in its host's group; in the group of ranks 1 and 3, rank 1 is late only because it has waited."""
    calls = [
        (0, "all_reduce", 10**6, {0: 1.0, 1: 101.0}),
        (1, "all_reduce", 10**6, {2: 1.0, 3: 1.5}),
        (2, "all_reduce", 10**7, {1: 2.0, 3: 102.0}),
        (3, "all_reduce", 10**7, {0: 2.0, 2: 102.0}),
    ] * 8
    (finding,) = diagnose_log(log_of(calls, [(0, 1), (2, 3), (1, 3), (0, 2)])).findings
    assert (finding.kind, finding.ranks) == ("straggler", (0,))


def test_a_group_slower_than_its_siblings_has_a_slow_link() -> None:
    groups = [(n, 8 + n, 16 + n, 24 + n) for n in range(4)]
    calls = []
    for _ in range(10):
        for number, members in enumerate(groups):
            transfer = 40.0 if number == 2 else 10.0
            calls.append((number, "all_reduce", 10**7, dict.fromkeys(members, transfer)))
    times = call_times(log_of(calls, groups))
    (slow,) = slow_groups(times, {})
    assert (slow.group, slow.ratio, slow.lost_ns) == (2, 4.0, 3e8)
    (finding,) = diagnose_log(times.log).findings
    assert (finding.kind, finding.ranks, finding.why, finding.group) == ("slow_link", (), "path", "g2")


def test_the_only_rank_of_all_slow_groups_is_named() -> None:
    """Rank 8 is on the second host; groups (0, 8) and (8, 16) are slow, others of two hosts are not."""
    groups = [(0, 8), (8, 16), (1, 9), (9, 17), (2, 10), (10, 18)]
    calls = []
    for _ in range(10):
        for number, members in enumerate(groups):
            calls.append((number, "all_reduce", 10**7, dict.fromkeys(members, 40.0 if 8 in members else 10.0)))
    (finding,) = diagnose_log(log_of(calls, groups)).findings
    assert (finding.kind, finding.ranks, finding.why) == ("slow_link", (8,), "link")


def test_a_rank_that_alone_finishes_late_has_a_slow_link() -> None:
    members = tuple(range(0, 64, 8))
    calls = [(0, "all_reduce", 10**7, {rank: 90.0 if rank == 40 else 30.0 for rank in members})] * 8
    (finding,) = diagnose_log(log_of(calls, [members])).findings
    assert finding.kind == "slow_link" and 40 in finding.ranks
    usual = [(0, "all_reduce", 10**7, {rank: 30.0 + rank / 64 for rank in members})] * 8
    assert diagnose_log(log_of(usual, [members])).verdict == "healthy"


def test_the_only_rank_of_all_interrupted_groups_is_named() -> None:
    groups = [(0, 8), (8, 16), (1, 9), (9, 17)]
    calls = []
    for turn in range(20):
        for number, members in enumerate(groups):
            slow = 8 in members and turn in (5, 9, 14)
            calls.append((number, "all_reduce", 10**7, dict.fromkeys(members, 400.0 if slow else 10.0)))
    finding = diagnose_log(log_of(calls, groups)).findings[0]
    assert (finding.kind, finding.ranks) == ("flapping_link", (8,))


def test_simulated_times_reveal_a_slow_job_without_siblings() -> None:
    members = tuple(range(0, 32, 8))
    log = log_of([(0, "all_reduce", 10**7, dict.fromkeys(members, 300.0))] * 5, [members])
    assert diagnose_log(log).verdict == "healthy"
    kind = call_times(log).calls[0].kind
    finding = diagnose_log(log, {kind: 1e8}).findings[0]
    assert (finding.kind, finding.share) == ("slow_link", pytest.approx(5 * 0.2 / 4))


def test_the_hop_is_the_one_behind_which_members_finish_in_order() -> None:
    members = tuple(range(0, 64, 8))  # into rank 24 the link is slow: it finishes last, then 32, 40, 48, ...
    late = {24: 4.0, 32: 3.0, 40: 2.0, 48: 1.0, 56: 0.0, 0: 0.0, 8: 0.0, 16: 0.0}
    noise = np.random.default_rng(1)
    calls = [
        (0, "all_reduce", 10**7, {rank: 20 + late[rank] + float(noise.normal(0, 0.5)) for rank in members})
        for _ in range(10)
    ]
    times = call_times(log_of(calls, [members]))
    hop = locate(times, times.calls, 0)
    assert hop is not None and (hop.sender, hop.receiver) == (16, 24) and hop.match > 0.8


def test_hops_of_a_group_with_several_ranks_per_host() -> None:
    host_of = np.arange(16) // 8
    hops = ring_hops(range(16), host_of)
    assert len(hops) == 16 and {(hop.sender, hop.receiver) for hop in hops} == {
        (rank, (rank + 8) % 16) for rank in range(16)
    }
    hop = next(hop for hop in hops if hop.receiver == 10)
    assert hop.order == (10, 11, 12, 13, 14, 15, 8, 9, 2, 3, 4, 5, 6, 7, 0, 1)
    assert np.flatnonzero(stalled_members(hop, 3)).tolist() == [10, 11, 12]
    assert ring_hops(range(8), host_of) == []


def test_a_pause_of_one_rank_is_no_interruption() -> None:
    usual = (0, "all_reduce", 10**7, same([10.0] * 4))
    pause = (0, "all_reduce", 10**7, same([10.0, 300.0, 300.0, 300.0]))
    times = call_times(log_of([usual] * 8 + [pause] + [usual] * 3, [FOUR]))
    (stall,) = stalls(times)
    assert stall.is_pause and stall.late.tolist() == [False, True, True, True]
    assert diagnose_log(times.log).verdict == "healthy"


def test_a_hang_names_the_rank_that_waits_nowhere() -> None:
    """Rank 3 has not entered call 2 of its group, so rank 2 waits, and 0 and 1 wait for 2 in another group."""
    calls: list[tuple[int, str, int, dict[int, float | None]]] = [
        (0, "all_reduce", 1000, {0: 1.0, 1: 1.0, 2: 1.0}),
        (1, "all_gather", 1000, {2: 1.0, 3: 1.0}),
        (0, "all_reduce", 1000, {0: None, 1: None}),
        (1, "all_gather", 1000, {2: None}),
    ]
    log = log_of(calls, [(0, 1, 2), (2, 3)])
    assert [(call.sequence, call.waiting, call.missing) for call in stuck_calls(log)] == [
        (2, (0, 1), (2,)),
        (2, (2,), (3,)),
    ]
    finding = diagnose_log(log).findings[0]
    assert (finding.kind, finding.ranks, finding.group) == ("hang", (3,), "g1")


def test_members_that_disagree_are_listed() -> None:
    log = log_of([(0, "all_reduce", 1000, {0: 1.0}), (0, "all_reduce", 2000, {1: 1.0})], [(0, 1)])
    log.sequence[:] = 1
    assert diagnose_log(log).limits == ["all_reduce 1 of g0: members have 1000 and 2000 bytes"]


def test_limits_of_a_log() -> None:
    log = log_of([(0, "all_reduce", 1000, {0: 1.0, 1: 2.0, 3: 3.0})], [FOUR])
    limited = replace(log, ranks=(0, 1, 3), duration_ns=np.full(len(log), -1))
    first, second = diagnose_log(limited).limits
    assert first.startswith("1 of 4 ranks have no log (2)") and second.startswith("no durations")


@pytest.mark.parametrize("layout", ["data", pytest.param("tensor_data", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", VERDICTS)
def test_an_invented_fault_is_named(layout: str, kind: str) -> None:
    """One drawn case of each; the full count over seeds is a slow test."""
    check(layout, kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", VERDICTS)
def test_nineteen_of_twenty_faults_are_named(layout: str, kind: str) -> None:
    named = 0
    for seed in range(20):
        try:
            check(layout, kind, seed)
            named += 1
        except AssertionError:
            continue
    assert named >= 19


def check(layout: str, kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, list(VERDICTS).index(kind)])
    shape = replace(random_shape(rng), layout=layout)
    fault = random_fault(kind, shape, rng)
    log = example_job(shape, fault, seed)
    diagnosis = diagnose_log(log)
    assert diagnosis.verdict == VERDICTS[kind]
    if kind != "healthy":
        finding = diagnosis.findings[0]
        members = next((group.members for group in log.groups if group.title == finding.group), ())
        assert fault.rank in (finding.ranks or members)  # without a clear hop, the group is named


def test_missing_ranks_and_short_buffers_do_not_hide_a_fault() -> None:
    shape = JobShape(layout="tensor_data", iterations=12, missing=(3, 17, 40), buffer=120)
    assert diagnose_log(example_job(shape, Fault("straggler", 28, 1.4), 4)).findings[0].ranks == (28,)
    found = diagnose_log(example_job(shape, Fault("slow_link", 28, 4.0), 4)).findings[0]
    assert found.kind == "slow_link" and 28 in found.ranks
    assert diagnose_log(example_job(shape, Fault("healthy"), 4)).verdict == "healthy"


def test_a_host_that_calls_late_is_told_from_a_slow_accelerator() -> None:
    shape = JobShape(layout="tensor_data", iterations=10)
    slow = diagnose_log(example_job(shape, Fault("straggler", 9, 1.5), 2)).findings[0]
    late = diagnose_log(example_job(shape, Fault("straggler", 9, 1.5, on_host=True), 2)).findings[0]
    assert (slow.why, late.why) == ("compute", "host")
