"""Parameter servers that do not wait for all workers, workers that do not wait for the last parameters, all-to-all."""

from __future__ import annotations

import numpy as np
import pytest
from array_cases import Arrays, job_of
from sim_cases import MS, US, Ideal, make_trace, ps_job, scenario

from gradwire.sim.simulate import simulate
from gradwire.workload.program import FIRE, WAIT

TRACE = make_trace([[1000], [3000]])
SLOW = [{"name": "slow", "kind": "host_slow", "host": "h1", "at": "0s", "factor": 3.0}]


def run(iterations=6, workers=3, fault=(), fabric=None, **exchange):
    job = ps_job(workers, exchange=exchange, iterations=iterations)
    case = scenario(job, fault=[{key: value for key, value in each.items() if key != "name"} for each in fault])
    return simulate(case, TRACE, fabric=fabric)


def ends(result):
    """By worker, when its iterations ended."""
    found: dict[int, list[int]] = {}
    for row in sorted(result.iterations.to_pylist(), key=lambda row: (row["worker"], row["iteration"])):
        found.setdefault(row["worker"], []).append(row["end_ps"])
    return found


def ahead(result):
    """How many iterations the fastest worker has ended more than the slowest one, at the most."""
    times = ends(result)
    return max(sum(end <= moment for end in times[0]) - sum(end <= moment for end in times[1]) for moment in times[0])


def test_synchronous_servers_slow_all_workers_to_the_slowest():
    assert ahead(run(fault=SLOW)) <= 1
    times = ends(run(fault=SLOW))
    assert times[0][-1] > 6 * 3 * 4 * MS


def test_asynchronous_servers_let_each_worker_run_at_its_own_pace():
    """An iteration takes 4 ms and its messages, and three times as long at the slow worker."""
    times = ends(run(fault=SLOW, asynchronous=True))
    alone = ends(run(workers=1))[0]
    for worker in (0, 2):
        assert times[worker][-1] == pytest.approx(alone[-1], rel=0.01)
    assert times[1][-1] == pytest.approx(3 * 6 * 4 * MS, rel=0.01)


@pytest.mark.parametrize("pull", ["layerwise", "barrier"])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_lead_of_the_fastest_worker_never_exceeds_the_staleness_bound(staleness, pull):
    """With staleness s, an iteration ends when the pulls of s iterations before have arrived."""
    result = run(iterations=8, fault=SLOW, staleness=staleness, pull=pull)
    assert staleness <= ahead(result) <= max(staleness, 1)
    # the fast one is held to the slow one's pace in the end
    assert ends(result)[0][-1] >= ends(result)[1][-1] - US * 100


def test_staleness_hides_communication_until_the_last_iteration():
    result = run(staleness=1, fabric=Ideal(rate=10**9))
    rows = result.iterations.to_pylist()
    assert all(row["exposed_ps"] == 0 for row in rows if row["iteration"] < 5)
    assert all(row["exposed_ps"] > 0 for row in rows if row["iteration"] == 5)


def test_repeated_stale_server_runs_give_equal_iterations():
    for fields in ({"staleness": 2}, {"asynchronous": True}, {"asynchronous": True, "server_rate": "10Gbps"}):
        ours = run(fabric=Ideal(), **fields)
        assert ours.iterations.equals(run(fabric=Ideal(), **fields).iterations)
        assert all(row["end_ps"] >= 0 for row in ours.messages.to_pylist())


def test_worker_releases_stale_iterations_after_the_wait():
    """A worker waits at most three iterations back and fires one event of the iteration two steps before."""
    made = job_of({"kind": "parameter_server", "staleness": 2}, 2, servers=1, iterations=5)
    steps = list(made.part.steps())
    first = np.cumsum([0] + [len(step) for step in steps])
    for number, step in enumerate(steps):
        for course in step.courses:
            waits = [
                int(np.searchsorted(first, row[1], side="right")) - 1
                for row in course.operations.tolist()
                if row[0] == WAIT
            ]
            old = [value for kind, value, _ in course.operations.tolist() if kind == FIRE and value < first[number]]
            assert all(each >= number - 3 for each in waits)
            assert len(old) == (number >= 2)
            assert all(first[number - 2] <= event < first[number - 1] for event in old)


def test_asynchronous_pull_depends_only_on_the_push_of_its_own_worker():
    made = job_of({"kind": "parameter_server", "asynchronous": True}, 3, servers=2)
    (step,) = made.part.steps()
    (first, members), own = step.contents()
    rows = step.messages
    for message in range(len(rows)):
        mine = members[first[message] : first[message + 1]]
        if own[message]:
            assert not len(mine)
        else:
            (push,) = mine
            assert (rows.src[push], rows.dst[push], rows.part[push]) == (
                rows.dst[message],
                rows.src[message],
                rows.part[message],
            )


def test_asynchronous_servers_with_staleness_are_rejected():
    with pytest.raises(ValueError, match="applies to servers that wait for all workers"):
        scenario(ps_job(2, exchange={"asynchronous": True, "staleness": 1}))


# --- all-to-all ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 5])
def test_all_to_all_sends_one_segment_of_every_bucket_between_all_pairs(workers):
    made = job_of({"kind": "all_to_all", "bucket": "8KB"}, workers)
    arrays = Arrays(made, np.random.default_rng(1))
    rows, program = arrays.program.messages, arrays.program
    seen = set()
    for message in range(len(rows)):
        bucket = int(rows.part[message]) // made.exchange.plan.segments
        size = made.exchange.buckets[bucket].segment_elements
        src, dst = arrays.src[message], arrays.dst[message]
        assert rows.first[message] == dst * size and rows.nbytes[message] == 4 * size
        assert program.own[message] and not len(program.sums[message])
        seen.add((bucket, src, dst))
    assert seen == {
        (b, s, d) for b in range(len(made.exchange.buckets)) for s in range(workers) for d in range(workers) if s != d
    }
    assert len(seen) == len(rows)
