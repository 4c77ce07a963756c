"""Iterations of a profile: from one update to the next, whatever the profiler's own steps enclose.

An iteration is a run of forward and backward passes up to the update behind them. So it does not matter whether
`profiler.step()` is called before or after the update, once for each micro-batch, or not at all. Without a recorded
optimizer each `ProfilerStep#` is an iteration. Only iterations of the most frequent kind are chosen: with the same
gradients, passes and optimizers. The others, such as DDP's first step and what was cut off, are counted.
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
from gradwire.traces.formats.profile.records import Call, Records, Step

OTHER_GRADIENTS = "iterations with other gradients than most"


@dataclass
class Iteration:
    """An iteration on the CPU's clock, in microseconds.

    begin : before its first kernel is launched; -inf where the file does not say.
    low, high : its stretch of the recording, from one update's end to the next one's.
    starts : of the forward pass of each micro-batch.
    """

    number: int
    step: int | None
    low: float
    high: float
    begin: float
    calls: list[Call]
    collectives: list[Call]
    starts: list[float]
    functions: int
    update: Update | None

    def kind(self) -> tuple[object, ...]:
        """Return what iterations of a kind have in common."""
        gradients = tuple((call.numel, call.dtype, call.shape) for call in self.calls)
        return gradients, max(len(self.starts), 1), len(self.update.windows) if self.update else 0


def checked_steps(records: Records, where: str, draft: Draft) -> list[Step]:
    """Return the `ProfilerStep#` annotations in order, none longer than up to the next.

    TraceError if a number comes twice: then the file holds several ranks.
    """
    steps = sorted(set(records.steps))
    draft.doubtful["ProfilerStep annotations recorded twice"] += len(records.steps) - len(steps)
    numbers = Counter(step.number for step in steps)
    again = next((number for number, count in numbers.items() if count > 1), None)
    if again is not None:
        raise TraceError(
            f"holds several ranks (ProfilerStep#{again} comes {numbers[again]} times)",
            where,
            "one rank per file",
        )
    cut = []
    for index, step in enumerate(steps):
        following = steps[index + 1].begin if index + 1 < len(steps) else math.inf
        if step.end > following + 1:
            draft.doubtful["ProfilerStep annotations that outlast the next: cut off"] += 1
        cut.append(step._replace(end=min(step.end, following)))
    return cut


def iterations(
    gradients: list[Call],
    collectives: list[Call],
    by_parameter: bool,
    backward: Passes,
    updates: Sequence[Update],
    steps: Sequence[Step],
    has_launches: bool,
    records: Records,
    draft: Draft,
) -> list[Iteration]:
    """Return the iterations of the most frequent kind, in order.

    `gradients` are the calls that stand for gradients, parameters or `collectives`; both are in order. Without launches
    collectives have the accelerator's times, which only steps as a whole can be compared with.
    """
    stretches = _stretches(updates, steps, has_launches, draft)
    moments, exchanged = [call.at for call in gradients], [call.at for call in collectives]
    every = []
    taken = sorted_out = 0
    for index, (low, high, update, own) in enumerate(stretches):
        calls = gradients[bisect_right(moments, low) : bisect_right(moments, high)]
        sent = collectives[bisect_right(exchanged, low) : bisect_right(exchanged, high)]
        taken += len(calls)
        sorted_out += len(sent)
        span = backward.functions(low, high)
        first = float(backward.begin[span.start]) if span.stop > span.start else -math.inf
        last_end = backward.last_end(low, high) if math.isfinite(first) else math.inf
        limit = update.windows[0].end if update and has_launches else high
        silent = Draft("") if by_parameter else draft
        largest = max((call.numel for call in [*calls, *sent]), default=0)
        if by_parameter:
            is_early = [call.at < first for call in calls]
            draft.doubtful["gradients before the backward pass, left out"] += sum(is_early)
            calls = [call for call, early in zip(calls, is_early, strict=True) if not early]
        sent = within_backward(sent, first, last_end, limit, largest, silent)
        if not by_parameter:
            calls = sent
        if not calls:
            continue
        starts = backward.forward_starts(low, calls[-1].at)
        step = own if own is not None else _step_of(steps, calls[0].at)
        if steps and step is None:
            draft.skipped["gradients outside of every iteration"] += len(calls)
            continue
        begin = _begin(low, starts, first, calls, steps, update is not None)
        every.append(
            Iteration(
                steps[step].number if step is not None else index,
                step,
                low,
                high,
                begin,
                _last_micro_batch(calls, starts, draft),
                sent,
                starts,
                span.stop - span.start,
                update,
            )
        )
    outside = len(gradients) - taken if by_parameter else len(collectives) - sorted_out
    draft.skipped["gradients outside of every iteration"] += outside
    return _chosen(every, records, draft)


def _stretches(
    updates: Sequence[Update], steps: Sequence[Step], has_launches: bool, draft: Draft
) -> list[tuple[float, float, Update | None, int | None]]:
    """Return (low, high, update, index of its step) of each stretch that may be an iteration."""
    if updates and (has_launches or not steps):
        if not steps:
            draft.skipped["no ProfilerStep: iterations are cut at the ends of optimiser steps"] += 1
        edges = [-math.inf, *(update.end for update in updates)]
        return [(edges[n], edges[n + 1], update, None) for n, update in enumerate(updates)]
    if steps:
        begins = [update.begin for update in updates]
        stretches: list[tuple[float, float, Update | None, int | None]] = []
        for n, step in enumerate(steps):
            own = updates[bisect_left(begins, step.begin) : bisect_left(begins, step.end)]
            stretches.append((step.begin, step.end, own[0] if own else None, n))
        return stretches
    draft.skipped["no ProfilerStep and no optimiser step: all is one iteration"] += 1
    return [(-math.inf, math.inf, None, None)]


def _step_of(steps: Sequence[Step], moment: float) -> int | None:
    index = bisect_right([step.begin for step in steps], moment) - 1
    return index if index >= 0 and moment < steps[index].end else None


def _begin(
    low: float, starts: list[float], first: float, calls: list[Call], steps: Sequence[Step], has_update: bool
) -> float:
    """Return the moment at which the iteration begins to launch kernels.

    That is the profiler's step, if it begins between the update before and the forward pass. Else kernels behind the
    update before, such as those of averages, cannot be separated from the forward pass but by its first operator.
    """
    if not steps or not has_update:
        return low
    earliest = min([*starts[:1], calls[0].at] + ([first] if math.isfinite(first) else []))
    index = bisect_right([step.begin for step in steps], earliest) - 1
    if index >= 0 and steps[index].begin >= low:
        return steps[index].begin
    return starts[0] if starts else low


def _last_micro_batch(calls: list[Call], starts: list[float], draft: Draft) -> list[Call]:
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


def _chosen(every: list[Iteration], records: Records, draft: Draft) -> list[Iteration]:
    """Return the iterations of the most frequent kind that are whole and have a single backward pass's update."""
    sound = _without_several_updates(every, draft)
    repeated = [each for each in sound if each.update is not None and each.update.has_repeated_closure]
    draft.doubtful["iterations whose optimizer calls its closure several times"] += len(repeated)
    unended = [each for each in sound if each.update is not None and each.update.is_open]
    draft.doubtful["iterations whose optimizer or closure has no known end"] += len(unended)
    sound = [each for each in sound if each not in repeated and each not in unended]
    if lost := records.lost[
        "optimizer"
    ]:  # each may have made one iteration of two, or taken an optimizer from one
        counts = Counter(each.kind() for each in sound)
        rare = [each for each in sound if counts[each.kind()] <= lost]
        draft.doubtful["iterations that may lack an optimizer whose record was lost"] += len(rare)
        sound = [each for each in sound if counts[each.kind()] > lost]
    kinds = Counter(each.kind() for each in sound).most_common(2)
    if not kinds:
        return []
    if len(kinds) == 2 and kinds[0][1] == kinds[1][1] and kinds[0][0][0] == kinds[1][0][0]:
        # As many of one as of the other, with the same gradients: an update is missing, or was not recorded.
        draft.doubtful["iterations with other micro-batches or optimizers than as many others"] += len(sound)
        return []
    chosen = [each for each in sound if each.kind() == kinds[0][0]]
    draft.skipped[OTHER_GRADIENTS] += len(sound) - len(chosen)
    return _whole(chosen, records, draft)


def _without_several_updates(every: list[Iteration], draft: Draft) -> list[Iteration]:
    """Return the iterations without those of a profiler's step in which optimizers wait for different gradients."""
    by_step: dict[int, list[Iteration]] = {}
    for each in every:
        if each.step is not None:
            by_step.setdefault(each.step, []).append(each)
    several = {step for step, members in by_step.items() if len({each.kind()[0] for each in members}) > 1}
    draft.doubtful["steps whose optimizers wait for backward passes of their own"] += len(several)
    return [each for each in every if each.step not in several]


def _whole(chosen: list[Iteration], records: Records, draft: Draft) -> list[Iteration]:
    """Return the iterations without those that lack backward functions which others have."""
    counts = [each.functions for each in chosen]
    usual = max(counts) if records.lost["function"] else usual_count(counts)
    whole = [each for each in chosen if usual in (None, each.functions)]
    draft.doubtful["iterations with other backward functions than most"] += len(chosen) - len(whole)
    return whole


def usual_count(counts: Sequence[int]) -> int | None:
    """Return the number that two thirds of the counts are, and at least two; None if there is none."""
    if not counts:
        return None
    usual, times = Counter(counts).most_common(1)[0]
    return usual if times >= max(2, 2 * len(counts) / 3) else None
