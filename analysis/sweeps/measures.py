"""Every figure that a sweep can have a column of, by name, and what is kept of a run for plots of distributions.

They are those of comparisons (`gradwire.analysis.metrics`, `detail`, `flows`) under the names of comparison.csv, and
some that these lack. Times are picoseconds, sizes bytes, shares 0 to 1. What a run does not have, such as the p99 of
fewer than 100 messages, is absent. How fast a run was simulated is no measure: it never repeats.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gradwire.analysis.compare import flat_row
from gradwire.analysis.detail import detail
from gradwire.analysis.flows import EDGES, FlowTimes, flow_times
from gradwire.analysis.measured import completion_times
from gradwire.analysis.metrics import DROPS, Metrics, measure
from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.result import KINDS, Result
from gradwire.scenarios.soundness import check_loss_invariant

SMALL, LARGE = EDGES[1], EDGES[-1]
"""Flows of up to 100 kB, and those above 10 MB: pFabric's small and large ones [recalled]."""
MOST_KEPT = 400
"""Values of a distribution that are kept: half of them even in rank, half even in the logarithm of what lies above."""

_TIMES = {"messages": "messages", "mean_ps": "mean", "p50_ps": "median", "p99_ps": "p99", "max_ps": "largest"}
_WHOSE = {"all": "all messages", **{kind: f"{kind.replace('_', '-')} messages" for kind in KINDS}, "flow": "flows"}
_SPREAD = ("mean", "p50", "p99", "p999", "max")
_SIZES = {"": "all flows", "small_": "flows up to 100 kB", "large_": "flows above 10 MB"}

MEASURES: Mapping[str, str] = {
    "iterations": "iterations",
    "iteration_mean_ps": "iteration time, mean of the steady state",
    "iteration_p50_ps": "iteration time, median",
    "iteration_p99_ps": "iteration time, p99",
    "iteration_max_ps": "iteration time, largest",
    "exposed_mean_ps": "exposed communication, mean",
    "exposed_share": "exposed communication over iteration time",
    **{
        f"{kind}_{what}": (f"completion time of {whose}, {words}" if what != "messages" else f"{whose} delivered")
        for kind, whose in _WHOSE.items()
        for what, words in _TIMES.items()
    },
    **{f"{size}slowdown_{what}": f"slowdown of {whose}, {what}" for size, whose in _SIZES.items() for what in _SPREAD},
    **{
        f"{size}completion_{what}_ps": f"completion time of {whose}, {what}"
        for size, whose in _SIZES.items()
        for what in _SPREAD
    },
    **{f"{size}flows": f"{whose} delivered" for size, whose in _SIZES.items()},
    "under_way": "messages not delivered when the run ended",
    "retransmitted": "packets sent again",
    "sent_packets": "packets sent, probes among them",
    "data_packets": "packets needed at least",
    "again": "packets sent again per packet of data",
    "timed_out": "messages that met a time-out, share",
    "tail_timed_out": "of the slowest 1 % of messages: met a time-out, share",
    "useful_share": "useful share of the busiest upstream link, of the whole network",
    "lost_bytes": "bytes lost of delivered messages",
    "lost_share": "share of all bytes that was lost",
    "worst_lost_bytes": "bytes lost of the message that used most of its bound",
    "worst_share": "share of that message that was lost",
    "worst_used": "lost over allowed, of that message",
    "broken": "loss bounds broken, in the whole run",
    "dropped": "packets dropped, in the whole network",
    **{column: f"packets dropped: {cause}, in the whole network" for column, cause in DROPS.items()},
    "marks": "congestion marks, in the whole network",
    "control_marks": "of these on control packets",
    "trimmed": "packets trimmed, in the whole network",
    "pauses": "pause frames that stopped something, in the whole network",
    "packet_hops": "packets times links, in the whole network",
    "simulated_ps": "simulated time",
}
"""What there is, and in words."""


class Distribution(NamedTuple):
    """Values and how many there are of each: of those in between, which are not kept, too, at the next one kept."""

    values: list[float]
    counts: list[int]

    @classmethod
    def of(cls, values: AnyArray) -> Distribution:
        """Of any number of values, at most about `MOST_KEPT` kept; the smallest and the largest always."""
        ordered = np.sort(values)
        count = len(ordered)
        if count <= MOST_KEPT:
            ranks = np.arange(count)
        else:
            even = np.linspace(0, count - 1, MOST_KEPT // 2)
            late = count - np.geomspace(1, count, MOST_KEPT // 2)
            ranks = np.unique(np.rint(np.concatenate([even, late])).astype(np.int64).clip(0, count - 1))
        kept = ordered[ranks]
        return cls([float(f"{each:.9g}") for each in kept.tolist()], np.diff(ranks, prepend=-1).tolist())

    def checked(self) -> Distribution:
        """Return it with its values as floats. Raises ValueError if it is none that `of` returns."""
        values = [plain_number(value) for value in self.values]
        is_counted = all(type(count) is int and count > 0 for count in self.counts)
        if not values or len(values) != len(self.counts) or not is_counted or values != sorted(values) or values[0] < 0:
            raise ValueError("is no distribution")
        return Distribution(values, self.counts)


Figures = dict[str, float]

SHARES = ("lost_share", "worst_share", "timed_out", "tail_timed_out", "useful_share")
SIGNED = ("exposed_mean_ps", "exposed_share")
"""Negative where a worker computes longer than an iteration takes, with iterations that overlap."""
REQUIRED = ("broken", "dropped")
"""Measures that every job and traffic has."""


def plain_number(value: object) -> float:
    """Return a number as a float. Raises ValueError for booleans, NaN, infinities, and what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def check_figures(figures: Mapping[str, object]) -> Figures:
    """Return the figures of a job as floats.

    Raises
    ------
    ValueError
        One of them is no finite number or out of the range of its measure, or one that every job has is missing.
    """
    checked = {name: plain_number(value) for name, value in figures.items()}
    least = [name for name, value in checked.items() if value < 0 and name not in SIGNED]
    most = [name for name in SHARES if checked.get(name, 0.0) > 1]
    missing = [name for name in REQUIRED if name not in checked]
    if least or most or missing:
        raise ValueError(f"out of range or missing: {', '.join(least + most + missing)}")
    return checked


class Seen(NamedTuple):
    """What is kept of one job, or traffic: its measures, and distributions by name ("completion", "slowdown")."""

    figures: Figures
    distributions: dict[str, Distribution]


def seen(result: Result) -> dict[str, Seen]:
    """By job and traffic, in the order in which they appear in the Result."""
    broken = float(len(check_loss_invariant(result)))
    return {each.job: _seen(result, each, broken) for each in measure(result)}


def _seen(result: Result, metrics: Metrics, broken: float) -> Seen:
    row = flat_row(metrics, "")
    found = {name: float(value) for name, value in row.items() if name in MEASURES and value is not None}
    for name in ("iteration", "exposed"):
        if not metrics.iteration.count:
            found = {key: value for key, value in found.items() if not key.startswith(name)}
    for kind, times in metrics.completion.items():
        if not times.count:
            found = {key: value for key, value in found.items() if not key.startswith(f"{kind}_") or "messages" in key}
    more = detail(result, metrics.job)
    found |= {"broken": broken, "dropped": float(metrics.dropped), "worst_used": float(metrics.loss.used)}
    if metrics.data_packets:
        found["again"] = metrics.retransmitted / metrics.data_packets
    if more.messages and more.timed_out >= 0:
        found |= {"timed_out": more.timed_out / more.messages, "tail_timed_out": more.tail_timed_out}
    if more.upstream is not None:
        found["useful_share"] = float(more.upstream.share)
    distributions = {}
    taken = [*completion_times(result, metrics.job).values()]
    if taken:
        distributions["completion"] = Distribution.of(np.concatenate(taken))
    if result.kept("flows").num_rows:
        parts = flow_times(result, metrics.job, ((0, SMALL), (LARGE, None)))
        for prefix, part in zip(_SIZES, parts, strict=False):
            found |= _of_flows(prefix, part)
        if parts and len(parts[0].slowdowns):
            distributions["slowdown"] = Distribution.of(parts[0].slowdowns)
    return Seen({name: value for name, value in found.items() if np.isfinite(value)}, distributions)


def _of_flows(prefix: str, times: FlowTimes) -> Figures:
    found = {f"{prefix}flows": float(times.count)}
    for what in _SPREAD if times.count else ():
        for name, spread in (("slowdown_{}", times.slowdown), ("completion_{}_ps", times.completion)):
            value = getattr(spread, what)
            if value is not None:
                found[prefix + name.format(what)] = float(value)
    return found


def whose(name: str) -> tuple[str, str]:
    """(job or traffic, measure) of a measure's name: "web.slowdown_p99" is web's, one without a dot the first one's."""
    job, _, measure_name = name.rpartition(".")
    return job, measure_name


def sort_of(name: str) -> str:
    """Return "job" or "traffic" if only such a sender has the measure, without the sender's name; "" otherwise."""
    if name.startswith(("iteration_", "exposed_")):
        return "job"
    is_spread = "slowdown_" in name or "completion_" in name
    return "traffic" if is_spread or (name.startswith("flow_") and name != "flow_messages") else ""


def check_measures(names: Sequence[str], senders: Sequence[str], where: str) -> None:
    """Raise `ScenarioError` for what is no measure, or of a job or traffic that there is none of."""
    for name in names:
        job, measure_name = whose(name)
        if measure_name not in MEASURES:
            near = difflib.get_close_matches(measure_name, MEASURES, n=3, cutoff=0.5)
            listed = ", ".join(near or MEASURES)
            expected = f"{listed}, or another one of docs/sweeps.md" if near else f"one of {listed}"
            raise ScenarioError(f"no measure {name!r}", where, expected)
        if job and job not in senders:
            what = f"measure {name!r} is of {job!r}, which is neither a job nor traffic"
            raise ScenarioError(what, where, ", ".join(senders))
