"""Delayed acknowledgements against sequences worked by hand from RFC 5681 section 4.2 and RFC 8257 section 3.2."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transport_bench import US

from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing import FlowHarness, ReceiverReply, transport
from gradwire.testing.oracle import Case, MessageSpec, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import ACK
from gradwire.topology import LinkSpec, star

KINDS = ("tcp_newreno", "dctcp", "cubic")
DELAY = 40 * US
TX, BACK = 1066 * 80, 66 * 80  # a packet of 1000 bytes of payload, and an acknowledgement, at 100 Gbps


def ends(owner=TcpNewReno, delay=DELAY) -> FlowHarness:
    return FlowHarness(owner, 1000, delayed_acks=delay)


def said(answer: ReceiverReply) -> tuple[int, int] | None:
    """(cumulative point, mark) of an answer, None for none."""
    return (answer.argument, answer.echo) if answer.count else None


def late(flow: FlowHarness, now: int) -> tuple[int, int] | None:
    return said(flow._reply(flow.run["on_late"](flow.memory, flow.k, flow.r, now)))


def test_delayed_acks_acknowledge_every_second_packet():
    flow = ends()
    assert [said(flow.data(n, now=n * US)) for n in range(6)] == [None, (2, 0), None, (4, 0), None, (6, 0)]
    assert flow.receiver.timer == 0


def test_receiver_acknowledges_every_packet_without_delayed_acks():
    flow = ends(delay=None)
    assert [said(flow.data(n)) for n in range(3)] == [(1, 0), (2, 0), (3, 0)]


def test_delay_timer_acknowledges_a_single_packet():
    flow = ends()
    assert said(flow.data(0, now=7 * US)) is None
    assert flow.receiver.timer == 7 * US + DELAY
    assert late(flow, 7 * US + DELAY) == (1, 0)
    assert late(flow, 7 * US + DELAY) is None  # nothing waits any more
    assert said(flow.data(1, now=60 * US)) is None  # and the next one waits again


def test_out_of_order_packet_is_acknowledged_immediately():
    """The packets arrive above a gap, into the gap, below another gap, and as duplicates."""
    flow = ends()
    assert said(flow.data(0)) is None
    assert [said(flow.data(n)) for n in (2, 3, 5)] == [(1, 0), (1, 0), (1, 0)]
    assert flow.receiver.timer == 0
    assert said(flow.data(1)) == (4, 0)  # the gap is full, and 4 is missing
    assert said(flow.data(4)) == (6, 0)
    assert said(flow.data(6)) is None
    assert said(flow.data(3)) == (7, 0)  # a second time
    assert said(flow.data(7)) is None


def test_delayed_ack_echoes_a_mark_of_either_packet():
    flow = ends()
    marks = [1, 0, 0, 1, 0, 0, 1]
    answers = [said(flow.data(n, ce)) for n, ce in enumerate(marks)]
    assert answers == [None, (2, 1), None, (4, 1), None, (6, 0), None]
    assert late(flow, US) == (7, 1)


def test_dctcp_acknowledges_immediately_when_the_mark_changes():
    """A change of the mark makes the receiver acknowledge the pending packets with their own mark (RFC 8257, figure
    1). The sender so learns exactly which packets were marked, here 1, 2 and 3 of 8."""
    flow = ends(Dctcp)
    answers = [said(flow.data(n, ce)) for n, ce in enumerate([0, 1, 1, 1, 0, 0, 0, 0])]
    assert answers == [None, (1, 0), (3, 1), None, (4, 1), (6, 0), None, (8, 0)]


def play(letters: list[MessageSpec], kind: str = "tcp_newreno", **more) -> Outcome:
    """Two hosts, 100 Gbps, cables of 1 us. What the oracle says as well. One engine, of all three, plays each of them."""
    tables = [transport(each, connections="persistent") for each in KINDS]
    number = KINDS.index(kind)
    tables[number] = transport(kind, **{"payload": "1000B", "delayed_acks": "40us", **more})
    letters = [replace(letter, transport=number) for letter in letters]
    case = Case(star(2, LinkSpec(10**11, US)), tables, letters, Switch.model_validate({"ecn_threshold": "3kB"}))
    engine = run_engine(case)
    assert first_difference(engine, run_oracle(case)) == ""
    assert first_difference(run_engine(case, threads=2), engine) == ""
    return engine


def acknowledged(outcome: Outcome) -> list[tuple[int, int]]:
    """(when, cumulative point) of acknowledgements as they leave the receiver."""
    return [(t.start, t.packet.argument) for t in outcome.transmissions if t.packet.kind == ACK and t.link == 2]


@pytest.mark.parametrize("connections", ["fresh", "persistent"])
@pytest.mark.parametrize("kind", KINDS)
def test_five_packets_get_two_immediate_and_one_delayed_acknowledgement(kind, connections):
    """Four packets cause two acknowledgements; the fifth is acknowledged after 40 us. The message is delivered before
    that."""
    outcome = play([MessageSpec(0, 0, 1, 5_000)], kind, connections=connections)
    arrive = [(n + 1) * TX + US + TX + US for n in range(5)]
    assert acknowledged(outcome) == [(arrive[1], 2), (arrive[3], 4), (arrive[4] + DELAY, 5)]
    assert outcome.arrivals[0].time == arrive[4]


def test_next_message_of_a_connection_triggers_the_pending_acknowledgement():
    """The odd last packet of the first message is acknowledged with the first packet of the second."""
    outcome = play([MessageSpec(0, 0, 1, 3_000), MessageSpec(10 * US, 0, 1, 1_000)], connections="persistent")
    second = 10 * US + TX + US + TX + US
    assert [point for _, point in acknowledged(outcome)] == [2, 4]
    assert acknowledged(outcome)[-1][0] == second == outcome.arrivals[1].time


def test_initial_window_of_one_packet_waits_for_the_delay_timer():
    """The first acknowledgement comes after the delay. The next two packets leave together and are acknowledged
    immediately."""
    outcome = play([MessageSpec(0, 0, 1, 3_000)], initial_window=1, min_rto="1ms")
    first = TX + US + TX + US + DELAY
    assert acknowledged(outcome)[0] == (first, 1)
    again = first + BACK + US + BACK + US
    assert acknowledged(outcome)[1] == (again + 2 * TX + US + TX + US, 3)


def test_ack_delay_above_min_rto_is_rejected():
    with pytest.raises(ScenarioError, match="delayed_acks: is not below min_rto"):
        build_scenario({
            "name": "x", "topology": {"kind": "star", "hosts": 3},
            "transport": {"kind": "cubic", "delayed_acks": "40ms"},
            "traffic": [{"kind": "all_to_all", "name": "a", "size": "1kB"}],
        })  # fmt: skip
