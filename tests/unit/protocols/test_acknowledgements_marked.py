"""Which acknowledgements understand congestion marks: as Linux has it, of DCTCP's only; and how their marks are counted."""

from __future__ import annotations

import pytest

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import ACK, DATA
from gradwire.topology import LinkSpec, star

NEWRENO, DCTCP, DLCP = 0, 1, 2


def case(number, ecn, **switch):
    """Everybody sends to everybody, so that acknowledgements queue behind data."""
    tables = [
        TcpNewReno.model_validate({"kind": "tcp_newreno", "payload": "1000B", "ecn": ecn}),
        Dctcp.model_validate({"kind": "dctcp", "payload": "1000B", "ecn": ecn}),
        Dlcp.model_validate({"kind": "dlcp", "payload": "1000B"}),
    ]
    letters = [MessageSpec(0, a, b, 60_000, number) for a in range(4) for b in range(4) if a != b]
    table = Switch.model_validate({"buffer": "40KB", "ecn_threshold": "2KB", **switch})
    return Case(star(4, LinkSpec(10 * 10**9, 10**6)), tables, letters, table)


def outcome_of(*arguments, **switch):
    given = case(*arguments, **switch)
    engine, oracle = run_engine(given), run_oracle(given)
    assert first_difference(engine, oracle) == ""
    assert len(engine.arrivals) == len(given.letters)
    return engine


def marked(outcome, kind):
    """Packets of a kind that leave the switch with a mark."""
    return sum(t.packet.ce for t in outcome.transmissions if t.packet.kind == kind)


@pytest.mark.parametrize("ecn", [False, True])
def test_acknowledgements_of_newreno_are_not_ect(ecn):
    """RFC 3168, section 6.1.4: a pure acknowledgement is sent with the not-ECT codepoint."""
    outcome = outcome_of(NEWRENO, ecn)
    assert not any(t.packet.important for t in outcome.transmissions if t.packet.kind == ACK)
    assert marked(outcome, ACK) == 0 == sum(port.control_marks for port in outcome.ports)
    assert sum(port.marks for port in outcome.ports) == marked(outcome, DATA)
    assert (marked(outcome, DATA) > 0) == ecn


def test_selective_drop_discards_newreno_acknowledgements():
    outcome = outcome_of(NEWRENO, True, selective_drop=True)
    assert {drop.packet.kind for drop in outcome.drops if drop.cause == "selective"} == {ACK}


@pytest.mark.parametrize("ecn", [False, True])
def test_dctcp_acknowledgements_are_ect_with_separate_mark_counter(ecn):
    outcome = outcome_of(DCTCP, ecn)
    assert all(t.packet.important == ecn for t in outcome.transmissions if t.packet.kind == ACK)
    assert sum(port.control_marks for port in outcome.ports) == marked(outcome, ACK)
    assert sum(port.marks - port.control_marks for port in outcome.ports) == marked(outcome, DATA)
    assert (marked(outcome, ACK) > 0) == (marked(outcome, DATA) > 0) == ecn


def test_dlcp_control_packets_are_important():
    outcome = outcome_of(DLCP, True, selective_drop=True)
    assert all(t.packet.important for t in outcome.transmissions if t.packet.kind != DATA)
