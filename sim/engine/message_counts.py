"""`MessageCounts` declares the counters of messages (packets sent, retransmitted and marked, time-outs, end, bytes), an
array each."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.arrays import Ints


@dataclass(frozen=True, kw_only=True)
class MessageCounts:
    """One number per message, from the message `first` on.

    sent_packets : packets sent.
    retransmitted : data packets retransmitted.
    marked : data packets that arrived marked.
    trimmed : headers that arrived without payload.
    timeouts : retransmission time-outs.
    end_ps : time of delivery, -1 before.
    received_bytes : payload bytes that had arrived by then, or so far.
    """

    sent_packets: Ints
    retransmitted: Ints
    marked: Ints
    trimmed: Ints
    timeouts: Ints
    end_ps: Ints
    received_bytes: Ints
    first: int = 0
