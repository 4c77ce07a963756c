"""Transports over real sockets, which carry messages on the testbed.

The kernel's TCP carries its own kinds (`tcp`), and `dlcp` adds Probes and Bitmaps. Every other transport, including
user-defined ones, uses one carrier (`datagrams`) that runs the rules of `gradwire.protocols.transports` over UDP.
Carriers are imported on use; those over UDP share the endpoint and the side channel of their host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from gradwire.emu.agent.base import Carrier, CarrierHost, MessageRow
from gradwire.emu.planning.plan import TestbedPlan, TransportPlan
from gradwire.emu.switches.backend_kind import AHEAD_NS

if TYPE_CHECKING:
    from gradwire.emu.transports.datagrams import DatagramCarrier
    from gradwire.emu.transports.endpoint import Endpoint
    from gradwire.emu.transports.side_channel import SideChannel
    from gradwire.scenarios.schema.network.transport_base import Transport

AGENTS = ("gradwire.emu.agent.agent", "numpy.random")
"""Modules of every agent."""


def make_carriers(plan: TestbedPlan, host: CarrierHost, rows: Iterable[MessageRow]) -> dict[int, Carrier]:
    """Return the carriers of the transports that a host's messages use, by number in the plan. Raises ScenarioError: a
    user-defined transport is missing."""
    from gradwire.emu.transports.endpoint import Endpoint
    from gradwire.emu.transports.side_channel import SideChannel

    rows = list(rows)
    numbers = sorted({row.transport for row in rows})
    payload = max((plan.transports[number].payload for number in numbers), default=0)
    ahead = int(plan.options.get("ahead_ns", AHEAD_NS))
    shared = shares_nic(plan, host.node, rows)
    endpoint = Endpoint(host, payload, classes=plan.queues.count, ahead_ns=ahead, shared=shared)
    side = endpoint.side = SideChannel(host, endpoint.nic)
    carriers: dict[int, Carrier] = {}
    for number in numbers:
        transport = plan.transports[number]
        if transport.by_kernel:
            from gradwire.emu.transports.tcp import Tcp

            carriers[number] = Tcp(host, transport, number, plan)
        else:
            make = datagram_carrier(transport.kind, plan)
            carriers[number] = endpoint.carriers[number] = make(host, transport, endpoint, side)
    return carriers


def shares_nic(plan: TestbedPlan, node: int, rows: Iterable[MessageRow]) -> bool:
    """Return True if a host sends over UDP and by the kernel's TCP, and must coordinate the two at its NIC. On the wall
    clock packets reach the NIC ahead of time, so nothing is coordinated."""
    by_kernel = {plan.transports[row.transport].by_kernel for row in rows if row.src == node}
    beside_programs = plan.programs is not None and False in by_kernel
    return plan.clock == "virtual" and (len(by_kernel) == 2 or beside_programs)


def datagram_carrier(
    kind: str, plan: TestbedPlan
) -> Callable[[CarrierHost, TransportPlan, Endpoint, SideChannel], DatagramCarrier]:
    if kind == "dlcp":
        from gradwire.emu.transports.dlcp import Dlcp, DlcpBySide

        return Dlcp if plan.options.get("side_channel") == "udp" else DlcpBySide
    from gradwire.emu.transports.datagrams import DatagramCarrier

    return DatagramCarrier


def owners_of(plan: TestbedPlan) -> list[type[Transport]]:
    """Return the classes of the plan's transports whose rules agents run."""
    from gradwire.emu.transports.simulator_rules import transport_class

    return [
        transport_class(transport.kind, transport.folder) for transport in plan.transports if not transport.by_kernel
    ]


def warm(plan: TestbedPlan) -> None:
    """Load the agents' machine code and modules before they are forked."""
    from gradwire.emu.agent import compiled_agent
    from gradwire.emu.native import code_cache

    for module in AGENTS:
        import_module(module)
    code_cache.use(plan.options.get("compiled"))
    compiled_agent.core()
    for owner in owners_of(plan):
        compiled_agent.rules(owner)
    for transport in plan.transports:
        if not transport.by_kernel:
            datagram_carrier(transport.kind, plan)
