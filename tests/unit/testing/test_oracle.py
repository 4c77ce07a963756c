"""The oracle's own parts, and cases in which the engine once differed from it, reduced."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

import gradwire.sim.engine.time_advance
from gradwire.jit.counter_rng import draw
from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.transports import base
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine.memory import engine_memory
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import DATA, Packet, packet_of
from gradwire.topology import LinkSpec, leaf_spine, star

US = 10**6
NEWRENO, DCTCP, DLCP = 0, 1, 2


def tables(payload="1000B", **dlcp):
    """One of each, in the order that the property tests use, so that they share compiled engines."""
    return [
        TcpNewReno.model_validate({"kind": "tcp_newreno", "payload": payload}),
        Dctcp.model_validate({"kind": "dctcp", "payload": payload}),
        Dlcp.model_validate({"kind": "dlcp", "payload": payload, **dlcp}),
    ]


def agree(case):
    engine, oracle = run_engine(case), run_oracle(case)
    assert first_difference(engine, oracle) == ""
    assert len(engine.arrivals) == len(case.letters)
    return engine


# --- the oracle's parts -------------------------------------------------------------------------------------------


@njit
def _below(x):
    return draw(x, 3) & 0xFF


@njit
def _above(words, x):
    return base.bit(words, _below(x) & 31)


def test_uncompiled_functions_call_no_compiled_functions():
    function = uncompiled(_above)
    assert not any(hasattr(value, "py_func") for value in function.__globals__.values())
    assert function.__globals__["_below"] is uncompiled(_below)
    assert function.__globals__["base"].bit is uncompiled(base.bit)  # through the module
    assert [function([0x5555AAAA], n) for n in range(100)] == [_above(np.array([0x5555AAAA]), n) for n in range(100)]


def test_packet_survives_encoding_into_words():
    packet = Packet(5, 4, 0xFFFF, 0x3FFF, 7, True, 0xFFFF, sequence=0x3FFFFF, argument=0x3FFFFF, ce=True, echo=True)
    assert packet_of(*packet.as_words(), 5) == packet
    assert packet_of(*Packet(5, 0, 1, 60, 0, False, 2).as_words(), 5) == Packet(5, 0, 1, 60, 0, False, 2)


def test_first_difference_finds_changed_and_missing_transmissions():
    case = Case(star(2, LinkSpec(10**9, US)), tables(), [MessageSpec(0, 0, 1, 5000, DLCP)])
    one, other = run_oracle(case), run_oracle(case)
    assert first_difference(one, other) == ""
    start = one.transmissions[3]
    one.transmissions[3] = start._replace(start=start.start + 1)
    assert first_difference(one, other).startswith("transmissions[3] of ")
    del one.transmissions[3:]
    assert "oracle" in first_difference(one, other)


# --- what the engine once did differently ---------------------------------------------------------------------------


def test_mixed_transports_keep_their_packet_kinds():
    """The dispatch over several transports once overwrote the packet kind, so a DLCP flow took acknowledgements for
    Stop."""
    network = star(3, LinkSpec(10**10, US, 0.1))
    engine = agree(Case(network, tables(), [MessageSpec(0, 0, 2, 50_000, kind) for kind in (DLCP, DCTCP, NEWRENO)]))
    assert any(engine.again)


def test_retransmitted_last_packet_keeps_its_short_size():
    """Packets requested by a Bitmap are marked important in their sequence number, which once hid the last packet."""
    network = star(2, LinkSpec(10**9, US, 0.4))
    engine = agree(Case(network, tables(), [MessageSpec(0, 0, 1, 2_010, DLCP)] * 20, seed=3))
    sizes = [t.packet.size for t in engine.transmissions if t.packet.kind == DATA and t.packet.sequence == 2]
    assert len(sizes) > 2 * 20 and set(sizes) == {68}


def test_stop_ends_a_flow_waiting_for_the_nic():
    """A flow sends no data after Stop arrives, whether alone at the NIC or not."""
    network = star(3, LinkSpec(10**9, US))
    letters = [MessageSpec(0, 0, 1, 200_000, DLCP, bound=0.5, important=False)]
    alone = agree(Case(network, tables(), letters))
    together = agree(Case(network, tables(), letters * 3))
    for outcome in (alone, together):
        for number, sent in enumerate(outcome.sent):
            stopped = max(t.start for t in outcome.transmissions if t.packet.flow == number and t.packet.kind == 2)
            late = [t for t in outcome.transmissions if t.packet.flow == number and t.start > stopped + 20 * US]
            assert sent < 150 and not [t for t in late if t.packet.kind == DATA and t.link == 0]


def test_timers_of_finished_flows_do_not_fill_the_timer_heap(monkeypatch):
    """Hundreds of short messages within one time-out leave pending timers, which once filled the host's heap and its
    neighbour's."""
    monkeypatch.setattr(gradwire.sim.engine.time_advance, "CLOSE_BATCH", 1 << 40)
    letters = [MessageSpec(0, src, 1 - src, 100, DCTCP) for src in (0, 1)]
    letters += [MessageSpec(2 * US, n % 5 // 4, 1 - n % 5 // 4, 3_000, DCTCP, after=n) for n in range(200)]
    engine = agree(Case(star(2, LinkSpec(10**11, US)), tables(), letters))
    assert engine.arrivals[-1].time < 2_000 * US


@pytest.mark.parametrize("batch", [1, 64])
def test_simultaneous_messages_start_in_sending_order(batch, monkeypatch):
    """Flow records are reused latest first, which once reversed messages sent at the same time."""
    monkeypatch.setattr(gradwire.sim.engine.time_advance, "CLOSE_BATCH", batch)
    letters = [MessageSpec(n, 0, 1, 500, DLCP) for n in range(100)]
    letters += [MessageSpec(500 * US, 0, 1, 9_000, DLCP)] + [MessageSpec(40 * US, 0, 1, 500, DLCP, after=100)] * 100
    engine = agree(Case(star(2, LinkSpec(10**10, US)), tables(), letters))
    firsts = [t.packet.flow for t in engine.transmissions if t.link == 0 and t.packet.kind == DATA]
    assert firsts[-100:] == list(range(101, 201))


def test_bitmaps_of_several_packets_match_the_oracle():
    """Long messages over a lossy link need several Bitmap packets and lose some control packets."""
    network = star(2, LinkSpec(10**11, US, 0.05))
    payload = {"payload": "64B", "probe_timeout": "20us"}
    agree(Case(network, tables(**payload), [MessageSpec(0, 0, 1, 64 * 9_000 + 1, DLCP)], seed=5))


@pytest.mark.parametrize("balancing", ["ecmp", "spray_random"])
def test_memory_prefetch_does_not_change_the_run(monkeypatch, balancing):
    """Engines of large networks prefetch the next node's memory; here a small network does, too."""
    letters = [MessageSpec(n * US // 2, n % 6, (n + 3) % 6, 30_000, n % 3) for n in range(24)]
    switch = Switch.model_validate({"buffer": "30kB", "ecn_threshold": "10kB", "queues": 2})
    case = Case(leaf_spine(2, 3, 2, LinkSpec(10**10, US)), tables(), letters, switch, balancing)
    monkeypatch.setattr(engine_memory, "NEAR_LINKS", 0)
    assert agree(case).transmissions
