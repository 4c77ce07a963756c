"""Groups a profile's passes into iterations, each up to an optimizer update, and keeps those of the most frequent kind.

An iteration is a run of forward and backward passes up to the following update. So it does not matter whether
`profiler.step()` is called before or after the update, once for each micro-batch, or not at all. Without a recorded
optimizer each `ProfilerStep#` is an iteration. Only iterations of the most frequent kind are chosen: with the same
gradients, passes and optimizers. The others, such as DDP's first step and incomplete ones, are counted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.backward import Passes, Update
from gradwire.traces.formats.profile.collectives import within_backward
from gradwire.traces.formats.profile.records import GradientCall, Records, Step

ONE_RANK = "one rank per file; gradwire diagnose reads the files of several ranks of a job"
OTHER_GRADIENTS = "iterations with other gradients than most"


@dataclass
class ProfiledIteration:
    """An iteration on the CPU's clock, in microseconds.

    begin : before its first kernel is launched; -inf if unknown.
    low, high : its part of the recording, from one update's end to the next one's.
    starts : of the forward pass of each micro-batch.
    """

    number: int
    step: int | None
    low: float
    high: float
    begin: float
    calls: list[GradientCall]
    collectives: list[GradientCall]
    starts: list[float]
    functions: int
    update: Update | None

    def kind(self) -> tuple[object, ...]:
        """Return the key that iterations of the same kind share."""
        gradients = tuple((call.numel, call.dtype, call.shape) for call in self.calls)
        return gradients, max(len(self.starts), 1), len(self.update.windows) if self.update else 0


def checked_steps(records: Records, where: str, draft: Draft) -> list[Step]:
    """Return the `ProfilerStep#` annotations in order, each ending before the next. TraceError for a repeated number:
    then the file holds several ranks."""
    steps = sorted(set(records.steps))
    draft.doubtful["ProfilerStep annotations recorded twice"] += len(records.steps) - len(steps)
    numbers = Counter(step.number for step in steps)
    repeated = next((number for number, count in numbers.items() if count > 1), None)
    if repeated is not None:
        raise TraceError(
            f"holds several ranks (ProfilerStep#{repeated} comes {numbers[repeated]} times)", where, ONE_RANK
        )
    cut = []
    for index, step in enumerate(steps):
        following = steps[index + 1].begin if index + 1 < len(steps) else math.inf
        if step.end > following + 1:
            draft.doubtful["ProfilerStep annotations that outlast the next: cut off"] += 1
        cut.append(step._replace(end=min(step.end, following)))
    return cut


def iterations(
    gradients: list[GradientCall],
    collectives: list[GradientCall],
    by_parameter: bool,
    backward: Passes,
    updates: Sequence[Update],
    steps: Sequence[Step],
    has_launches: bool,
    records: Records,
    draft: Draft,
) -> list[ProfiledIteration]:
    """Return the iterations of the most frequent kind, in order. `gradients` are the calls that stand for gradients,
    parameters or `collectives`; both are in order. Without launches, collectives have the accelerator's times,
    comparable only with whole steps."""
    stretches = _stretches(updates, steps, has_launches, draft)
    moments, exchanged = [call.at for call in gradients], [call.at for call in collectives]
    candidates = []
    n_gradients = n_collectives = 0
    for index, (low, high, update, step_index) in enumerate(stretches):
        calls = gradients[bisect_right(moments, low) : bisect_right(moments, high)]
        calls_within = collectives[bisect_right(exchanged, low) : bisect_right(exchanged, high)]
        n_gradients += len(calls)
        n_collectives += len(calls_within)
        span = backward.functions(low, high)
        first = float(backward.begin[span.start]) if span.stop > span.start else -math.inf
        last_end = backward.last_end(low, high) if math.isfinite(first) else math.inf
        limit = update.windows[0].end if update and has_launches else high
        report = Draft("") if by_parameter else draft
        largest = max((call.numel for call in [*calls, *calls_within]), default=0)
        if by_parameter:
            is_early = [call.at < first for call in calls]
            draft.doubtful["gradients before the backward pass, left out"] += sum(is_early)
            calls = [call for call, early in zip(calls, is_early, strict=True) if not early]
        calls_within = within_backward(calls_within, first, last_end, limit, largest, report)
        if not by_parameter:
            calls = calls_within
        if not calls:
            continue
        starts = backward.forward_starts(low, calls[-1].at)
        step = step_index if step_index is not None else _step_of(steps, calls[0].at)
        if steps and step is None:
            draft.skipped["gradients outside of every iteration"] += len(calls)
            continue
        begin = _begin(low, starts, first, calls, steps, update is not None)
        candidates.append(
            ProfiledIteration(
                steps[step].number if step is not None else index,
                step,
                low,
                high,
                begin,
                _last_micro_batch(calls, starts, draft),
                calls_within,
                starts,
                span.stop - span.start,
                update,
            )
        )
    outside = len(gradients) - n_gradients if by_parameter else len(collectives) - n_collectives
    draft.skipped["gradients outside of every iteration"] += outside
    return _chosen(candidates, records, draft)


def _stretches(
    updates: Sequence[Update], steps: Sequence[Step], has_launches: bool, draft: Draft
) -> list[tuple[float, float, Update | None, int | None]]:
    """Return (low, high, update, index of its step) of each part of the recording that may be an iteration."""
    if updates and (has_launches or not steps):
        if not steps:
            draft.skipped["no ProfilerStep: iterations are cut at the ends of optimiser steps"] += 1
        edges = [-math.inf, *(update.end for update in updates)]
        return [(edges[n], edges[n + 1], update, None) for n, update in enumerate(updates)]
    if steps:
        begins = [update.begin for update in updates]
        stretches: list[tuple[float, float, Update | None, int | None]] = []
        for n, step in enumerate(steps):
            step_updates = updates[bisect_left(begins, step.begin) : bisect_left(begins, step.end)]
            stretches.append((step.begin, step.end, step_updates[0] if step_updates else None, n))
        return stretches
    draft.skipped["no ProfilerStep and no optimiser step: all is one iteration"] += 1
    return [(-math.inf, math.inf, None, None)]


def _step_of(steps: Sequence[Step], moment: float) -> int | None:
    index = bisect_right([step.begin for step in steps], moment) - 1
    return index if index >= 0 and moment < steps[index].end else None


def _begin(
    low: float, starts: list[float], first: float, calls: list[GradientCall], steps: Sequence[Step], has_update: bool
) -> float:
    """Return the moment at which the iteration begins to launch kernels. That is the profiler's step, if it begins
    between the previous update and the forward pass. Otherwise kernels after that update, such as those of averages,
    are separated from the forward pass only by its first operator."""
    if not steps or not has_update:
        return low
    earliest = min([*starts[:1], calls[0].at] + ([first] if math.isfinite(first) else []))
    index = bisect_right([step.begin for step in steps], earliest) - 1
    if index >= 0 and steps[index].begin >= low:
        return steps[index].begin
    return starts[0] if starts else low


def _last_micro_batch(calls: list[GradientCall], starts: list[float], draft: Draft) -> list[GradientCall]:
    """Return the gradients of the last micro-batch: all, unless they repeat with forward passes in between."""
    count = len(calls)
    sequence = [(call.numel, call.dtype, call.shape) for call in calls]
    for size in (n for n in range(1, count // 2 + 1) if count % n == 0):
        if sequence != sequence[:size] * (count // size):
            continue
        edges = [(calls[at - 1].at, calls[at].at) for at in range(size, count, size)]
        if all(bisect_left(starts, before) < bisect_left(starts, after) for before, after in edges):
            draft.skipped["micro-batches before the last of a step"] += count // size - 1
            return calls[-size:]
    return calls


def _chosen(candidates: list[ProfiledIteration], records: Records, draft: Draft) -> list[ProfiledIteration]:
    """Return the complete iterations of the most frequent kind with a single update."""
    valid = _without_several_updates(candidates, draft)
    with_repeats = [it for it in valid if it.update is not None and it.update.has_repeated_closure]
    draft.doubtful["iterations whose optimizer calls its closure several times"] += len(with_repeats)
    unended = [it for it in valid if it.update is not None and it.update.is_open]
    draft.doubtful["iterations whose optimizer or closure has no known end"] += len(unended)
    valid = [it for it in valid if it not in with_repeats and it not in unended]
    if lost := records.lost[
        "optimizer"
    ]:  # a lost record may have merged two iterations, or removed an optimizer from one
        counts = Counter(it.kind() for it in valid)
        suspects = [it for it in valid if counts[it.kind()] <= lost]
        draft.doubtful["iterations that may lack an optimizer whose record was lost"] += len(suspects)
        valid = [it for it in valid if counts[it.kind()] > lost]
    kinds = Counter(it.kind() for it in valid).most_common(2)
    if not kinds:
        return []
    if len(kinds) == 2 and kinds[0][1] == kinds[1][1] and kinds[0][0][0] == kinds[1][0][0]:
        # Two equally frequent kinds with the same gradients: an update is missing, or was not recorded.
        draft.doubtful["iterations with other micro-batches or optimizers than as many others"] += len(valid)
        return []
    chosen = [it for it in valid if it.kind() == kinds[0][0]]
    draft.skipped[OTHER_GRADIENTS] += len(valid) - len(chosen)
    return _complete(chosen, records, draft)


def _without_several_updates(candidates: list[ProfiledIteration], draft: Draft) -> list[ProfiledIteration]:
    """Return the iterations without steps in which optimizers wait for different gradients."""
    by_step: dict[int, list[ProfiledIteration]] = {}
    for it in candidates:
        if it.step is not None:
            by_step.setdefault(it.step, []).append(it)
    mixed_steps = {step for step, members in by_step.items() if len({it.kind()[0] for it in members}) > 1}
    draft.doubtful["steps whose optimizers wait for backward passes of their own"] += len(mixed_steps)
    return [it for it in candidates if it.step not in mixed_steps]


def _complete(chosen: list[ProfiledIteration], records: Records, draft: Draft) -> list[ProfiledIteration]:
    """Return the iterations without those that lack backward functions of others."""
    counts = [it.functions for it in chosen]
    usual = max(counts) if records.lost["function"] else usual_count(counts)
    whole = [it for it in chosen if usual in (None, it.functions)]
    draft.doubtful["iterations with other backward functions than most"] += len(chosen) - len(whole)
    return whole


def usual_count(counts: Sequence[int]) -> int | None:
    """Return the value of at least two thirds of the counts, and at least two; None if there is none."""
    if not counts:
        return None
    usual, times = Counter(counts).most_common(1)[0]
    return usual if times >= max(2, 2 * len(counts) / 3) else None
