"""Declares `ExchangeTable`, base class of [job.exchange] tables, which choose the exchange of gradients;
`gradwire.workload.collectives` implements it.

Each kind is a class in its own file (see `gradwire.scenarios.loading.registry`): its keys, its requirements on the job,
and the collective that implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import ScenarioTable, single_mistake
from gradwire.scenarios.units import format_size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


def check_partition(partition: int) -> None:
    """Raise a mistake if a partition size, in bytes, does not hold whole float32 values."""
    if partition % 4:
        raise single_mistake("partition", "splits a float32 value", format_size(partition), "a multiple of 4 bytes")


class ExchangeTable(ScenarioTable, ABC):
    """Base of all kinds. A subclass with a `kind` is a complete exchange."""

    workers_update: ClassVar[bool] = True
    """True if workers may make an optimiser step, rather than servers only."""

    kind: str

    @property
    def unit_key(self) -> str:
        """Key of the size of partitions or buckets; empty if there is none."""
        return ""

    @property
    def multiplies(self) -> tuple[str, ...]:
        """Keys of integers, beside `unit_key`, that multiply the messages of a tensor."""
        return ()

    @property
    def aggregates(self) -> bool:
        """True if switches with aggregation slots add up the workers' packets."""
        return False

    @property
    def grouped(self) -> bool:
        """True if it can run inside groups of workers that hold different parts of a model."""
        return False

    @property
    def shares_hosts(self) -> bool:
        """True if servers run on the workers' hosts rather than on separate hosts."""
        return False

    def hosts_needed(self, job: Job, gpus: int = 1) -> int:
        """Return the hosts that a job takes; a machine holds `gpus` of them, and a separate server takes a whole
        machine."""
        if self.shares_hosts:
            return max(job.workers, job.servers)
        if gpus == 1 or not job.servers:
            return job.workers + job.servers
        return gpus * (-(-job.workers // gpus) + job.servers)

    def misfits(self, job: Job) -> Iterator[Mistake]:
        """Yield the job's conflicts with this kind, with paths in the job's table."""
        if job.servers:
            yield Mistake("servers", f"is not used by {self.kind}", job.servers, "no servers")

    def gpu_conflicts(self, job: Job, gpus: int) -> Iterator[Mistake]:
        """Yield the job's conflicts with `gpus` accelerators per host, with paths in the job's table."""
        return iter(())

    def trace_conflicts(self, job: Job, trace: Any) -> Iterator[Mistake]:
        """Yield the job's conflicts with the trace that it replays, with paths in the job's table."""
        return iter(())

    @abstractmethod
    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        """Return the bytes of the longest message, at most, and the key that sets it. `tensor`: bytes of the largest
        tensor."""

    def messages_of(self, setting: Any) -> int | None:
        """Return the number of messages of an iteration, or an upper bound, without creating them; None if unknown.
        `setting`: a `JobSetting` (`gradwire.workload.collectives.common.base`)."""
        return None

    def simultaneous_messages(self, setting: Any) -> int:
        """Return a lower bound of messages that begin at one time, with workers in step and nothing held back; 0 if
        unknown."""
        return 0

    @abstractmethod
    def collective(self, context: Any) -> Any:
        """Return the `Exchange` that implements it, for the `JobContext` of its job. Both are in
        `gradwire.workload.collectives.common.base`."""
