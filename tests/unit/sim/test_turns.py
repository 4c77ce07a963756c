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
from tests.unit.training.test_simulated import scenario

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


def test_a_push_and_a_pull_of_one_worker_are_a_step() -> None:
    """To the picosecond, of one tensor in one message, once and again."""
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


def test_pushes_share_the_servers_link() -> None:
    """Two that begin together take about twice as long as one, and one that begins when the other is through as long."""
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


def test_nothing_comes_before_its_time() -> None:
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


def test_what_is_under_way_comes_while_it_rests() -> None:
    """And is told; the network is a new one then, at that time."""
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


def test_two_who_go_on_from_the_same_rest_go_on_alike() -> None:
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


def test_losses_are_within_bounds_and_where_they_are() -> None:
    """Eight workers that push to one port with a shallow buffer lose some of what is small, of each no more than its bound."""
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
def test_what_cannot_come_one_by_one_is_refused(more, said) -> None:
    with pytest.raises(ScenarioError, match=said):
        AsyncSession(scenario("dlcp", 4, **more))


def test_a_scheduler_that_holds_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; and one of the user's own that does not say so, when it is asked."""
    with pytest.raises(ScenarioError, match=r"job.scheduler: tictac holds messages back"):
        AsyncSession(whole(1, job={"scheduler": {"kind": "tictac"}}))
    monkeypatch.setattr(TicTac, "holds_back", False)
    turns = AsyncSession(whole(1, job={"scheduler": {"kind": "tictac"}}))
    with pytest.raises(ScenarioError, match=r"job.scheduler: tictac holds messages back"):
        turns.push(0, 0, trace(1000), 0)


def test_a_server_beside_its_worker_has_it_at_once() -> None:
    """With servers on the workers' hosts a worker's own parts need no message."""
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
def test_nothing_is_pushed_before_it_is_ready(workers: int) -> None:
    """Not even where it needs no message, nor before what others push meanwhile has come."""
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


def test_tensors_as_long_as_others_have_priorities_of_their_own() -> None:
    """What was sent before is not what is sent now, though it was as long: here of the front layer, and of the back one."""
    tagged = whole(1, job={"tagging": {"magnitude": False, "layer_priority": True}})
    turns, queues = AsyncSession(tagged), []
    for turn, layers in enumerate(((0, 1), (1, 0))):
        made = trace(1000, 1000)
        made.tensors[:] = [replace(each, layer=layer) for each, layer in zip(made.tensors, layers, strict=True)]
        turns.push(0, turn, made, turn * 10**9)
        sent = turns.next().messages
        queues.append(sent.priority[np.argsort(sent.tensor)].tolist())
    assert queues[0] == queues[1][::-1] and len(set(queues[0])) == 2
