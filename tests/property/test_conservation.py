"""What goes in comes out: packets, bytes, and no message with more loss than its bound. Judged by the engine's logs
alone, without the oracle."""

from __future__ import annotations

from collections import Counter

from budgets import budget
from hypothesis import given
from hypothesis import strategies as st
from random_cases import US, cases

from gradwire.jit.records import constants as at
from gradwire.jit.records.network import Port, QueueClass
from gradwire.jit.records.packets import size_of
from gradwire.testing.oracle import run_engine
from gradwire.testing.oracle.packets import DATA


def waiting(fabric):
    """Per directed link: sizes of the packets in the queues of its port."""
    state = fabric.memory.state
    found = []
    for port in fabric.memory.port_base.tolist():
        sizes = []
        for c in range(8):
            if not state[port + Port.queue.offset] >> c & 1:
                continue
            record = port + Port.classes.offset + c * QueueClass.WORDS
            entry, mine = int(state[record + QueueClass.head.offset]), []
            while True:
                mine.append(size_of(int(state[entry + 1])))
                if entry == state[record + QueueClass.tail.offset]:
                    break
                entry = int(state[entry])
            assert sum(mine) == state[record + QueueClass.nbytes.offset]
            sizes += mine
        assert sum(sizes) == state[port + Port.queue.offset] >> 8
        found.append(sizes)
    return found


@budget(0.8)
@given(cases(("ecmp",)), st.one_of(st.none(), st.integers(1, 100 * US)))
def test_every_sent_packet_is_delivered_dropped_or_in_flight(case, until):
    fabrics = []
    outcome = run_engine(case, prepare=fabrics.append, **({} if until is None else {"until": until}))
    network, fabric = case.network, fabrics[0]
    end = fabric.now
    hosts = network.host_count
    speed = [-(-(8 * 10**12 << 16) // int(rate)) for rate in network.link_rate]

    def arrival(t):
        return t.start + -(-t.packet.size * speed[t.link] // 65536) + int(network.link_latency[t.link])

    sent = Counter(t.packet.flow for t in outcome.transmissions if network.link_src[t.link] < hosts)
    arrived = [t for t in outcome.transmissions if not t.lost and arrival(t) < end]
    delivered = Counter(t.packet.flow for t in arrived if network.link_dst[t.link] < hosts)
    dropped = Counter(drop.packet.flow for drop in outcome.drops)
    on_wires = Counter(t.packet.flow for t in outcome.transmissions if not t.lost and arrival(t) >= end)
    entered = Counter(int(network.link_dst[t.link]) for t in arrived)
    left = Counter(int(network.link_src[t.link]) for t in outcome.transmissions)
    refused = Counter(int(network.link_src[drop.link]) for drop in outcome.drops if drop.cause != "link_loss")
    queues = waiting(fabric)
    for switch in range(hosts, network.node_count):
        inside = sum(len(queues[link]) for link in range(network.link_count) if network.link_src[link] == switch)
        assert entered[switch] == left[switch] + refused[switch] + inside
    in_switches = sum(len(sizes) for link, sizes in enumerate(queues) if network.link_src[link] >= hosts)
    totals = [counts.total() for counts in (sent, delivered, dropped, on_wires)]
    assert totals[0] == totals[1] + totals[2] + totals[3] + in_switches
    if fabric.idle:
        assert not on_wires and not any(queues)
        assert sent == delivered + dropped


@budget(0.5)
@given(cases(("ecmp",)))
def test_port_and_message_counters_equal_sums_over_packets(case):
    outcome = run_engine(case)
    for link, port in enumerate(outcome.ports):
        mine = [t for t in outcome.transmissions if t.link == link]
        drops = Counter(drop.cause for drop in outcome.drops if drop.link == link)
        assert (port.packets, port.bytes) == (len(mine), sum(t.packet.size for t in mine))
        assert (port.tail, port.selective) == (drops["tail"], drops["selective"])
        assert port.link_loss == drops["link_loss"] == sum(t.lost for t in mine)
        assert port.peak <= case.switch.buffer
    new_marks = sum(port.marks for port in outcome.ports)
    seen = {(t.packet.flow, t.packet.kind, t.packet.sequence, t.link) for t in outcome.transmissions if t.packet.ce}
    assert (new_marks > 0) >= bool(seen)
    for number, sent in enumerate(outcome.sent):
        first_hops = [
            t.packet for t in outcome.transmissions
            if t.packet.flow == number and case.network.link_src[t.link] < case.network.host_count
            and t.packet.kind in (DATA, at.PROBE)
        ]  # fmt: skip
        assert len(first_hops) == sent
        sequences = [packet.sequence for packet in first_hops if packet.kind == DATA]
        assert outcome.again[number] == len(sequences) - len(set(sequences))


@budget(0.8)
@given(cases(("spray_random",)))
def test_no_message_is_delivered_with_more_loss_than_its_bound(case):
    fabrics = []
    outcome = run_engine(case, prepare=fabrics.append)
    letters = letters_by_message(case, outcome)
    for arrival in outcome.arrivals:
        letter = letters[arrival.message]
        table = case.transports[letter.transport]
        packets = -(-letter.nbytes // table.payload)
        sizes = [table.payload] * (packets - 1) + [letter.nbytes - (packets - 1) * table.payload]
        lost = sum(sizes[packet] for packet in arrival.missing)
        assert arrival.received == letter.nbytes - lost
        assert lost <= letter.bound * letter.nbytes
        if getattr(table, "important_must_arrive", True) and letter.important is not None:
            flags = [letter.important] * packets if isinstance(letter.important, bool) else letter.important
            assert letter.transport != 2 or not any(flags[packet] for packet in arrival.missing)
    if not case.network.link_loss.any():
        assert len(outcome.arrivals) == len(case.letters), "a message is stuck on a network that loses nothing"


def letters_by_message(case, outcome):
    """Letters in the order of their messages' numbers: the unprompted first, then by the delivery that they follow."""
    order = [number for number, letter in enumerate(case.letters) if letter.after is None]
    for arrival in sorted(outcome.arrivals, key=lambda arrival: (arrival.time, arrival.message)):
        order += [n for n, letter in enumerate(case.letters) if letter.after == order[arrival.message]]
    return [case.letters[number] for number in order]
