"""What the [job.scheduler] tables of all kinds have in common: when and in which order gradients are communicated.

Each kind is a class in a file of its own (see `gradwire.scenarios.components`): its keys, and what it decides. A job
without one says the order by its keys `order`, `credit` and `credit_per`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Table
from gradwire.scenarios.units import format_size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


class SchedulerTable(Table, ABC):
    """What all kinds answer. A class derived from it with a `kind` is a scheduler with all there is to know of it."""

    kind: str
    waits: ClassVar[str] = "barrier"
    """What forward waits for: "barrier", everything, or "layerwise", the layer."""
    holds_back: ClassVar[bool] = False
    """Whether a host lets some messages wait until others have been acknowledged."""
    unit_key: ClassVar[str] = ""
    """Its key that says into what tensors are cut or gathered, so that the exchange must not; empty without one."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        """What of its job does not fit this kind, with paths in the job's table. It is not asked where the exchange
        has refused it as a whole, and a kind that cannot be used with the exchange says that alone."""
        for key, value in (("order", "fifo"), ("credit", 4), ("credit_per", "host")):
            if getattr(job, key) != value:
                what = f"is said by the scheduler {self.kind} already"
                yield Mistake(key, what, getattr(job, key), "either a scheduler or this key")
        waits = str(getattr(self, "forward", self.waits))
        for key, default in (("pull", "layerwise"), ("forward", "barrier")):
            said = getattr(job.exchange, key, default)
            if said not in (default, waits):
                what = f"is not what forward waits for by the scheduler {self.kind}"
                yield Mistake(f"exchange.{key}", what, said, f'"{waits}", or to leave it out')
        key = job.exchange.unit_key
        if self.unit_key and key:
            default = type(job.exchange).model_fields[key].default
            if getattr(job.exchange, key) != default:
                what = f"is said by the scheduler {self.kind} already"
                yield Mistake(f"exchange.{key}", what, format_size(getattr(job.exchange, key)), "to leave it out")

    @abstractmethod
    def scheduling(self, job: Job, trace: Any) -> Any:
        """What it decides for a job that replays a trace: a `gradwire.experiment.scheduling.Scheduling`."""

    def longest(self, tensor: int) -> int | None:
        """Bytes of the largest part or bucket, given the largest tensor; None: as the exchange says."""
        return None
