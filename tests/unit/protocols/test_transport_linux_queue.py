"""What of a connection waits at the NIC, against sequences worked by hand from the kernel's documentation
[ip-sysctl: tcp_limit_output_bytes] and from what `tcp_small_queue_check` compares.

Full packets have 1,400 bytes, 1,466 on the wire, and take 2,168 of memory. Times in us."""

from __future__ import annotations

import pytest

from gradwire.jit.records.constants import BLOCKED
from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.topology import LinkSpec, star

US, MS = 10**6, 10**9
WIRE = 1400 + 66


def sender(packets: int = 1000, rtt: int = 1000, window: int = 10, **settings) -> FlowHarness:
    """Its handshake has measured `rtt` us."""
    given = {"preset": "linux", "min_rto": 10 * MS, "payload": 1400, "base_rtt": rtt * US, "initial_window": window}
    return FlowHarness(TcpNewReno, packets, **(given | settings))


def wait(flow: FlowHarness, nbytes: int) -> int:
    return int(flow.run["at_nic"](flow.memory, flow.k, flow.f, nbytes))


def fill(flow: FlowHarness, now: int = 0) -> list[int]:
    """What joins the queue now."""
    made = []
    while True:
        sequence = flow.run["pull"](flow.memory, flow.k, flow.f, now)
        if sequence == BLOCKED:
            return made
        made.append(int(sequence))
        wait(flow, WIRE)


def leave(flow: FlowHarness, count: int = 1) -> None:
    for _ in range(count):
        wait(flow, -WIRE)


def test_window_below_the_small_queue_limit_is_queued_completely():
    """Slow start paces ten packets per 1 ms at twice that rate. 28 MB/s are 27,343 bytes in 1/1024 s, of which ten
    packets take 21,680."""
    assert fill(sender()) == list(range(10))


def test_small_queue_limit_is_at_least_two_packets():
    """A window per 10 ms is 2.8 MB/s, or 2,734 bytes: less than two packets. An empty queue counts for one byte, so
    that one packet, 2,169, is below 4,336 and two, 4,337, above."""
    flow = sender(rtt=10_000)
    assert fill(flow) == [0, 1]
    leave(flow)
    assert fill(flow) == [2]


@pytest.mark.parametrize(("threshold", "packets"), [(1000, 7), (40, 4), (41, 7)])
def test_pacing_factor_is_2_in_slow_start_and_1_2_afterwards(threshold, packets):
    """20 packets per 4 ms are 14 MB/s, or 13,671 bytes, above the 13,009 of six packets. From half of the threshold on
    they are 8.4 MB/s, or 8,203 bytes: four packets are 8,673. 20 is half of 40. Seven packets in flight are too few for
    a window of 20 to grow."""
    flow = sender(rtt=4000, window=20)
    flow.sender.ssthresh = threshold << SHIFT
    assert fill(flow) == list(range(7))  # the pace is set by acknowledgements
    leave(flow, 7)
    before = flow.sender.srtt
    flow.ack(0, 1, now=4000 * US)
    assert (flow.sender.cwnd >> SHIFT, flow.sender.srtt) == (20, before)
    assert len(fill(flow, 4000 * US)) == packets


def test_small_queue_limit_is_at_most_one_mebibyte():
    """10,000 packets, 1 ms: 28 GB/s. 483 packets are 1,047,145 bytes, 484 are 1,049,313."""
    assert len(fill(sender(packets=20_000, window=10_000))) == 484


def test_small_queue_limit_doubles_for_retransmissions():
    """Packets 0 to 7 of 12 are lost; 8, 9 and 10 arrive. Two new packets may wait, but four retransmissions: three are
    6,505 bytes, four 8,673, against 8,672."""
    flow = sender(rtt=10_000, window=12)
    for _ in range(12):
        fill(flow)
        leave(flow)
    assert flow.sender.in_flight == 12
    for each in (8, 9, 10):
        flow.ack(each, 0, now=10_000 * US)
    assert flow.sender.lost_packets == 8
    flow.sender.cwnd = 20 << SHIFT
    assert fill(flow, 10_000 * US) == [0, 1, 2, 3]
    leave(flow)
    assert fill(flow, 10_000 * US) == [4]


def test_tail_loss_probe_waits_until_the_last_packet_has_left_the_nic():
    """The last of two packets still waits at the NIC after two round trips: no probe. Once that packet has left, the
    probe is sent."""
    flow = sender(packets=2)
    assert fill(flow) == [0, 1]
    leave(flow)
    flow.fire()
    assert fill(flow, 5 * MS) == []
    other = sender(packets=2)
    assert fill(other) == [0, 1]
    leave(other, 2)
    other.fire()
    assert fill(other, 5 * MS) == [1]


def test_disabled_small_queues_do_not_limit_queued_packets():
    flow = sender(rtt=10_000, small_queues=False)
    assert (wait(flow, 0), wait(flow, WIRE), wait(flow, -WIRE)) == (0, 0, 0)
    assert fill(flow) == list(range(10))
    assert wait(sender(), 0) == 1


@pytest.mark.parametrize(("queues", "order"), [(True, [0] * 10 + [1] * 10), (False, [0] + [0, 1] * 9 + [1])])
def test_small_queues_serve_connections_in_fifo_order_not_in_turns(queues, order):
    """Two connections start a window of ten packets at the same time. With small queues the first window leaves first.
    In turns, the second packet of the first connection leaves before the second connection starts. Checks engine and
    oracle."""
    table = TcpNewReno.model_validate(
        {"kind": "tcp_newreno", "preset": "linux", "payload": "1400B", "min_rto": "10ms", "small_queues": queues}
    )
    network = star(3, LinkSpec(10**9, 20 * US))
    case = Case(
        network, [table], [MessageSpec(0, 0, 2, 14_000), MessageSpec(0, 1, 2, 40), MessageSpec(0, 0, 2, 14_000)]
    )
    oracle = run_oracle(case)
    assert first_difference(run_engine(case), oracle) == ""
    first = sorted(each for each in oracle.transmissions if each.link == 0 and each.packet.size == WIRE)
    assert [each.packet.flow // 2 for each in first] == order
