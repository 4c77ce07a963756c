"""`bottleneck_of` decides what bounds a job's iteration: computing, the network, or the hosts.

The waits of an iteration are split by cause along its critical path (`gradwire.analysis.breakdown.breakdown`). If one
cause vanished and everything else took as long as before, the same path would still be there, without that cause. So
the exposed time of a cause is the most that its removal can gain. The kinds:

    compute-bound   neither the network nor the hosts account for `NOTICEABLE` of the iteration
    network-bound   the causes in NETWORK together are the larger part of the waits
    host-bound      those in HOST are
    communication-bound  the waits are noticeable, but their causes are unknown

A scheduler holds messages back. While the host's card sends others, that is a queue in front of the card, and counts
as network (our choice); otherwise it counts as host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from gradwire.analysis.breakdown.breakdown import Breakdown, breakdown
from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.analysis.links import busy_shares
from gradwire.analysis.measurement_window import durations, steady_state
from gradwire.analysis.verdict.model_usage import ModelUsage, usages_of
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import share_text, time_text

NETWORK = ("serialisation", "sharing", "queueing", "retransmission", "timeouts")
HOST = ("straggler", "server", "scheduler")
REMEDIES: Mapping[str, str] = {
    "serialisation": "with infinitely fast links",
    "sharing": "if messages did not share their host's card",
    "queueing": "without queues in the network or at the sender's window",
    "retransmission": "without losses",
    "timeouts": "without time-outs",
    "straggler": "without stragglers",
    "server": "if servers added up in no time",
    "scheduler": "if the scheduler held nothing back",
}
"""End of "at most x % to gain ..." for each cause."""
NOTICEABLE = 0.05
"""Share of an iteration below which a wait bounds nothing (our choice)."""
WORTH_NAMING = 0.01
"""Least share of a cause that a sentence names, and `MOST_NAMED` of them (our choice)."""
MOST_NAMED = 3
BUSY = 0.5
"""Share of the held time in which the card sends others, from which the card is the cause (our choice)."""
HOT, HOT_FACTOR = 0.5, 2.0
"""A link is hot if it is busy this share of the time, and this many times as long as any other cable (our choice)."""
MOST_MESSAGES = 300_000
"""Messages of a run up to which causes are computed without being requested (our choice: about a minute)."""


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of the mean iteration of a job.

    kind : see the module.
    iteration_ps, waiting_ps : means over workers and the steady state.
    gains : the most that can be gained without each cause, as a share of the iteration; empty if unknown.
    unknown : the reason if causes are unknown, else "".
    hot_link : (port, share of the time that it was busy), if one link is much busier than the others.
    usage : the job's model, if its trace states one.
    """

    kind: str
    iteration_ps: float
    waiting_ps: float
    gains: Mapping[str, float]
    unknown: str = ""
    hot_link: tuple[str, float] | None = None
    usage: ModelUsage | None = None

    @property
    def waiting_share(self) -> float:
        """Exposed waiting as a share of the iteration."""
        return self.waiting_ps / self.iteration_ps if self.iteration_ps else 0.0

    @property
    def text(self) -> str:
        """The finding: "network-bound: 58.8 % of an iteration of 48.1 ms waits; at most 29.5 % to gain ..."."""
        share, length = share_text(self.waiting_share), time_text(self.iteration_ps)
        if self.kind == "compute-bound":
            return f"compute-bound: {share} of an iteration of {length} waits, and no network can save more than that"
        text = f"{self.kind}: {share} of an iteration of {length} waits"
        named = sorted(self.gains.items(), key=lambda item: -item[1])[:MOST_NAMED]
        gains = [f"{share_text(gain)} {REMEDIES[cause]}" for cause, gain in named if gain >= WORTH_NAMING]
        if gains:
            first, *more = gains
            share, _, remedy = first.partition(" % ")
            text += f"; at most {', '.join([f'{share} % could be gained {remedy}', *more])}"
        if self.hot_link is not None and self.kind == "network-bound":
            port, busy = self.hot_link
            text += f"; the link {port} is busy {share_text(busy)} of the time, far more than any other"
        return f"{text}; its causes are unknown: {self.unknown}" if self.unknown else text

    def as_dict(self) -> Json:
        """Return plain values for JSON."""
        link = {"port": self.hot_link[0], "busy": self.hot_link[1]} if self.hot_link else None
        model = self.usage.as_dict(self.iteration_ps, self.waiting_ps) if self.usage else None
        plain = {name: value for name, value in vars(self).items() if name != "usage"}
        return {
            **plain,
            "gains": dict(self.gains),
            "hot_link": link,
            "waiting_share": self.waiting_share,
            "model": model,
        }

    @property
    def usage_text(self) -> str:
        """The sentence on the model's throughput; "" if the trace states no model."""
        return self.usage.text(self.iteration_ps, self.waiting_ps) if self.usage else ""


@dataclass(frozen=True)
class Evidence:
    """Causes of the waits of a run, as far as they are known.

    parts : its breakdown, or None for the reason `unknown`. hot_link : as in `Bottleneck`. usages : models by job.
    """

    parts: Breakdown | None
    unknown: str = ""
    hot_link: tuple[str, float] | None = None
    usages: Mapping[str, ModelUsage] = field(default_factory=dict)


def evidence_of(result: Result, parts: Breakdown | None = None) -> Evidence:
    """Return what a run tells; `parts` : its breakdown if it is known. It is computed if that is quick."""
    try:
        context = ResultContext(result)
    except GradwireError as error:
        return Evidence(parts, "" if parts else error.what)
    hot, usages = hot_link(context), usages_of(context)
    if parts is not None:
        return Evidence(parts, "", hot, usages)
    if result.summary["totals"].get("ended_by") == "interrupt":  # who ends a run does not wait for a minute more
        return Evidence(None, "the run was interrupted; --breakdown computes them", hot, usages)
    count = result.stored_rows("messages").num_rows
    if count > MOST_MESSAGES:
        return Evidence(None, f"the run has {count:,} messages; --breakdown computes them", hot, usages)
    try:
        return Evidence(breakdown(context), "", hot, usages)
    except GradwireError as error:
        return Evidence(None, f"the run {error.what}", hot, usages)


def bottleneck_of(results: Sequence[Result], job: str, evidence: Sequence[Evidence]) -> Bottleneck:
    """Return what bounds a job, from runs that differ in their seed only. `evidence` : of each run."""
    times = [_steady_means(result, job) for result in results]
    iteration, waiting = (fmean(values) for values in zip(*times, strict=True))
    hot, usage = evidence[0].hot_link, evidence[0].usages.get(job)
    known = [entry.parts for entry in evidence if entry.parts is not None]
    if len(known) < len(evidence):
        if waiting < NOTICEABLE * iteration:
            return Bottleneck("compute-bound", iteration, waiting, {}, "", hot, usage)
        unknown = next(entry.unknown for entry in evidence if entry.parts is None)
        return Bottleneck("communication-bound", iteration, waiting, {}, unknown, hot, usage)
    means = [parts.means(job) for parts in known]
    gains = {cause: fmean(mean[cause] for mean in means) / iteration for cause in (*NETWORK, *HOST)}
    kind = kind_of(gains, fmean(parts.busy_while_held.get(job, 0.0) for parts in known))
    gains = {cause: gain for cause, gain in gains.items() if gain}
    return Bottleneck(kind, iteration, waiting, gains, "", hot, usage)


def kind_of(gains: Mapping[str, float], busy_while_held: float) -> str:
    """Return the kind of a bottleneck from the share of each cause; see the module."""
    network, host = (sum(gains.get(cause, 0.0) for cause in causes) for causes in (NETWORK, HOST))
    if busy_while_held >= BUSY:
        network, host = network + gains.get("scheduler", 0.0), host - gains.get("scheduler", 0.0)
    if max(network, host) < NOTICEABLE:
        return "compute-bound"
    return "network-bound" if network >= host else "host-bound"


def hot_link(context: ResultContext) -> tuple[str, float] | None:
    """Return the link that is much busier than all other cables; None if there is none. With it comes the share of the
    time in which it sends."""
    busy = busy_shares(context.network, context.result)
    if not any(busy.values()):
        return None
    most = max(busy, key=busy.__getitem__)
    others = [share for port, share in busy.items() if port not in (most, "->".join(reversed(most.split("->"))))]
    return (most, min(1.0, busy[most])) if busy[most] >= max(HOT, HOT_FACTOR * max(others, default=0.0)) else None


def _steady_means(result: Result, job: str) -> tuple[float, float]:
    """Return (mean iteration, mean wait) of the steady state, picoseconds."""
    numbers, times, exposed = durations(result, job)
    _, chosen = steady_state(numbers)
    return float(times[chosen].mean()), float(exposed[chosen].mean())
