"""TCP NewReno with SACK: halve on loss, and on an ECN echo where `ecn` is set (RFC 5681, 6582, 6675, 3168)."""

from __future__ import annotations

from gradwire.components.compiled import njit
from gradwire.components.layout import S_DONE
from gradwire.components.transports.acknowledgements import forget_received, on_data, on_late
from gradwire.components.transports.base import Context
from gradwire.components.transports.recovery import find_losses, keep_pace, pull, recover
from gradwire.components.transports.window import (
    CWND,
    HIGHEST,
    NXT,
    REDUCED,
    UNA,
    acknowledge,
    forget,
    grow,
    on_probe,
    on_timer,
    reduce,
    resume,
    start,
)
from gradwire.scenarios.wire import ACK_BYTES, TCP_OVERHEAD


@njit
def on_control(M, k, f, kind, sequence, argument, echo, now):
    """An acknowledgement: scoreboard, losses, the reaction, growth."""
    una = M[f + UNA]
    newly = acknowledge(M, k, f, sequence, argument, now)
    if M[f + S_DONE]:
        return
    if M[f + UNA] <= M[f + HIGHEST] and find_losses(M, f) > 0:
        recover(M, k, f)
    keep_pace(M, f, newly)
    if echo and una >= M[f + REDUCED]:
        reduce(M, f, M[f + CWND] >> 1)
    if M[f + UNA] > una:
        grow(M, f, una, newly)


class TcpNewReno:
    """Transport `tcp_newreno`."""

    control_bytes = ACK_BYTES
    data_overhead = TCP_OVERHEAD
    sender_bitmaps = 3
    receiver_bitmaps = 1
    fresh_word = NXT
    probe_word = 0
    streams = True
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)
    on_late = staticmethod(on_late)
    resume = staticmethod(resume)
    forget = staticmethod(forget)
    forget_received = staticmethod(forget_received)

    @staticmethod
    def important(settings: dict) -> bool:
        """Packets are ECT when ECN is on."""
        return bool(settings.get("ecn", False))

    @staticmethod
    def control_important(settings: dict) -> bool:
        """Acknowledgements are Not-ECT, whatever the data are (RFC 3168, section 6.1.4)."""
        return False

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Initial window in packets, smallest and largest time-out in picoseconds; whether the window falls in
        proportion; how long acknowledgements may wait."""
        min_rto = max(settings.get("min_rto", 2_000_000_000), 3 * context.base_rtt)
        return [
            settings.get("initial_window", 10),
            min_rto,
            max(settings.get("max_rto", 1_000_000_000_000), min_rto),
            int(settings.get("recovery") == "prr"),
            settings.get("delayed_acks") or 0,
        ]
