"""Transports over real sockets: what carries messages on the testbed.

The kernel's TCP carries what the kernel has by itself (`tcp`), and DLCP has Probes and Bitmaps (`dlcp`). Every other
transport, a user's own as well, is one carrier (`datagrams`) that runs the rules of `gradwire.components.transports`
over UDP. A carrier is imported when it is used; those over UDP share the endpoint and the side channel of their host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from gradwire.emu.agent.base import Carrier, MessageRow
from gradwire.emu.planning.plan import Plan, TransportPlan

if TYPE_CHECKING:
    from gradwire.emu.transports.datagrams import DatagramCarrier
    from gradwire.emu.transports.endpoint import Endpoint, LoopingHost
    from gradwire.emu.transports.side import SideChannel
    from gradwire.scenarios.schema.transport_base import Transport

AGENTS = ("gradwire.emu.agent.agent", "gradwire.emu.agent.parts", "numpy.random")
"""Modules of every agent."""


def make_carriers(plan: Plan, host: LoopingHost, rows: Iterable[MessageRow]) -> dict[int, Carrier]:
    """The carriers of a host, by number of the transport in the plan: those that its messages use.

    Raises
    ------
    ScenarioError
        A transport of the user's own is not to be found.
    """
    from gradwire.emu.agent.nic import AHEAD_NS
    from gradwire.emu.transports.endpoint import Endpoint
    from gradwire.emu.transports.side import SideChannel

    rows = list(rows)
    used = sorted({row.transport for row in rows})
    payload = max((plan.transports[number].payload for number in used), default=0)
    ahead = int(plan.options.get("ahead_ns", AHEAD_NS))
    shared = shares_card(plan, host.node, rows)
    endpoint = Endpoint(host, payload, classes=plan.queues.count, ahead_ns=ahead, shared=shared)
    side = endpoint.side = SideChannel(host, endpoint.nic)
    made: dict[int, Carrier] = {}
    for number in used:
        transport = plan.transports[number]
        if transport.by_kernel:
            from gradwire.emu.transports.tcp import Tcp

            made[number] = Tcp(host, transport, number, plan)
        else:
            make = datagram_carrier(transport.kind, plan)
            made[number] = endpoint.carriers[number] = make(host, transport, endpoint, side)
    return made


def shares_card(plan: Plan, node: int, rows: Iterable[MessageRow]) -> bool:
    """Whether a host sends over UDP and by the kernel's TCP, and one has to heed what the other has at the card. On the
    wall clock packets go there ahead of their time, and nothing is done about it."""
    by_kernel = {plan.transports[row.transport].by_kernel for row in rows if row.src == node}
    beside_programs = plan.programs is not None and False in by_kernel
    return plan.clock == "virtual" and (len(by_kernel) == 2 or beside_programs)


def datagram_carrier(
    kind: str, plan: Plan
) -> Callable[[LoopingHost, TransportPlan, Endpoint, SideChannel], DatagramCarrier]:
    """The carrier of a transport over UDP."""
    if kind == "dlcp":
        from gradwire.emu.transports.dlcp import Dlcp, DlcpBySide

        return Dlcp if plan.options.get("side_channel") == "udp" else DlcpBySide
    from gradwire.emu.transports.datagrams import DatagramCarrier

    return DatagramCarrier


def owners_of(plan: Plan) -> list[type[Transport]]:
    """The classes of the transports of a plan whose rules agents run."""
    from gradwire.emu.transports.rules import transport_class

    return [transport_class(each.kind, each.folder) for each in plan.transports if not each.by_kernel]


def warm(plan: Plan) -> None:
    """Load what agents will run, before they are forked: machine code, and modules that each would import."""
    from gradwire.emu.agent import machine
    from gradwire.emu.native import kept

    for module in AGENTS:
        import_module(module)
    kept.use(plan.options.get("compiled"))
    machine.core()
    for owner in owners_of(plan):
        machine.rules(owner)
    for transport in plan.transports:
        if not transport.by_kernel:
            datagram_carrier(transport.kind, plan)
