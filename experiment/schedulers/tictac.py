"""TicTac: parameters are sent in the order in which they are needed.

Hashemi et al., "TicTac: Accelerating Distributed Deep Learning with Communication Scheduling", MLSys '19. Servers send
every worker its parameters in one order, by which computing waits least; it is worked out beforehand from the graph of
what computes with what, without times (TIC) or with them (TAC). Gradients go as they become ready.

Which of two transfers A and B should go first, when A lets P_A of computing begin and takes M_A itself: A then B takes
M_A + max(P_A, M_B) + P_B, so A goes first if min(P_A, M_B) is the larger one of min(P_A, M_B) and min(P_B, M_A), and
where they are equal, the one with the shorter time until something can begin (M+) [recalled, the comparison derived].

The models of traces are chains of layers, of which each needs its own parameters and the layer before it: there TAC is
the order of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gradwire.experiment.scheduling import LAYER, Scheduling
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.scheduler import SchedulerTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class TicTac(SchedulerTable):
    """Servers send parameters in the order in which they are needed; workers send gradients as they become ready."""

    kind: Literal["tictac"]
    waits = "layerwise"
    holds_back = True
    credit: Count = 2
    """Messages that a host may have under way to each other one: they go one after the other, as by one connection, and
    the second one bridges the first one's acknowledgements. Ours."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        if job.servers:
            yield from super().misfits(job)
        else:
            yield Mistake("scheduler", "orders what servers send, and there are none", self.kind, "parameter servers")

    def scheduling(self, job: Job, trace: Any) -> Scheduling:
        layers = len(trace.layers)
        nbytes = [0.0] * layers
        for tensor in trace.tensors:
            nbytes[tensor.layer] += tensor.bytes
        chain = {layer: (1.0, range(layer + 1)) for layer in range(layers)}
        ranks = [0] * layers
        for place, layer in enumerate(order_of_need(nbytes, chain)):
            ranks[layer] = place
        return Scheduling(LAYER, self.credit, apart=True, forward=self.waits, ranks=((0,) * layers, tuple(ranks)))


def order_of_need(times: Sequence[float], computing: Mapping[Any, tuple[float, Sequence[int]]]) -> list[int]:
    """TAC: the order in which transfers should go.

    Parameters
    ----------
    times : how long every transfer takes.
    computing : pieces of computing: how long each takes, and all transfers that have to be there before, those of
        pieces before it included.
    """
    left = list(range(len(times)))
    order: list[int] = []
    while left:
        lets, until = dict.fromkeys(left, 0.0), dict.fromkeys(left, float("inf"))
        for duration, needs in computing.values():
            missing = [each for each in needs if each in lets]
            if len(missing) == 1:
                lets[missing[0]] += duration
            for each in missing if len(missing) > 1 else ():
                until[each] = min(until[each], sum(times[other] for other in missing))
        best = left[0]
        for other in left[1:]:
            mine, its = min(lets[best], times[other]), min(lets[other], times[best])
            if its > mine or (its == mine and until[other] < until[best]):
                best = other
        order.append(best)
        left.remove(best)
    return order
