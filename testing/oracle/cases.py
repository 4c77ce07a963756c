"""One run made with the engine and with the oracle, and the first thing in which the two differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from gradwire.experiment.routing import build_routing
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.missing import COLUMNS
from gradwire.sim.fabric.control import Control
from gradwire.sim.fabric.events import Delivery
from gradwire.sim.fabric.fabric import Fabric
from gradwire.sim.fabric.tables import CAUSES, Tables
from gradwire.testing.oracle.case import (
    FOREVER,
    Case,
    Change,
    Outcome,
    by_start,
    by_time,
    members,
    prompted,
    unprompted,
)
from gradwire.testing.oracle.host import Host
from gradwire.testing.oracle.model import CHANGE
from gradwire.testing.oracle.packets import Arrival, Counters, Drop, Transmission, packet_of
from gradwire.testing.oracle.port import Port
from gradwire.testing.oracle.whole import Oracle


def run_engine(
    case: Case,
    *,
    until: int = FOREVER,
    threads: int = 1,
    window: Ps | None = None,
    stops: Sequence[int] = (),
    prepare: Callable[[Fabric], None] | None = None,
) -> Outcome:
    """The compiled engine's outcome. `stops`: `run` is asked to halt at these times too."""
    fabric = fabric_of(case, threads=threads, window=window)
    if prepare is not None:
        prepare(fabric)
    letters: list[int] = []  # letter of every message
    fans: dict[int, int] = {}

    def fan_of(letter: int) -> tuple[int, int] | None:
        what = case.letters[letter]
        if what.fan is None:
            return None
        of = members(case, what.fan)
        if what.fan not in fans:
            src, dst = ([getattr(case.letters[each], end) for each in of] for end in ("src", "dst"))
            fans[what.fan] = fabric.fan(src, dst, Bytes(what.nbytes), what.transport)
        return fans[what.fan], of.index(letter)

    def post(letter: int, time: int) -> None:
        what = case.letters[letter]
        flags = what.important
        important = flags if flags is None or isinstance(flags, bool) else np.array(flags, dtype=bool)
        letters.append(letter)
        number = fabric.send(
            Ps(time), what.src, what.dst, Bytes(what.nbytes), transport=what.transport, priority=what.priority,
            bound=what.bound, share=what.share, pool=what.pool, turn=what.turn, important=important,
            fan=fan_of(letter), since=Ps(what.since),
        )  # fmt: skip
        assert number == len(letters) - 1

    for letter in unprompted(case):
        post(letter, case.letters[letter].time)
    arrivals = []
    halts = [stop for stop in sorted(stops) if stop < until]
    while fabric.now < until and not (fabric.idle and fabric.now > 0):
        while halts and halts[0] <= fabric.now:
            halts.pop(0)
        deliveries = fabric.run(Ps(halts[0] if halts else until))
        for delivery in sorted(deliveries, key=lambda delivery: (delivery.time_ps, delivery.message)):
            assert isinstance(delivery, Delivery)
            arrivals.append(Arrival(delivery.time_ps, delivery.message, delivery.received_bytes, ()))
            for letter in prompted(case, letters[delivery.message]):
                post(letter, delivery.time_ps + case.letters[letter].time)
    return seen(fabric, arrivals)


def fabric_of(case: Case, *, threads: int = 1, window: Ps | None = None) -> Fabric:
    """The engine for a case, with a packet log and nothing sent yet; it uses records of messages again at once."""
    fabric = Fabric(
        case.network,
        build_routing(case.network),
        switch=case.switch,
        transports=case.transports,
        balancing=case.balancing,
        seed=case.seed,
        host_latency_ps=case.host_latency,
        threads=threads,
        packet_log=True,
        missing=True,
        window_ps=window,
        faults=bool(case.changes),
        folder=case.folder,
    )
    fabric.reuse_records_at_once()
    for change in case.changes:
        fabric.agenda.add(Ps(change.time), partial(_change, fabric.control, change))
    return fabric


def _change(control: Control, change: Change, now: Ps) -> None:
    """Do it to the engine."""
    act = getattr(control, change.what)
    if change.what == "reroute":
        act(build_routing(control.network, change.target))
    elif change.value is not None:
        act(change.target, change.value)
    elif change.what == "stop_host":
        act(change.target)
    else:
        act(change.target, now)


def seen(fabric: Fabric, arrivals: list[Arrival]) -> Outcome:
    """What a fabric has to tell at the end of a run."""
    fabric.close()
    tables = fabric.finish()
    missing = missing_packets(tables)
    arrivals = [each._replace(missing=missing.get(each.message, ())) for each in arrivals]
    columns = ("packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "drops_evicted", "drops_down",
               "drops_no_route", "marks", "control_marks", "trimmed",
               "pauses", "peak_queue_bytes")  # fmt: skip
    return Outcome(
        transmissions=sorted(
            (
                Transmission(start, link, packet_of(a, b, flow), bool(lost))
                for start, link, a, b, lost, flow in fabric.packet_log().tolist()
            ),
            key=by_start,
        ),
        drops=by_time(
            Drop(time, port & 0xFFFFFFFF, CAUSES[port >> 32], packet_of(a, b, flow))
            for time, port, a, b, flow in fabric.drop_log().tolist()
        ),
        arrivals=arrivals,
        ports=[
            Counters(*map(int, row)) for row in zip(*(tables.ports[name] for name in columns), strict=True)
        ],
        sent=[int(count) for count in tables.sent_packets],
        again=[int(count) for count in tables.retransmitted],
    )


def missing_packets(tables: Tables) -> dict[int, tuple[int, ...]]:
    """Message -> the packets that it was delivered without."""
    found: dict[int, tuple[int, ...]] = {}
    for message, first, packets in zip(*(np.asarray(tables.missing[name]).tolist() for name in COLUMNS[:3]), strict=True):
        found[message] = (*found.get(message, ()), *range(first, first + packets))
    return found


def run_oracle(
    case: Case, *, until: int = FOREVER, looks: Mapping[int, Callable[[Sequence[Port | Host]], None]] | None = None
) -> Outcome:
    """The oracle's outcome. `looks`: who wants to see the ports, by link, at a time, when all before it has happened."""
    oracle = Oracle(case)
    for time, look in (looks or {}).items():
        oracle.clock.at(time, CHANGE, 0, partial(look, oracle.ports))
    return oracle.run(until)


def first_difference(engine: Outcome, oracle: Outcome) -> str:
    """The first thing in which two outcomes differ, in words; empty if there is none."""
    for what in ("transmissions", "drops", "arrivals", "sent", "again", "ports"):
        ours, theirs = getattr(engine, what), getattr(oracle, what)
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"{what}[{index}] of {len(ours)} and {len(theirs)}:\n  engine {one}\n  oracle {other}"
        if len(ours) != len(theirs):
            longer, whose = (ours, "engine") if len(ours) > len(theirs) else (theirs, "oracle")
            extra = longer[min(len(ours), len(theirs))]
            return f"{what}: engine {len(ours)}, oracle {len(theirs)}; first more of the {whose}: {extra}"
    return ""
