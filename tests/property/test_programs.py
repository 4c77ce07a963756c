"""Programs - messages that wait for each other inside the fabric - against the same messages sent one by one.

The reference is told when each message starts, computed by the rule (one software latency after the last delivery or
release it waits for) from the deliveries that the program run has seen: if the engine broke the rule anywhere, the two
runs would part at the first such message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import first_difference, run_engine
from oracle.cases import FOREVER, Case, Letter, fabric_of, seen
from random_cases import BALANCERS, LATENCY, US, budget, cases

from gradwire.sim.fabric import program as programs
from gradwire.sim.fabric.sends import Joined, Sends

BEGIN = 5 * US  # of the releases


def sends_of(case: Case, edges: list[tuple[int, int]], gates: list[int], **more: Any) -> Sends:
    letters = case.letters
    patterns = [np.array(x.important, bool) for x in letters if isinstance(x.important, (list, tuple))]
    pattern, found = [], 0
    for x in letters:
        mixed = isinstance(x.important, (list, tuple))
        pattern.append(found if mixed else -1)
        found += mixed
    column = {name: np.array([getattr(x, name) for x in letters]) for name in (
        "src", "dst", "nbytes", "transport", "priority", "bound")}  # fmt: skip
    return Sends(
        **column, patterns=patterns, pattern=np.array(pattern), start_ps=np.array([x.time for x in letters]),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2), gates=np.array(gates), **more,
    )  # fmt: skip


@st.composite
def programs_of(draw: st.DrawFn, gated: bool = True) -> tuple[Case, list[tuple[int, int]], list[int]]:
    """A case whose letters wait for earlier ones that come to their host; some for a release as well."""
    case = draw(cases(BALANCERS, most=16))
    letters = [replace(x, after=None, important=None if isinstance(x.important, bool) else x.important)
               for x in case.letters]  # fmt: skip
    edges, gates, time = [], [], 0
    for number, letter in enumerate(letters):
        near = [i for i in range(number) if letters[i].dst == letter.src]
        waits = draw(st.lists(st.sampled_from(near), unique=True, max_size=3)) if near else []
        edges += [(i, number) for i in waits]
        gates.append(draw(st.sampled_from((0, 0, 0, 1))) if gated else 0)
        if waits or gates[-1]:
            letters[number] = replace(letter, time=0)
        else:
            time = max(time, letter.time)
            letters[number] = replace(letter, time=time)
    return replace(case, letters=letters), draw(st.permutations(edges)), gates


def run_program(case: Case, sends: Sends, threads: int) -> tuple[Any, Any, list[int], list[Any]]:
    """(outcome, times of delivery, times of release, joins)"""
    fabric = fabric_of(case, threads=threads)
    fabric._alone = threads == 1
    number, first = fabric.submit(sends)
    assert first == 0
    gated = np.flatnonzero(sends.gates)
    released = [0] * len(sends)
    joins: list[Any] = []
    while fabric.now < FOREVER and not (fabric.idle and fabric.now > 0 and not len(gated)):
        until = FOREVER
        if len(gated):  # one after the other, each a while after the one before
            until = max(fabric.now, BEGIN) + 3 * US
        while fabric.now < until and not fabric.idle:
            joins += fabric.run(until)
        if len(gated):
            fabric.run(until)
            time = fabric.now + int(gated[0]) % 3
            released[int(gated[0])] = time
            fabric.release(number, gated[:1], time)
            gated = gated[1:]
    outcome = seen(fabric, [])
    return outcome, fabric.finish().end_ps, released, joins


@pytest.mark.parametrize(("most_open", "batch", "threads"), [(1 << 16, 1 << 12, 1), (2, 2, 1), (3, 1, 2)])
@budget(0.5)
@given(made=programs_of())
def test_a_program_is_what_its_hosts_would_send(made, most_open, batch, threads):
    case, edges, gates = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "MOST_OPEN", most_open)
        patch.setattr(programs, "BATCH", batch)
        outcome, ends, released, _ = run_program(case, sends_of(case, edges, gates), threads)
    starts = [max(letter.time, released[n]) for n, letter in enumerate(case.letters)]
    started = [True] * len(starts)
    for before, after in sorted(edges, key=lambda edge: edge[1]):
        if not started[before] or ends[before] < 0:
            started[after] = False
        starts[after] = max(starts[after], int(ends[before]) + LATENCY)
    assert all(started), "everything arrives in the end"
    reference = run_engine(
        replace(case, letters=[replace(x, time=t) for x, t in zip(case.letters, starts, strict=True)])
    )
    arrived = {arrival.message: arrival.time for arrival in reference.arrivals}
    assert [arrived.get(n, -1) for n in range(len(starts))] == ends.tolist()
    assert first_difference(outcome, replace(reference, arrivals=[])) == ""


@budget(0.3)
@given(made=programs_of(gated=False), data=st.data())
def test_the_last_delivery_of_a_join_is_told_in_time(made, data):
    """A join is told with its time, and before its host could have reacted to it."""
    case, edges, _ = made
    hosts = case.network.host_count
    group = data.draw(st.integers(1, 3))
    join = np.array([letter.dst + hosts * (n % group) for n, letter in enumerate(case.letters)])
    _, join = np.unique(join, return_inverse=True)
    fabric = fabric_of(case)
    fabric.submit(sends_of(case, edges, [0] * len(case.letters), join=join))
    joined: list[Joined] = []
    while fabric.now < FOREVER and not (fabric.idle and fabric.now > 0):
        for event in fabric.run(FOREVER):
            assert isinstance(event, Joined) and event.time_ps < fabric.now <= event.time_ps + LATENCY
            joined.append(event)
    ends = fabric.finish().end_ps
    assert sorted(event.join for event in joined) == sorted(set(join.tolist()))
    for event in joined:
        assert event.time_ps == ends[event.message] == ends[join == event.join].max()


def test_records_and_words_are_given_back():
    """Programs one after the other need no more room than one."""
    from random_cases import DLCP

    from gradwire.experiment.topology import LinkSpec, star
    from gradwire.scenarios.schema_transport import Dctcp, Dlcp, TcpNewReno

    tables = [
        TcpNewReno.model_validate({"kind": "tcp_newreno"}),
        Dctcp.model_validate({"kind": "dctcp"}),
        Dlcp.model_validate({"kind": "dlcp", "payload": "1000B"}),
    ]
    hosts, steps = 4, 6
    letters = [Letter(0, n % hosts, (n + 1) % hosts, 20_000, DLCP) for n in range(hosts * steps)]
    edges = [(n - hosts + (0 if n % hosts else hosts) - 1, n) for n in range(hosts, hosts * steps)]
    case = Case(star(hosts, LinkSpec(10**10, US)), tables, letters)
    fabric = fabric_of(case)
    used = []
    for _ in range(4):
        sends = replace(
            sends_of(case, edges, [0] * len(letters), join=np.array([n % hosts for n in range(len(letters))])),
            patterns=[np.arange(20) % 2 == 0],
            pattern=np.zeros(len(letters), dtype=np.int64),
        )
        fabric.submit(sends)
        joins = 0
        for _ in range(1000):
            joins += len(fabric.run(fabric.now + 10**9))
            if fabric.idle:
                break
        assert joins == hosts
        fabric._programs.closed(fabric.flows.close())
        used.append((fabric.flows._records, fabric.flows.words._next, len(fabric._programs._live)))
    assert used == [used[0]] * 4 and used[0][2] == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"edges": np.array([[1, 0]])}, "from an earlier message to a later one"),
        ({"edges": np.array([[0, 1]])}, "to its own host only"),
        ({"join": np.array([0, 0])}, "more than one destination"),
        ({"dst": np.array([1])}, "dst has 1 entries"),
        ({"dst": np.array([1, 9])}, "where there are 3"),
        ({"nbytes": np.array([1000, 0])}, "no bytes"),
        ({"start_ps": np.array([5, 4])}, "start_ps falls"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong, why):
    sends = Sends(np.array([0, 0]), np.array([1, 2]), np.array([1000, 1000]))
    with pytest.raises(ValueError, match=why):
        replace(sends, **wrong).check(3)
