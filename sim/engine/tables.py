"""Collects a fabric's port counters, drops and aggregation counters as columns of a Result's tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.network import DropEntry, Port, PortExtra, Switch
from gradwire.jit.records.packets import is_important, kind_of, priority_of, sequence_and_argument_of, sequence_of
from gradwire.result_store.table_schema import CAUSES, TABLES
from gradwire.scenarios.arrays import AnyArray, Columns, Ints
from gradwire.sim.engine.logs import concatenate_rows
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.topology import Network


def collect_sums(network: Network, memory: EngineMemory, slots: int) -> dict[str, dict[str, int]]:
    """Return the aggregation counters of switches by name, without idle switches; `slots`: slots of a switch."""
    state, totals = memory.state, {}
    for node in range(network.host_count, len(network.names)):
        base = int(memory.node_base[node])
        summed, unsummed, copied = (
            int(state[base + word]) for word in (Switch.summed.offset, Switch.unsummed.offset, Switch.copied.offset)
        )
        if summed or unsummed or copied:
            totals[network.names[node]] = {
                "slots_peak": slots - int(view(Switch, state, base).min_free_slots),
                "summed_packets": summed,
                "unsummed_packets": unsummed,
                "copied_packets": copied,
            }
    return totals


@dataclass(frozen=True, kw_only=True)
class FabricTables(MessageCounts):
    """Counters and tables of what has not been handed over (`gradwire.sim.engine.program.completed_step.StepTaker`).

    ports, missing : columns by name as in `gradwire.result_store.result`. drop_log : rows of lost packets, int64[n,
        words].
    """

    network: Network
    ports: Columns
    drop_log: list[Ints]
    missing: Columns
    packet_hops: int

    @cached_property
    def drops(self) -> Columns:
        """Lost packets as columns by name. Runs write their Result from the log instead, in blocks."""
        return collect_drops(self.network, self.drop_log)


def collect_ports(network: Network, memory: EngineMemory) -> Columns:
    """Return one row per directed link: packets and bytes sent, drops by cause, marks, longest queue in bytes."""
    state, base = memory.state, memory.port_base
    port = view(Port, state, base)
    more = port.extra.base
    late = {cause: view(PortExtra, state, more).drops_by_cause[i] for i, cause in enumerate(CAUSES[at.CAUSE_EVICTED :])}
    port_extra = view(PortExtra, state, more)
    return {
        "port": [network.link_name(link) for link in range(len(base))],
        "packets": port.sent + port.spill_tail + port.drops[2] + late["link_down"],
        "bytes": port.bytes_sent,
        "drops_tail": port.drops[0],
        "drops_selective": port.drops[1],
        "drops_loss": port.drops[2],
        "drops_evicted": late["evicted"],
        "drops_down": late["link_down"],
        "drops_no_route": late["no_route"],
        "marks": port.marks,
        "control_marks": port.control_marks,
        "trimmed": port_extra.trimmed,
        "pauses": port_extra.pauses,
        "peak_queue_bytes": port.peak,
    }


def collect_drops(network: Network, log: list[Ints]) -> Columns:
    """Return one row per lost packet, by time; `packet` is -1 for control packets."""
    drops = drop_columns(concatenate_rows(log, DropEntry.WORDS + 1))
    order = np.lexsort([drops[name] for name in reversed(DROPS_BY)])
    columns: Columns = {name: drops[name][order] for name in TABLES["drops"]}
    columns["port"] = [network.link_name(link) for link in drops["port"][order].tolist()]
    columns["cause"] = [CAUSES[cause] for cause in drops["cause"][order].tolist()]
    return columns


DROPS_BY = ("time_ps", "cause", "port", "message", "place", "word")
"""Sort key of drops; the numbers of flow records are arbitrary and not part of it."""


def drop_columns(rows: Ints) -> dict[str, AnyArray]:
    """Return rows of `Fabric.drop_log` as columns; ports and causes are numbers, `place` and `word` are sort keys."""
    A, B = rows[:, 2], rows[:, 3]
    data = kind_of(A) == at.DATA
    return {
        "message": rows[:, 4],
        "packet": np.where(data, sequence_of(B), -1).astype(np.int32),
        "port": rows[:, 1] & 0xFFFFFFFF,
        "time_ps": rows[:, 0],
        "cause": rows[:, 1] >> 32,
        "important": is_important(A).astype(bool),
        "priority": priority_of(A).astype(np.int8),
        "place": sequence_and_argument_of(B),
        "word": A,
    }
