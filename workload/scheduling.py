"""`Scheduling` holds, as plain data, the decisions that a scheduler makes and its job carries out.

They are: the parts that gradients are cut into, the start of communication, the order of a host's messages and their
number in flight, and the messages that forward waits for. Without a scheduler, the job's keys `order`, `credit` and
`credit_per` define the order, and its exchange the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gradwire.scenarios.loading.user_code_errors import asked

FIFO, LAYER = "fifo", "layer"


@dataclass(frozen=True)
class Scheduling:
    """Decisions of a scheduler.

    order : "fifo", a host sends messages as they become ready, or "layer": those of the lowest rank first, while less
        than the credit is in flight.
    credit : in largest messages, if `order` is "layer"; `credit_bytes` overrides it if it is not None.
    apart : True if the credit is per destination.
    starts : "ready", communication begins with the first gradient, or "backward", at the end of the backward pass.
    forward : forward of a layer waits for this layer only ("layerwise") or for everything ("barrier"); None: set by the
        exchange.
    cut : bytes of separately exchanged parts of tensors; None: set by the exchange.
    caps : bytes at which buckets are closed, of the first, the second and so on; none: set by the exchange.
    fills : the order in which tensors go into buckets, of the first iteration and of later ones: "ready", the order in
        which gradients became ready, or "model", that of the model, last one first.
    in_turn : True if the buckets begin one after the other on every worker.
    ranks : by direction (forth, back) and layer; none: the layer.
    """

    order: str = FIFO
    credit: int = 0
    credit_bytes: int | None = None
    apart: bool = False
    starts: Literal["ready", "backward"] = "ready"
    forward: str | None = None
    cut: int | None = None
    caps: tuple[int, ...] = ()
    fills: tuple[Literal["ready", "model"], ...] = ("ready",)
    in_turn: bool = True
    ranks: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def credit_of(self, unit_bytes: int) -> int:
        """Return the maximum bytes in flight, for messages of up to `unit_bytes`; 0 with "fifo"."""
        if self.order == FIFO:
            return 0
        return self.credit * unit_bytes if self.credit_bytes is None else self.credit_bytes

    def rank(self, back: bool, layer: int) -> int:
        """Return the rank of a message whose first layer is `layer`."""
        return layer if self.ranks is None else self.ranks[back][layer]


def scheduling_of(table: Any, trace: Any) -> Scheduling:
    """Return the scheduling of a [[job]] table that replays a trace."""
    if table.scheduler is not None:
        with asked(table.scheduler, "scheduling", "job.scheduler"):
            decisions: Scheduling = table.scheduler.scheduling(table, trace)
        return decisions
    return Scheduling(order=table.order, credit=table.credit, apart=table.credit_per == "destination")
