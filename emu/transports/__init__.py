"""Transports over real sockets: what carries messages on the testbed, one file each.

`KINDS` says which carrier plays which transport of a scenario: a module and a class, imported when it is used. A
carrier over UDP is made with the endpoint and the side channel that all of a host share, one over TCP without.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from gradwire.emu.agent.base import Host, MessageRow
from gradwire.emu.plan import Plan
from gradwire.emu.switches.base import TestbedError

KINDS = {
    "dlcp": "gradwire.emu.transports.dlcp:Dlcp",
    "constant_rate": "gradwire.emu.transports.constant_rate:ConstantRate",
    "tcp_newreno": "gradwire.emu.transports.tcp:Tcp",
    "cubic": "gradwire.emu.transports.tcp:Tcp",
    "dctcp": "gradwire.emu.transports.tcp:Tcp",
    "bbr": "gradwire.emu.transports.tcp:Tcp",
}


def make_carriers(plan: Plan, host: Host, rows: Iterable[MessageRow]) -> dict[int, Any]:
    """The carriers of a host, by number of the transport in the plan: those that its messages use.

    Raises
    ------
    TestbedError
        A transport has no carrier.
    """
    from gradwire.emu.agent.nic import AHEAD_NS
    from gradwire.emu.transports.datagrams import Endpoint
    from gradwire.emu.transports.side import SideChannel

    used = sorted({row.transport for row in rows})
    unknown = sorted({plan.transports[number].kind for number in used} - KINDS.keys())
    if unknown:
        raise TestbedError(
            f"transport {', '.join(unknown)} does not run on real sockets", "transport", " or ".join(KINDS)
        )
    payload = max((plan.transports[number].payload for number in used), default=0)
    ahead = int(plan.options.get("ahead_ns", AHEAD_NS))
    endpoint = Endpoint(host, payload, classes=plan.queues.count, ahead_ns=ahead)
    side = endpoint.side = SideChannel(host, endpoint.nic)
    made: dict[int, Any] = {}
    for number in used:
        transport = plan.transports[number]
        module, name = KINDS[transport.kind].split(":")
        make = getattr(import_module(module), name)
        if transport.wire == "udp":
            made[number] = endpoint.carriers[number] = make(host, transport, endpoint, side)
        else:
            made[number] = make(host, transport, number, plan)
    return made
