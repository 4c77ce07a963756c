"""What a fabric has counted, as columns ready for the tables of a Result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.components import layout as at
from gradwire.sim.fabric.memory import Memory

CAUSES = ("tail", "selective", "link_loss", "evicted", "link_down", "no_route")


@dataclass(frozen=True)
class Tables:
    """`ports`, `drops` and `missing`: columns by name as in `gradwire.scenarios.result`; the others hold one number per
    message: packets sent, data packets sent again, data packets that arrived marked, headers that arrived alone,
    retransmission time-outs that it met, time of delivery (-1: not yet) and payload bytes that had arrived by
    then, or so far."""

    ports: dict[str, Any]
    drops: dict[str, Any]
    missing: dict[str, Any]
    sent_packets: NDArray[np.int64]
    retransmitted: NDArray[np.int64]
    marked: NDArray[np.int64]
    trimmed: NDArray[np.int64]
    timeouts: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    received_bytes: NDArray[np.int64]
    packet_hops: int


def collect_ports(network: Any, memory: Memory) -> dict[str, Any]:
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


def collect_drops(network: Any, log: list[NDArray[np.int64]]) -> dict[str, Any]:
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
