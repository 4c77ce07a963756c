"""TCP NewReno with SACK halves its window on losses and, with `ecn`, on ECN echoes (RFC 5681, 6582, 6675, 3168)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.common.delayed_acks import RECEIVER_AT_REST, on_data
from gradwire.protocols.transports.common.recovery import find_losses, keep_pace, pull, recover
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.window import (
    SENDER_AT_REST,
    WindowFlow,
    WindowParameters,
    acknowledge,
    grow,
    on_probe,
    on_timer,
    reduce,
    start,
)
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.effect_conditions import REACTS_TO_MARKS
from gradwire.scenarios.schema.network.tcp_rules import TcpRulesTable
from gradwire.scenarios.schema.network.transport_base import ConnectionTransport

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.network.transport_base import Transport


@njit
def on_control(
    params: WindowParameters, flow: WindowFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement: scoreboard, losses, reaction, growth."""
    una = flow.una
    newly = acknowledge(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    if flow.una <= flow.highest and find_losses(flow) > 0:
        recover(params, flow)
    keep_pace(flow, newly)
    if echo and una >= flow.reduction_end:
        reduce(flow, flow.cwnd >> 1)
    if flow.una > una:
        grow(flow, una, newly)


class TcpNewReno(Reliable, ConnectionTransport, TcpRulesTable):
    """TCP NewReno; by default its packets are not ECN-capable."""

    kernel_tcp = "reno"

    forgets = True
    kind: Literal["tcp_newreno"]
    ecn: Annotated[Flag, REACTS_TO_MARKS] = False
    """Packets are ECN-capable; others are dropped above K if `selective_drop` is on."""

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
        """Return the class that carries out these settings: this one, or one over the Linux sender."""
        from gradwire.protocols.transports.linux_tcp.variants import linux_class

        return linux_class(cls, settings)
