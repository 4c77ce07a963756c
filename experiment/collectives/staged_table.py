"""What the tables of staged collectives have in common: kinds that say who sends what to whom, and leave the rest to
`gradwire.experiment.collectives.staged`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.exchange import ExchangeTable
from gradwire.scenarios.units import Bytes, Size

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers
    from gradwire.scenarios.schema.job import Job


MOST_WORKERS = 64
"""Beyond so many, a schedule is worked out by the run only (our choice)."""


class StagedTable(ExchangeTable):
    """Buckets of tensors that all workers go through a schedule with."""

    slots: ClassVar[int] = 0
    """How many messages a host has under way, so that those that follow one another do so on the wire too; 0: no
    limit."""
    slots_apart: ClassVar[bool] = True
    """Whether it has so many to each other host, or in all."""

    bucket: Size = Bytes(25 * 2**20)
    """Tensors are gathered into buckets of about this size, 25 MiB in PyTorch DDP [code]."""
    forward: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "barrier"
    """Whether forward of the next iteration waits for all buckets and the optimiser, or layer by layer for those that
    have something of the layer, and for its share of the optimiser step."""

    blocking: bool = False
    """Whether a worker does one bucket at a time: it begins with one when it has all of the one before, as a single
    thread does that calls a library and waits [code: the baselines of Lee et al., MLHPC '18]."""

    @property
    def unit_key(self) -> str:
        return "bucket"

    @property
    def grouped(self) -> bool:
        return not self.slots  # what is held back for the sake of others would hold back what passes wait for

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", f"makes no {self.kind}", job.workers, "at least two workers")
        if self.blocking and job.scheduler is not None and job.scheduler.waits == "layerwise":
            what = f"goes through buckets in turn, and {job.scheduler.kind} lets front layers go first"
            yield Mistake("exchange.blocking", what, True, "false, or another scheduler")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "bucket", (self.bucket + tensor) // self.parts(workers)

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.experiment.collectives.buckets import buckets_of

        among = setting.members, setting.rails, setting.inside
        each = self.sent(*among)
        if each is None and setting.members <= MOST_WORKERS:
            from gradwire.experiment.collectives.staged import transfers_of

            each = len(transfers_of(self, *among))
        return None if each is None else each * setting.copies * buckets_of(setting, self.bucket)

    def sent(self, workers: int, rails: int, inside: int) -> int | None:
        """How many transfers `schedule` has, told without making them; None: they are counted, if workers are few."""
        return None

    @abstractmethod
    def parts(self, workers: int) -> int:
        """The largest message is at the most the so-manieth part of a bucket."""

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        """The same where so many workers, one after the other, are in one machine each time; 1: hosts of their own."""
        return self.transfers(workers, rails)

    @abstractmethod
    def transfers(self, workers: int, rails: int) -> Transfers:
        """The schedule of a bucket among so many workers, whose hosts have so many network cards."""

    def collective(self, context: Any) -> Any:
        from gradwire.experiment.collectives.staged import Staged

        return Staged(context, self)
