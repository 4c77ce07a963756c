"""What a network has counted of every message."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.arrays import Ints


@dataclass(frozen=True, kw_only=True)
class Counts:
    """One number per message, from the message `first` on: packets sent, data packets sent again, data packets that
    arrived marked, headers that arrived alone, retransmission time-outs that it met, time of delivery (-1: not yet) and
    payload bytes that had arrived by then, or so far."""

    sent_packets: Ints
    retransmitted: Ints
    marked: Ints
    trimmed: Ints
    timeouts: Ints
    end_ps: Ints
    received_bytes: Ints
    first: int = 0
