"""What a fabric has counted, as columns ready for the tables of a Result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwire.components import layout as at
from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.sim.fabric.memory import Memory

CAUSES = ("tail", "selective", "link_loss", "evicted", "link_down", "no_route")


@dataclass(frozen=True)
class Tables:
    """`ports`, `drops` and `missing`: columns by name as in `gradwire.scenarios.result`; the others hold one number per
    message: packets sent, data packets sent again, data packets that arrived marked, headers that arrived alone,
    retransmission time-outs that it met, time of delivery (-1: not yet) and payload bytes delivered."""

    ports: Columns
    drops: Columns
    missing: Columns
    sent_packets: Ints
    retransmitted: Ints
    marked: Ints
    trimmed: Ints
    timeouts: Ints
    end_ps: Ints
    received_bytes: Ints
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
    rows = np.concatenate(log) if log else np.zeros((0, at.DROP_WORDS + 1), dtype=np.int64)
    # by time, port, message and packet; not by the number of a flow record, which says nothing
    rows = rows[np.lexsort((rows[:, 2], rows[:, 3] >> at.B_SEQUENCE, rows[:, 4], rows[:, 1], rows[:, 0]))]
    A, B = rows[:, 2], rows[:, 3]
    data = ((A >> at.A_KIND) & 7) == at.DATA
    links = rows[:, 1] & 0xFFFFFFFF
    return {
        "message": rows[:, 4],
        "packet": np.where(data, (B >> at.B_SEQUENCE) & at.MASK_SEQUENCE, -1).astype(np.int32),
        "port": [network.link_name(link) for link in links.tolist()],
        "time_ps": rows[:, 0],
        "cause": [CAUSES[cause] for cause in (rows[:, 1] >> 32).tolist()],
        "important": ((A >> at.A_IMPORTANT) & 1).astype(bool),
        "priority": ((A >> at.A_PRIORITY) & 7).astype(np.int8),
    }
