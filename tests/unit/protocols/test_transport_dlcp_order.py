"""In which order DLCP sends the packets of a message and how many of them, worked by hand. Times in picoseconds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from transport_bench import US

from gradwire.jit.records.constants import BITMAP, PULL_PROBE, STOP
from gradwire.protocols.transports.base import IMPORTANT_FLAG
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.dlcp.sender import ones
from gradwire.testing import FlowHarness

BASE = 10 * US


def flow_of(packets, **settings):
    """100-byte packets; as DLCP is by default."""
    return FlowHarness(Dlcp, packets, base_rtt=BASE, payload=100, **settings)


def bitmap(flow, number=1, now=0):
    """The receiver answers the sender's probe."""
    reply = flow.probe(number, now=now)
    assert reply.kind == BITMAP
    flow.control(BITMAP, 0, reply.argument, now=now)


def test_ones_counts_set_bits_of_32_bit_words():
    rng = random.Random(1)
    for word in (0, 1, 0xFFFFFFFF, 0x80000000, *(rng.getrandbits(32) for _ in range(1000))):
        assert ones.py_func(word) == word.bit_count()


# --- order ---------------------------------------------------------------------------------------------------


def test_important_packets_precede_droppable_ones_from_rotating_start():
    """Eight packets are droppable: 1, 2, 4, 5, 7, 8, 10, 11. 0.618 x 8 is 4.9; the next number from 4 on without a
    divisor in common with 8 is 5. So the first ones of the turns 0, 1, 2, ... are the droppable ones number 0, 5, 2,
    7, 4, 1, 6, 3."""
    tags = [i % 3 == 0 for i in range(12)]
    assert flow_of(12, tags=tags).pull() == [3, 6, 9, 0, 1, 2, 4, 5, 7, 8, 10, 11]
    assert flow_of(12, tags=tags, turn=1).pull() == [9, 0, 3, 6, 8, 10, 11, 1, 2, 4, 5, 7]
    begins = [flow_of(12, tags=tags, turn=turn).pull()[4] for turn in range(8)]
    assert begins == [1, 8, 4, 11, 7, 2, 10, 5]


@pytest.mark.parametrize("packets", [1, 2, 3, 10, 31, 32, 33, 97, 128])
@pytest.mark.parametrize("tags", ["none", "some", "all but one"])
def test_each_droppable_packet_is_among_last_k_equally_often(packets, tags):
    rng = random.Random(packets)
    flags = {
        "none": False, "some": [rng.random() < 0.5 for _ in range(packets)],
        "all but one": [i != packets // 2 for i in range(packets)],
    }[tags]  # fmt: skip
    droppable = [i for i in range(packets) if not (flags and flags[i])]
    n, first = len(droppable), rng.getrandbits(16)
    for k in {1, n // 10 + 1, n} if n else ():
        last = Counter(i for t in range(n) for i in flow_of(packets, tags=flags, turn=first + t).pull()[-k:])
        assert last == dict.fromkeys(droppable, k)


@pytest.mark.parametrize(("packets", "k"), [(256, 25), (100, 10), (97, 9), (30, 3)])
def test_rotation_spreads_late_positions_evenly_over_few_iterations(packets, k):
    """In m consecutive iterations each packet is among the last k at most max(2 m k / n, m k / n + 3) times. A random
    start in each iteration spreads worse."""
    rng = random.Random(2)
    orders = {t: flow_of(packets, tags=False, turn=t).pull()[-k:] for t in range(packets + 50)}
    worst = {"turned": 0.0, "drawn": 0.0}
    for m in (5, 10, 20, 50):
        for begin in range(0, packets, 7):
            counts = Counter(i for t in range(begin, begin + m) for i in orders[t])
            assert max(counts.values()) <= max(2 * m * k / packets, m * k / packets + 3)
            worst["turned"] = max(worst["turned"], max(counts.values()) / (m * k / packets))
            drawn = [rng.randrange(packets) for _ in range(m)]
            counts = Counter((each + i) % packets for each in drawn for i in range(k))
            worst["drawn"] = max(worst["drawn"], max(counts.values()) / (m * k / packets))
    assert worst["turned"] < worst["drawn"]


def test_early_policy_rotates_unsent_packets():
    """Two of ten packets may be missing: over ten iterations each packet stays unsent twice."""
    left = Counter()
    for turn in range(10):
        left.update(set(range(10)) - set(flow_of(10, tags=False, allowed=200, turn=turn).pull()))
    assert left == dict.fromkeys(range(10), 2)


def test_untagged_messages_start_at_rotating_packet_and_wrap_around():
    """0.618 x 5 is 3.1: the second message begins at packet 3."""
    assert flow_of(5, tags=False).pull() == [0, 1, 2, 3, 4]
    assert flow_of(5, tags=False, turn=1).pull() == [3, 4, 0, 1, 2]


def test_sequential_order_sends_packets_by_ascending_number():
    tags = [i % 3 == 0 for i in range(12)]
    assert flow_of(12, tags=tags, entropy=0x8000, send_order="sequential").pull() == list(range(12))


@pytest.mark.parametrize("packets", [1, 2, 6, 30, 31, 210])
def test_random_order_sends_each_packet_once(packets):
    orders = set()
    for entropy in range(0, 65536, 257):
        order = flow_of(packets, tags=False, entropy=entropy, send_order="random").pull()
        assert sorted(order) == list(range(packets))
        orders.add(tuple(order))
    assert len(orders) > packets // 3


# --- how many ------------------------------------------------------------------------------------------------


def test_early_policy_sends_required_packets_and_then_probes():
    flow = flow_of(10, tags=False, allowed=250)  # two packets may be missing
    assert len(flow.pull()) == 8
    assert flow.sender.timer == BASE
    assert flow.pull(flow.fire()) == [PULL_PROBE + flow.sender.probe_number]


def test_eager_and_on_probe_policies_send_every_packet():
    for policy in ("eager", "on_probe"):
        assert len(flow_of(10, tags=False, allowed=250, stop_policy=policy).pull()) == 10


def test_early_policy_gets_stop_for_its_last_packet():
    flow = flow_of(10, tags=False, allowed=250)
    kinds = [flow.data(sequence).kind for sequence in flow.pull()]
    assert kinds[-1] == STOP and STOP not in kinds[:-1]


def test_early_policy_sends_every_important_packet_despite_loss_bound():
    tags = [i >= 2 for i in range(10)]
    assert sorted(flow_of(10, tags=tags, allowed=500).pull()) == list(range(2, 10))
    indifferent = flow_of(10, tags=tags, allowed=500, important_must_arrive=False)
    assert len(indifferent.pull()) == 5


def test_sequential_order_reserves_quota_for_important_packets():
    tags = [i >= 7 for i in range(10)]  # important: 7, 8, 9; six packets are needed
    flow = flow_of(10, tags=tags, allowed=400, send_order="sequential")
    assert flow.pull() == [0, 1, 2, 7, 8, 9]


def test_early_policy_retransmits_only_as_many_packets_as_required():
    """Two of ten packets may be missing, so 0 to 7 are sent. Three of them are lost."""
    flow = flow_of(10, tags=False, allowed=200)
    assert flow.pull() == list(range(8))
    for sequence in (0, 1, 3, 4, 6):
        flow.data(sequence)
    flow.pull(flow.fire())
    bitmap(flow)
    again = flow.pull()
    assert again == [2 | IMPORTANT_FLAG, 5 | IMPORTANT_FLAG, 7 | IMPORTANT_FLAG]  # three more are needed
    assert flow.sender.sent_once == 8 and flow.sender.quota == 0
    flow.data(2)
    flow.data(5)
    flow.pull(flow.fire())  # 7 was lost again: what was held back will do, too
    bitmap(flow, 2)
    assert flow.pull() == [7 | IMPORTANT_FLAG]


def test_early_policy_retransmits_lost_packets_instead_of_unsent_ones():
    flow = flow_of(4, tags=False, allowed=100, turn=3)  # steps of 3: begins at 9 modulo 4; three are needed
    assert flow.pull() == [1, 2, 3]
    flow.data(1)
    flow.pull(flow.fire())
    bitmap(flow)
    assert flow.pull() == [2 | IMPORTANT_FLAG, 3 | IMPORTANT_FLAG]
    for _ in range(2):  # both are lost, and lost again: still no need of packet 0
        flow.pull(flow.fire())
        bitmap(flow, flow.sender.probe_number)
        assert flow.pull() == [2 | IMPORTANT_FLAG, 3 | IMPORTANT_FLAG]
    assert flow.sender.sent_once == 3


# --- midway --------------------------------------------------------------------------------------------------


def halfway(packets=40, **settings):
    """Important packets are the first half; they have been sent, and one droppable one."""
    flow = flow_of(packets, tags=[i < packets // 2 for i in range(packets)], stop_policy="eager", **settings)
    assert flow.pull(most=packets // 2 + 1) == list(range(packets // 2 + 1))
    return flow


def test_lost_important_packets_are_retransmitted_before_droppable_ones_end():
    flow = halfway()
    for sequence in range(20):
        if sequence not in (3, 17):
            flow.data(sequence)
    assert flow.sender.timer == BASE
    when = flow.fire()
    assert flow.pull(when, most=3) == [PULL_PROBE + 1, 21, 22]
    bitmap(flow)
    assert flow.pull(when, most=4) == [3 | IMPORTANT_FLAG, 17 | IMPORTANT_FLAG, 23, 24]
    assert flow.pull(when) == list(range(25, 40))
    flow.data(3)
    flow.data(17)
    for sequence in range(20, 40):
        assert flow.data(sequence).kind == (STOP if sequence == 39 else flow.data(sequence).kind)


def test_midway_probe_is_omitted_when_all_or_no_packets_are_important():
    for tags in (True, False):
        flow = flow_of(40, tags=tags, stop_policy="eager")
        flow.pull(most=39)
        assert flow.sender.timer == 0


def test_late_midway_bitmap_retransmits_only_important_packets():
    flow = halfway()
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + 1, *range(21, 40)]
    bitmap(flow)  # nothing has arrived at all
    assert flow.pull(when) == [i | IMPORTANT_FLAG for i in range(20)]
    when = flow.fire()
    assert flow.pull(when) == [PULL_PROBE + 2]
    bitmap(flow, 2)
    assert flow.pull(when) == [i | IMPORTANT_FLAG for i in range(40)]


def test_midway_probe_is_retransmitted_while_droppable_packets_remain():
    flow = halfway()
    when = flow.fire()
    assert flow.pull(when, most=2) == [PULL_PROBE + 1, 21]
    later = flow.fire()
    assert later > when
    assert flow.pull(later) == [PULL_PROBE + 1, *range(22, 40)]


def test_midway_answer_of_several_parts_is_used_once_complete():
    """20,000 packets have three parts. Important packets lost in each part are retransmitted once, in order."""
    packets, lost = 20_000, (5, 6, 7, 9_001, 9_999)
    important = [i < 10_000 or i >= 19_000 for i in range(packets)]
    flow = flow_of(packets, tags=important, stop_policy="eager")
    sent = flow.pull(most=11_001)
    for sequence in sent[:11_000]:
        if sequence not in (*lost, 19_500):
            flow.data(sequence)
    when = flow.fire()
    assert flow.pull(when, most=1) == [PULL_PROBE + 1]
    reply = flow.probe(1)
    assert reply.count == 3
    flow.control(BITMAP, 0, reply.argument, now=when)
    assert all(sequence < 1 << 30 for sequence in flow.pull(when, most=2)), "retransmitted before the last part came"
    for part in (1, 2):
        flow.control(BITMAP, part, reply.argument, now=when)
    again = flow.pull(when, most=7)
    assert again[:6] == [sequence | IMPORTANT_FLAG for sequence in (*lost, 19_500)]
    assert again[6] < 1 << 30
