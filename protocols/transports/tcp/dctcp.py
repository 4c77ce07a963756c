"""DCTCP (RFC 8257; Alizadeh et al., SIGCOMM '10) shrinks a sender's window by the share of marked packets.

The receiver echoes the mark of every packet exactly (one acknowledgement per packet or, if delayed, RFC 8257's rule:
see `delayed_acks`). alpha starts at 1, gain g = 1/16, both from RFC 8257. Once per window of data, on the first echo,
the window shrinks by alpha / 2; it does not grow again until that window has been acknowledged, as in Linux. With
`preset = "linux"` the reduction is that of `gradwire.protocols.transports.linux_tcp.growth.threshold`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.base import ONE, Context, fixed_mul, fraction
from gradwire.protocols.transports.common.delayed_acks import RECEIVER_AT_REST, on_data_alike
from gradwire.protocols.transports.common.persistent_state import PersistentState
from gradwire.protocols.transports.common.recovery import find_losses, keep_pace, pull, recover
from gradwire.protocols.transports.common.reliable import Reliable
from gradwire.protocols.transports.common.window import (
    SENDER_AT_REST,
    WindowFlow,
    WindowParameters,
    acknowledge,
    grow,
    observe,
    on_probe,
    on_timer,
    reduce,
)
from gradwire.protocols.transports.common.window import forget as forget_window
from gradwire.protocols.transports.common.window import start as start_window
from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.effect_conditions import REACTS_TO_MARKS, Precondition
from gradwire.scenarios.schema.network.tcp_rules import TcpRulesTable
from gradwire.scenarios.schema.network.transport_base import ConnectionTransport, Gain, LossBasedTcp

if TYPE_CHECKING:
    from gradwire.scenarios.json_data import JsonView
    from gradwire.scenarios.schema.network.transport_base import Transport


@njit
def start(params: WindowParameters, flow: WindowFlow, now: int) -> None:
    """Initialise a flow as the window machinery does, with alpha = 1."""
    start_window(params, flow, now)
    flow.alpha = ONE


@njit
def on_control(
    params: WindowParameters, flow: WindowFlow, kind: int, sequence: int, argument: int, echo: int, now: int
) -> None:
    """Process an acknowledgement: scoreboard, losses, the share of marks, reaction, growth."""
    una = flow.una
    newly = acknowledge(params, flow, sequence, argument, now)
    if flow.is_done:
        return
    flow.acked += newly
    if echo:
        flow.marked += newly
    if flow.una <= flow.highest and find_losses(flow) > 0:
        recover(params, flow)
    keep_pace(flow, newly)
    observe(params, flow)
    if echo and una >= flow.reduction_end:
        reduce(flow, flow.cwnd - fixed_mul(flow.cwnd, flow.alpha) // 2)
    if flow.una > una:
        grow(flow, una, newly)


@njit
def forget(params: WindowParameters, flow: WindowFlow, packets: int) -> None:
    """Renumber packets as the window machinery does; the end of the observation window moves as well."""
    forget_window(params, flow, packets)
    flow.observation_end -= packets


class MarkBased(Reliable, LossBasedTcp):
    """Base class of DCTCP and its descendants."""

    ecn: Flag = True
    """Packets are ECN-capable."""
    g: Annotated[Gain, REACTS_TO_MARKS, Precondition(lambda at: at.table.ecn, "it ignores marks", "ecn = true")] = (
        0.0625
    )
    """Weight of the newest window in the estimate of the marked share, 1/16 [RFC 8257]."""

    start = staticmethod(start)
    on_control = staticmethod(on_control)
    on_timer = staticmethod(on_timer)
    on_data = staticmethod(on_data_alike)
    on_probe = staticmethod(on_probe)
    forget = staticmethod(forget)

    @property
    def wants_marks(self) -> bool:  # type: ignore[override]
        """True with `ecn`."""
        return self.ecn

    @staticmethod
    def control_important(settings: dict) -> bool:
        """Return True with `ecn`: acknowledgements are ECT if data is, as in Linux; RFC 8257 leaves it open."""
        return bool(settings["ecn"])

    @staticmethod
    def parameters(settings: dict, context: Context) -> list[int]:
        """Return those of `Reliable`, and the gain."""
        return [*Reliable.parameters(settings, context), fraction(settings["g"])]


class Dctcp(ConnectionTransport, MarkBased, TcpRulesTable):
    """DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257): the window shrinks by the share of marked packets."""

    forgets = True
    kind: Literal["dctcp"]

    kernel_tcp = "dctcp"
    streams = True
    sender_at_rest = SENDER_AT_REST.union(PersistentState(idle=(WindowFlow.observation_end,)))
    receiver_at_rest = RECEIVER_AT_REST
    sums = True
    pull = staticmethod(pull)

    @classmethod
    def variant(cls, settings: JsonView) -> type[Transport]:
        """Return the class that carries out these settings: this one, or one over the Linux sender."""
        from gradwire.protocols.transports.linux_tcp.variants import linux_class

        return linux_class(cls, settings)
