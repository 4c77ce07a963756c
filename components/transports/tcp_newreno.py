"""TCP NewReno with SACK: halve on loss, and on an ECN echo where `ecn` is set (RFC 5681, 6582, 6675, 3168)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from gradwire.components.compiled import njit
from gradwire.components.layout import S_DONE
from gradwire.components.transports.acknowledgements import RECEIVER_AT_REST, on_data
from gradwire.components.transports.recovery import find_losses, keep_pace, pull, recover
from gradwire.components.transports.reliable import Reliable
from gradwire.components.transports.window import (
    CWND,
    HIGHEST,
    REDUCED,
    SENDER_AT_REST,
    UNA,
    acknowledge,
    grow,
    on_probe,
    on_timer,
    reduce,
    start,
)
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.effect_conditions import GOES_BY_MARKS
from gradwire.scenarios.schema.tcp_rules import Ruled
from gradwire.scenarios.schema.transport_base import Connected

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.transport_base import Transport


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


class TcpNewReno(Reliable, Connected, Ruled):
    """TCP NewReno; by default its packets are not ECN-capable."""

    kernel_tcp = "reno"

    forgets = True
    kind: Literal["tcp_newreno"]
    ecn: Annotated[Flag, GOES_BY_MARKS] = False
    """Whether packets are ECN-capable; others are dropped above K where `selective_drop` is on."""

    streams = True
    sender_at_rest = SENDER_AT_REST
    receiver_at_rest = RECEIVER_AT_REST
    sums = True
    start = staticmethod(start)
    pull = staticmethod(pull)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data)
    on_probe = staticmethod(on_probe)

    @classmethod
    def variant(cls, settings: JsonView) -> type[Transport]:
        """Its own functions, or the sender that has the other rules."""
        from gradwire.components.transports.linux_kinds import linux

        return linux(cls, settings)
