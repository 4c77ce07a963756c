"""Matches the messages of a simulated and an emulated run of one scenario and judges whether their figures agree.

Two runs are the same experiment only if the same messages were sent. So messages are matched by job, kind, iteration,
tensor, part, sender and receiver, not by number, and a message without a partner is a failure in itself. Figures
cover what was delivered in both runs:

    completion times     mean, median and p99 per job and kind of message
    iteration times      mean per job
    throughput           per job and pair of hosts
    drops, marks         by cause, in total and at every port; by class if both runs record it
    loss                 per message

`Measure` is one figure with its tolerance (the scenario's `[fidelity]`). A figure that an emulated switch cannot count
is unknown, not zero. A disturbed run (`summary["engine"]["valid"]` is false, with `["disturbed"]`) never passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradwire.analysis.comparison.pooled_runs import key_with_seed
from gradwire.analysis.comparison.tables import KIND_LABELS
from gradwire.analysis.fidelity.fidelity_measure import RATE, SHARE, TIME, Measure, examples, only_in_one
from gradwire.analysis.fidelity.fidelity_ports import classes, packet_measures, ports_of
from gradwire.analysis.metrics import percentile
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import AnyInts, Floats, Ints
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.fidelity import Fidelity

FORMAT = 1
"""Version of fidelity.json."""
MESSAGE_KEY = ("job", "kind", "iteration", "tensor", "part", "src", "dst")


@dataclass(frozen=True)
class Agreement:
    """Agreement of two runs of one scenario.

    measures : every figure. faults : reasons why the runs are not the same experiment, or one is not sound.
    invalid : reasons why the emulated run means nothing.
    ports : one entry per port: its name, and `[sim, emu]` of every counter.
    classes : one entry per priority: drops recorded one by one, and data packets that arrived marked, `[sim, emu]`; -1:
        unknown.
    matched : messages that both runs delivered.
    ratios : their completion time emulated over simulated, float64[matched].
    """

    name: str
    measures: list[Measure]
    faults: list[str]
    invalid: list[str]
    ports: list[Json]
    classes: list[Json]
    matched: int
    ratios: Floats = field(repr=False)

    @property
    def missed(self) -> list[Measure]:
        """Figures beyond their tolerance."""
        return [measure for measure in self.measures if measure.is_within is False]

    @property
    def is_within(self) -> bool:
        """True if the runs agree."""
        return not (self.missed or self.faults or self.invalid)

    def verdicts(self) -> list[str]:
        """Return the verdict as lines of text, the worst first; the last line sums up."""
        lines = [f"invalid: {reason}" for reason in self.invalid]
        lines += [f"not the same: {fault}" for fault in self.faults]
        lines += [
            f"missed: {measure.title}: {measure.text(measure.emu)} emulated, {measure.text(measure.sim)} simulated "
            f"({measure.difference_text()}, allowed {measure.allowed_text()})"
            for measure in self.missed
        ]
        lines += [f"unknown: {measure.title} was not counted by both" for measure in self.measures if measure.unknown]
        judged = sum(measure.is_within is not None for measure in self.measures)
        within = f"{judged - len(self.missed)} of {judged} figures within their tolerances"
        if self.invalid:
            return [*lines, f"{self.name}: INVALID, the emulated run was disturbed; {within}"]
        return [*lines, f"{self.name}: {'passed' if self.is_within else 'FAILED'}, {within}"]

    def as_dict(self) -> Json:
        """Return plain values for JSON, times in picoseconds."""
        spread: dict[str, float] = {}
        if len(self.ratios):
            shares = zip(("p1", "p50", "p99"), np.quantile(self.ratios, (0.01, 0.5, 0.99)).tolist(), strict=True)
            spread = {"mean": float(self.ratios.mean()), **dict(shares)}
        return {
            "format": FORMAT,
            "name": self.name,
            "passed": self.is_within,
            "valid": not self.invalid,
            "invalid": self.invalid,
            "faults": self.faults,
            "measures": [measure.as_dict() for measure in self.measures],
            "messages": self.matched,
            "emulated_over_simulated": spread,
            "ports": self.ports,
            "classes": self.classes,
            "verdicts": self.verdicts(),
        }


def agreement(sim: Result, emu: Result, tolerances: Fidelity, others: Sequence[Result] = ()) -> Agreement:
    """Compare a simulated and an emulated run; a pure function of its arguments.

    `others` : simulations that differ from `sim` by nanoseconds only (`gradwire.sim.perturbation`): the range of their
    figures does not count against the emulation.
    """
    base = _agreement(sim, emu, tolerances)
    if not others:
        return base
    scattered: dict[tuple[str, str], list[float]] = {}
    for measure in base.measures:
        scattered[measure.what, measure.where] = [measure.sim]
    for other in others:
        for measure in _agreement(other, emu, tolerances).measures:
            scattered.get((measure.what, measure.where), []).append(measure.sim)
    measures = [
        replace(measure, low=min(figures), high=max(figures))
        if min(figures := scattered[measure.what, measure.where]) >= 0
        else measure
        for measure in base.measures
    ]
    return replace(base, measures=measures)


def _agreement(sim: Result, emu: Result, tolerances: Fidelity) -> Agreement:
    matched = _Matched(sim, emu)
    faults = [*_unlike(sim, emu), *matched.faults]
    measures = [
        *matched.completion(tolerances),
        *_iterations(sim, emu, tolerances, faults),
        *matched.throughput(tolerances),
    ]
    ports, alone = ports_of(sim, emu)
    measures += [*packet_measures(ports, tolerances), *matched.loss(tolerances)]
    engine, invalid = emu.summary.get("engine", {}), list[str]()
    if not engine.get("valid", True):
        invalid = [str(reason) for reason in engine.get("disturbed", ())] or ["the testbed was disturbed"]
    name, count = str(sim.summary.get("name", "")), len(matched.keys)
    return Agreement(name, measures, [*faults, *alone], invalid, ports, classes(sim, emu), count, matched.ratios())


def mean_completion(sim: Result, emu: Result) -> tuple[float, float] | None:
    """Return the mean completion time (ps) of what both runs delivered, simulated and emulated; None without any."""
    first, second = _Matched(sim, emu).taken
    return (float(first.mean()), float(second.mean())) if len(first) else None


def relative_differences(sim: AnyInts, emu: AnyInts) -> Floats:
    """Return absolute relative differences of arrays; 1 where `sim` is 0 and `emu` is not."""
    sim, emu = np.asarray(sim, dtype=np.float64), np.asarray(emu, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative_difference = np.abs(emu - sim) / sim
    return np.where(sim > 0, relative_difference, (emu > 0).astype(np.float64))


def _unlike(sim: Result, emu: Result) -> Iterator[str]:
    """Yield the reasons why the runs are not the same experiment, or one is not sound."""
    for key, words in (("scenario_hash", "scenarios"), ("trace_hash", "traces"), ("seed", "seeds")):
        one, other = sim.summary.get(key), emu.summary.get(key)
        if one != other:
            yield f"the runs are of different {words} ({str(one)[:12]} simulated, {str(other)[:12]} emulated)"
    for result, words in ((sim, "simulated"), (emu, "emulated")):
        if broken := check_loss_invariant(result):
            yield f"{len(broken)} messages of the {words} run lost more than their bound, such as {broken[0]}"


def _cut(sim: Result, emu: Result) -> bool:
    """Return True if the scenario's duration ended both runs: their exact ends then do not matter."""
    ends = [result.summary.get("totals", {}).get("ended_by", "done") for result in (sim, emu)]
    return ends == ["duration", "duration"]


class _Matched:
    """The messages of both runs, each with its partner."""

    def __init__(self, sim: Result, emu: Result) -> None:
        columns = ("bytes", "start_ps", "end_ps", "lost_bytes")
        keys = [_keys(result) for result in (sim, emu)]
        both = [key for key in keys[0] if key in keys[1]]
        rows = [np.array([rows_by_key[key] for key in both], dtype=np.int64) for rows_by_key in keys]
        values = [
            {name: to_numpy(result.messages[name])[row] for name in columns}
            for result, row in zip((sim, emu), rows, strict=True)
        ]
        self.faults: list[str] = []
        self.faults += only_in_one("messages", keys, lambda key: _named(sim, key))
        unequal = np.flatnonzero(values[0]["bytes"] != values[1]["bytes"])
        if len(unequal):
            some = examples([_named(sim, both[i]) for i in unequal.tolist()])
            self.faults.append(f"{len(unequal)} messages have different sizes: {some}")
        done = [columns_of_run["end_ps"] >= 0 for columns_of_run in values]
        if not _cut(sim, emu):
            for one, other, words in ((0, 1, "simulated"), (1, 0, "emulated")):
                alone = [_named(sim, both[i]) for i in np.flatnonzero(done[one] & ~done[other]).tolist()]
                if alone:
                    self.faults.append(
                        f"{len(alone)} messages were delivered in the {words} run only: {examples(alone)}"
                    )
        delivered = np.flatnonzero(done[0] & done[1])
        self.keys = [both[i] for i in delivered.tolist()]
        self.values = [{name: column[delivered] for name, column in run.items()} for run in values]
        if not self.keys:
            self.faults.append("no message was delivered in both runs")
        self.taken: list[Ints] = [run["end_ps"] - run["start_ps"] for run in self.values]

    def groups(self, *parts: str) -> dict[tuple[Any, ...], Ints]:
        """Return rows by some parts of their keys, in order of appearance."""
        indices = [MESSAGE_KEY.index(part) for part in parts]
        rows_by_group: dict[tuple[Any, ...], list[int]] = {}
        for row, key in enumerate(self.keys):
            rows_by_group.setdefault(tuple(key[index] for index in indices), []).append(row)
        return {group: np.array(rows) for group, rows in rows_by_group.items()}

    def ratios(self) -> Floats:
        """Return emulated over simulated completion time of every message."""
        return np.asarray(self.taken[1] / np.maximum(self.taken[0], 1))

    def completion(self, tolerances: Fidelity) -> Iterator[Measure]:
        """Yield the completion measures per job and kind."""
        groups = self.groups("job", "kind")
        for job, kind in sorted(groups, key=lambda group: (group[0], KINDS.index(group[1]))):
            sim, emu = (taken[groups[job, kind]] for taken in self.taken)
            for name, figure in (
                ("completion_mean", lambda values: float(values.mean())),
                ("completion_p50", lambda values: percentile(values, 0.5)),
                ("completion_p99", lambda values: percentile(values, 0.99)),
            ):
                where, note = f"{job}, {KIND_LABELS[kind]}", f"{len(sim):,} messages"
                yield Measure.relative(name, where, TIME, figure(sim), figure(emu), getattr(tolerances, name), note)

    def throughput(self, tolerances: Fidelity) -> Iterator[Measure]:
        """Yield the throughput per job, over its pairs of hosts. The pairs are compared by rank, the slowest with the
        slowest: nanoseconds decide which of several equal senders comes first at a full queue."""
        rates: dict[str, list[tuple[float, float, str]]] = {}
        for (job, src, dst), rows in self.groups("job", "src", "dst").items():
            one, other = (_rate(run, rows) for run in self.values)
            rates.setdefault(job, []).append((one, other, f"{src}->{dst}"))
        for job, pairs in sorted(rates.items()):
            sim, emu = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
            apart = relative_differences(np.sort(sim), np.sort(emu))
            worst = int(relative_differences(sim, emu).argmax())
            at_most = 100 * float(relative_differences(sim, emu)[worst])
            note = f"{len(pairs)} pairs, max difference of a pair {at_most:.1f} % ({pairs[worst][2]})"
            one, other, difference = (float(values.mean()) for values in (sim, emu, apart))
            yield Measure("throughput", job, RATE, one, other, difference, tolerances.throughput, note=note)

    def loss(self, tolerances: Fidelity) -> Iterator[Measure]:
        """Yield the loss per job."""
        for (job,), rows in sorted(self.groups("job").items()):
            size = self.values[0]["bytes"][rows]
            lost = [run["lost_bytes"][rows] for run in self.values]
            apart = np.abs(lost[1] - lost[0]) / np.maximum(size, 1)
            total = max(int(size.sum()), 1)
            one, other = (int(lost_bytes.sum()) / total for lost_bytes in lost)
            note = f"max difference of a message {100 * float(apart.max()):.1f} %"
            yield Measure("loss", job, SHARE, one, other, float(apart.mean()), tolerances.loss, note=note)


def _keys(result: Result) -> dict[tuple[Any, ...], int]:
    """Return the row of every message by its key; equal messages are distinguished by the order of their numbers."""
    table = result.messages
    columns = [table[name].to_pylist() for name in MESSAGE_KEY]
    order = np.argsort(to_numpy(table["message"]), kind="stable").tolist()
    seen: Counter[tuple[Any, ...]] = Counter()
    rows_by_key = {}
    for row in order:
        key = tuple(column[row] for column in columns)
        rows_by_key[*key, seen[key]] = row
        seen[key] += 1
    return rows_by_key


def _named(result: Result, key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key_with_seed(result, key[: len(MESSAGE_KEY)], MESSAGE_KEY.index("iteration"))


def _rate(values: Mapping[str, Ints], rows: Ints) -> float:
    """Return bits per second delivered by some messages, over the time in which at least one was under way."""
    order = rows[np.argsort(values["start_ps"][rows], kind="stable")]
    start, end = values["start_ps"][order], np.maximum.accumulate(values["end_ps"][order])
    before = np.concatenate((start[:1], end[:-1]))  # end of all earlier ones
    busy = int(np.maximum(end - np.maximum(start, before), 0).sum())
    bits = 8 * int((values["bytes"][rows] - values["lost_bytes"][rows]).sum())
    return bits * 1e12 / busy if busy > 0 else 0.0


def _iterations(sim: Result, emu: Result, tolerances: Fidelity, faults: list[str]) -> Iterator[Measure]:
    times: list[dict[tuple[str, int, int], int]] = []
    for result in (sim, emu):
        table = result.iterations
        duration = (to_numpy(table["end_ps"]) - to_numpy(table["start_ps"])).tolist()
        keys = zip(*(table[name].to_pylist() for name in ("job", "worker", "iteration")), strict=True)
        times.append(dict(zip(keys, duration, strict=True)))
    if not _cut(sim, emu):
        faults += only_in_one("iterations", times, lambda key: key_with_seed(sim, key, 2))
    both = [key for key in times[0] if key in times[1]]
    for job in sorted({key[0] for key in both}):
        job_keys = [key for key in both if key[0] == job]
        before, after = (float(np.mean([by_key[key] for key in job_keys])) for by_key in times)
        note = f"{len(job_keys)} worker-iterations"
        yield Measure.relative("iteration", job, TIME, before, after, tolerances.iteration, note)
