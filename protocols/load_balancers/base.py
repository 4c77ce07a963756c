"""Defines `Balancer`, the base class of load balancers, and the default path functions of hosts."""

from __future__ import annotations

from typing import ClassVar

from gradwire.jit.compiled import Rule, njit
from gradwire.jit.records.flows import Sender
from gradwire.jit.records.packets import entropy_of


@njit
def pick_path(flow: Sender, draws: int) -> int:
    """Return the 16-bit path entropy of the flow's next data packet. `draws`: packets that the flow has sent."""
    return entropy_of(flow.data_header)


@njit
def on_feedback(flow: Sender, kind: int, entropy: int, echo: int, now: int) -> None:
    """Process a control packet that has reached the flow's sender. `entropy`: that of the data packet it answers."""


class Balancer:
    """Base class of load balancers; derived classes set what differs."""

    kind: ClassVar[str]
    """Name in scenarios."""
    per_packet: ClassVar[bool] = False
    """True if packets of one message may take different paths."""
    by_entropy: ClassVar[bool] = False
    """True, in the class itself, if the next hop depends only on the switch and the packet's entropy."""
    select: ClassVar[Rule]
    """Compiled function of switches (see `gradwire.protocols.load_balancers`)."""
    pick_path: ClassVar[Rule] = staticmethod(pick_path)
    """Compiled function of hosts that choose the path of every packet."""
    on_feedback: ClassVar[Rule] = staticmethod(on_feedback)
    """Compiled function of hosts that learn from control packets, called if the class defines `pick_path`. Both may use
    fourteen words of the flow's record, initially zero: fields of a class derived with `Sender, space="paths"`."""
    source_routes: ClassVar[bool] = False
    """True if switches use the entropy modulo the number of next hops, and leave the quotient in the packet."""
    numbers_paths: ClassVar[bool] = False
    """True if the lower bits of an entropy number the message's paths: `switch.path_entropies` is then a power of two,
    at most 128."""
    sees_queues: ClassVar[bool] = False
    """True if it reads `queue` or `busy_until` of the candidate ports: the engine then updates them to `now` first."""
    table_words: ClassVar[int] = 0
    """Words of the record that each switch keeps, initially zero; its base is `switch.balancer_table`."""

    @classmethod
    def by_hosts(cls) -> bool:
        """Return True if hosts choose the paths."""
        return cls.pick_path is not Balancer.pick_path

    @classmethod
    def learns(cls) -> bool:
        """Return True if hosts learn good paths from acknowledgements."""
        return cls.on_feedback is not Balancer.on_feedback
