"""Declares the records of a profile that a training step needs, in arrays; `events` fills them.

Times are microseconds of the profiler's clock (float64).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

HOST, DEVICE, UNKNOWN = "host", "device", "unknown"
"""Sides of an accelerator's record: a launch on the CPU, work on the accelerator, or not known by its category."""


class GradientCall(NamedTuple):
    """A gradient's collective or accumulation, called at `at`; `row` is the thread, `group` the process group."""

    kind: str
    at: float
    numel: int
    dtype: str
    shape: tuple[int, ...] = ()
    correlation: float = math.nan
    group: str = ""
    row: int = -1


class Step(NamedTuple):
    """A `ProfilerStep#` annotation."""

    begin: float
    end: float
    number: int


class CpuSpan(NamedTuple):
    """Time span on the CPU."""

    begin: float
    end: float


def _floats() -> array[float]:
    return array("d")


@dataclass
class Activities:
    """Records of one category on the accelerator or of its launches: columns of equal length."""

    side: str
    category: str
    begin: array[float] = field(default_factory=_floats)
    end: array[float] = field(default_factory=_floats)
    correlation: array[float] = field(default_factory=_floats)
    row: array[int] = field(default_factory=lambda: array("l"))
    name: array[int] = field(default_factory=lambda: array("l"))
    communicates: array[int] = field(default_factory=lambda: array("b"))


@dataclass
class Functions:
    """Autograd functions of the backward pass: columns of equal length; `accumulates` is true if gradients end
    in it."""

    begin: array[float] = field(default_factory=_floats)
    end: array[float] = field(default_factory=_floats)
    row: array[int] = field(default_factory=lambda: array("l"))
    accumulates: array[int] = field(default_factory=lambda: array("b"))


@dataclass
class Records:
    """All needed records of a profile. A row is a (process, thread or stream) of the timeline."""

    steps: list[Step] = field(default_factory=list)
    optimizers: list[CpuSpan] = field(default_factory=list)
    accumulated: list[GradientCall] = field(default_factory=list)
    calls: list[GradientCall] = field(default_factory=list)  # record_param_comms
    operators: list[GradientCall] = field(default_factory=list)  # c10d::allreduce_ with shapes
    kernel_calls: list[GradientCall] = field(default_factory=list)  # NCCL kernels
    gathers: list[GradientCall] = field(default_factory=list)  # all-gathers, as called by SyncBatchNorm's forward pass
    forward: array[float] = field(default_factory=_floats)  # operators that autograd recorded for the backward pass
    forward_rows: array[int] = field(default_factory=lambda: array("l"))
    functions: Functions = field(default_factory=Functions)
    backward_operators: dict[int, list[CpuSpan]] = field(default_factory=dict)  # FooBackward, by row
    activities: dict[str, Activities] = field(default_factory=dict)  # by category
    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    cpu_rows: set[int] = field(default_factory=set)
    trainers: set[int] = field(default_factory=set)  # rows that call the model and the optimizer
    processes: Counter[str] = field(default_factory=Counter)  # training records of each process
    descriptions: dict[str, str] = field(default_factory=dict)  # of process groups
    lost: Counter[str] = field(default_factory=Counter)  # records left out for impossible times

    def row(self, process: object, thread: object) -> int:
        """Return the number of a row."""
        return self.rows.setdefault((str(process), str(thread)), len(self.rows))

    def name(self, name: str) -> int:
        """Return the number of a kernel's or launch's name."""
        return self.names.setdefault(name, len(self.names))

    def add_activity(
        self,
        category: str,
        side: str,
        span: CpuSpan,
        correlation: float,
        row: int,
        name: str,
        communicates: bool = False,
    ) -> None:
        """Add a record of the accelerator, or a launch of its work."""
        activities = self.activities.setdefault(category, Activities(side, category))
        activities.begin.append(span.begin)
        activities.end.append(span.end)
        activities.correlation.append(correlation)
        activities.row.append(row)
        activities.name.append(self.name(name))
        activities.communicates.append(communicates)
