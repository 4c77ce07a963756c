"""All-reduce in the network: switches add up what workers send, and make the results of one packet for all.

Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (SwitchML), NSDI '21, and Lao et al.,
"ATP: In-network Aggregation for Multi-tenant Learning", NSDI '21. Every worker is the server of an equal share of the
partitions, on its own host: what the others push to it is added up by the switches that they and it hang on, and what
it sends back goes from there to all of them. So each worker sends its gradients once and receives the results once,
about half of what a ring sends. SwitchML has the result come from the switch itself; here, as in ATP, a host adds its
own part, does what switches had no slot for, and knows what has been lost (our choice).

On an idle star of N workers, where the link takes b for a byte and latencies do not count, S bytes of gradients that
come one after the other, as fast as they can be sent, take about S b: S (N - 1)/N of its gradients and S/N of results
leave a worker, and as much comes in; a ring takes 2 S b (N - 1)/N. So does this where all gradients are ready at one
time: a card serves its messages in turn, so that none is whole before nearly all are, and results go behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from gradwire.experiment.collectives.kinds.parameter_server import ParameterServer
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.exchange import ExchangeTable, check_partition
from gradwire.scenarios.units import Bytes, Size, format_size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class InNetwork(ExchangeTable):
    """All-reduce by switches that sum, in `switch.aggregation_slots` slots, with every worker the server of a share."""

    workers_update = False

    kind: Literal["in_network"]
    pull: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "layerwise"
    """Forward of a layer waits for that layer's tensors only, or for all of them."""
    partition: Size = Bytes(4 * 2**20)
    """Largest message: longer tensors are cut, and the parts spread over the workers."""

    @model_validator(mode="after")
    def _whole_values(self) -> InNetwork:
        check_partition(self.partition)
        return self

    @property
    def unit_key(self) -> str:
        return "partition"

    @property
    def aggregates(self) -> bool:
        return True

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", "has nobody to exchange with", job.workers, "at least 2")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "partition", min(self.partition, tensor)

    @property
    def as_servers(self) -> ParameterServer:
        """What it comes to, every worker a server."""
        return ParameterServer(
            kind="parameter_server", pull=self.pull, colocated=True, partition=format_size(self.partition),
            aggregation=True,
        )  # fmt: skip

    def messages_of(self, setting: Any) -> int | None:
        return self.as_servers.messages_of(replace(setting, servers=setting.workers))

    def at_once(self, setting: Any) -> int:
        return self.as_servers.at_once(replace(setting, servers=setting.workers))

    def collective(self, context: Any) -> Any:
        return self.as_servers.collective(replace(context, servers=context.workers))
