"""Declares the kernel's TCP BBR as a transport of the testbed only, without simulated rules."""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.schema.network.transport_base import ConnectionTransport
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD


class Bbr(ConnectionTransport):
    """TCP BBR of the kernel [Cardwell et al., ACM Queue 2016]: on the testbed only (`gradwire emulate`)."""

    kind: Literal["bbr"]

    kernel_tcp = "bbr"
    simulated = False
    control_bytes = ACK_BYTES
    data_overhead = TCP_OVERHEAD

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True; the kernel decides."""
        return True
