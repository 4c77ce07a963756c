"""`StagedTable` declares the settings of an exchange by scheduled transfers; a subclass defines the schedule, and
`staged` builds its messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.loading.user_code_errors import asked, class_file
from gradwire.scenarios.schema.effect_conditions import SEVERAL_ITERATIONS
from gradwire.scenarios.schema.job.exchange import ExchangeTable
from gradwire.scenarios.units import Bytes, Size
from gradwire.workload.collectives.common.transfer_schedule import Transfers

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


MOST_WORKERS = 64
"""Above this, schedules are computed by the run only, not by checks (our choice)."""


class StagedTable(ExchangeTable):
    """Exchange of buckets of tensors that all workers send through a schedule."""

    slots: ClassVar[int] = 0
    """A host's limit of messages in flight, so that consecutive messages are also consecutive on the wire; 0: none."""
    slots_apart: ClassVar[bool] = True
    """True if the limit holds for each destination, False for all together."""

    bucket: Size = Bytes(25 * 2**20)
    """Tensors are gathered into buckets of about this size, 25 MiB in PyTorch DDP [code]."""
    forward: Annotated[Literal["barrier", "layerwise"], SEVERAL_ITERATIONS] = "barrier"
    """Forward of the next iteration waits for all buckets and the optimiser, or, layer by layer, for the buckets with
    elements of the layer and for its share of the optimiser step."""

    blocking: bool = False
    """If true, a worker has one bucket at a time: it begins the next one when it has received all of this one, as a
    single thread does that calls a library and waits [code: the baselines of Lee et al., MLHPC '18]."""

    @property
    def unit_key(self) -> str:
        return "bucket"

    @property
    def grouped(self) -> bool:
        return not self.slots  # messages held back for other messages would hold back those that passes wait for

    def misfits(self, job: Job) -> Iterator[Mistake]:
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", f"is too small for {self.kind}", job.workers, "at least two workers")
        if self.blocking and job.scheduler is not None and job.scheduler.waits == "layerwise":
            what = f"goes through buckets in turn, and {job.scheduler.kind} sends front layers first"
            yield Mistake("exchange.blocking", what, True, "false, or another scheduler")

    def longest(self, tensor: int, workers: int) -> tuple[str, int]:
        return "bucket", (self.bucket + tensor) // self.parts(workers)

    def messages_of(self, setting: Any) -> int | None:
        from gradwire.workload.collectives.common.buckets import count_buckets

        sizes = setting.members, setting.rails, setting.inside
        transfers = self.sent(*sizes)
        if transfers is None and setting.members <= MOST_WORKERS:
            transfers = len(self.checked_transfers(*sizes))
        return None if transfers is None else transfers * setting.copies * count_buckets(setting, self.bucket)

    def sent(self, workers: int, rails: int, inside: int) -> int | None:
        """Return the number of transfers of `schedule`, without computing it; None: they are counted, if workers are
        few."""
        return None

    @abstractmethod
    def parts(self, workers: int) -> int:
        """Return the divisor of a bucket that bounds the largest message."""

    def schedule(self, workers: int, rails: int, inside: int) -> Transfers:
        """Return the schedule if machines hold `inside` consecutive workers each; 1: a host per worker."""
        return self.transfers(workers, rails)

    @abstractmethod
    def transfers(self, workers: int, rails: int) -> Transfers:
        """Return the schedule of a bucket among `workers`, whose hosts have `rails` NICs."""

    def checked_transfers(self, workers: int, rails: int, inside: int = 1) -> Transfers:
        """Return `schedule`; raise ScenarioError if the kind's rule was stopped, or its schedule is not valid."""
        with asked(self, "transfers", "job.exchange"):
            plan: object = self.schedule(workers, rails, inside)
        if isinstance(plan, Transfers):
            problem = plan.fault(workers, rails)
            if not problem:
                return plan
        else:
            problem = f"a {type(plan).__name__}"
        what = f"{class_file(type(self))}: transfers of {type(self).__name__} returns {problem}"
        raise ScenarioError(
            what, "job.exchange", "Transfers (gradwire.workload.collectives.common.transfer_schedule) among the workers"
        )

    def collective(self, context: Any) -> Any:
        from gradwire.workload.collectives.common.staged import Staged

        return Staged(context, self)
