"""The base class of load balancers, and default functions of hosts."""

from __future__ import annotations

from typing import ClassVar

from gradwire.jit.compiled import Rule, njit
from gradwire.jit.layout import A_ENTROPY, S_DATA


@njit
def pick(M, f, count):
    """Return the 16-bit path entropy of the next data packet of sender `f`, which has sent `count` packets."""
    return (M[f + S_DATA] >> A_ENTROPY) & 0xFFFF


@njit
def heard(M, f, kind, entropy, echo, now):
    """Handle a control packet that came back to sender `f`; `entropy` is that of the packet it answers."""


class Balancer:
    """Base class of load balancers; derived classes set what differs."""

    kind: ClassVar[str]
    """Name in scenarios."""
    per_packet: ClassVar[bool] = False
    """Packets of one message may take different paths."""
    by_entropy: ClassVar[bool] = False
    """In the class itself: the next hop depends only on the switch and the packet's entropy."""
    choose: ClassVar[Rule]
    """Compiled function of switches (see `gradwire.protocols.load_balancers`)."""
    pick: ClassVar[Rule] = staticmethod(pick)
    """Compiled function of hosts that choose the path of every packet."""
    heard: ClassVar[Rule] = staticmethod(heard)
    """Feedback for a host, which may use five words of the sender's record, from S_PATHS on, initially zero. Only
    called if the balancer defines `pick`."""
    source_routes: ClassVar[bool] = False
    """Switches use the entropy modulo the number of next hops, and leave the quotient in the packet."""
    sees_queues: ClassVar[bool] = False
    """It reads P_QUEUE or P_BUSY of the candidate ports: the engine then updates them to `now` first."""
    table_words: ClassVar[int] = 0
    """Words per switch, initially zero, from M[node + N_TABLE] on."""

    @classmethod
    def by_hosts(cls) -> bool:
        """Return True if hosts choose the paths."""
        return cls.pick is not Balancer.pick

    @classmethod
    def learns(cls) -> bool:
        """Return True if hosts learn good paths from acknowledgements."""
        return cls.heard is not Balancer.heard
