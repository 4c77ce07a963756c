"""Finds the forward and backward passes and the optimizer updates among a profile's CPU records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.scenarios.arrays import Flags, Floats, Ints
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.records import CpuSpan, Records


@dataclass(frozen=True)
class Passes:
    """Times of passes, sorted.

    begin, end, row, accumulates : of autograd's functions, [functions]; one that outlasts its step has no length.
    is_cut : True for functions that outlast their step, so that their end is unknown.
    forward : start times of the operators of forward passes, [operators].
    """

    begin: Floats
    end: Floats
    row: Ints
    accumulates: Flags
    is_cut: Flags
    forward: Floats

    def functions(self, low: float, high: float) -> slice:
        """Return the functions that begin from `low` up to `high`."""
        return slice(*np.searchsorted(self.begin, (low, high), side="left").tolist())

    def last_end(self, low: float, high: float) -> float:
        """Return the latest end of the functions that begin from `low` up to `high`; -inf without any."""
        ends = self.end[self.functions(low, high)]
        return float(ends.max()) if len(ends) else -np.inf

    def forward_starts(self, low: float, high: float) -> list[float]:
        """Return the first forward operator of each forward pass from `low` up to `high`. Functions of a backward pass
        separate two forward passes."""
        operators = self.forward[slice(*np.searchsorted(self.forward, (low, high), side="left").tolist())]
        if not len(operators):
            return []
        before = np.searchsorted(self.begin, operators)
        is_first = np.ones(len(operators), dtype=bool)
        is_first[1:] = before[1:] > before[:-1]
        return [float(moment) for moment in operators[is_first]]


@dataclass(frozen=True)
class Update:
    """Work of optimizers between two backward passes: a window for each, without their closures."""

    windows: tuple[CpuSpan, ...]
    has_repeated_closure: bool = False
    is_open: bool = False
    """True if the end of an optimizer, or of the backward pass of its closure, is unknown."""

    @property
    def begin(self) -> float:
        """Time at which the first optimizer begins."""
        return self.windows[0].begin

    @property
    def end(self) -> float:
        """Time at which the last optimizer ends."""
        return self.windows[-1].end


def passes(records: Records, draft: Draft) -> Passes:
    """Return the passes of a profile; PyTorch before 1.10 records operators of autograd instead of functions."""
    functions = records.functions
    begin, end = np.array(functions.begin), np.array(functions.end)
    row = np.array(functions.row, dtype=np.int64)
    accumulates = np.array(functions.accumulates, dtype=bool)
    if not len(begin):
        spans = np.array(_operators_of_autograd(records), dtype=np.float64).reshape(-1, 2)
        begin, end = spans[:, 0], spans[:, 1]
        row, accumulates = np.full(len(begin), -1), np.zeros(len(begin), dtype=bool)
    order = np.argsort(begin, kind="stable")
    begin, end, row, accumulates = begin[order], end[order], row[order], accumulates[order]
    # No function outlasts its own step or the update that follows.
    edges = np.sort([*(step.begin for step in records.steps), *(span.end for span in records.optimizers)])
    limits = np.append(edges, np.inf)[np.searchsorted(edges, begin, side="right")]
    beyond = end > limits
    draft.doubtful["autograd functions that outlast their step: without an end"] += int(beyond.sum())
    end = np.where(beyond, begin, end)
    return Passes(begin, end, row, accumulates, beyond, _forward(records, begin, end))


def _forward(records: Records, begin: Floats, end: Floats) -> Floats:
    """Return the start times of forward operators; those within a function belong to activation checkpointing."""
    times = np.array(records.forward)
    rows = np.array(records.forward_rows, dtype=np.int64)
    on_trainer = np.isin(rows, sorted(records.trainers))
    if on_trainer.any():
        # Operators of autograd's threads belong to no forward pass; rows without a thread may.
        unknown = np.isin(rows, [n for (_, thread), n in records.rows.items() if thread == "None"])
        times = times[on_trainer | unknown]
    times = np.sort(times)
    if not len(begin):
        return times
    function = np.searchsorted(begin, times, side="right") - 1
    within = (function >= 0) & (np.maximum.accumulate(end)[function] > times)
    return times[~within]


def _operators_of_autograd(records: Records) -> list[CpuSpan]:
    """Return operators of backward passes on threads that call neither model nor optimizer; without such threads, all.
    The backward pass of a CPU runs on the thread that calls it."""
    elsewhere = [spans for row, spans in records.backward_operators.items() if row not in records.trainers]
    return [span for spans in elsewhere or records.backward_operators.values() for span in spans]


def updates(records: Records, backward: Passes, draft: Draft) -> list[Update]:
    """Return the updates in order. Optimizers that no backward pass separates make one update. A span that encloses
    backward functions is that of a closure: the update begins after them. Optimizers called within a backward function
    are part of the pass."""
    spans, cut = _top_level_spans(records, backward, draft)
    spans = _merged(spans)
    groups: list[list[CpuSpan]] = []
    closures: list[list[CpuSpan]] = []
    for begin, end in spans:
        window = CpuSpan(max(begin, min(backward.last_end(begin, end), end)), end)
        between = backward.functions(groups[-1][-1].end, window.begin) if groups else slice(0, 1)
        if between.start == between.stop:
            groups[-1].append(window)
            closures[-1].append(CpuSpan(begin, end))
        else:
            groups.append([window])
            closures.append([CpuSpan(begin, end)])
    # An optimizer that encloses too much may belong to the previous update.
    is_repeated = [any(len(backward.forward_starts(*span)) > 1 for span in enclosing) for enclosing in closures]
    has_cut = [
        repeated or any(span.end in cut for span in enclosing)
        for repeated, enclosing in zip(is_repeated, closures, strict=True)
    ]
    has_cut.append(False)
    return [
        Update(
            tuple(group),
            is_repeated[index],
            has_cut[index]
            or has_cut[index + 1]
            or any(bool(backward.is_cut[backward.functions(*span)].any()) for span in enclosing),
        )
        for index, (group, enclosing) in enumerate(zip(groups, closures, strict=True))
    ]


def _top_level_spans(records: Records, backward: Passes, draft: Draft) -> tuple[list[CpuSpan], set[float]]:
    """Return the optimizers' spans outside of backward functions, and the ends of those cut by the next step."""
    steps = np.sort([step.begin for step in records.steps])
    spans, cut = [], set()
    for span in sorted(set(records.optimizers)):
        function = int(np.searchsorted(backward.begin, span.begin, side="right")) - 1
        if function >= 0 and backward.begin[function] < span.begin and backward.end[function] > span.end:
            draft.skipped["Optimizer.step within the backward pass: its time is the pass's"] += 1
            continue
        following = steps[np.searchsorted(steps, span.begin, side="right") :]
        if len(following) and following[0] < span.end:
            draft.doubtful["Optimizer.step annotations that outlast their step: cut off"] += 1
            span = CpuSpan(span.begin, float(following[0]))
            cut.add(span.end)
        spans.append(span)
    return spans, cut


def _merged(spans: Sequence[CpuSpan]) -> list[CpuSpan]:
    """Return spans without nested ones: a wrapper's step calls that of its optimizer."""
    merged: list[CpuSpan] = []
    for span in sorted(spans):
        if merged and span.begin < merged[-1].end:
            merged[-1] = CpuSpan(merged[-1].begin, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged
