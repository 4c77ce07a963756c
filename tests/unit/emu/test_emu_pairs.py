"""What messages between two hosts share, on sockets beside the simulator's functions uncompiled.

Several hosts send several messages each to one host; both worlds are told the same, and what a pair shares at its
sender and at its receiver, and what all share at the host, is the same word by word.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from transport_bench import GBPS, US

from gradwire.emu.agent.base import MessageRow
from gradwire.emu.agent.core.layout import NicFlow
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.planning.planner import transport_plan
from gradwire.emu.transports.datagrams import DatagramCarrier
from gradwire.emu.transports.endpoint import Endpoint
from gradwire.emu.transports.simulator_rules import Pairs, ReceivingEnd, Rules, SendingEnd
from gradwire.emu.wire.header import ACK, STOP
from gradwire.jit.counter_rng import draw_entropy
from gradwire.jit.records import constants as at
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.packets import entropy_of
from gradwire.protocols.transports.base import IMPORTANT_FLAG, Context
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.dlcp.records import DlcpHost, DlcpPair, DlcpPeer
from gradwire.scenarios.loss import LossAllowance
from gradwire.testing import transport
from gradwire.testing.oracle.flows import Flow, Memory, Protocol

PAYLOAD, BASE, SENDERS, EACH = 100, 10 * US, 3, 4
LINE = -(-(8_000_000_000_000 << 16) // (100 * GBPS))
CONTEXT = Context(LINE, PAYLOAD, BASE, LINE)


class Both:
    """Messages of hosts 0, 1, ... to the last one, in the simulator's words and in the sockets'."""

    def __init__(self, rng, **settings):
        self.memory = Memory()
        table = transport("dlcp", payload=f"{PAYLOAD}B", **settings)
        parameters = Dlcp.parameters(table.model_dump(), CONTEXT)
        protocol = Protocol(self.memory, 0, Dlcp, table, parameters)
        rules = Rules(Dlcp, table.model_dump(), CONTEXT)
        here, there = [Pairs(Dlcp) for _ in range(SENDERS)], Pairs(Dlcp)
        host = self.memory.take(DlcpHost.WORDS)
        self.shared = [(there.host, host)]
        self.theirs, self.ours, self.receivers = [], [], []
        for src in range(SENDERS):
            words = self.memory.take(DlcpPair.WORDS), self.memory.take(DlcpPeer.WORDS), host
            for number in range(src, SENDERS * EACH, SENDERS):
                nbytes, important = PAYLOAD * rng.randrange(1, 120), rng.random() < 0.5
                row = MessageRow(number, 0, src, SENDERS, nbytes, rng.choice([2, 5]), 0.3, important, 0, 0.1,
                                 rng.choice([0, 2, 2, 3, 4]), rng.randrange(100))  # fmt: skip
                entropy = rng.randrange(1 << 16)
                self.theirs.append(
                    Flow(
                        self.memory, protocol, number=number, src=src, dst=SENDERS, nbytes=nbytes, priority=row.priority,
                        loss=LossAllowance(row.bound, row.share, row.pool), turn=row.turn, important=important, entropy=entropy, line_speed=LINE, shared=words,
                    )
                )  # fmt: skip
                self.theirs[-1].on_sender("start", 0)
                self.ours.append(SendingEnd(rules, row, 0, entropy, here[src]))
                self.receivers.append(ReceivingEnd(rules, row, there))
            self.shared += [(self.ours[-1].group.pair, words[0]), (there.peer(row), words[1])]
        self.same()

    def same(self):
        for ours, base in self.shared:
            assert ours.words.tolist() == self.memory[base : base + len(ours.words)]

    def pull(self, which, now):
        got = self.ours[which].pull(now)
        assert got == self.theirs[which].on_sender("pull", now)
        self.same()
        return got

    def fire(self, which, now):
        self.ours[which].on_timer(now)
        self.theirs[which].timer = 0
        self.theirs[which].on_sender("on_timer", now)
        self.same()

    def data(self, which, sequence, ce, now):
        receiver = self.receivers[which]
        word = receiver.take(sequence, min(receiver.payload, receiver.nbytes - sequence * receiver.payload), ce, now)
        assert (
            word
            == self.theirs[which].arrive(
                sequence, min(receiver.payload, receiver.nbytes - sequence * receiver.payload), ce, now
            )[0]
        )
        self.same()
        return word

    def control(self, which, word, sequence, now):
        sender = self.ours[which]
        sender.take(word & 7, sequence, word >> 40, word >> 3 & 1, now)
        self.theirs[which].on_sender("on_control", word & 7, sequence, word >> 40, word >> 3 & 1, now)
        self.same()


@pytest.mark.parametrize("control", ["receiver", "dctcp", "delay"])
@pytest.mark.parametrize("seed", range(4))
def test_pair_state_equals_the_simulator_until_all_messages_finish(control, seed):
    """No packet is lost, but many are marked and late. Droppable messages may use the loss budget that important
    messages leave unused."""
    rng = random.Random(f"{control} {seed}")
    both = Both(rng, rate_control=control, t_low="5us", t_high="40us")
    now, bag, most = 0, [], 0
    for _ in range(20_000):
        now += rng.randrange(US // 10)
        which = rng.randrange(SENDERS * EACH)
        sender = both.ours[which]
        if 0 < sender.timer <= now and not sender.done:
            both.fire(which, now)
        if not sender.done and len(bag) < 20 and 0 <= (got := both.pull(which, now)) < at.PULL_PROBE:
            bag.append((which, "data", got & (IMPORTANT_FLAG - 1)))
        if bag and rng.random() < 0.7:
            which, what, *more = bag.pop(rng.randrange(len(bag)))
            if what == "data":
                word = both.data(which, *more, int(rng.random() < 0.1), now)
                if word & 7 in (ACK, STOP) and word:
                    bag.append((which, "control", word, *more))
            elif not both.ours[which].done:
                both.control(which, *more, now)
        most = max(most, DlcpPair(both.ours[0].group.pair.words, 0).senders)
        if all(each.done for each in both.ours):
            break
    assert all(each.done for each in both.receivers) and all(each.done for each in both.ours)
    assert most == (SENDERS if control == "receiver" else 0)
    assert DlcpHost(both.shared[0][0].words, 0).senders == 0  # all is delivered: nobody sends


def carrier(number_of_sources=32):
    """A carrier of DLCP at host 0 without sockets."""
    host = SimpleNamespace(
        node=0, seed=11, rate=10**9, clock="virtual", loop=EpollLoop(), base_rtt_ps=lambda row: BASE + row.dst,
        slowest=lambda row: LINE, address=lambda node: f"10.0.0.{node + 1}", outgoing=lambda message: memoryview(bytearray(400)),
    )  # fmt: skip
    endpoint = Endpoint(host, PAYLOAD)
    endpoint.sources = [SimpleNamespace(fileno=lambda: -1)] * number_of_sources
    return DatagramCarrier(host, transport_plan(transport("dlcp", payload="100B"), None), endpoint)


def row_of(number, src, dst, priority=0):
    return MessageRow(number, 0, src, dst, 400, priority, 0.0, True, 0)


def test_carrier_has_one_pair_per_host_and_one_group_per_priority():
    made = carrier()
    first, again, other, elsewhere = (
        made.make_sender(row_of(number, 0, *more)) for number, more in enumerate([(1, 2), (1, 2), (1, 5), (2, 2)])
    )
    assert first.group is again.group and other.group is not first.group
    assert first.group.pair is other.group.pair and first.record.pair.base == first.group.pair.index
    assert elsewhere.group.pair is not first.group.pair
    came, too, from_another = (made.make_receiver(row_of(number, src, 0)) for number, src in ((9, 1), (10, 1), (11, 2)))
    pairs, hosts = (
        [getattr(each.record, name).base for each in (came, too, from_another)] for name in ("pair", "host")
    )
    assert pairs[0] == pairs[1] != pairs[2] and hosts[0] == hosts[1] == hosts[2]


def test_messages_have_the_entropy_of_the_simulator():
    made = carrier()
    for number in (0, 7, 70_000):
        word = made.make_sender(row_of(number, 0, 1)).record.data_header
        assert entropy_of(word) == draw_entropy(11, number)
    assert len(np.unique(draw_entropy(11, np.arange(100)))) > 90


def test_prepared_endpoints_are_used_and_start_when_the_message_is_sent(monkeypatch):
    """Prepared endpoints equal fresh ones, and AHEAD_WORDS limits their memory."""
    made, asked, begun = carrier(), [], []
    monkeypatch.setattr(made.host, "outgoing", lambda message: asked.append(message) or memoryview(bytearray(400)))
    monkeypatch.setattr(SendingEnd, "start", lambda end, now: begun.append((end.number, now)))
    monkeypatch.setattr(made.endpoint.nic, "begin", lambda end: None)
    monkeypatch.setattr(made.endpoint.nic, "serve", lambda: None)
    rows = {row.number: row for row in (row_of(1, 0, 2), row_of(2, 3, 0), row_of(3, 0, 4), row_of(4, 0, 4))}
    made.host.row = rows.__getitem__
    words = len(made.make_sender(rows[1]).block.words) + len(made.make_receiver(rows[2]).block.words)
    monkeypatch.setattr("gradwire.emu.transports.datagrams.AHEAD_WORDS", words)
    made.prepare(rows.values())
    assert not asked and not begun
    senders, receivers = dict(made._senders_made), dict(made._receivers_made)
    assert (list(senders), list(receivers)) == ([1, 3], [2])  # the room is used up with the third
    assert made.receiver(rows[2]) is receivers[2] and made.receiver(rows[2]) is not receivers[2]
    for message in (3, 1, 4):
        made.send(message)
    assert made.endpoint.senders[1] is senders[1] and made.endpoint.senders[3] is senders[3]
    assert asked == [number for number, _ in begun] == [3, 1, 4] and not made._senders_made
    fresh = made.make_sender(rows[1])
    different = {n for n, (a, b) in enumerate(zip(fresh.block.words, senders[1].block.words, strict=True)) if a != b}
    own = (NicFlow.WORDS + field.offset for field in (Sender.bitmaps_base, Sender.peer_bitmaps_base))
    assert different <= {NicFlow.content.offset, *own}  # where its memory is
