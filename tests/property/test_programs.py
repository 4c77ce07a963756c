"""Random programs, played by the engine and by SimPy: every message ready, started and delivered, every note of a
process, at the same picosecond - with one thread and two, with room for all records or for hardly any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from part_cases import ints, messages, part, step
from random_cases import DLCP

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.sim.engine.program import program as programs
from gradwire.sim.processes.coupling import Coupling
from gradwire.testing.oracle import Case
from gradwire.testing.oracle.case_runs import FOREVER, fabric_of
from gradwire.testing.scenario_comparison import FabricWithoutPrograms
from gradwire.topology import LinkSpec, star
from gradwire.workload.program import (
    BACKWARD_END,
    COMPUTE,
    END,
    FIRE,
    FORWARD_END,
    NOTE,
    START,
    UNTIL,
    WAIT,
    ProcessOperations,
)
from gradwire.workload.traffic.base import Flows
from gradwire.workload.traffic.flow_part import traffic_part

US = 10**6
HOSTS, LATENCY = 4, 2 * US
TABLES = [
    TcpNewReno.model_validate({"kind": "tcp_newreno"}),
    Dctcp.model_validate({"kind": "dctcp"}),
    Dlcp.model_validate({"kind": "dlcp", "payload": "1000B"}),
]


@st.composite
def parts(draw: st.DrawFn) -> Any:
    """A part of a few steps. Whatever an event needs comes before it, so all of them happen in the end."""
    steps, first, gates = [], 0, {}
    processes = draw(st.integers(1, 3))
    stations = draw(st.integers(0, 2))
    for number in range(draw(st.integers(1, 4))):
        made, gates, count = draw(one_step(number, first, gates, processes, stations))
        steps.append(made)
        first += count
    homes = [draw(st.integers(0, HOSTS - 1)) for _ in range(processes)]
    credit = draw(st.sampled_from((0, 0, 3_000, 20_000)))
    return part(steps, homes, credit=credit, stations=[0] * stations, transport=draw(st.sampled_from((0, 1, DLCP))),
                apart=draw(st.booleans()))  # fmt: skip


@st.composite
def one_step(
    draw: st.DrawFn, number: int, first: int, before: dict[int, list[int]], processes: int, stations: int
) -> Any:
    """(step, the events that every process may wait for in the next one, how many events there are)"""
    n, more = draw(st.integers(0, 8)), draw(st.integers(1, 6))
    ends = [draw(st.sampled_from([(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b])) for _ in range(n)]
    sizes = [draw(st.sampled_from((1, 900, 5_000, 40_000))) for _ in range(n)]
    # an order in which things happen: events that are fired, messages that are posted by what was before them
    order = [n, *draw(st.permutations([*range(n), *range(n + 1, n + more)]))]  # a message is nothing's beginning
    after, posts, needs, fires = [], [], [0] * (n + more), []
    seen: list[int] = []
    for event in order:
        if event < n:
            posts.append((draw(st.sampled_from(seen)), event))
            needs[event] = 1
        else:
            causes = draw(st.lists(st.sampled_from(seen), unique=True, max_size=2)) if seen else []
            after += [(cause, event) for cause in causes]
            if not causes or draw(st.booleans()):
                fires.append(event)
                needs[event] += 1
            needs[event] += len(causes)
        seen.append(event)
    owner = {event: draw(st.integers(0, processes - 1)) for event in fires}
    courses = []
    for process in range(processes):
        rows: list[tuple[int, int, int]] = [(NOTE, START, number)]
        if number == 0 and draw(st.booleans()):
            rows.insert(0, (UNTIL, draw(st.integers(1, 9 * US)), -1))
        for event in before.get(process, []):
            rows.append((WAIT, event, number - 1))
        rows.append((NOTE, FORWARD_END, number))
        for event in [each for each in fires if owner[each] == process]:
            if draw(st.booleans()):
                rows.append((COMPUTE, draw(st.sampled_from((1, 700, US, 30 * US))), -1))
            rows.append((FIRE, first + event, -1))
        rows.append((NOTE, BACKWARD_END, number))
        rows.append((COMPUTE, draw(st.integers(1, 3 * US)), -1))
        rows.append((NOTE, END, number))
        courses.append(ProcessOperations(process, ints(rows)))
    waits: dict[int, list[int]] = {}
    for event in draw(st.lists(st.sampled_from(range(n, n + more)), unique=True, max_size=processes)):
        waits.setdefault(len(waits), []).append(first + event)
    station = [-1] * n + [draw(st.integers(-1, stations - 1)) for _ in range(more)]
    made = step(
        messages(ends, sizes, [draw(st.integers(0, 3)) for _ in range(n)], bound=draw(st.sampled_from((0.0, 0.3))), iteration=number),
        [0] * more, needs=needs, after=after, posts=posts, courses=courses, station=station,
        effort=[0 if each < 0 else draw(st.integers(1, 5 * US)) for each in station],
    )  # fmt: skip
    return made, waits, n + more


def played(made: Any, *, simpy: bool, threads: int = 1, loss: float = 0.0) -> Any:
    """What is known of every step when all is over, and when every message was delivered."""
    case = Case(star(HOSTS, LinkSpec(10**10, US, loss)), TABLES, [], host_latency=LATENCY)
    fabric = fabric_of(case, threads=threads)
    fabric.advance.choice.fix(alone=threads == 1)
    coupling = Coupling(FabricWithoutPrograms(fabric) if simpy else fabric, LATENCY, ["a", "b", "c", "d"])
    track = coupling.play(made)
    assert coupling.run(lambda: track.finished, until=FOREVER)
    ends = fabric.finish().end_ps
    found = [
        (
            over.numbers.tolist(),
            over.ready.tolist(),
            over.started.tolist(),
            over.notes.tolist(),
            ends[over.numbers].tolist(),
        )
        for over in track.steps
    ]
    fabric.close()
    return found, track.ended_ps


@pytest.mark.parametrize(("most_open", "batch", "threads"), [(1 << 16, 1 << 12, 1), (2, 2, 1), (3, 1, 2)])
@budget(0.5)
@given(made=parts(), loss=st.sampled_from((0.0, 0.05)))
def test_engine_and_simpy_players_agree_on_random_programs(made, loss, most_open, batch, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "MAX_OPEN", most_open)
        patch.setattr(programs, "BATCH", batch)
        found = played(made, simpy=False, threads=threads, loss=loss)
    assert found == played(made, simpy=True, loss=loss)


@st.composite
def flows_that_wait(draw: st.DrawFn) -> Flows:
    """Flows, some of which wait for what their own host has received, or for its own senders to be done."""
    ends = draw(st.lists(st.tuples(st.integers(0, HOSTS - 1), st.integers(0, HOSTS - 1)).filter(lambda each: each[0] != each[1]),
                         min_size=1, max_size=10))  # fmt: skip
    n, edges, settled = len(ends), [], []
    for after in range(n):
        for before in range(after):
            if ends[before][1] == ends[after][0] and draw(st.booleans()):
                edges.append((before, after))
            elif ends[before][0] == ends[after][0] and draw(st.booleans()):
                settled.append((before, after))
    waiting = {after for _, after in edges + settled}
    starts = sorted(draw(st.integers(0, 50 * US)) for _ in range(n))
    src, dst = ints(ends).reshape(-1, 2).T
    numbers = ints(list(range(n)))
    nbytes = ints([draw(st.sampled_from((8, 4_000, 60_000))) for _ in range(n)])
    start = ints([0 if number in waiting else starts[number] for number in range(n)])
    pairs = [ints(each).reshape(-1, 2) for each in (edges, settled)]
    return Flows(src, dst, nbytes, start, 0 * numbers, numbers, pairs[0], settled=pairs[1])


@budget(0.5)
@given(flows=flows_that_wait(), loss=st.sampled_from((0.0, 0.05)), transport=st.sampled_from((0, 1)))
def test_engine_and_simpy_players_agree_on_dependent_flows(flows, loss, transport):
    """A sender settles at the same picosecond in both players, and so start the flows that wait for it."""
    table = SimpleNamespace(name="t", droppable=False, priority=0, bound=0.0)
    cards = star(HOSTS, LinkSpec(10**10, US, 0.0)).cards
    made = traffic_part(table, 0, transport, lambda: iter([flows]), cards)
    assert played(made, simpy=False, loss=loss) == played(made, simpy=True, loss=loss)


def test_program_memory_does_not_grow_with_steps():
    """Three hundred steps need as much memory as thirty."""

    def steps(count):
        for number in range(count):
            rows = messages([(0, 1), (1, 0)], [20_000, 20_000], iteration=number)
            again = [] if number == 0 else [(WAIT, 3 * number - 2, number - 1)]  # the answer of the step before
            fire = [(NOTE, START, number), *again, (COMPUTE, US, -1), (FIRE, 3 * number + 2, -1), (NOTE, END, number)]
            yield step(rows, [0], posts=[(2, 0), (0, 1)], courses=[ProcessOperations(0, ints(fire))])

    used = []
    for count in (30, 300):
        case = Case(star(2, LinkSpec(10**10, US)), TABLES, [], host_latency=LATENCY)
        fabric = fabric_of(case)
        coupling = Coupling(fabric, LATENCY, ["a", "b"])
        made = part([], [0])
        track = coupling.play(
            type(made)(made.table, made.hosts, made.workers, made.stations, lambda count=count: steps(count))
        )
        patch = pytest.MonkeyPatch()
        patch.setattr("gradwire.sim.engine.time_advance.CLOSE_BATCH", 1)
        assert coupling.run(lambda track=track: track.finished, until=10**14)
        patch.undo()
        assert len(track.steps) == count and len(track.live) <= 4
        used.append((fabric.flows.records.used, fabric.flows.arena.used - fabric.memory.bits))
        fabric.close()
    assert used[0] == used[1]


def one_by_one(made: Any) -> list[int]:
    """The messages of a part of one step in the order in which they entered the network. SimPy says the same."""
    found = played(made, simpy=False)
    assert found == played(made, simpy=True) == played(made, simpy=False, threads=2)
    started = found[0][0][2]
    assert len(set(started)) == len(started)
    return sorted(range(len(started)), key=lambda each: started[each])


def test_delivery_precedes_process_resumed_at_equal_time():
    """A packet of 966 bytes crosses two links of 10 Gbps and 1 us. At its arrival a process of host 1 makes the
    second message ready there, and the delivery the third. The third is released at once; the second waits for its
    credit."""
    there = LATENCY + 2 * (966 * 800 + US)
    rows = messages([(0, 1), (1, 3), (1, 0)], [900] * 3)
    courses = [
        ProcessOperations(0, ints([(FIRE, 3, -1)])),
        ProcessOperations(1, ints([(UNTIL, there, -1), (FIRE, 4, -1)])),
    ]
    made = part([step(rows, [0, 1], posts=[(3, 0), (4, 1), (0, 2)], courses=courses)], [0, 1], credit=900)
    assert one_by_one(made) == [0, 2, 1]
    _, ready, started, _, ends = played(made, simpy=False)[0][0]
    assert ends[0] == ready[1] == ready[2] == there and started[2] == there + LATENCY


def test_processes_resuming_at_one_time_run_in_order_of_waiting_time():
    """Two processes of host 0 have computed for 3 us, the first one in two pieces."""
    rows = messages([(0, 1), (0, 2)], [900] * 2)
    courses = [
        ProcessOperations(0, ints([(COMPUTE, US, -1), (NOTE, FORWARD_END, 0), (COMPUTE, 2 * US, -1), (FIRE, 2, -1)])),
        ProcessOperations(1, ints([(COMPUTE, 3 * US, -1), (FIRE, 3, -1)])),
    ]
    made = part([step(rows, [0, 0], posts=[(2, 0), (3, 1)], courses=courses)], [0, 0], credit=900)
    assert one_by_one(made) == [1, 0]
