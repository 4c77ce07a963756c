"""What a fabric has counted, as columns ready for the tables of a Result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import AnyArray, Columns, Ints
from gradwire.scenarios.result import CAUSES, TABLES
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.logs import joined
from gradwire.sim.fabric.memory import Memory


def collect_sums(network: Network, memory: Memory, slots: int) -> dict[str, dict[str, int]]:
    """What switches with so many slots have added up, by name: only those that had something to add up or to copy."""
    M, found = memory.M, {}
    for node in range(network.host_count, len(network.names)):
        base = int(memory.node_base[node])
        summed, unsummed, copied = (int(M[base + word]) for word in (at.N_SUMMED, at.N_UNSUMMED, at.N_COPIED))
        if summed or unsummed or copied:
            found[network.names[node]] = {
                "slots_peak": slots - int(M[base + at.N_SLOTS_LEAST]),
                "summed_packets": summed, "unsummed_packets": unsummed, "copied_packets": copied,
            }  # fmt: skip
    return found


@dataclass(frozen=True, kw_only=True)
class Tables(Counts):
    """What has not been handed over (`gradwire.sim.fabric.over.Taker`). `ports`, `drops` and `missing`: columns by name
    as in `gradwire.scenarios.result`."""

    ports: Columns
    drops: Columns
    missing: Columns
    packet_hops: int


def collect_ports(network: Network, memory: Memory) -> Columns:
    """One row per directed link: packets and bytes transmitted, drops by cause, marks, most bytes that ever waited."""
    M, base = memory.M, memory.port_base
    more = M[base + at.P_MORE]
    late = {cause: M[more + at.X_CAUSES + i] for i, cause in enumerate(CAUSES[at.CAUSE_EVICTED :])}
    return {
        "port": [network.link_name(link) for link in range(len(base))],
        "packets": M[base + at.P_TAIL]
        + M[base + at.P_SPILL_TAIL]
        + M[base + at.P_DROP_LINK]
        + late["link_down"],
        "bytes": M[base + at.P_BYTES],
        "drops_tail": M[base + at.P_DROP_TAIL],
        "drops_selective": M[base + at.P_DROP_SELECTIVE],
        "drops_loss": M[base + at.P_DROP_LINK],
        "drops_evicted": late["evicted"],
        "drops_down": late["link_down"],
        "drops_no_route": late["no_route"],
        "marks": M[base + at.P_MARKS],
        "control_marks": M[base + at.P_CONTROL_MARKS],
        "trimmed": M[more + at.X_TRIMMED],
        "pauses": M[more + at.X_PAUSES],
        "peak_queue_bytes": M[base + at.P_PEAK],
    }


def collect_drops(network: Network, log: list[Ints]) -> Columns:
    """One row per lost packet, by time. `packet` is -1 for control packets."""
    found = drop_columns(joined(log, at.DROP_WORDS + 1))
    order = np.lexsort([found[name] for name in reversed(DROPS_BY)])
    columns: Columns = {name: found[name][order] for name in TABLES["drops"]}
    columns["port"] = [network.link_name(link) for link in found["port"][order].tolist()]
    columns["cause"] = [CAUSES[cause] for cause in found["cause"][order].tolist()]
    return columns


DROPS_BY = ("time_ps", "cause", "port", "message", "place", "word")
"""What drops are ordered by, not by the number of a flow record, which says nothing."""


def drop_columns(rows: Ints) -> dict[str, AnyArray]:
    """Rows of `Fabric.drop_log` as columns, ports and causes as numbers; `place` and `word` are there to order them."""
    A, B = rows[:, 2], rows[:, 3]
    data = ((A >> at.A_KIND) & 7) == at.DATA
    return {
        "message": rows[:, 4],
        "packet": np.where(data, (B >> at.B_SEQUENCE) & at.MASK_SEQUENCE, -1).astype(np.int32),
        "port": rows[:, 1] & 0xFFFFFFFF,
        "time_ps": rows[:, 0],
        "cause": rows[:, 1] >> 32,
        "important": ((A >> at.A_IMPORTANT) & 1).astype(bool),
        "priority": ((A >> at.A_PRIORITY) & 7).astype(np.int8),
        "place": B >> at.B_SEQUENCE,
        "word": A,
    }
