"""A sender of the kernel's TCP with every rule on, driven by hand."""

from __future__ import annotations

from gradwire.components.transports.linux_words import (
    more,
)
from gradwire.components.transports.tcp_newreno import TcpNewReno
from gradwire.components.transports.window import CWND, SHIFT
from gradwire.testing import Ends
from gradwire.testing.oracle.uncompiled import uncompiled

US, MS = 10**6, 10**9
RULES = {
    "loss_detection": "rack", "tail_probes": True, "frto": True, "slow_start": "standard", "pacing": False, "timers": "exact",
    "min_rto": 10 * MS, "max_rto": 1000 * MS,
}  # fmt: skip


def sender(packets: int, owner=TcpNewReno, window: int = 10, **settings) -> Ends:
    return Ends(owner, packets, initial_window=window, **(RULES | settings))


def send(flow: Ends, count: int, now: int = 0) -> list[int]:
    """So many packets, 10 us apart."""
    return [each for n in range(count) for each in flow.pull((now + 10 * n) * US, 1)]


def word(flow: Ends, which: int) -> int:
    return int(flow.M[uncompiled(more)(flow.M, flow.f, which)])


def window(flow: Ends) -> int:
    return flow[CWND] >> SHIFT
