"""Runs a case with the engine and with the oracle, and describes the first difference between their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from gradwire.result_store.missing_packets import COLUMNS
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.sim.engine.events import Delivery
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.network_control import NetworkControl
from gradwire.sim.engine.tables import CAUSES, FabricTables
from gradwire.testing.oracle.case import (
    FOREVER,
    Case,
    NetworkChange,
    Outcome,
    following_letters,
    initial_letters,
    members,
    sorted_by_time,
    start_key,
)
from gradwire.testing.oracle.clock import CHANGE
from gradwire.testing.oracle.host import OracleHost
from gradwire.testing.oracle.oracle import Oracle
from gradwire.testing.oracle.packets import Counters, DeliveredMessage, Drop, Transmission, packet_of
from gradwire.testing.oracle.port import OraclePort
from gradwire.topology.routing import build_routing


def run_engine(
    case: Case,
    *,
    until: int = FOREVER,
    threads: int = 1,
    window: Ps | None = None,
    stops: Sequence[int] = (),
    prepare: Callable[[Fabric], None] | None = None,
    compiled: bool = True,
) -> Outcome:
    """Return the engine's outcome. `stops`: times at which `run` is also halted. `compiled`: False for an engine of
    plain Python, faster for up to a few thousand packets."""
    fabric = fabric_of(case, threads=threads, window=window, compiled=compiled)
    if prepare is not None:
        prepare(fabric)
    letters: list[int] = []  # letter of every message
    fans: dict[int, int] = {}

    def fan_of(letter: int) -> tuple[int, int] | None:
        message = case.letters[letter]
        if message.fan is None:
            return None
        group = members(case, message.fan)
        if message.fan not in fans:
            src, dst = ([getattr(case.letters[member], end) for member in group] for end in ("src", "dst"))
            fans[message.fan] = fabric.fan(src, dst, Bytes(message.nbytes), message.transport)
        return fans[message.fan], group.index(letter)

    def post(letter: int, time: int) -> None:
        message = case.letters[letter]
        flags = message.important
        important = flags if flags is None or isinstance(flags, bool) else np.array(flags, dtype=bool)
        letters.append(letter)
        number = fabric.send(
            Ps(time),
            message.src,
            message.dst,
            Bytes(message.nbytes),
            transport=message.transport,
            priority=message.priority,
            bound=message.bound,
            share=message.share,
            pool=message.pool,
            turn=message.turn,
            important=important,
            fan=fan_of(letter),
            since=Ps(message.since),
        )
        assert number == len(letters) - 1

    for letter in initial_letters(case):
        post(letter, case.letters[letter].time)
    arrivals = []
    halts = [stop for stop in sorted(stops) if stop < until]
    while fabric.now < until and not (fabric.idle and fabric.now > 0):
        while halts and halts[0] <= fabric.now:
            halts.pop(0)
        deliveries = fabric.run(Ps(halts[0] if halts else until))
        for delivery in sorted(deliveries, key=lambda delivery: (delivery.time_ps, delivery.message)):
            assert isinstance(delivery, Delivery)
            arrivals.append(DeliveredMessage(delivery.time_ps, delivery.message, delivery.received_bytes, ()))
            for letter in following_letters(case, letters[delivery.message]):
                post(letter, delivery.time_ps + case.letters[letter].time)
    return outcome_of(fabric, arrivals)


def fabric_of(case: Case, *, threads: int = 1, window: Ps | None = None, compiled: bool = True) -> Fabric:
    """Return the engine for a case, with a packet log and nothing sent yet; it reuses records of messages at once.
    `compiled`: as for the engine."""
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
        compiled=compiled,
    )
    fabric.advance.reuse_records_at_once()
    for change in case.changes:
        fabric.agenda.add(Ps(change.time), partial(_change, fabric.control, change))
    return fabric


def _change(control: NetworkControl, change: NetworkChange, now: Ps) -> None:
    act = getattr(control, change.what)
    if change.what == "reroute":
        act(build_routing(control.network, change.target))
    elif change.value is not None:
        act(change.target, change.value)
    elif change.what == "stop_host":
        act(change.target)
    else:
        act(change.target, now)


def outcome_of(fabric: Fabric, arrivals: list[DeliveredMessage]) -> Outcome:
    fabric.close()
    tables = fabric.finish()
    missing = missing_packets(tables)
    arrivals = [arrival._replace(missing=missing.get(arrival.message, ())) for arrival in arrivals]
    columns = ("packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "drops_evicted", "drops_down",
               "drops_no_route", "marks", "control_marks", "trimmed",
               "pauses", "peak_queue_bytes")  # fmt: skip
    return Outcome(
        transmissions=sorted(
            (
                Transmission(start, link, packet_of(a, b, flow), bool(lost))
                for start, link, a, b, lost, flow in fabric.packet_log().tolist()
            ),
            key=start_key,
        ),
        drops=sorted_by_time(
            Drop(time, port & 0xFFFFFFFF, CAUSES[port >> 32], packet_of(a, b, flow))
            for time, port, a, b, flow in fabric.drop_log().tolist()
        ),
        arrivals=arrivals,
        ports=[Counters(*map(int, row)) for row in zip(*(tables.ports[name] for name in columns), strict=True)],
        sent=[int(count) for count in tables.sent_packets],
        again=[int(count) for count in tables.retransmitted],
    )


def missing_packets(tables: FabricTables) -> dict[int, tuple[int, ...]]:
    """Return message -> the packets that it was delivered without."""
    packets_of: dict[int, tuple[int, ...]] = {}
    for message, first, packets in zip(
        *(np.asarray(tables.missing[name]).tolist() for name in COLUMNS[:3]), strict=True
    ):
        packets_of[message] = (*packets_of.get(message, ()), *range(first, first + packets))
    return packets_of


def run_oracle(
    case: Case,
    *,
    until: int = FOREVER,
    checks_by_time: Mapping[int, Callable[[Sequence[OraclePort | OracleHost]], None]] | None = None,
) -> Outcome:
    """Return the oracle's outcome. `checks_by_time`: callbacks by time, called with the ports after all earlier events."""
    oracle = Oracle(case)
    for time, look in (checks_by_time or {}).items():
        oracle.clock.at(time, CHANGE, 0, partial(look, oracle.ports))
    return oracle.run(until)


def first_difference(engine: Outcome, oracle: Outcome) -> str:
    """Return a description of the first difference between two outcomes; empty if there is none."""
    for what in ("transmissions", "drops", "arrivals", "sent", "again", "ports"):
        of_engine, of_oracle = getattr(engine, what), getattr(oracle, what)
        for index, (one, other) in enumerate(zip(of_engine, of_oracle, strict=False)):
            if one != other:
                return f"{what}[{index}] of {len(of_engine)} and {len(of_oracle)}:\n  engine {one}\n  oracle {other}"
        if len(of_engine) != len(of_oracle):
            longer, whose = (of_engine, "engine") if len(of_engine) > len(of_oracle) else (of_oracle, "oracle")
            extra = longer[min(len(of_engine), len(of_oracle))]
            return f"{what}: engine {len(of_engine)}, oracle {len(of_oracle)}; first extra of the {whose}: {extra}"
    return ""
