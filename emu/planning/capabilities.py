"""Lists the features that a scenario's transports need and the testbed lacks, and the transports that run there.

The kernel's TCP runs as it is. Every other transport runs the simulator's rules over UDP, provided that it needs only
queues, priorities, marks and drops from switches, and that its fields fit into a gradwire header.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.emu.transports.simulator_rules import MAX_FILL, transport_class
from gradwire.protocols.transports.base import delays_acks, is_persistent, pulls, queues_at_nic, rides
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.loading.user_classes import validate_user_table
from gradwire.scenarios.schema.network.transport_base import Transport
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.wire import ACK_BYTES, UDP_OVERHEAD

WIDEST_HEADER = UDP_OVERHEAD + MAX_FILL


def missing_features(table: Transport, folder: str | None = None) -> list[str]:
    """Return the features that a transport with this table needs and the testbed lacks; empty if it runs there. Raises
    ScenarioError: a user-defined transport is not in `folder`."""
    if table.congestion():
        return []
    owner = transport_class(table.kind, folder)
    return list(_lacking(owner, validate_user_table(owner, table)))


def untagged_job_notes(scenario: Scenario) -> list[str]:
    """Return messages about jobs whose per-packet tags the kernel's TCP cannot carry."""
    messages = []
    for job in scenario.job:
        table = scenario.transports[scenario.transport_of(job)]
        if job.tagging.magnitude and table.congestion():
            messages.append(
                f"packets of {job.name} are not tagged important or droppable one by one (tagging.magnitude): "
                f"the kernel's TCP ({table.kind}) tags no packets"
            )
    return messages


def available_transports() -> list[str]:
    """Return the names of transports and presets that run on the testbed, gradwire's own first."""
    tables = [owner(kind=kind) for kind, owner in components("transport").items()]
    runs = [table for table in tables if not missing_features(table)]
    return [table.kind for table in sorted(runs, key=lambda table: bool(table.congestion()))]


def _lacking(owner: type[Transport], table: Transport) -> Iterator[str]:
    stamps, overhead, widest = hasattr(owner, "stamp_slots"), owner.data_overhead, WIDEST_HEADER
    is_wide = not UDP_OVERHEAD <= overhead <= widest
    for is_needed, what in (
        (stamps, "switches that write their queue lengths into packets (INT)"),
        (not stamps and rides(owner, table), "packets that carry state of the sender and back (piggyback)"),
        (getattr(table, "wants_trimming", False), "switches that trim packets to their headers"),
        (pulls(owner, table), "hosts whose receivers pull packets in turn"),
        (getattr(table, "wants_pfc", False), "links that can be paused (PFC)"),
        (getattr(table, "wants_shortest_first", False), "switches that serve the shortest message first"),
        (len(table.classes_from(0)) > 1, "packets of one message in several queues"),
        (is_persistent(table), "persistent connections, which only the kernel's TCP has here"),
        (delays_acks(table), "receivers that delay their acknowledgements"),
        (queues_at_nic(owner), "hosts whose NIC queues packets first in, first out"),
        (owner.probe_word and table.kind != "dlcp", "Probes, which only dlcp sends here"),
        (is_wide, f"headers of {overhead} B; those of the testbed have {UDP_OVERHEAD} to {widest} B"),
        (
            not is_wide and owner.control_bytes > max(widest, ACK_BYTES),
            f"control packets of {owner.control_bytes} B; those of the testbed have at most {widest} B",
        ),
    ):
        if is_needed:
            yield what
