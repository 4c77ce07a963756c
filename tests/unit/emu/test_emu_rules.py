"""Every transport that runs on sockets, beside the simulator: one recorded course of events, told to both worlds.

The course is what happened to a message whose packets are lost, marked and overtaken at random: what the simulator's
sender sent, what arrived when, and when its timer went off. Told the same, the sockets' ends decide the same at every
step, and both records are the same word by word.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from transport_bench import GBPS, MS, US

import gradwire
from gradwire.emu.agent.base import MessageRow
from gradwire.emu.planning.capabilities import available_transports, missing_features
from gradwire.emu.planning.planner import transport_plan
from gradwire.emu.transports.simulator_rules import ReceivingEnd, Rules, SendingEnd, transport_class
from gradwire.jit.records.constants import BLOCKED, STOP
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.protocols.transports.base import Context
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.wire import TCP_OVERHEAD, UDP_OVERHEAD
from gradwire.testing import FlowHarness, transport

BASE, PAYLOAD = 10 * US, 1400
EXAMPLES = str(Path(gradwire.__file__).resolve().parents[1] / "examples")
LINE = -(-(8_000_000_000_000 << 16) // (100 * GBPS))
SLOW = -(-(8_000_000_000_000 << 16) // (40 * GBPS))
PLACES = {
    entry.offset
    for entry in (
        Sender.bitmaps, Sender.peer_bitmaps, Sender.tags, Sender.sent, Sender.last_bytes, Sender.stamps,
        Sender.data_header, Sender.pair,
    )
}  # fmt: skip
PEER_PLACES = {entry.offset for entry in (Receiver.bitmaps, Receiver.tags, Receiver.pair, Receiver.host)}
RUNNING = [kind for kind in available_transports() if not components("transport")[kind].congestion()]


class Both:
    """The simulator's ends and the sockets', told the same."""

    def __init__(self, kind, packets, tags, allowed, **settings):
        owner = transport_class(kind)
        self.ends = FlowHarness(
            owner, packets, payload=PAYLOAD, tags=tags, allowed=allowed, base_rtt=BASE, slowest=40 * GBPS, **settings
        )
        nbytes = PAYLOAD * packets
        important = tags if isinstance(tags, bool) else np.array(tags, dtype=bool)
        row = MessageRow(0, 0, 0, 1, nbytes, 0, (allowed + 0.5) / nbytes, important, 0)
        rules = Rules(owner, owner.defaults() | settings, Context(LINE, PAYLOAD, BASE, SLOW))
        self.sender, self.receiver = SendingEnd(rules, row, 0), ReceivingEnd(rules, row)
        self.owner = owner
        self.same()

    def same(self):
        for word in range(Sender.WORDS):
            if word not in PLACES:
                assert self.sender.word(word) == self.ends.memory[self.ends.f + word], word
        for word in range(Receiver.WORDS):
            if word not in PEER_PLACES:
                assert self.receiver.word(word) == self.ends.memory[self.ends.r + word], word
        for bitmap in range(self.owner.sender_bitmaps):
            begin, words = self.ends.sender.bitmaps.base + bitmap * self.sender.words, self.sender.words
            assert self.sender.bitmap(bitmap) == self.ends.memory[begin : begin + words]

    def pull(self, now):
        theirs = self.ends.pull(now, most=1)
        ours = self.sender.pull(now)
        assert ours == (theirs[0] if theirs else BLOCKED)
        self.same()
        return ours

    def data(self, sequence, ce, now):
        theirs = self.ends.data(sequence, ce, now)
        word = self.receiver.take(sequence, PAYLOAD, ce, now)
        self.same()
        if not word:
            assert theirs.count == 0
            return None
        kind = self.receiver.rules.answer(word)[0]
        assert (kind, bool(word & 8), word >> 18 & 0xFFF) == (theirs.kind, bool(theirs.echo), theirs.count)
        assert word >> 40 == theirs.argument
        return kind, sequence, word >> 40, int(theirs.echo)

    def control(self, kind, sequence, argument, echo, now):
        self.ends.control(kind, sequence, argument, echo, now)
        self.sender.take(kind, sequence, argument, echo, now)
        self.same()

    def fire(self):
        now = self.ends.fire()
        self.sender.on_timer(now)
        self.same()
        return now


@pytest.mark.parametrize("kind", [*(kind for kind in RUNNING if kind != "dlcp"), "nscc"])
@pytest.mark.parametrize("packets", [1, 5, 33, 400])
@pytest.mark.parametrize("seed", range(4))
def test_socket_endpoints_match_the_simulator_under_random_events(kind, packets, seed):
    """DLCP, which answers over the side channel, is tested in `test_emu_dlcp_rules`."""
    rng = random.Random(f"{kind} {packets} {seed}")
    loss, marks = rng.choice([0.0, 0.05, 0.3]), rng.choice([0.0, 0.2])
    lossy = kind in ("ltp", "constant_rate")
    allowed = rng.choice([0, PAYLOAD * packets // 10]) if lossy else 0
    tags = rng.choice([True, False, [rng.random() < 0.5 for _ in range(packets)]])
    table = {
        "timely": {"t_low": 15 * US, "t_high": 100 * US, "min_rto": MS},
        "swift": {"min_rto": MS},
        "nscc": {"trimming": False},
    }
    both = Both(kind, packets, tags, allowed, **table.get(kind, {}))
    now, bag = 0, []
    for _ in range(60 * packets + 3000):
        if len(bag) < 30:
            for _ in range(10):
                if both.sender.done or (got := both.pull(now)) < 0:
                    break
                bag.append(("data", got & ((1 << 30) - 1)))
        now += rng.randrange(1, US)
        timer = both.sender.timer
        if not both.sender.done and (not bag or 0 < timer <= now):
            assert timer, "nothing on its way, and no timer"
            now = max(now, timer)
            both.fire()
            continue
        what, *more = bag.pop(min(len(bag) - 1, int(rng.expovariate(0.3))))
        if rng.random() < loss:
            continue
        if what == "data":
            answer = both.data(more[0], int(rng.random() < marks), now)
            if answer:
                bag.append(("control", *answer))
        else:
            both.control(*more, now)
        if both.sender.done:
            break
    assert both.sender.done and both.receiver.done
    assert both.receiver.nbytes - both.receiver.received_bytes <= allowed
    here = both.receiver.arrived()
    assert here is None or (len(here) == packets and int(here.sum()) * PAYLOAD == both.receiver.received_bytes)


def test_transports_unavailable_on_sockets_report_missing_features():
    assert {"dlcp", "ltp", "timely", "swift", "constant_rate"} == set(RUNNING)
    for kind in set(components("transport")) - set(available_transports()):
        assert missing_features(transport(kind)), kind
    assert missing_features(transport("nscc", trimming=False)) == []
    assert "PFC" in missing_features(transport("dcqcn"))[0] and "headers" in missing_features(transport("ndp"))[0]


def test_packet_overhead_equals_the_simulator():
    """Swift's packets have TCP headers, so zeros fill up gradwire's shorter header."""
    for kind, overhead in (("swift", TCP_OVERHEAD), ("timely", UDP_OVERHEAD), ("dlcp", UDP_OVERHEAD)):
        plan = transport_plan(transport(kind), None)
        assert (plan.overhead, plan.answer) == (overhead, transport_class(kind).control_bytes)
        rules = Rules(transport_class(kind), plan.parameters, Context(LINE, plan.payload, BASE, LINE))
        assert rules.fill == overhead - UDP_OVERHEAD


def test_user_defined_transport_runs_unchanged_on_sockets():
    plan = transport_plan(transport("constant_rate:ConstantRate", percent=50), EXAMPLES)
    owner = transport_class(plan.kind, plan.folder)
    row = MessageRow(0, 0, 0, 1, 4000, 0, 0.0, True, 0)
    rules = Rules(owner, plan.parameters, Context(LINE, 1000, BASE, LINE))
    sender, receiver = SendingEnd(rules, row, 0), ReceivingEnd(rules, row)
    sent = [sender.pull(0) for _ in range(5)]
    assert sent == [0, 1, 2, 3, BLOCKED] and sender.gap == 2 * LINE
    answers = [receiver.take(sequence, 1000, 0, 0) for sequence in range(4)]
    assert receiver.done and rules.answer(answers[3])[0] == STOP
    assert missing_features(transport("constant_rate:ConstantRate"), EXAMPLES) == []
