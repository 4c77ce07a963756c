"""What the [job.exchange] tables of all kinds have in common: how the workers of a job exchange their gradients.

Each kind is a class in a file of its own (see `gradwire.scenarios.components`): its keys, what it needs of the job, and
the collective that carries it out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Table, refuse
from gradwire.scenarios.units import format_size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


def check_partition(partition: int) -> None:
    """Refuse a largest message, in bytes, that does not hold whole float32 values."""
    if partition % 4:
        raise refuse("partition", "cuts a float32 value", format_size(partition), "a multiple of 4 bytes")


class ExchangeTable(Table, ABC):
    """What all kinds answer. A class derived from it with a `kind` is an exchange with all there is to know of it."""

    workers_update: ClassVar[bool] = True
    """Whether workers may make an optimiser step, rather than servers only."""

    kind: str

    @property
    def unit_key(self) -> str:
        """The key that says into what tensors are cut or gathered; empty if there is none."""
        return ""

    @property
    def multiplies(self) -> tuple[str, ...]:
        """Keys of whole numbers that make more messages of a tensor, beside `unit_key`."""
        return ()

    @property
    def aggregates(self) -> bool:
        """Whether switches add up what workers send, where they have slots for it."""
        return False

    @property
    def grouped(self) -> bool:
        """Whether it goes inside of groups of workers, where these have different parts of a model."""
        return False

    @property
    def shares_hosts(self) -> bool:
        """Whether servers are on the workers' hosts rather than on hosts of their own."""
        return False

    def hosts_needed(self, job: Job, gpus: int = 1) -> int:
        """How many hosts a job takes, of which a machine holds so many; a server of its own takes a machine."""
        if self.shares_hosts:
            return max(job.workers, job.servers)
        if gpus == 1 or not job.servers:
            return job.workers + job.servers
        return gpus * (-(-job.workers // gpus) + job.servers)

    def misfits(self, job: Job) -> Iterator[Mistake]:
        """What of its job does not fit this kind, with paths in the job's table."""
        if job.servers:
            yield Mistake("servers", f"has no meaning with {self.kind}", job.servers, "no servers")

    def unfit(self, job: Job, gpus: int) -> Iterator[Mistake]:
        """What of its job does not fit where hosts have so many accelerators, with paths in the job's table."""
        return iter(())

    def against(self, job: Job, trace: Any) -> Iterator[Mistake]:
        """What of its job does not fit the trace that it replays, with paths in the job's table."""
        return iter(())

    @abstractmethod
    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        """Bytes of the longest message, at most, and the key that decides it. `tensor`: bytes of the largest tensor."""

    def messages_of(self, setting: Any) -> int | None:
        """How many messages an iteration has, or at most has, told without making them; None: nobody says. `setting`:
        who exchanges what, a `JobSetting` (`gradwire.experiment.collectives.setting`)."""
        return None

    def at_once(self, setting: Any) -> int:
        """How many of them begin at one time at the least, where workers are in step and nothing holds messages back;
        0: nobody says."""
        return 0

    @abstractmethod
    def collective(self, context: Any) -> Any:
        """What carries it out: an `Exchange`, given the `JobContext` of its job (both in
        `gradwire.experiment.collectives.base`)."""
