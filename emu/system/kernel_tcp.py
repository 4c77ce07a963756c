"""`metrics` and `sysctls` compute a host's kernel TCP settings that sockets cannot change; the switch backends apply
them.

Three of these settings make the kernel's TCP match the simulator (docs/fidelity.md):

minimum RTO      The kernel adds the round-trip time to a route's `rto_min` instead of taking the larger of the two as
                 in RFC 6298, counts in ticks, and waits until the next tick [net/ipv4/tcp_input.c: `tcp_set_rto`,
                 kernel/time/timer.c: `calc_index`]. So the setting is one tick less.
loss recovery    "classic": without RACK and tail loss probes.
host's queue     "packet": one packet of every connection waits at the NIC, and the next one is made when it leaves, so
                 that connections take turns. By default the kernel queues a millisecond or two of data there, in the
                 order in which it was made ("TCP small queues").
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from gradwire.emu.planning.plan import Port, TestbedPlan
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.wire import serialisation_ps

MONOTONIC_COARSE: Final = 6
"""A clock whose resolution is one tick [clock_getres(2)]."""
NS_PER_MS: Final = 1_000_000
PACKET_ROOM: Final = 800
"""Memory of a waiting packet beyond its payload in bytes: measured 832 on Linux 6.18 and 768 on 6.1."""
LIMIT: Final = "net/ipv4/tcp_limit_output_bytes"
CLASSIC: Final = {"net/ipv4/tcp_recovery": "0", "net/ipv4/tcp_early_retrans": "0"}


def tick_ns() -> int:
    """Return the kernel's tick, 1 / HZ, in ns."""
    return round(time.clock_getres(MONOTONIC_COARSE) * 1e9)


def metrics(plan: TestbedPlan, tick: int) -> dict[str, int]:
    """Return the metrics of a host's route by `ip` name: initial window, minimum RTO in ms [ip-route(8)]. `tick`: the
    kernel's, in ns."""
    values = {}
    if "initcwnd" in plan.options:
        values["initcwnd"] = int(plan.options["initcwnd"])
    if "min_rto_ns" in plan.options:
        values["rto_min"] = max(1, -(-(int(plan.options["min_rto_ns"]) - tick) // NS_PER_MS))
    return values


def metric_words(wanted: Mapping[str, int]) -> str:
    """Return metrics as arguments of `ip route add`."""
    units = {"rto_min": "ms"}
    return "".join(f" {name} {value}{units.get(name, '')}" for name, value in wanted.items())


def metrics_shown(route: JsonView) -> dict[str, int]:
    """Return the metrics of a route printed by `ip -j route show`."""
    return {name: int(value) for metrics in route.get("metrics", ()) for name, value in metrics.items()}


def sysctls(plan: TestbedPlan, port: Port, ahead_ps: int) -> dict[str, str]:
    """Return the sysctls of the namespace of the host with this port.

    `ahead_ps`: how far its NIC may be ahead; packets not yet due have left the queue but still count as waiting. A
    packet whose transmission has begun does not: it reaches a reader, or a netem, which releases it
    [net/ipv4/ip_input.c: `skb_orphan`; net/sched/sch_netem.c: `skb_orphan_partial`].

    tcp_ecn is 1 if connections request ECN, 2 if they only accept it; DCTCP always requests it
    [Documentation/networking/ip-sysctl].
    """
    values = {"net/ipv4/tcp_no_metrics_save": "1", "net/ipv4/tcp_ecn": str(plan.options.get("tcp_ecn", 2))}
    if plan.options.get("loss_recovery") == "classic":
        values |= CLASSIC
    if plan.options.get("host_queue") == "packet":
        payload = max(transport.payload for transport in plan.transports)
        packet_ps = serialisation_ps(plan.largest_frame(), port.rate)
        packets = 1 - (-ahead_ps // packet_ps)
        # the kernel stops above this limit: half a packet less than the wanted queue
        values[LIMIT] = str((2 * packets - 1) * (payload + PACKET_ROOM) // 2)
    return values
