"""What every load balancer has beside its function."""

from __future__ import annotations

from typing import ClassVar

from gradwire.components.compiled import Rule, njit
from gradwire.components.layout import A_ENTROPY, S_DATA


@njit
def pick(M, f, count):
    """The entropy of the next data packet of sender `f`, of which `count` packets have been sent: 16 bits."""
    return (M[f + S_DATA] >> A_ENTROPY) & 0xFFFF


@njit
def heard(M, f, kind, entropy, echo, now):
    """A control packet has come back to sender `f`: `entropy` is that of the packet it answers."""


class Balancer:
    """Derive from it and set what differs."""

    kind: ClassVar[str]
    """How scenarios call it."""
    per_packet: ClassVar[bool] = False
    """Packets of one message take different ways, one by one."""
    by_entropy: ClassVar[bool] = False
    """In the class itself: the way follows from the switch and the packet's entropy, from nothing else."""
    choose: ClassVar[Rule]
    """The compiled function of switches (see `gradwire.components.balancers`)."""
    pick: ClassVar[Rule] = staticmethod(pick)
    """The compiled function of hosts: where the ways are chosen there, packet by packet."""
    heard: ClassVar[Rule] = staticmethod(heard)
    """What a host may learn of it; it has five words of the sender's record, from S_PATHS on, zero at first. Only
    called where `pick` is the balancer's own."""
    source_routes: ClassVar[bool] = False
    """Switches take the remainder of the entropy by the number of ways, and leave the quotient in the packet."""
    sees_queues: ClassVar[bool] = False
    """It reads P_QUEUE or P_BUSY of the ports it chooses from: the engine then brings them up to `now` first."""
    table_words: ClassVar[int] = 0
    """Words it keeps at every switch, zero at first, from M[node + N_TABLE] on."""

    @classmethod
    def by_hosts(cls) -> bool:
        """Whether hosts choose the ways."""
        return cls.pick is not Balancer.pick

    @classmethod
    def learns(cls) -> bool:
        """Whether hosts learn from acknowledgements which ways are good."""
        return cls.heard is not Balancer.heard
