"""Random cases: small networks, mixed links, all transports at once, little room in the queues.

Every case uses the same three transports in the same order, because each combination is compiled once: what varies are
their parameters and which of them the messages use.
"""

from __future__ import annotations

from typing import Any

import networkx
from hypothesis import strategies as st

from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.scenarios.schema.network.network import Switch
from gradwire.testing.oracle import Case, MessageSpec
from gradwire.topology import LinkSpec, from_networkx, leaf_spine, star

US = 10**6
PAYLOADS = (64, 1000, 1460, 4096, 8960)
RATES = (10**9, 10**10, 25 * 10**9, 40 * 10**9 + 7, 10**11, 4 * 10**11)
LATENCIES = (0, 1, 5_000, 333_333, US, 20 * US)
LOSSES = (0.0, 0.0, 0.0, 0.001, 0.02, 0.3)
BALANCERS = ("ecmp", "spray_random", "spray_round_robin")
NEWRENO, DCTCP, DLCP = 0, 1, 2


@st.composite
def networks(draw: st.DrawFn, lossy: bool = True) -> Any:
    """A star, a leaf-spine, or any connected graph of switches with hosts on some; links alike or all different."""
    shape = draw(st.sampled_from(("star", "leaf_spine", "graph")))
    losses = LOSSES if lossy else (0.0,)

    def link() -> LinkSpec:
        return LinkSpec(draw(st.sampled_from(RATES)), draw(st.sampled_from(LATENCIES)), draw(st.sampled_from(losses)))

    if shape == "star":
        return star(draw(st.integers(2, 6)), link())
    if shape == "leaf_spine":
        return leaf_spine(
            draw(st.integers(1, 3)), draw(st.integers(2, 3)), draw(st.integers(1, 3)), link(),
            uplink_rate=draw(st.sampled_from((None, *RATES))),
        )  # fmt: skip
    switches, hosts = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    graph = networkx.Graph()
    names = [f"s{number}" for number in range(switches)]
    cables = [(names[number], names[draw(st.integers(0, number - 1))]) for number in range(1, switches)]
    if switches > 2:
        pairs = [(a, b) for a in names for b in names if a < b and (b, a) not in cables]
        cables += draw(st.lists(st.sampled_from(pairs), unique=True, max_size=5))
    for number in range(hosts):
        cables.append((f"h{number}", draw(st.sampled_from(names))))
    for name in names:
        graph.add_node(name, kind="switch")
    for a, b in cables:
        spec = link()
        graph.add_edge(a, b, rate=spec.rate, latency=spec.latency, loss=spec.loss)
        for node in (a, b):
            graph.nodes[node]["kind"] = "host" if node.startswith("h") else "switch"
    return from_networkx(graph, LinkSpec(10**10, US))


@st.composite
def switches(draw: st.DrawFn, tables: list[Any]) -> Switch:
    """From ample room and no marking to buffers of a few packets; often exactly some packets, for the sake of ties."""
    queues = draw(st.sampled_from((1, 2, 3, 8)))
    frames = [table.payload + table.overhead for table in tables]
    exact = [count * frame for count in (1, 2, 5) for frame in frames]
    limits = st.sampled_from([f"{size}B" for size in (60, 3_000, 9_100, 20_000, *exact, *exact)])
    rooms = [size for size in (10_000, 25_000, 60_000, 10_000_000, *exact) if size >= max(frames)]
    threshold = draw(st.one_of(st.none(), limits, st.lists(limits, min_size=queues, max_size=queues), limits))
    different = st.fixed_dictionaries(
        {"ports": st.just("*->*")},
        optional={
            "buffer": st.sampled_from(rooms).map("{}B".format),
            **({"ecn_threshold": limits} if threshold is not None else {}),
        },
    )
    overrides = draw(st.lists(st.one_of(different, st.just({"ports": "*->*", "ecn": False})), max_size=2))
    for override in overrides:
        override["ports"] = draw(st.sampled_from(("*->h0", "*->h*", "*->*", "*0->*")))
    return Switch.model_validate({
        "queues": queues,
        "buffer": f"{draw(st.sampled_from(rooms))}B",
        "ecn_threshold": threshold,
        "selective_drop": draw(st.booleans()),
        "override": [override for override in overrides if len(override) > 1],
    })  # fmt: skip


@st.composite
def transports(draw: st.DrawFn) -> list[Any]:
    """NewReno, DCTCP and DLCP with short time-outs, so that losses do not take a thousand simulated milliseconds."""
    common = {"payload": f"{draw(st.sampled_from(PAYLOADS))}B", "control_priority": draw(st.integers(0, 7))}
    tcp = {
        "initial_window": draw(st.sampled_from((1, 2, 10, 50))),
        "min_rto": draw(st.sampled_from(("20us", "200us", "2ms"))),
        "max_rto": "20ms",
    }
    gain = draw(st.sampled_from((0.0625, 0.5, 1.0)))
    return [
        TcpNewReno.model_validate({"kind": "tcp_newreno", "ecn": draw(st.booleans()), **common, **tcp}),
        Dctcp.model_validate({"kind": "dctcp", "g": gain, **common, **tcp}),
        Dlcp.model_validate({
            "kind": "dlcp",
            **common,
            "payload": f"{draw(st.sampled_from(PAYLOADS))}B",
            "g": gain,
            "stop_policy": draw(st.sampled_from(("early", "eager", "on_probe"))),
            "send_order": draw(st.sampled_from(("important_first", "sequential", "random"))),
            "rate_control": draw(st.sampled_from(("receiver", "dctcp", "delay"))),
            "floor": draw(st.sampled_from((1, 4, 64))),
            "probe_timeout": draw(st.sampled_from(("20us", "200us"))),
            "important_must_arrive": draw(st.booleans()),
            "t_low": draw(st.sampled_from(("1us", "50us"))),
            "t_high": draw(st.sampled_from(("60us", "500us"))),
            "add_rate": draw(st.sampled_from(("10Mbps", "1Gbps"))),
        }),
    ]  # fmt: skip


@st.composite
def letters(draw: st.DrawFn, hosts: int, tables: list[Any], most: int) -> list[MessageSpec]:
    """Messages between random hosts, often to the same one; many at once, some as answers to others."""
    found: list[MessageSpec] = []
    centre = draw(st.integers(0, hosts - 1))
    classes = draw(st.sampled_from(((0,), (0, 1), tuple(range(8)))))
    for number in range(draw(st.integers(1, most))):
        src, dst = draw(st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True))
        if src != centre and draw(st.booleans()):
            dst = centre
        transport = draw(st.sampled_from((NEWRENO, DCTCP, DLCP, DLCP)))
        payload = tables[transport].payload
        packets = draw(st.one_of(st.integers(1, 5), st.integers(10, 70)))
        nbytes = (packets - 1) * payload + draw(st.integers(1, payload))
        after = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        time = draw(st.sampled_from((0, 0, 1, 100_000, US, 77 * US))) + (LATENCY if after is not None else 0)
        hair = max(0.0, (packets // 3 * payload - 0.5) / nbytes)  # half a byte less than a third of the packets
        important: Any = draw(st.sampled_from((None, True, False, "mixed")))
        if important == "mixed":
            important = draw(st.lists(st.booleans(), min_size=packets, max_size=packets))
        bound = draw(st.sampled_from((0.0, 0.1, 0.5, 1.0, hair))) if transport == DLCP else 0.0
        share = draw(st.sampled_from((None, 0.0, 0.05))) if transport == DLCP else None
        found.append(
            MessageSpec(
                time, src, dst, nbytes, transport,
                priority=draw(st.sampled_from(classes)),
                bound=bound,
                important=important,
                after=after,
                share=None if share is None else min(share, bound),  # a part of it
                pool=draw(st.sampled_from((0, 2, 2, 3, 4))) if transport == DLCP else 0,
                turn=draw(st.sampled_from((None, 0, 1, 65_600))),
            )
        )  # fmt: skip
    return found


LATENCY = 2 * US  # of the hosts' software


@st.composite
def cases(draw: st.DrawFn, balancers: tuple[str, ...] = BALANCERS, most: int = 20, lossy: bool = True) -> Case:
    """A whole case."""
    network = draw(networks(lossy))
    tables = draw(transports())
    return Case(
        network,
        tables,
        draw(letters(network.host_count, tables, most)),
        draw(switches(tables)),
        balancing=draw(st.sampled_from(balancers)),
        seed=draw(st.integers(0, 2**40)),
        host_latency=LATENCY,
    )
