"""Scheduling: what a job's scheduler decides, as plain data.

What is decided is what gradients are cut into, when communicating may begin, in which order a host lets its messages
go and how many at a time, and which of them forward waits for. Who does which part of that otherwise is said in the
schedulers' own files (`gradwire.experiment.schedulers`); where a job has no scheduler, its keys `order`, `credit` and
`credit_per` say the order, and its exchange the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gradwire.scenarios.asked import asked

FIFO, LAYER = "fifo", "layer"


@dataclass(frozen=True)
class Scheduling:
    """What is decided.

    Attributes
    ----------
    order : "fifo", a host lets messages go as they become ready, or "layer": those of the lowest rank first, while less
        than the credit is under way.
    credit : in largest messages, where `order` is "layer"; `credit_bytes` goes before it if it is not None.
    apart : whether the credit is for each destination by itself.
    starts : "ready", communicating begins with the first gradient, or "backward", when the backward pass is over.
    forward : whether forward of a layer waits for this layer only ("layerwise") or for everything ("barrier"); None:
        as the exchange says.
    cut : bytes into which tensors are cut, each part being exchanged by itself; None: as the exchange says.
    caps : bytes at which buckets are closed, of the first, the second and so on; none: as the exchange says.
    fills : the order in which tensors go into buckets, of the first iteration, and of later ones where another follows:
        "ready", that in which gradients became ready, or "model", that of the model, last one first.
    in_turn : whether the buckets begin one after the other on every worker.
    ranks : by way (forth, back) and layer; none: the layer.
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
        """Bytes that may be under way, given the largest message; 0 with "fifo"."""
        if self.order == FIFO:
            return 0
        return self.credit * unit_bytes if self.credit_bytes is None else self.credit_bytes

    def rank(self, back: bool, layer: int) -> int:
        """The rank of a message that carries something of a layer, and of none before it."""
        return layer if self.ranks is None else self.ranks[back][layer]


def scheduling_of(table: Any, trace: Any) -> Scheduling:
    """That of a [[job]] table which replays a trace."""
    if table.scheduler is not None:
        with asked(table.scheduler, "scheduling", "job.scheduler"):
            found: Scheduling = table.scheduler.scheduling(table, trace)
        return found
    return Scheduling(order=table.order, credit=table.credit, apart=table.credit_per == "destination")
