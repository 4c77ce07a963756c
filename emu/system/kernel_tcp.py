"""What a scenario asks of the kernel's own TCP and no socket can: metrics of a host's route, sysctls of its namespace.

Three of them make it what the simulator has, where it would otherwise be something else (docs/fidelity.md):

smallest time-out   The kernel adds the round trip to a route's `rto_min` instead of taking the larger of the two as RFC
                    6298 says, counts in ticks, and waits until the tick after [net/ipv4/tcp_input.c: `tcp_set_rto`,
                    kernel/time/timer.c: `calc_index`]. So what is asked for is a tick less.
loss recovery       "classic": without RACK and tail loss probes.
host's queue        "packet": of every connection one packet waits at the NIC, and the next one is made when that
                    leaves, so that connections take turns. The kernel by itself puts there what it sends in a
                    millisecond or two, in the order in which it was made ("TCP small queues").
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from gradwire.emu.planning.plan import Plan, Port
from gradwire.scenarios.arrays import JsonView
from gradwire.scenarios.wire import serialisation_ps

MONOTONIC_COARSE: Final = 6
"""A clock that goes by ticks, so that its resolution is one [clock_getres(2)]."""
NS_PER_MS: Final = 1_000_000
PACKET_ROOM: Final = 800
"""Bytes of memory beside the payload that a waiting packet counts for: measured, 832 on Linux 6.18 and 768 on 6.1."""
LIMIT: Final = "net/ipv4/tcp_limit_output_bytes"
CLASSIC: Final = {"net/ipv4/tcp_recovery": "0", "net/ipv4/tcp_early_retrans": "0"}


def tick_ns() -> int:
    """The kernel's tick, 1 / HZ."""
    return round(time.clock_getres(MONOTONIC_COARSE) * 1e9)


def metrics(plan: Plan, tick: int) -> dict[str, int]:
    """Of a host's route, by the names that `ip` has for them: initial window, smallest time-out in ms [ip-route(8)].

    `tick`: the kernel's, in ns.
    """
    found = {}
    if "initcwnd" in plan.options:
        found["initcwnd"] = int(plan.options["initcwnd"])
    if "min_rto_ns" in plan.options:
        found["rto_min"] = max(1, -(-(int(plan.options["min_rto_ns"]) - tick) // NS_PER_MS))
    return found


def metric_words(wanted: Mapping[str, int]) -> str:
    """The same as `ip route add` takes it."""
    units = {"rto_min": "ms"}
    return "".join(f" {name} {value}{units.get(name, '')}" for name, value in wanted.items())


def metrics_shown(route: JsonView) -> dict[str, int]:
    """The same of a route as `ip -j route show` tells of it."""
    return {name: int(value) for each in route.get("metrics", ()) for name, value in each.items()}


def sysctls(plan: Plan, port: Port, ahead_ps: int) -> dict[str, str]:
    """Of the namespace of the host that has this port.

    `ahead_ps`: how far its NIC may be ahead, so that what is not yet due has left the queue and still counts as
    waiting. A packet whose transmission has begun does not: it reaches a reader, or a netem, which lets go of it
    [net/ipv4/ip_input.c: `skb_orphan`; net/sched/sch_netem.c: `skb_orphan_partial`].

    tcp_ecn is 1 where connections are to ask for congestion marks, 2 where they only grant them, as DCTCP asks whatever
    it says [Documentation/networking/ip-sysctl].
    """
    wanted = {"net/ipv4/tcp_no_metrics_save": "1", "net/ipv4/tcp_ecn": str(plan.options.get("tcp_ecn", 2))}
    if plan.options.get("loss_recovery") == "classic":
        wanted |= CLASSIC
    if plan.options.get("host_queue") == "packet":
        payload = max(each.payload for each in plan.transports)
        packet_ps = serialisation_ps(plan.largest_frame(), port.rate)
        packets = 1 - (-ahead_ps // packet_ps)
        # the kernel stops when it has more than this: half a packet less than what is to wait
        wanted[LIMIT] = str((2 * packets - 1) * (payload + PACKET_ROOM) // 2)
    return wanted
