"""Parameter servers: the table; `gradwire.experiment.collectives.parameter_server` carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Flag, Natural
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS, Needs
from gradwire.scenarios.schema.exchange import ExchangeTable, check_partition
from gradwire.scenarios.units import Bytes, Rate, Size

if TYPE_CHECKING:
    from gradwire.experiment.collectives.base import Exchange, JobContext
    from gradwire.scenarios.schema.job import Job


SEVERAL_SERVERS = Needs(
    lambda at: at.owner is None or at.owner.servers > 1, "there is one server", "job.servers above 1"
)


class ParameterServer(ExchangeTable):
    """Workers push gradients to servers and pull the sum back; every tensor partition has one server."""

    workers_update = False

    kind: Literal["parameter_server"]
    pull: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "layerwise"
    """Forward of a layer waits for that layer's tensors only, or for all of them."""
    colocated: Flag = False
    """Servers on the workers' hosts rather than on hosts of their own."""
    partition: Size = Bytes(4 * 2**20)
    """Largest message: longer tensors are cut, and the parts spread over the servers."""
    shards: Annotated[Literal["bytes", "round_robin", "split"], SEVERAL_SERVERS] = "bytes"
    """Which server a partition lives on. bytes: the largest ones first, each on the server with the fewest bytes so
    far, as BytePS balances them [recalled]; round_robin: in turn, in the order of tensors; split: tensors of at least
    `split_above` in equal parts on all servers, the others in turn, as MXNet's KVStore does [recalled]."""
    split_above: Annotated[
        Size, Needs(lambda at: at.table.shards == "split", "no tensor is split over servers", 'shards = "split"'),
        SEVERAL_SERVERS,
    ] = Bytes(4_000_000)
    """With shards = "split": bytes above which a tensor is split; a million float32 values in MXNet [recalled]."""
    asynchronous: Flag = False
    """Servers answer every push by itself, with the parameters as they are then, and wait for no other worker's: what
    comes back is as old as the others are late."""
    staleness: Annotated[Natural, SEVERAL_ITERATIONS] = 0
    """How many iterations older parameters may be than the last one: a worker waits for what came back of so many
    iterations before, while its newer gradients are under way, and is never further ahead of the slowest one (bounded
    delay: Li et al., OSDI '14; stale synchronous parallel: Ho et al., NIPS '13, whose workers see newer values where
    there are some)."""
    aggregation: Flag = False
    """Whether the switches that workers and a server hang on add up what is pushed to it, in `switch.aggregation_slots`
    slots, and make what it sends back of one packet for all workers (ATP and SwitchML, both NSDI '21)."""
    server_rate: Rate | None = None
    """Bandwidth at which a server adds up what it receives; free if absent."""

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
            yield Mistake("servers", "is zero, but the exchange is by parameter server", 0, "at least one")
        if self.asynchronous and self.staleness:
            what = "is for servers that wait for all workers, and they do not"
            yield Mistake("exchange.staleness", what, self.staleness, "either this or asynchronous")
        if self.asynchronous and self.aggregation:
            what = "adds up the pushes of all workers, and asynchronous servers answer each by itself"
            yield Mistake("exchange.aggregation", what, True, "either this or asynchronous")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "partition", min(self.partition, tensor)

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.experiment.collectives.parameter_server import partitions_of

        here = set(setting.servers) <= set(setting.workers)
        return 2 * (len(setting.workers) - here) * sum(partitions_of(setting, self))

    def at_once(self, setting: Any) -> int:
        """Pushes of the largest tensor; of all where all are ready at one time."""
        from gradwire.experiment.collectives.parameter_server import partitions_of

        here, parts = set(setting.servers) <= set(setting.workers), partitions_of(setting, self)
        together = setting.table.compute_scale == 0 or setting.scheduling.starts == "backward"
        return (len(setting.workers) - here) * (sum(parts) if together else max(parts))

    def collective(self, context: JobContext) -> Exchange:
        from gradwire.experiment.collectives.parameter_server import ParameterServers

        return ParameterServers(context, self)
