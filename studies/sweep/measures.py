"""Computes every measure that a sweep can have as a column, and distributions for plots, from a Result.

They are the figures of comparisons (`gradwire.analysis.metrics`, `detailed_metrics`, `flows`) under the names of
comparison.csv, and a few more. Times are picoseconds, sizes bytes, shares 0 to 1. Figures that a run lacks, such as the
p99 of fewer than 100 messages, are absent. Simulation speed is not a measure, as it never repeats.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gradwire.analysis.comparison.compare import flat_row
from gradwire.analysis.comparison.detailed_metrics import detailed_metrics
from gradwire.analysis.flows import SIZE_EDGES, FlowTimes, flow_times
from gradwire.analysis.measurement_window import completion_times
from gradwire.analysis.metrics import DROPS, Metrics, measure
from gradwire.result_store.loss_bound_check import check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.errors import ScenarioError

SMALL, LARGE = SIZE_EDGES[1], SIZE_EDGES[-1]
"""Flows of up to 100 kB, and those above 10 MB: pFabric's small and large ones [recalled]."""
MOST_VALUES = 400
"""Values kept of a distribution: half of them even in rank, half even in the logarithm of the remaining share."""

_TIMES = {"messages": "messages", "mean_ps": "mean", "p50_ps": "median", "p99_ps": "p99", "max_ps": "largest"}
_WHOSE = {
    "all": "all messages",
    **{kind: f"{kind.replace('_', '-')} messages" for kind in KINDS},
    "flow": "flows",
    "activations": "activation messages",
    "errors": "messages of backpropagated errors",
    "parameters": "parameter messages",
}
_SPREAD = ("mean", "p50", "p99", "p999", "max")
_SIZES = {"": "all flows", "small_": "flows up to 100 kB", "large_": "flows above 10 MB"}

MEASURES: Mapping[str, str] = {
    "iterations": "number of iterations",
    "iteration_mean_ps": "iteration time, mean of the steady state",
    "iteration_p50_ps": "iteration time, median",
    "iteration_p99_ps": "iteration time, p99",
    "iteration_max_ps": "iteration time, largest",
    "exposed_mean_ps": "exposed communication, mean",
    "exposed_share": "exposed communication / iteration time",
    **{
        f"{kind}_{what}": (
            f"completion time of {split_measure}, {words}"
            if what != "messages"
            else f"number of {split_measure} delivered"
        )
        for kind, split_measure in _WHOSE.items()
        for what, words in _TIMES.items()
    },
    **{
        f"{size}slowdown_{what}": f"slowdown of {split_measure}, {what}"
        for size, split_measure in _SIZES.items()
        for what in _SPREAD
    },
    **{
        f"{size}completion_{what}_ps": f"completion time of {split_measure}, {what}"
        for size, split_measure in _SIZES.items()
        for what in _SPREAD
    },
    **{f"{size}flows": f"number of {split_measure} delivered" for size, split_measure in _SIZES.items()},
    "under_way": "number of messages not delivered when the run ended",
    "retransmitted": "number of retransmissions",
    "sent_packets": "number of packets sent, including probes",
    "data_packets": "number of data packets, each counted once",
    "again": "retransmissions per data packet",
    "timed_out": "share of messages with a time-out",
    "tail_timed_out": "share of messages with a time-out among the slowest 1 %",
    "useful_share": "share of data packets that contributed to a delivery, on the busiest link between switches",
    "lost_bytes": "bytes lost by delivered messages",
    "lost_share": "share of the bytes of delivered messages that was lost",
    "worst_lost_bytes": "bytes lost by the message that used the largest part of its bound",
    "worst_share": "share lost by the message that used the largest part of its bound",
    "worst_used": "loss / allowed loss of the message that used the largest part of its bound",
    "broken": "number of broken loss bounds in the whole run",
    "dropped": "packets dropped, in the whole network",
    **{column: f"packets dropped: {cause}, in the whole network" for column, cause in DROPS.items()},
    "marks": "congestion marks, in the whole network",
    "control_marks": "congestion marks on control packets, in the whole network",
    "trimmed": "packets trimmed, in the whole network",
    "pauses": "pause frames that stopped a port, in the whole network",
    "packet_hops": "transmissions of a packet over a link, in the whole network",
    "simulated_ps": "simulated time",
}
"""All measures and their labels."""


class ValueCounts(NamedTuple):
    """Distribution as values and counts: omitted values in between are counted at the next kept one."""

    values: list[float]
    counts: list[int]

    @classmethod
    def of(cls, values: AnyArray) -> ValueCounts:
        """Thin any number of values to at most about `MOST_VALUES`, always with the smallest and the largest."""
        ordered = np.sort(values)
        count = len(ordered)
        if count <= MOST_VALUES:
            ranks = np.arange(count)
        else:
            even = np.linspace(0, count - 1, MOST_VALUES // 2)
            late = count - np.geomspace(1, count, MOST_VALUES // 2)
            ranks = np.unique(np.rint(np.concatenate([even, late])).astype(np.int64).clip(0, count - 1))
        chosen = ordered[ranks]
        return cls([float(f"{value:.9g}") for value in chosen.tolist()], np.diff(ranks, prepend=-1).tolist())

    def checked(self) -> ValueCounts:
        """Return it with its values as floats. Raises ValueError if `of` cannot have made it."""
        values = [plain_number(value) for value in self.values]
        is_counted = all(type(count) is int and count > 0 for count in self.counts)
        if not values or len(values) != len(self.counts) or not is_counted or values != sorted(values) or values[0] < 0:
            raise ValueError("is not a distribution")
        return ValueCounts(values, self.counts)


Figures = dict[str, float]

SHARES = ("lost_share", "worst_share", "timed_out", "tail_timed_out", "useful_share")
SIGNED = ("exposed_mean_ps", "exposed_share")
"""Measures that may be negative: with overlapping iterations a worker computes longer than an iteration takes."""
REQUIRED = ("broken", "dropped")
"""Measures of every job and traffic."""


def plain_number(value: object) -> float:
    """Return a number as a float. Raises ValueError for booleans, NaN, infinities and other types."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def check_figures(figures: Mapping[str, object]) -> Figures:
    """Return the figures of a job as floats. Raises `ValueError` if one of them is not finite or out of the range of
    its measure, or a required one is missing."""
    checked = {name: plain_number(value) for name, value in figures.items()}
    least = [name for name, value in checked.items() if value < 0 and name not in SIGNED]
    most = [name for name in SHARES if checked.get(name, 0.0) > 1]
    missing = [name for name in REQUIRED if name not in checked]
    if least or most or missing:
        raise ValueError(f"out of range or missing: {', '.join(least + most + missing)}")
    return checked


class JobFigures(NamedTuple):
    """Stored figures of one job or traffic: its measures, and distributions by name ("completion", "slowdown")."""

    figures: Figures
    distributions: dict[str, ValueCounts]


def figures_by_job(result: Result) -> dict[str, JobFigures]:
    """Return the figures by job and traffic, in order of appearance in the Result."""
    broken = float(len(check_loss_invariant(result)))
    return {metrics.job: _seen(result, metrics, broken) for metrics in measure(result)}


def _seen(result: Result, metrics: Metrics, broken: float) -> JobFigures:
    row = flat_row(metrics, "")
    figures = {name: float(value) for name, value in row.items() if name in MEASURES and value is not None}
    for name in ("iteration", "exposed"):
        if not metrics.iteration.count:
            figures = {key: value for key, value in figures.items() if not key.startswith(name)}
    for kind, times in metrics.completion.items():
        if not times.count:
            figures = {
                key: value for key, value in figures.items() if not key.startswith(f"{kind}_") or "messages" in key
            }
    more = detailed_metrics(result, metrics.job)
    figures |= {"broken": broken, "dropped": float(metrics.dropped), "worst_used": float(metrics.loss.used)}
    if metrics.data_packets:
        figures["again"] = metrics.retransmitted / metrics.data_packets
    if more.messages and more.timed_out >= 0:
        figures |= {"timed_out": more.timed_out / more.messages, "tail_timed_out": more.tail_timed_out}
    if more.upstream is not None:
        figures["useful_share"] = float(more.upstream.share)
    distributions = {}
    durations = [*completion_times(result, metrics.job).values()]
    if durations:
        distributions["completion"] = ValueCounts.of(np.concatenate(durations))
    if result.stored_rows("flows").num_rows:
        parts = flow_times(result, metrics.job, ((0, SMALL), (LARGE, None)))
        for prefix, part in zip(_SIZES, parts, strict=False):
            figures |= _of_flows(prefix, part)
        if parts and len(parts[0].slowdowns):
            distributions["slowdown"] = ValueCounts.of(parts[0].slowdowns)
    return JobFigures({name: value for name, value in figures.items() if np.isfinite(value)}, distributions)


def _of_flows(prefix: str, times: FlowTimes) -> Figures:
    figures = {f"{prefix}flows": float(times.count)}
    for what in _SPREAD if times.count else ():
        for name, spread in (("slowdown_{}", times.slowdown), ("completion_{}_ps", times.completion)):
            value = getattr(spread, what)
            if value is not None:
                figures[prefix + name.format(what)] = float(value)
    return figures


def split_measure(name: str) -> tuple[str, str]:
    """Split a measure's name into (job or traffic, measure): "web.slowdown_p99" is web's; without a dot the first
    one's."""
    job, _, measure_name = name.rpartition(".")
    return job, measure_name


def sender_kind(name: str) -> str:
    """Return "job" or "traffic" if only that kind of sender has the measure, without the sender's name; ""
    otherwise."""
    if name.startswith(("iteration_", "exposed_")):
        return "job"
    is_spread = "slowdown_" in name or "completion_" in name
    return "traffic" if is_spread or (name.startswith("flow_") and name != "flow_messages") else ""


def check_measures(names: Sequence[str], senders: Sequence[str], where: str) -> None:
    """Raise `ScenarioError` for an unknown measure, job or traffic."""
    for name in names:
        job, measure_name = split_measure(name)
        if measure_name not in MEASURES:
            near = difflib.get_close_matches(measure_name, MEASURES, n=3, cutoff=0.5)
            listed = ", ".join(near or MEASURES)
            expected = f"{listed}, or another measure of docs/sweeps.md" if near else f"one of {listed}"
            raise ScenarioError(f"no measure {name!r}", where, expected)
        if job and job not in senders:
            what = f"measure {name!r}: {job!r} is neither a job nor traffic"
            raise ScenarioError(what, where, ", ".join(senders))
