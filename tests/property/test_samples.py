"""Queues as time goes by: which rows there are, and what they say, whatever the windows and threads of the engine.

There is a row for every sampled port at a multiple of the period where at one of these ports something waits, or something
was sent since the multiple before; and for no other. What waits is read from the oracle's queues, what was sent is added
up from its log of packets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import US, cases

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.telemetry import Samples
from gradwire.testing.oracle import Case, MessageSpec, run_engine, run_oracle
from gradwire.topology import LinkSpec, star

END = 1500 * US

Row = tuple[int, int, int, int]
"""Time, number of the link among those that are sampled, bytes that wait, bytes sent."""


def taken(case: Case, period: int, links: Any, **engine: Any) -> list[Row]:
    """The rows of a run of the engine before END."""
    kept: list[Samples] = []

    def prepare(fabric: Any) -> None:
        kept.append(Samples(fabric, case.network, links, period))
        fabric.agenda.add(END, lambda now: None)  # so that the run does not end before
        if case.switch.pfc:
            fabric.agenda.add(7 * US, lambda now: now + 7 * US, observer=True)

    run_engine(case, until=END + 1, prepare=prepare, **engine)
    columns = kept[0].columns()
    if not columns:
        return []
    number = np.tile(np.arange(len(links)), len(columns["time_ps"]) // len(links))
    rows = zip(columns["time_ps"], number, columns["queue_bytes"], columns["sent_bytes"], strict=True)
    return [tuple(map(int, row)) for row in rows if row[0] < END]  # type: ignore[misc]


def wanted(case: Case, period: int, links: Any) -> list[Row]:
    """The rows that there have to be, by the oracle."""
    waits: dict[int, list[int]] = {}

    def look(ports: Any, time: int) -> None:
        waits[time] = [ports[link].waiting(ports[link].queues) for link in links]

    times = range(period, END, period)
    outcome = run_oracle(case, until=END, checks_by_time={t: lambda ports, t=t: look(ports, t) for t in times})
    sent = np.zeros((len(times) + 1, len(links)), dtype=np.int64)  # in the period that ends at a multiple
    place = {link: number for number, link in enumerate(links.tolist())}
    for each in outcome.transmissions:
        if each.link in place and each.start // period < len(times):
            sent[each.start // period + 1, place[each.link]] += each.packet.size
    found: list[Row] = []
    for number, time in enumerate(times, 1):
        if sent[number].any() or any(waits[time]):
            total = sent[: number + 1].sum(axis=0).tolist()
            found += [(time, port, waits[time][port], total[port]) for port in range(len(links))]
    return found


@budget(0.3)
@given(st.data(), cases(("ecmp",), most=8))
def test_queue_samples_match_oracle_for_all_windows_and_threads(data, case):
    """Ports of switches are sampled, sometimes one alone. Messages are sometimes far apart, so that the network is
    idle between them."""
    apart = data.draw(st.sampled_from((1, 4, 15)))
    case = replace(case, letters=[replace(each, time=each.time * apart) for each in case.letters])
    links = np.flatnonzero(case.network.link_src >= case.network.host_count)
    if data.draw(st.booleans()):
        links = links[[data.draw(st.integers(0, len(links) - 1))]]
    period = data.draw(st.sampled_from((US, 3 * US + 1, 10 * US, 100 * US)))
    expected = wanted(case, period, links)
    for engine in ({}, {"window": 1}, {"window": 200_000, "threads": 2}, {"stops": range(0, END, 17 * US)}):
        if engine.get("window") == 1 and len(expected) > 2000:
            continue  # it takes a while
        assert taken(case, period, links, **engine) == expected, engine


@pytest.mark.parametrize("pfc", [False, True])
def test_sample_period_with_traffic_has_a_row_even_if_idle_at_its_end(pfc):
    """A packet is sent every 100 us and gone 5 us later; the period is 30 us."""
    tables = [
        TcpNewReno.model_validate({"kind": "tcp_newreno", "payload": "1000B"}),
        Dctcp.model_validate({"kind": "dctcp", "payload": "1000B"}),
        Dlcp.model_validate({"kind": "dlcp", "payload": "1000B"}),
    ]
    letters = [MessageSpec(number * 100 * US, 0, 1, 900) for number in range(10)]
    case = Case(star(2, LinkSpec(10**10, US)), tables, letters, Switch(pfc=pfc))
    links = np.flatnonzero(case.network.link_src >= 2)
    expected = wanted(case, 30 * US, links)
    assert len({time for time, *_ in expected}) == 10
    for window in (None, 1_000, 60_000):
        assert taken(case, 30 * US, links, window=window) == expected
