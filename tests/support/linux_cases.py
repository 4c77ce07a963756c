"""A sender of the kernel's TCP with every rule on, driven by hand."""

from __future__ import annotations

from gradwire.protocols.transports.common.window import SHIFT
from gradwire.protocols.transports.tcp.tcp_newreno import TcpNewReno
from gradwire.testing import FlowHarness

US, MS = 10**6, 10**9
RULES = {
    "loss_detection": "rack", "tail_probes": True, "frto": True, "slow_start": "standard", "pacing": False, "timers": "exact",
    "min_rto": 10 * MS, "max_rto": 1000 * MS,
}  # fmt: skip


def sender(packets: int, owner=TcpNewReno, window: int = 10, **settings) -> FlowHarness:
    return FlowHarness(owner, packets, initial_window=window, **(RULES | settings))


def send(flow: FlowHarness, count: int, now: int = 0) -> list[int]:
    """So many packets, 10 us apart."""
    return [each for n in range(count) for each in flow.pull((now + 10 * n) * US, 1)]


def window(flow: FlowHarness) -> int:
    return flow.sender.cwnd >> SHIFT
