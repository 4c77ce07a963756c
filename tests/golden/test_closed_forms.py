"""Runs whose outcome can be worked out by hand, to the picosecond.

Notation: a packet of b bytes takes d(b) = ceil(b * p) picoseconds on a link, where p is picoseconds per byte; l is the
latency of a link; the network is a star, so every packet crosses two links and one switch that forwards it when
its last bit has come.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tie_cases import first_come

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.scenarios.schema.network.transport import UserTransport
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.packets import DATA, STOP
from gradwire.topology import LinkSpec, from_networkx, star
from gradwire.traces.trace import CHUNK_ELEMENTS, Iteration, TensorInfo, Trace

US = 10**6
TCP_HEADERS, UDP_HEADERS = 66, 58
ROOMY = Switch.model_validate({"buffer": "100MB"})


def builtin(payload="1000B", window=10, **dlcp):
    """The three transports in the order that the property tests use, so that they share compiled engines."""
    tcp = {"payload": payload, "initial_window": window}
    return [
        TcpNewReno.model_validate({"kind": "tcp_newreno", **tcp}),
        Dctcp.model_validate({"kind": "dctcp", **tcp}),
        Dlcp.model_validate({"kind": "dlcp", "payload": payload, **dlcp}),
    ]


def constant(payload="1000B", **settings):
    return UserTransport.model_validate({"kind": "constant_rate:ConstantRate", "payload": payload, **settings})


def engine(network, transports, letters, switch=ROOMY):
    """The engine's outcome, which must be the oracle's too."""
    case = Case(network, transports, letters, switch)
    outcome = run_engine(case)
    assert first_difference(outcome, run_oracle(case)) == ""
    return outcome


# --- a lone flow ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "headers"), [(0, TCP_HEADERS), (1, TCP_HEADERS), (2, UDP_HEADERS)])
def test_single_packet_takes_two_transmissions_and_two_latencies(kind, headers):
    """A packet of 100 bytes crosses two links of 10 Gbps (800 ps per byte)."""
    outcome = engine(star(2, LinkSpec(10**10, 3 * US)), builtin(), [MessageSpec(5, 0, 1, 100, kind)])
    d = (100 + headers) * 800
    assert [arrival.time for arrival in outcome.arrivals] == [5 + d + 3 * US + d + 3 * US]


@pytest.mark.parametrize(("kind", "headers"), [(0, TCP_HEADERS), (1, TCP_HEADERS), (2, UDP_HEADERS)])
@pytest.mark.parametrize("last", [4, 500, 1000])
def test_single_flow_is_pipelined_over_two_links(kind, headers, last):
    """The n packets follow back to back over two links of equal speed. (The window holds them all; DLCP sends at line
    rate.) The first link takes (n - 1) d + d_last. On the second link the last packet waits for the longer one before
    it, so delivery is at n d + d_last + 2 l."""
    n = 40
    nbytes = (n - 1) * 1000 + last
    outcome = engine(star(2, LinkSpec(10**11, US)), builtin(window=n), [MessageSpec(0, 0, 1, nbytes, kind)])
    d, d_last = (1000 + headers) * 80, max(last + headers, 60) * 80
    assert [arrival.time for arrival in outcome.arrivals] == [n * d + d_last + 2 * US]


@pytest.mark.parametrize(("first", "second"), [(10**9, 10**11), (10**11, 10**9), (3 * 10**9, 7 * 10**9)])
def test_single_flow_is_limited_by_the_slower_link(first, second):
    """The slower link sets the pace. With times d1 and d2 per packet on the two links, n equal packets take d1 + (n -
    1) max(d1, d2) + d2 + both latencies."""
    import networkx

    graph = networkx.Graph()
    graph.add_edge("h0", "s", rate=first, latency=7)
    graph.add_edge("h1", "s", rate=second, latency=11)
    graph.nodes["s"]["kind"] = "switch"
    network = from_networkx(graph, LinkSpec(first, 1))
    n = 30
    for kind, headers in ((0, TCP_HEADERS), (2, UDP_HEADERS)):
        outcome = engine(network, builtin(window=n), [MessageSpec(0, 0, 1, n * 1000, kind)])
        d1, d2 = (-(-(1000 + headers) * 8 * 10**12 // rate) for rate in (first, second))
        assert outcome.arrivals[0].time == d1 + (n - 1) * max(d1, d2) + d2 + 18


@pytest.mark.parametrize(("bound", "lost"), [(0.25, 10), (9_999.5 / 40_000, 9), (0.0, 0), (1.0, 39)])
def test_eager_stop_ends_message_when_loss_bound_is_met(bound, lost):
    """A quarter of 40 packets of 1000 bytes may be lost, so the message ends with the thirtieth packet. With half a
    byte less it takes one more. At least one packet has to arrive."""
    letters = [MessageSpec(0, 0, 1, 40_000, 2, bound=bound, important=False)]
    dlcp = {"stop_policy": "eager", "send_order": "sequential"}
    outcome = engine(star(2, LinkSpec(10**11, US)), builtin(**dlcp), letters)
    d = 1058 * 80
    assert outcome.arrivals[0].time == (41 - lost) * d + 2 * US
    assert outcome.arrivals[0].missing == tuple(range(40 - lost, 40))


# --- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "headers"), [(0, TCP_HEADERS), (1, TCP_HEADERS), (2, UDP_HEADERS)])
def test_incast_drains_at_line_rate(kind, headers):
    """N senders send n packets each at once, and the receiver's link is busy without a gap. The first packet is at
    the switch after d + l; N n d later all are sent, and l later the last packet arrives. A batch of N arrives every
    d and one packet leaves, so N - 1 are added each time: at most n (N - 1) are queued."""
    senders, n = 7, 9
    letters = [MessageSpec(0, host, senders, n * 1000, kind) for host in range(senders)]
    outcome = engine(star(senders + 1, LinkSpec(10**10, US)), builtin(window=n), letters)
    d = (1000 + headers) * 800
    assert outcome.arrivals[-1].time == d + US + senders * n * d + US
    down = 2 * senders + 1
    assert outcome.ports[down].peak == n * (senders - 1) * (1000 + headers)


def order_of_ties(hosts: int, time: int) -> list[int]:
    """Hosts of a star by who comes first when all packets reach the switch at `time`."""
    order = [link // 2 for link in first_come(range(0, 2 * hosts, 2), time)]
    assert order != list(range(hosts))
    return order


@pytest.mark.parametrize(("room", "delivered"), [(2 * 1058, 3), (2 * 1058 - 1, 2), (3 * 1058 - 1, 3)])
def test_incast_into_small_buffer_drops_excess_packets(room, delivered):
    """Of five simultaneous packets one is sent, as many as fit are queued, and the rest are dropped. A random
    tie-break selects the senders."""
    switch = Switch.model_validate({"buffer": f"{room}B"})
    letters = [MessageSpec(0, host, 5, 1000) for host in range(5)]
    outcome = engine(star(6, LinkSpec(10**10, US)), [constant()], letters, switch)
    order = order_of_ties(5, 1058 * 800 + US)
    assert [arrival.message for arrival in outcome.arrivals] == order[:delivered]
    assert [(drop.cause, drop.packet.flow) for drop in outcome.drops] == [
        ("tail", n) for n in sorted(order[delivered:])
    ]


@pytest.mark.parametrize(("selective", "important", "marks", "drops"), [
    (False, True, 3, 0), (True, True, 3, 0), (True, False, 0, 3), (False, False, 0, 0),
])  # fmt: skip
def test_ecn_threshold_counts_queued_packets(selective, important, marks, drops):
    """Six packets arrive at once with K = two packets. The first is sent untested; the second and third find less
    than K. The other three find K or more: they are marked, dropped, or admitted where neither applies."""
    switch = Switch.model_validate({"ecn_threshold": "2116B", "selective_drop": selective})
    letters = [MessageSpec(0, host, 6, 1000, important=important) for host in range(6)]
    outcome = engine(star(7, LinkSpec(10**10, US)), [constant()], letters, switch)
    assert sum(port.marks for port in outcome.ports) == marks
    order = order_of_ties(6, 1058 * 800 + US)
    assert [drop.packet.flow for drop in outcome.drops] == sorted(order[3:])[:drops]
    marked = [t.packet.flow for t in outcome.transmissions if t.packet.ce]
    assert marked == order[3:][:marks]


def test_strict_priority_shares_link_of_two_constant_rate_flows():
    """Two flows send at 60 % of one link: the high class gets 60 %, the low class the rest.

    A high packet waits at most for the one low packet that is being sent. The link is always busy, so the low flow
    ends after the sum of all transmissions."""
    n, d = 3_000, 1058 * 800
    network = star(3, LinkSpec(10**10, US))
    transports = [constant(share=60)]
    outcome = engine(
        network, transports, [MessageSpec(0, 0, 2, n * 1000, priority=0), MessageSpec(0, 1, 2, n * 1000, priority=1)]
    )
    high, low = outcome.arrivals
    assert (high.message, low.message) == (0, 1)
    last_high = (n - 1) * -(-d * 100 // 60) + d + US  # at the switch
    assert last_high + d + US <= high.time <= last_high + 2 * d + US + n  # n: pacing rounds up, 1 ps a packet
    assert low.time == d + US + 2 * n * d + US
    down = [t for t in outcome.transmissions if t.link == 5]
    assert all(later.start == sooner.start + d for sooner, later in pairwise(down))
    both = [t.packet.flow for t in down if t.start < high.time - 2 * US]
    assert both.count(0) / len(both) == pytest.approx(0.6, abs=2 / len(both))


def test_flows_of_one_class_alternate_packets():
    """Three messages of one host and class start at the same time. The first starts at once, so its second packet is
    in line when the others come; from then on they alternate."""
    outcome = engine(star(2, LinkSpec(10**10, US)), [constant()], [MessageSpec(0, 0, 1, 10_000)] * 3)
    flows = [t.packet.flow for t in outcome.transmissions if t.link == 0]
    assert flows == [0] + [0, 1, 2] * 9 + [1, 2]
    d = 1058 * 800
    assert [arrival.time for arrival in outcome.arrivals] == [n * d + US + d + US for n in (26, 29, 30)]


def test_message_start_precedes_simultaneous_packet_arrival():
    """Host 1 starts a message at the moment in which a packet arrives that it has to answer. At equal times timers
    precede arrivals, so its packet leaves first and the answer waits."""
    d = 1058 * 800
    arrival = d + US + d + US
    letters = [MessageSpec(0, 0, 1, 1000), MessageSpec(arrival, 1, 0, 1000)]
    outcome = engine(star(2, LinkSpec(10**10, US)), [constant()], letters)
    assert [(t.start, t.packet.kind) for t in outcome.transmissions if t.link == 2] == [
        (arrival, DATA),
        (arrival + d, STOP),
    ]


@pytest.mark.parametrize("begin", range(0, 4_000_000, 400_007))
def test_paced_flow_precedes_queued_packets_of_lower_class(begin):
    """Host 0 sends at 99 % of the line in class 0, and answers two messages in class 1 meanwhile. When its first
    packet has left, at d, the flow has to pause for 1 % of d, less than an answer takes. So the order is: an answer,
    the second packet, the other answer. (The NIC once ran ahead to both answers.)"""
    transports = [constant(payload="4000B", share=99, control_priority=1)]
    letters = [MessageSpec(begin, 0, 1, 8_000)] + [MessageSpec(begin, host, 0, 100) for host in (1, 2)]
    outcome = engine(star(3, LinkSpec(10**10, 400_000)), transports, letters)
    d, answer = 4058 * 800, 60 * 800
    sent = [(t.start - begin, t.packet.kind) for t in outcome.transmissions if t.link == 0]
    assert sent == [(0, DATA), (d, STOP), (d + answer, DATA), (2 * d + answer, STOP)]


# --- rings ------------------------------------------------------------------------------------------------------------


def one_tensor(elements, gradient_ready):
    """A model of one layer: forward takes 0, the gradient is ready at `gradient_ready`."""
    zero = np.zeros(1, dtype=np.int64)
    iteration = Iteration(
        0, "early", 0, 1.0, zero, zero, np.array([gradient_ready]), gradient_ready, 0, gradient_ready
    )  # fmt: skip
    chunks = np.ones((1, -(-elements // CHUNK_ELEMENTS)), dtype=np.float16)
    tensor = TensorInfo("t", (elements,), elements, "float32", 0)
    return Trace({"name": "one"}, ["layer"], [tensor], [iteration], chunks, chunks)


def ring(workers, transport):
    return Scenario.model_validate({
        "name": "ring",
        "topology": {"kind": "star", "hosts": workers},
        "link": {"rate": "100Gbps", "latency": "1us"},
        "switch": {"queues": 1},
        "transport": transport,
        "job": [{"name": "job", "trace": "one", "iterations": 1, "workers": workers, "exchange": {"kind": "ring"}}],
    })  # fmt: skip


@pytest.mark.parametrize("workers", [2, 5])
def test_ring_all_reduce_time_is_exact_without_acknowledgements(workers):
    """Each of the 2 (N - 1) steps takes the software latency and the pipeline time of a single flow."""
    packets = 50
    trace = one_tensor(workers * packets * 250, 3 * US)
    result = simulate(ring(workers, {"kind": "constant_rate:ConstantRate", "payload": "1000B"}), trace)
    d = 1058 * 80
    step = 2 * US + (packets + 1) * d + 2 * US
    ends = sorted(result.messages["end_ps"].to_pylist())
    assert ends == [3 * US + n * step for n in range(1, 2 * (workers - 1) + 1) for _ in range(workers)]
    assert set(result.iterations["end_ps"].to_pylist()) == {3 * US + 2 * (workers - 1) * step}


def test_ring_all_reduce_over_dctcp_is_near_its_lower_bound():
    """S bytes over N workers take 2 (N - 1) / N S over the line rate at least. Latencies come on top.
    Acknowledgements share the links, and each step starts with a window of 10 packets: a few percent more."""
    workers, elements = 4, 1_000_000
    result = simulate(ring(workers, "dctcp"), one_tensor(elements, 3 * US))
    segment = 4 * elements // workers
    wire = -(-segment // 4096) * TCP_HEADERS + segment
    least = 2 * (workers - 1) * (wire * 80 + 4 * US)
    taken = max(result.iterations["end_ps"].to_pylist()) - 3 * US
    assert least <= taken <= 1.1 * least
    assert result.summary["totals"]["lost_bytes"] == 0


def test_packet_hops_of_ring_count_two_links_per_packet():
    """Hops count data and control packets on two links each, over a whole run."""
    result = simulate(ring(3, {"kind": "constant_rate:ConstantRate", "payload": "1000B"}), one_tensor(3000, US))
    packets = sum(result.messages["packets"].to_pylist())
    assert result.summary["engine"]["packet_hops"] == 2 * (packets + len(result.messages))
