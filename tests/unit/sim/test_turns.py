"""Pushes and pulls of single workers over the packet simulator: as those of a step where they are alone, worked by hand
where they share a link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from sim_cases import make_trace

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.sessions.async_session import AsyncSession
from gradwire.sim.sessions.session import Session
from gradwire.workload.schedulers.tictac import TicTac
from tests.support.simulated_cases import scenario

LATENCY = 2_000_000
"""Of a host's software, picoseconds."""


def trace(*sizes: int, ready: int = 0):
    """What any worker sends; every tensor a layer."""
    made = make_trace([[size] for size in sizes], forward=ready, backward=0)
    made.manifest["name"] = "step"
    return made


def whole(workers: int, **more):
    """Nothing is lost, and nothing tagged."""
    return scenario(
        "dctcp", workers, job={"push_bound": 0.0, "tagging": {"magnitude": False}, **more.pop("job", {})}, **more
    )


def test_push_and_pull_of_one_worker_equal_a_session_step() -> None:
    """The times of one tensor in one message agree to the picosecond, for three rounds."""
    made = trace(15_000, ready=10**7)
    session, turns, begin = Session(whole(1)), AsyncSession(whole(1)), 0
    for turn in range(3):
        took = session.step(made).time_ps
        turns.push(0, turn, made, begin)
        pushed = turns.next()
        assert pushed.pushed and pushed.worker == 0 and not pushed.missing
        turns.pull(0, turn, made, pushed.time_ps)
        pulled = turns.next()
        assert not pulled.pushed and pulled.time_ps - begin == took, turn
        begin = pulled.time_ps


def test_concurrent_pushes_share_the_server_link() -> None:
    """Two pushes that begin together take about twice as long as one. A later push takes as long as the first."""
    made = trace(15_000)
    alone = AsyncSession(whole(2))
    alone.push(0, 0, made, 0)
    one = alone.next().time_ps
    alone.push(1, 0, made, one + 10**9)
    assert alone.next().time_ps - one - 10**9 == one
    both = AsyncSession(whole(2))
    for worker in range(2):
        both.push(worker, 0, made, 0)
    times = [both.next() for _ in range(2)]
    assert sorted(each.worker for each in times) == [0, 1]
    wire = one - LATENCY
    assert 1.7 * wire < times[1].time_ps - LATENCY < 2.2 * wire


def test_async_session_returns_no_event_before_until() -> None:
    made = trace(15_000)
    turns = AsyncSession(whole(1))
    turns.push(0, 0, made, 5 * 10**9)
    assert turns.next(until_ps=5 * 10**9) is None
    came = turns.next()
    again = AsyncSession(whole(1))
    again.push(0, 0, made, 5 * 10**9)
    assert again.next(until_ps=came.time_ps) is None
    assert again.next(until_ps=came.time_ps + 1).time_ps == came.time_ps
    assert again.next(until_ps=10**12) is None, "nothing is under way"


def test_async_session_drains_transfers_when_it_rests() -> None:
    """The pending transfers are returned; afterwards the network is rebuilt at that time."""
    made = trace(15_000)
    turns = AsyncSession(whole(2))
    for worker in range(2):
        turns.push(worker, 0, made, 0)
    first = turns.next()
    assert turns.built == 1
    (second,) = turns.come_to_rest(first.time_ps)
    assert second.worker != first.worker and second.time_ps > first.time_ps
    turns.push(first.worker, 1, made, first.time_ps)
    alone = AsyncSession(whole(2))
    alone.push(0, 0, made, 0)
    assert turns.next().time_ps - first.time_ps == alone.next().time_ps, "it meets nothing of before"
    assert turns.built == 2


def test_resumed_async_session_equals_continued_one() -> None:
    made = trace(40_000, 500)
    bounded = scenario("dlcp", 3, job={"push_bound": 0.3})

    def course(turns: AsyncSession, begin: int, first: int) -> list[tuple]:
        found = []
        for worker in range(3):
            turns.push(worker, first, made, begin)
        for _ in range(9):
            came = turns.next()
            found.append((came.time_ps - begin, came.worker, came.pushed, sorted(came.missing)))
            if came.pushed:
                turns.pull(came.worker, first, made, came.time_ps)
            else:
                turns.push(came.worker, first + 1, made, came.time_ps)
        return found

    one = AsyncSession(bounded)
    course(one, 0, 0)
    later = 10**12
    one.come_to_rest(later)
    other = AsyncSession(bounded)
    other.resume(one.built, later)
    assert course(one, later, 5) == course(other, later, 5)


def test_async_push_losses_stay_within_bounds() -> None:
    """Eight workers push to one port with a shallow buffer; each loses no more than its bound."""
    made = trace(60_000)
    turns = AsyncSession(scenario("dlcp", 8, job={"push_bound": 0.2}, switch={
        "queues": 8, "buffer": "32KiB", "ecn_threshold": "16KiB", "selective_drop": True,
    }))  # fmt: skip
    for worker in range(8):
        turns.push(worker, 0, made, 0)
    lost = 0
    for _ in range(8):
        came = turns.next()
        for index, mask in came.missing.items():
            gone = int(mask.sum()) * 4096
            assert gone <= 0.2 * came.messages.nbytes[index] + 4096
            lost += gone
    assert lost > 0


@pytest.mark.parametrize(("more", "said"), [
    ({"job": {"exchange": {"kind": "ring"}, "servers": 0}}, "job.exchange: ring has no servers"),
    ({"job": {"exchange": {"kind": "parameter_server", "partition": "64KiB", "server_rate": "1Gbps"}}}, "job.exchange.server_rate"),
    ({"job": {"order": "layer", "credit": 2}}, "job.order: layer holds messages back"),
], ids=["ring", "adder", "layer"])  # fmt: skip
def test_async_session_rejects_unsupported_jobs(more, said) -> None:
    with pytest.raises(ScenarioError, match=said):
        AsyncSession(scenario("dlcp", 4, **more))


def test_async_session_rejects_schedulers_that_hold_back_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that declares it is rejected at once, a user-defined one without the declaration at its first push."""
    with pytest.raises(ScenarioError, match=r"job.scheduler: tictac holds messages back"):
        AsyncSession(whole(1, job={"scheduler": {"kind": "tictac"}}))
    monkeypatch.setattr(TicTac, "holds_back", False)
    turns = AsyncSession(whole(1, job={"scheduler": {"kind": "tictac"}}))
    with pytest.raises(ScenarioError, match=r"job.scheduler: tictac holds messages back"):
        turns.push(0, 0, trace(1000), 0)


def test_colocated_server_receives_push_without_delay() -> None:
    """A worker's partitions on its own host need no message."""
    own = build_scenario({
        "name": "own", "transport": "dctcp", "topology": {"kind": "star", "hosts": 2}, "link": {"rate": "10Gbps"},
        "job": [{"name": "job", "trace": "step", "iterations": 1, "workers": 1, "servers": 1,
                 "exchange": {"kind": "parameter_server", "colocated": True}}],
    })  # fmt: skip
    turns = AsyncSession(own)
    turns.push(0, 0, trace(1000), 7)
    came = turns.next()
    assert (came.time_ps, came.pushed, came.messages) == (7, True, None)
    turns.pull(0, 0, trace(1000), 7)
    assert turns.next().time_ps == 7


@pytest.mark.parametrize("workers", [1, 2])
def test_push_completes_only_after_gradients_are_ready(workers: int) -> None:
    """Neither colocated partitions nor pushes of other workers make a push complete earlier."""
    rate = {"link": {"rate": "100Gbps"}}
    own = build_scenario({
        "name": "own", "transport": "dctcp", "topology": {"kind": "star", "hosts": 2}, **rate,
        "job": [{"name": "job", "trace": "step", "iterations": 1, "workers": workers, "servers": workers,
                 "exchange": {"kind": "parameter_server", "colocated": True}}],
    })  # fmt: skip
    turns, made = (
        AsyncSession(own),
        trace(4000, 1000, ready=10**9),
    )  # the larger one, on the first worker's host, is the last
    for worker in range(workers):
        turns.push(worker, 0, made, 5 * worker)
    times = [(each.time_ps, each.worker) for each in (turns.next() for _ in range(workers))]
    assert times == sorted(times) and all(when >= 2 * 10**9 + 5 * worker for when, worker in times)
    assert workers > 1 or times == [(2 * 10**9, 0)]


def test_tensors_of_equal_size_get_their_own_layer_priorities() -> None:
    """Two steps send tensors of equal size but with swapped layers."""
    tagged = whole(1, job={"tagging": {"magnitude": False, "layer_priority": True}})
    turns, queues = AsyncSession(tagged), []
    for turn, layers in enumerate(((0, 1), (1, 0))):
        made = trace(1000, 1000)
        made.tensors[:] = [replace(each, layer=layer) for each, layer in zip(made.tensors, layers, strict=True)]
        turns.push(0, turn, made, turn * 10**9)
        sent = turns.next().messages
        queues.append(sent.priority[np.argsort(sent.tensor)].tolist())
    assert queues[0] == queues[1][::-1] and len(set(queues[0])) == 2
