"""The table `parameter_server` declares the settings of an exchange with servers;
`gradwire.workload.collectives.exchanges.parameter_server_steps` builds its messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Flag, Natural
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS, Precondition
from gradwire.scenarios.schema.job.exchange import ExchangeTable, check_partition
from gradwire.scenarios.units import Bytes, Rate, Size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job
    from gradwire.workload.collectives.common.base import Exchange, JobContext


SEVERAL_SERVERS = Precondition(
    lambda at: at.owner is None or at.owner.servers > 1, "there is one server", "job.servers above 1"
)


class ParameterServer(ExchangeTable):
    """Workers push gradients to servers and pull the sum back; every tensor partition has one server."""

    workers_update = False

    kind: Literal["parameter_server"]
    pull: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "layerwise"
    """Forward of a layer waits for that layer's tensors only, or for all of them."""
    colocated: Flag = False
    """Servers share the workers' hosts instead of using separate ones."""
    partition: Size = Bytes(4 * 2**20)
    """Largest message: longer tensors are cut, and the parts spread over the servers."""
    shards: Annotated[Literal["bytes", "round_robin", "split"], SEVERAL_SERVERS] = "bytes"
    """Server of each partition. bytes: the largest partitions first, each on the server with the fewest bytes so far,
    as in BytePS [recalled]; round_robin: in turn, in the order of tensors; split: tensors of at least `split_above` in
    equal parts on all servers, the others in turn, as in MXNet's KVStore [recalled]."""
    split_above: Annotated[
        Size,
        Precondition(lambda at: at.table.shards == "split", "no tensor is split over servers", 'shards = "split"'),
        SEVERAL_SERVERS,
    ] = Bytes(4_000_000)
    """With shards = "split": bytes above which a tensor is split; a million float32 values in MXNet [recalled]."""
    asynchronous: Flag = False
    """Servers answer each push separately, with their current parameters, and do not wait for other workers: parameters
    are as stale as the other workers are late."""
    staleness: Annotated[Natural, SEVERAL_ITERATIONS] = 0
    """Maximum age of parameters, in iterations: a worker waits for the results of this many iterations earlier, while
    its newer gradients are in flight, and is never further ahead of the slowest one (bounded delay: Li et al., OSDI
    '14; stale synchronous parallel: Ho et al., NIPS '13, whose workers see newer values if there are any)."""
    aggregation: Flag = False
    """If true, the switches between workers and a server sum pushes, in `switch.aggregation_slots` slots, and multicast
    the server's results to all workers (ATP and SwitchML, both NSDI '21)."""
    skip_zeros: Flag = False
    """Leave out blocks of 256 elements whose gradients are all zero, and from answers those that are zero for all
    workers; other blocks carry their position, 4 bytes (OmniReduce, SIGCOMM '21). Without loss bounds."""
    server_rate: Rate | None = None
    """Bandwidth at which a server sums what it receives; free if absent."""

    @model_validator(mode="after")
    def _whole_values(self) -> ParameterServer:
        check_partition(self.partition)
        return self

    @property
    def unit_key(self) -> str:
        return "partition"

    @property
    def aggregates(self) -> bool:
        return self.aggregation

    @property
    def shares_hosts(self) -> bool:
        return self.colocated

    def misfits(self, job: Job) -> Iterator[Mistake]:
        if job.servers == 0:
            yield Mistake("servers", "is zero, but the exchange is a parameter server", 0, "at least one")
        if self.asynchronous and self.staleness:
            what = "applies to servers that wait for all workers; asynchronous servers do not"
            yield Mistake("exchange.staleness", what, self.staleness, "either this or asynchronous")
        if self.asynchronous and self.aggregation:
            what = "sums the pushes of all workers; asynchronous servers answer each push separately"
            yield Mistake("exchange.aggregation", what, True, "either this or asynchronous")
        if self.skip_zeros:
            yield from self._sparse_misfits(job)

    def _sparse_misfits(self, job: Job) -> Iterator[Mistake]:
        """Yield the job's conflicts with messages whose sizes depend on the worker."""
        for key, is_set, why in (
            ("exchange.asynchronous", self.asynchronous, "asynchronous servers return whole partitions"),
            ("exchange.aggregation", self.aggregation, "switches add up packets of equal messages"),
            ("push_bound", job.push_bound, "a lost block looks like one of zeros"),
            ("pull_bound", job.pull_bound, "a lost block looks like one of zeros"),
            ("tagging.magnitude", job.tagging.magnitude, "all of its packets are important"),
        ):
            if is_set:
                yield Mistake("exchange.skip_zeros", why, True, f"either this or {key}")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "partition", min(self.partition, tensor)

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.workload.collectives.exchanges.parameter_server_steps import count_partitions

        colocated = set(setting.servers) <= set(setting.workers)
        return 2 * (len(setting.workers) - colocated) * sum(count_partitions(setting, self))

    def simultaneous_messages(self, setting: Any) -> int:
        """Return the pushes of the largest tensor, or of all tensors if all are ready at the same time."""
        from gradwire.workload.collectives.exchanges.parameter_server_steps import count_partitions

        colocated, parts = set(setting.servers) <= set(setting.workers), count_partitions(setting, self)
        together = setting.table.compute_scale == 0 or setting.scheduling.starts == "backward"
        return (len(setting.workers) - colocated) * (sum(parts) if together else max(parts))

    def collective(self, context: JobContext) -> Exchange:
        from gradwire.workload.collectives.exchanges.parameter_server_steps import ParameterServers

        return ParameterServers(context, self)
