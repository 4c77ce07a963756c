"""A DLCP message over the simulator's ends and the sockets' at once: both are told the same, and compared after every step."""

from __future__ import annotations

import numpy as np
from transport_bench import GBPS, US

from gradwire.emu.agent.base import MessageRow
from gradwire.emu.transports import dlcp
from gradwire.emu.transports.simulator_rules import Pairs, ReceivingEnd, Rules, SendingEnd
from gradwire.emu.wire.header import ACK, BITMAP, STOP
from gradwire.jit.records import constants as at
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.protocols.transports.base import Context
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.dlcp.records import DlcpFlow, DlcpPair
from gradwire.protocols.transports.dlcp.sender import NUMBERS
from gradwire.testing import FlowHarness

BASE = 10 * US
LINE = -(-(8_000_000_000_000 << 16) // (100 * GBPS))
PLACES = {
    entry.offset
    for entry in (
        Sender.bitmaps, Sender.peer_bitmaps, Sender.tags, Sender.sent, Sender.last_bytes, Sender.stamps, Sender.pair,
    )
}  # fmt: skip
"""words of a sender's record that say where others are, or that the engine writes"""
PEER_PLACES = {entry.offset for entry in (Receiver.bitmaps, Receiver.tags, Receiver.pair, Receiver.host)}


def same_but(places, ours, theirs):
    """Whether two records are the same in all other words. It is asked millions of times."""
    for place in places:
        ours[place] = theirs[place]
    return ours == theirs


class Both:
    """The simulator's ends and the sockets', told the same; every step compares them.

    flow, pair : the records of the sockets' sender, and of its pair.
    """

    def __init__(self, packets, payload=100, last=100, tags=True, allowed=0, entropy=0, **settings):
        self.ends = FlowHarness(
            Dlcp, packets, payload=payload, last=last, tags=tags, allowed=allowed, base_rtt=BASE, entropy=entropy,
            **settings,
        )  # fmt: skip
        nbytes = payload * (packets - 1) + last
        important = tags if isinstance(tags, bool) else np.array(tags, dtype=bool)
        row = MessageRow(0, 0, 0, 1, nbytes, 0, (allowed + 0.5) / nbytes, important, 0)
        rules = Rules(Dlcp, Dlcp.defaults() | settings, Context(LINE, payload, BASE, LINE))
        self.sender = SendingEnd(rules, row, 0, entropy, Pairs(Dlcp))
        self.flow = DlcpFlow(self.sender.block.words, self.sender.record.base)
        self.pair = DlcpPair(self.sender.group.pair.words, 0)
        self.there = Pairs(Dlcp)
        self.receiver = ReceivingEnd(rules, row, self.there)
        assert self.receiver.record.allowed_loss == allowed
        self.same()

    def same(self):
        ends, s, r = self.ends, self.sender, self.receiver
        theirs = ends.memory[ends.f : ends.f + Sender.WORDS]
        assert same_but(PLACES, s.block.words[s.record.base : s.record.base + Sender.WORDS].tolist(), theirs)
        assert (s.gap, s.timer, int(s.done)) == (ends.sender.gap, ends.sender.timer, ends.sender.is_done)
        theirs = ends.memory[ends.r : ends.r + Receiver.WORDS]
        ours = r.block.words[r.record.base : r.record.base + Receiver.WORDS].tolist()
        assert same_but(PEER_PLACES, ours, theirs)
        for block, record in (
            (s.group.pair, ends.sender.pair),
            (self.there.peer(r.row), ends.receiver.pair),
            (self.there.host, ends.receiver.host),
        ):
            assert block.words.tolist() == ends.memory[record.base : record.base + len(block.words)]

    def same_bitmaps(self):
        words = self.sender.words
        for bitmap in range(Dlcp.sender_bitmaps):
            theirs = self.ends.sender.bitmaps.base + bitmap * words
            assert self.sender.bitmap(bitmap) == self.ends.memory[theirs : theirs + words]

    def set_pair(self, **values):
        """Set fields of the pair's record, at both."""
        for field, value in values.items():
            setattr(self.ends.sender.pair, field, value)
            setattr(self.pair, field, value)

    def pull(self, now):
        theirs = self.ends.pull(now, most=1)
        ours = self.sender.pull(now)
        assert ours == (theirs[0] if theirs else -1)
        self.same()
        return ours

    def data(self, sequence, ce, now):
        theirs = self.ends.data(sequence, ce, now)
        word = self.receiver.take(
            sequence, min(self.receiver.payload, self.receiver.nbytes - sequence * self.receiver.payload), ce, now
        )
        ours = self.kind(word, theirs)
        self.same()
        return ours, word >> 40

    def kind(self, word, theirs):
        """What our receiver answers, -1 for nothing; the same as theirs."""
        if not word:
            assert theirs.count == 0
            return -1
        kind = self.receiver.rules.answer(word)[0]
        assert (kind, bool(word & 8), word >> 18 & 0xFFF) == (theirs.kind, bool(theirs.echo), theirs.count)
        assert word >> 40 == theirs.argument
        return kind

    def ack(self, sequence, echo, now, senders=1):
        if not self.sender.done:
            self.ends.ack(sequence, senders, echo=echo, now=now)
            self.sender.take(ACK, sequence, senders, echo, now)
            self.same()

    def probe(self, number, now):
        theirs = self.ends.probe(number, now)
        ours = self.kind(self.receiver.on_probe(number, now), theirs)
        if ours == BITMAP:
            assert theirs.count == len(dlcp.parts_of(self.receiver, number >> 12)) and theirs.argument == number
            assert theirs.size == 66 + len(dlcp.parts_of(self.receiver, 0)[0][1])
        self.same()
        return ours

    def bitmap(self, part, number, first, content, now):
        """A part of an answer. The simulator's sender reads the last snapshot, which must be the one it asked for."""
        self.ends.control(at.BITMAP, part, number, now=now)
        dlcp.take_part(self.sender, first, content, number & NUMBERS, now)
        self.same()
        self.same_bitmaps()

    def stop(self):
        self.ends.control(at.STOP, 0, 0)
        self.sender.take(STOP, 0, 0, 0, 0)
        self.same()

    def fire(self):
        now = self.ends.fire()
        assert now == self.sender.timer
        self.sender.on_timer(now)
        self.same()
        return now
