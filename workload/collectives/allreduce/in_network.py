"""Declares the exchange `in_network`, whose switches sum the workers' packets and multicast the results;
`parameter_server_steps` builds its messages.

Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (SwitchML), NSDI '21, and Lao et al.,
"ATP: In-network Aggregation for Multi-tenant Learning", NSDI '21. Every worker is the server of an equal share of the
partitions, on its own host. Pushes of the others to it are summed by the switches between them, and its results are
multicast to all of them. So each worker sends its gradients once and receives the results once, about half of a ring's
bytes. In SwitchML the result comes from the switch itself; here, as in ATP, a host adds its own part, handles whatever
found no slot in a switch, and knows which packets were lost (our choice).

On an idle star of N workers, with b the time of a byte on a link and no latency, S bytes of gradients that become ready
one after the other, as fast as they can be sent, take about S b: S (N - 1)/N of gradients and S/N of results leave a
worker, and as much comes in; a ring takes 2 S b (N - 1)/N. In-network aggregation takes as long as a ring if all
gradients are ready at once: a NIC serves its messages in turn, so none is complete before nearly all are, and the
results come after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.job.exchange import ExchangeTable, check_partition
from gradwire.scenarios.units import Bytes, Size, format_size
from gradwire.workload.collectives.exchanges.parameter_server import ParameterServer

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


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
            yield Mistake("workers", "leaves a worker without a peer", job.workers, "at least 2")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "partition", min(self.partition, tensor)

    @property
    def as_servers(self) -> ParameterServer:
        """The equivalent parameter server: every worker is a server."""
        keys = {"pull": self.pull, "partition": format_size(self.partition), "colocated": True, "aggregation": True}
        return ParameterServer.model_validate({"kind": "parameter_server", **keys})

    def messages_of(self, setting: Any) -> int | None:
        return self.as_servers.messages_of(replace(setting, servers=setting.workers))

    def simultaneous_messages(self, setting: Any) -> int:
        return self.as_servers.simultaneous_messages(replace(setting, servers=setting.workers))

    def collective(self, context: Any) -> Any:
        return self.as_servers.collective(replace(context, servers=context.workers))
