"""What a transport asks of a network that the testbed has not got: said in words, from the transport itself.

The kernel's TCP runs as it is. Every other transport runs the simulator's rules over UDP, if these ask nothing of
switches but queues, priorities, marks and drops, and nothing of packets but what a gradwire header has room for.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.components.transports.base import answers_late, persists, pulls, queues_at_nic, rides
from gradwire.emu.transports.rules import MOST_FILL, transport_class
from gradwire.scenarios.components import components
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.schema.transport_base import Transport
from gradwire.scenarios.user_classes import table_for
from gradwire.scenarios.wire import ACK_BYTES, UDP_OVERHEAD

WIDEST = UDP_OVERHEAD + MOST_FILL


def lacking(table: Transport, folder: str | None = None) -> list[str]:
    """What a transport, given its table in the scenario, wants and the testbed has not got; nothing if it runs there.

    Raises
    ------
    ScenarioError
        A transport of the user's own cannot be found in `folder`.
    """
    if table.congestion():
        return []
    owner = transport_class(table.kind, folder)
    return list(_lacking(owner, table_for(owner, table)))


def untagged(scenario: Scenario) -> list[str]:
    """Jobs whose packets the scenario tags one by one and the kernel sends all alike, in words."""
    found = []
    for job in scenario.job:
        table = scenario.transports[scenario.transport_of(job)]
        if job.tagging.magnitude and table.congestion():
            found.append(
                f"packets of {job.name} are all alike to switches, not important or droppable one by one "
                f"(tagging.magnitude): the kernel's TCP ({table.kind}) tags nothing"
            )
    return found


def available() -> list[str]:
    """The transports by name that run on the testbed, with their presets, those of our own first."""
    tables = [owner(kind=kind) for kind, owner in components("transport").items()]
    runs = [table for table in tables if not lacking(table)]
    return [table.kind for table in sorted(runs, key=lambda table: bool(table.congestion()))]


def _lacking(owner: type[Transport], table: Transport) -> Iterator[str]:
    if hasattr(owner, "stamp_slots"):
        yield "switches that write into packets how long their queues are"
    elif rides(owner, table):
        yield "packets with room for what its sender gives them to carry back"
    if getattr(table, "wants_trimming", False):
        yield "switches that cut packets to their headers"
    if pulls(owner, table):
        yield "hosts whose receivers take turns in asking for packets"
    if getattr(table, "wants_pfc", False):
        yield "links that can be stopped (PFC)"
    if getattr(table, "wants_shortest_first", False):
        yield "switches that serve the shortest message first"
    if len(table.classes_from(0)) > 1:
        yield "packets that change their queue on the way through a message"
    if persists(table):
        yield "connections that carry message after message, which only the kernel's TCP has here"
    if answers_late(table):
        yield "receivers that put off their answers"
    if queues_at_nic(owner):
        yield "hosts where packets wait in the order in which they were made"
    if owner.probe_word and table.kind != "dlcp":
        yield "probes, which only dlcp sends here"
    if not UDP_OVERHEAD <= owner.data_overhead <= WIDEST:
        yield f"headers of {owner.data_overhead} B, where those of the testbed are {UDP_OVERHEAD} to {WIDEST}"
    elif owner.control_bytes > max(WIDEST, ACK_BYTES):
        yield f"control packets of {owner.control_bytes} B, where those of the testbed have {WIDEST} at most"
