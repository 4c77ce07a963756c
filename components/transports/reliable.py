"""What the transports over the window machinery have beside their own functions: see `window`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradwire.components.compiled import Rule
from gradwire.components.transports.acknowledgements import forget_received, on_late
from gradwire.components.transports.base import Context
from gradwire.components.transports.window import NXT, forget, resume
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD

if TYPE_CHECKING:
    from gradwire.scenarios.arrays import Json


class Reliable:
    """Its bitmaps and words, and its first parameters; packets of TCP unless a transport says otherwise."""

    control_bytes: ClassVar[int] = ACK_BYTES
    data_overhead: ClassVar[int] = TCP_OVERHEAD
    sender_bitmaps: ClassVar[int] = 3
    receiver_bitmaps: ClassVar[int] = 1
    fresh_word: ClassVar[int] = NXT
    probe_word: ClassVar[int] = 0
    on_late: ClassVar[Rule] = staticmethod(on_late)
    resume: ClassVar[Rule] = staticmethod(resume)
    forget: ClassVar[Rule] = staticmethod(forget)
    forget_received: ClassVar[Rule] = staticmethod(forget_received)

    @staticmethod
    def important(settings: dict) -> bool:
        """Packets are ECT when ECN is on."""
        return bool(settings["ecn"])

    @staticmethod
    def control_important(settings: dict) -> bool:
        """Acknowledgements are Not-ECT, whatever the data are (RFC 3168, section 6.1.4)."""
        return False

    @staticmethod
    def parameters(settings: Json, context: Context) -> list[int]:
        """Initial window in packets, smallest and largest time-out in picoseconds; whether the window falls in
        proportion; how long acknowledgements may wait."""
        min_rto = max(settings["min_rto"], 3 * context.base_rtt)
        return [
            settings["initial_window"],
            min_rto,
            max(settings["max_rto"], min_rto),
            int(settings.get("recovery") == "prr"),
            settings.get("delayed_acks") or 0,
        ]
