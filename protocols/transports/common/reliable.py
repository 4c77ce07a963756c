"""`Reliable`, the base class of window transports, declares their sizes, field offsets, hooks and parameters; `window`
implements the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradwire.jit.compiled import Rule
from gradwire.protocols.transports.base import Context
from gradwire.protocols.transports.common.delayed_acks import forget_received, on_late
from gradwire.protocols.transports.common.window import WindowFlow, forget, resume
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import Json


class Reliable:
    """Sizes, functions and first parameters of window transports; TCP packets unless a transport overrides them."""

    control_bytes: ClassVar[int] = ACK_BYTES
    data_overhead: ClassVar[int] = TCP_OVERHEAD
    sender_bitmaps: ClassVar[int] = 3
    receiver_bitmaps: ClassVar[int] = 1
    fresh_word: ClassVar[int] = WindowFlow.nxt.offset
    probe_word: ClassVar[int] = 0
    on_late: ClassVar[Rule] = staticmethod(on_late)
    resume: ClassVar[Rule] = staticmethod(resume)
    forget: ClassVar[Rule] = staticmethod(forget)
    forget_received: ClassVar[Rule] = staticmethod(forget_received)

    @staticmethod
    def important(settings: dict) -> bool:
        """Return True if ECN is on: then data packets are ECT."""
        return bool(settings["ecn"])

    @staticmethod
    def control_important(settings: dict) -> bool:
        """Return False: acknowledgements are Not-ECT, whatever the data are (RFC 3168, section 6.1.4)."""
        return False

    @staticmethod
    def parameters(settings: Json, context: Context) -> list[int]:
        """Return the initial window (packets), smallest and largest time-out (ps), PRR, and the maximum acknowledgement
        delay."""
        min_rto = max(settings["min_rto"], 3 * context.base_rtt)
        return [
            settings["initial_window"],
            min_rto,
            max(settings["max_rto"], min_rto),
            int(settings.get("recovery") == "prr"),
            settings.get("delayed_acks") or 0,
        ]
