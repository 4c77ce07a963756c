"""TCP BBR, which only the kernel has: a transport of the testbed, without rules of its own here."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.transport_base import Connected
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD


class Bbr(Connected):
    """TCP BBR as the kernel has it [Cardwell et al., ACM Queue 2016]: on the testbed only (`gradwire emulate`)."""

    kind: Literal["bbr"]

    kernel_tcp = "bbr"
    simulated = False
    control_bytes = ACK_BYTES
    data_overhead = TCP_OVERHEAD

    @staticmethod
    def important(settings: dict) -> bool:
        """As the kernel has it."""
        return True
