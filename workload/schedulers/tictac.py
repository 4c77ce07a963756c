"""Declares the scheduler `tictac`, and computes the order in which servers send parameters as workers need them.

Hashemi et al., "TicTac: Accelerating Distributed Deep Learning with Communication Scheduling", MLSys '19. Servers send
parameters to every worker in the one order with the least waiting. It is computed beforehand from the graph of
computation, without times (TIC) or with them (TAC). Gradients go as they become ready.

Order of two transfers A and B, if A takes M_A and enables computation of P_A: A then B takes M_A + max(P_A, M_B) + P_B,
so A goes first if min(P_A, M_B) > min(P_B, M_A); ties go to the shorter time until something can begin (M+) [recalled,
the comparison derived].

The models of traces are chains of layers, each of which needs its own parameters and the previous layer: there TAC is
the order of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.job.scheduler import SchedulerTable
from gradwire.workload.scheduling import LAYER, Scheduling

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class TicTac(SchedulerTable):
    """Servers send parameters in the order in which they are needed; workers send gradients as they become ready."""

    kind: Literal["tictac"]
    waits = "layerwise"
    holds_back = True
    credit: Count = 2
    """Maximum messages of a host in flight to each other host: serial, as on one connection, with a second one to
    bridge the acknowledgements of the first. Ours."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        if job.servers:
            yield from super().misfits(job)
        else:
            what = "orders the messages of servers, and there are none"
            yield Mistake("scheduler", what, self.kind, "parameter servers")

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        layers = len(trace.layers)
        chain = {layer: (1.0, range(layer + 1)) for layer in range(layers)}
        ranks = [0] * layers
        for rank, layer in enumerate(tac_order(trace.layer_bytes.tolist(), chain)):
            ranks[layer] = rank
        return Scheduling(LAYER, self.credit, apart=True, forward=self.waits, ranks=((0,) * layers, tuple(ranks)))


def tac_order(times: Sequence[float], computing: Mapping[Any, tuple[float, Sequence[int]]]) -> list[int]:
    """Return the TAC order of transfers.

    times : duration of every transfer.
    computing : pieces of computation: duration, and all transfers needed before, including those of earlier pieces.
    """
    left = list(range(len(times)))
    order: list[int] = []
    while left:
        lets, until = dict.fromkeys(left, 0.0), dict.fromkeys(left, float("inf"))
        for duration, needs in computing.values():
            missing = [transfer for transfer in needs if transfer in lets]
            if len(missing) == 1:
                lets[missing[0]] += duration
            for transfer in missing if len(missing) > 1 else ():
                until[transfer] = min(until[transfer], sum(times[other] for other in missing))
        best = left[0]
        for other in left[1:]:
            best_overlap, overlap = min(lets[best], times[other]), min(lets[other], times[best])
            if overlap > best_overlap or (overlap == best_overlap and until[other] < until[best]):
                best = other
        order.append(best)
        left.remove(best)
    return order
