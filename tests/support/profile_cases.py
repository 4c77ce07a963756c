"""Profiles of a known training run: times, streams, process groups, optimizers, closures, micro-batches; and damage.

`Job` says what happens; `Recorded` is the profile of it, event by event, with the true times of each iteration.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Event = dict[str, Any]
HOST, DEVICE, COMPUTE, EXCHANGE = 1, 0, 7, 20
MAIN, AUTOGRAD = 100, 101
LAYOUTS = ("around", "before_update", "per_micro_batch", "none")
VENDORS = {
    "cuda": ("cuda_runtime", "cudaLaunchKernel", "kernel"),
    "driver": ("cuda_driver", "cuLaunchKernelEx", "kernel"),
    "hip": ("hip_runtime", "hipExtModuleLaunchKernel", "kernel"),
    "xpu": ("xpu_runtime", "urEnqueueKernelLaunch", "kernel"),
    "privateuse1": ("privateuse1_runtime", "aclrtLaunchKernel", "kernel"),
    "mtia": ("mtia_runtime", "launchJob", "mtia_ccp_events"),
    "hpu": ("hpu", "synLaunch", "hpu_op"),
}
DATA_GROUPS = ("DATA_PARALLEL_GROUP", "mesh_dp", "dp_shard_cp", "DATA_PARALLEL_GROUP_WITH_CP", "ddp")
MODEL_GROUPS = ("TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp", "tp", "EXPERT_MODEL_PARALLEL_GROUP", "pp")


@dataclass(frozen=True)
class Job:
    """What a profile is of. Times in whole microseconds: `forward`, `backward` per layer, `updates` per optimizer."""

    iterations: int = 3
    forward: tuple[int, ...] = (1000, 900)
    backward: tuple[int, ...] = (2000, 1800)
    updates: tuple[int, ...] = (500,)
    micro_batches: int = 1
    layout: str = "around"
    is_closure: bool = False
    vendor: str = "cuda"
    has_shapes: bool = True
    data_group: str = "DATA_PARALLEL_GROUP"
    model_group: str = ""
    has_batch_norm: bool = False
    has_metric: bool = False
    older_kernels: int = 0
    pause: int = 100  # of the CPU between two iterations


class Times(NamedTuple):
    """Of one iteration, in microseconds."""

    forward: int
    ready: tuple[int, ...]
    optimizer: int


@dataclass
class Recorded:
    """A profile and the true times of its iterations."""

    job: Job
    events: list[Event] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    clock: int = 1_000_000
    free: int = 0
    correlation: int = 100

    def __post_init__(self) -> None:
        for index in range(self.job.older_kernels):
            self._event(self._vendor[2], "old", DEVICE, COMPUTE, self.clock - 500 + 10 * index, 5, correlation=index)
        begins: list[int] = []
        for iteration in range(self.job.iterations):
            begins += self._iteration(iteration)
        for number, (begin, end) in enumerate(zip(begins, [*begins, self.clock][1:], strict=True)):
            if end > begin:
                self._event("user_annotation", f"ProfilerStep#{number}", HOST, MAIN, begin, end - begin)

    @property
    def _vendor(self) -> tuple[str, str, str]:
        return VENDORS[self.job.vendor]

    def _event(self, category: str, name: str, pid: int, tid: int, ts: int, dur: int, **args: Any) -> Event:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        self.events.append(event)
        return event

    def _operator(self, name: str, thread: int, dur: int, **args: Any) -> Event:
        event = self._event("cpu_op", name, HOST, thread, self.clock, dur, **args)
        self.clock += 1
        return event

    def _kernel(self, name: str, thread: int, lasts: int) -> tuple[int, int]:
        """Launch a kernel; return its start and end."""
        category, launch, work = self._vendor
        self.correlation += 1
        self._event(category, launch, HOST, thread, self.clock, 2, correlation=self.correlation)
        start = max(self.clock + 9, self.free)
        self._event(work, name, DEVICE, COMPUTE, start, lasts, correlation=self.correlation, stream=COMPUTE)
        self.clock += 3
        self.free = start + lasts
        return start, self.free

    def _collective(self, name: str, thread: int, numel: int, group: str) -> None:
        args = {"Collective name": name, "In msg nelems": numel, "dtype": "Float", "Group size": 4}
        args |= {"Process Group Name": "1" if group == self.job.data_group else "2"}
        args["Process Group Description"] = group
        self._operator("record_param_comms", thread, 1, **args)

    def _pass(self, scale: int, is_last: bool, ready: list[int]) -> tuple[int, int]:
        """Return the start of a forward and backward pass, and the end of the forward one."""
        starts, job = [], self.job
        for lasts in job.forward:
            self._operator("aten::linear", MAIN, 4, **{"Fwd thread id": 0, "Sequence number": 1})
            if job.has_batch_norm and not job.has_shapes:
                self._collective("_allgather_base", MAIN, 129, job.data_group)
            if job.model_group:
                self._collective("allreduce", MAIN, 50_000, job.model_group)
            starts.append(self._kernel("gemm", MAIN, lasts + scale)[0])
            self.clock += 5
        middle = self.free
        for layer, lasts in enumerate(job.backward):
            function = self._operator("autograd::engine::evaluate_function: AddmmBackward0", AUTOGRAD, 12)
            self._kernel("gemm_backward", AUTOGRAD, lasts + scale)
            if job.model_group:
                self._collective("allreduce", AUTOGRAD, 50_000, job.model_group)
            if job.has_batch_norm and not job.has_shapes:
                self._collective("allreduce", AUTOGRAD, 128, job.data_group)
            shape = {"Input Dims": [[layer + 2, 300]], "Input type": ["float"]} if job.has_shapes else {}
            accumulated = self._operator("torch::autograd::AccumulateGrad", AUTOGRAD, 0, **shape)
            accumulated["dur"] = 1
            self.clock += 1
            if is_last:
                ready.append(self.free)
                if not job.has_shapes:
                    self._collective("allreduce", AUTOGRAD, 10_000 * (layer + 2), job.data_group)
            function["dur"] = self.clock - function["ts"] + 1
            self.clock += 5
        return starts[0], middle

    def _iteration(self, iteration: int) -> list[int]:
        """Return the beginnings of the profiler's steps in it."""
        job, begins, ready = self.job, [], []
        start, waited = 0, 0
        scale = 10 * iteration
        if job.layout in ("around", "per_micro_batch"):
            begins.append(self.clock)
        self.clock += 3
        closure = (
            self._event("user_annotation", "Optimizer.step#SGD.step", HOST, MAIN, 0, 0) if job.is_closure else None
        )
        for batch in range(job.micro_batches):
            is_last = batch + 1 == job.micro_batches
            if batch:
                self.clock += job.pause
                if job.layout == "per_micro_batch":
                    begins.append(self.clock)
            if closure is not None and is_last:
                closure["ts"] = self.clock
                self.clock += 2
            before = self.free
            first, middle = self._pass(scale, is_last, ready)
            if batch:
                waited += first - before
            else:
                start = first
        if job.layout == "before_update" and not job.is_closure:
            self.clock += 2
            begins.append(self.clock)
            self.clock += 2
        spent = 0
        for index, lasts in enumerate(job.updates):
            span = closure if closure is not None and not index else None
            if span is None:
                span = self._event("user_annotation", "Optimizer.step#Adam.step", HOST, MAIN, self.clock, 0)
            self.clock += 4
            first, end = self._kernel("update", MAIN, lasts + scale)
            spent += end - first
            span["dur"] = self.clock + 4 - span["ts"]
            self.clock += 8
        if job.has_metric:
            self._collective("allreduce", MAIN, 2, job.data_group)
        self.clock += job.pause
        origin = start + waited
        self.times.append(Times(middle - origin, tuple(moment - origin for moment in ready), spent))
        return begins


Damage = Callable[[list[Event], int], list[Event]]


def _is_work(event: Event) -> bool:
    return event["pid"] == DEVICE and event["name"] != "old"


def _damage(choose: Callable[[Event], bool], change: Callable[[Event], None]) -> Damage:
    def damaged(events: list[Event], which: int) -> list[Event]:
        events = copy.deepcopy(events)
        candidates = [event for event in events if choose(event)]
        change(candidates[which % len(candidates)])
        return events

    return damaged


def _without(choose: Callable[[Event], bool]) -> Damage:
    def damaged(events: list[Event], which: int) -> list[Event]:
        candidates = [index for index, event in enumerate(events) if choose(event)]
        lost = candidates[which % len(candidates)]
        return [event for index, event in enumerate(events) if index != lost]

    return damaged


def _twice(events: list[Event], which: int) -> list[Event]:
    candidates = [event for event in events if _is_work(event)]
    return [*events, copy.deepcopy(candidates[which % len(candidates)])]


def _overlapping(events: list[Event], which: int) -> list[Event]:
    events = copy.deepcopy(events)
    works = sorted((event for event in events if _is_work(event)), key=lambda event: int(event["ts"]))
    place = which % (len(works) - 1)
    works[place]["dur"] = works[place + 1]["ts"] - works[place]["ts"] + 50
    return events


def _both_zero(events: list[Event], which: int) -> list[Event]:
    events = copy.deepcopy(events)
    works = [event for event in events if _is_work(event)]
    correlation = works[which % len(works)]["args"]["correlation"]
    for event in events:
        if event["args"].get("correlation") == correlation:
            event.update(ts=0, dur=0)
    return events


def _other_process(events: list[Event], which: int) -> list[Event]:
    others = copy.deepcopy(events)
    for event in others:
        event["pid"] += 5
        event["ts"] += 777
    return [*events, *others]


def _launches(event: Event) -> bool:
    return event["pid"] == HOST and "correlation" in event["args"]


def _named(begin: str) -> Callable[[Event], bool]:
    return lambda event: bool(event["name"].startswith(begin))


def _zero(event: Event) -> None:
    event.update(ts=0, dur=0)


DAMAGES: dict[str, Damage] = {
    "kernel with ts 0 and dur 0": _damage(_is_work, _zero),
    "kernel with ts 0": _damage(_is_work, lambda event: event.update(ts=0)),
    "kernel with dur 0": _damage(_is_work, lambda event: event.update(dur=0)),
    "kernel of impossible duration": _damage(_is_work, lambda event: event.update(dur=10**9)),
    "kernel that overlaps its successor": _overlapping,
    "kernel of negative duration": _damage(_is_work, lambda event: event.update(dur=-5)),
    "kernel before its launch": _damage(_is_work, lambda event: event.update(ts=event["ts"] - 10**5)),
    "kernel far behind": _damage(_is_work, lambda event: event.update(ts=event["ts"] + 10**7)),
    "last kernel far behind": _damage(
        lambda event: _is_work(event) and event["name"] == "update", lambda event: event.update(ts=event["ts"] + 10**9)
    ),
    "lost kernel": _without(_is_work),
    "kernel twice": _twice,
    "launch with ts 0 and dur 0": _damage(_launches, _zero),
    "launch far behind": _damage(_launches, lambda event: event.update(ts=event["ts"] + 10**7)),
    "lost launch": _without(_launches),
    "kernel and launch without times": _both_zero,
    "optimizer with ts 0 and dur 0": _damage(_named("Optimizer.step"), _zero),
    "optimizer that does not end": _damage(_named("Optimizer.step"), lambda event: event.update(dur=10**9)),
    "function with ts 0 and dur 0": _damage(_named("autograd::engine"), _zero),
    "function that does not end": _damage(_named("autograd::engine"), lambda event: event.update(dur=10**9)),
    "lost function": _without(_named("autograd::engine")),
    "gradient with ts 0 and dur 0": _damage(_named("torch::autograd"), _zero),
    "two ranks in one file": _other_process,
}
