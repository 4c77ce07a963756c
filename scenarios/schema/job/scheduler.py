"""Declares `SchedulerTable`, base class of [job.scheduler] tables, which set time and order of gradient messages;
`gradwire.workload.schedulers` implements them.

Each kind is a class in its own file (see `gradwire.scenarios.loading.registry`): its keys and its decisions. A job
without one sets the order by its keys `order`, `credit` and `credit_per`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import ScenarioTable
from gradwire.scenarios.units import format_size

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job.job import Job


class SchedulerTable(ScenarioTable, ABC):
    """Base of all kinds. A subclass with a `kind` is a complete scheduler."""

    kind: str
    waits: ClassVar[str] = "barrier"
    """Wait of the forward pass: "barrier" for everything, "layerwise" for the layer."""
    holds_back: ClassVar[bool] = False
    """True if a host holds some messages until others have been acknowledged."""
    unit_key: ClassVar[str] = ""
    """Its key for the size of partitions or buckets, so that the exchange must not set one; empty without one."""

    def misfits(self, job: Job) -> Iterator[Mistake]:
        """Yield the job's conflicts with this kind, with paths in the job's table. It is not called if the exchange has
        rejected the scheduler as a whole. A kind that cannot be used with the exchange reports that alone."""
        for key, value in (("order", "fifo"), ("credit", 4), ("credit_per", "host")):
            if getattr(job, key) != value:
                what = f"is set by the scheduler {self.kind}"
                yield Mistake(key, what, getattr(job, key), "either a scheduler or this key")
        waits = str(getattr(self, "forward", self.waits))
        for key, default in (("pull", "layerwise"), ("forward", "barrier")):
            value = getattr(job.exchange, key, default)
            if value not in (default, waits):
                what = f"differs from the forward wait of the scheduler {self.kind}"
                yield Mistake(f"exchange.{key}", what, value, f'"{waits}", or no such key')
        key = job.exchange.unit_key
        if self.unit_key and key:
            default = type(job.exchange).model_fields[key].default
            if getattr(job.exchange, key) != default:
                what = f"is set by the scheduler {self.kind}"
                yield Mistake(f"exchange.{key}", what, format_size(getattr(job.exchange, key)), "no such key")

    @abstractmethod
    def scheduling(self, job: Job, trace: Any) -> Any:
        """Return the `gradwire.workload.scheduling.Scheduling` of a job that replays a trace."""

    def longest(self, tensor: int) -> int | None:
        """Return the bytes of the largest partition or bucket for the largest tensor; None: the exchange's."""
        return None
