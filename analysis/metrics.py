"""`measure` computes the metrics of each job or traffic in a Result (iteration times, completion times, drops, marks,
loss).

Times stay integer picoseconds and sizes bytes until they are printed. A percentile is a value that occurred (the
smallest one that at least the given share of values does not exceed), so it is exact and the same on every machine.
A p99 needs `MIN_FOR_P99` values: of fewer it would equal the maximum.

* iteration times and exposed communication: from the table of iterations, over all workers and the iterations of a
  job's steady state (`gradwire.analysis.measurement_window`);
* completion times: delivered messages, from ready at the sender to delivered at the receiver, including the wait for
  the sender's scheduler;
* traffic: flows that begin in the scenario's measured window;
* drops and marks: from the table of ports, so of all jobs together and with acknowledgements; -1 if a testbed did not
  count them;
* loss: delivered messages. The worst is the one that used the largest part of its loss bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from gradwire.analysis.measurement_window import (
    WHOLE_RUN,
    IterationSpan,
    completion_times,
    durations,
    in_window,
    measured_flows,
    rows_of_job,
    rows_with_text,
    steady_state,
)
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import AnyInts, Floats, Ints
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loss import allowed_loss_per_message
from gradwire.scenarios.readable import share_text, time_text
from gradwire.scenarios.schema.measurement import Window

DROPS: Mapping[str, str] = {
    "drops_tail": "tail",
    "drops_selective": "selective",
    "drops_loss": "link loss",
    "drops_evicted": "evicted",
    "drops_down": "link down",
    "drops_no_route": "no route",
}
"""Causes of drops: columns of the table of ports, and their labels."""


MANY_POINTS = 2000
"""Points of the tail of a distribution in a plot."""

MIN_FOR_P99 = 100
"""Least number of values for a p99: with fewer, no value lies above it."""


@dataclass(frozen=True)
class Times:
    """A distribution of durations, picoseconds; all zero if empty. `p99_ps` is None for fewer than `MIN_FOR_P99`."""

    count: int
    mean_ps: float
    p50_ps: int
    p99_ps: int | None
    max_ps: int


@dataclass(frozen=True)
class Loss:
    """Loss of the message that used most of its loss bound, and of all messages together.

    message : its number; -1 if no message lost anything.
    lost_bytes, allowed_bytes, bytes : of that message.
    share : lost_bytes / bytes of that message.
    total_bytes : lost by all messages together.
    total_share : of all bytes of delivered messages.
    """

    message: int
    lost_bytes: int
    allowed_bytes: int
    bytes: int
    share: float
    total_bytes: int
    total_share: float

    @property
    def used(self) -> float:
        """Lost over allowed bytes; above 1 the bound is broken; infinite if none may be lost but some were."""
        if not self.lost_bytes:
            return 0.0
        return self.lost_bytes / self.allowed_bytes if self.allowed_bytes else float("inf")


@dataclass(frozen=True, repr=False)
class Metrics:
    """Figures of one job of one Result.

    name, policy, label : of the scenario and its variant, as in `Result.summary`.
    job : name of the job or traffic.
    finished : false if the run ended before its jobs were done.
    steady : the iterations that `iteration` and `exposed` cover.
    iteration : durations per worker and iteration of those.
    exposed : time of an iteration in which its worker did not compute.
    exposed_share : of their iteration time.
    completion : per kind of message ("push", "pull", ...), and "all" of them; of a job those of `steady`.
    under_way : messages not delivered at the end of the run.
    drops_tail, ..., drops_no_route, marks, control_marks, trimmed : packets at all ports, not of this job alone; -1:
        unknown. `control_marks`: marks on acknowledgements and other control packets.
    pauses : pause frames that stopped something, at all ports.
    retransmitted, sent_packets, data_packets : retransmissions, packets sent in all (with probes), least number needed.
    loss : bytes not delivered.
    packet_hops : packets times links crossed, acknowledgements included; not of this job alone.
    hops_simulated : of these, without those of repeated iterations, which were not simulated.
    hops_per_s : of these, per second of wall clock; 0 if unknown. All three of the simulator only.
    simulated_ps : end of the run.
    traffic : true for traffic beside the jobs.
    window : of traffic, in which its flows begin.
    ended_by : cause of the run's end: "done", "duration", "max_wall", "stall" or "interrupt".
    ran_on : ("simulated",), or ("emulated", clock, switch backend).
    work : trace and phase, if known. Only times of the same work compare.
    disturbed : true if the machine disturbed the run, so that its figures say nothing about the network.
    """

    name: str
    policy: str
    label: str
    job: str
    finished: bool
    steady: IterationSpan
    iteration: Times
    exposed: Times
    exposed_share: float
    completion: Mapping[str, Times]
    under_way: int
    drops_tail: int
    drops_selective: int
    drops_loss: int
    drops_evicted: int
    drops_down: int
    drops_no_route: int
    marks: int
    control_marks: int
    trimmed: int
    pauses: int
    retransmitted: int
    sent_packets: int
    data_packets: int
    loss: Loss
    packet_hops: int
    hops_simulated: int
    hops_per_s: float
    simulated_ps: int
    traffic: bool = False
    window: Window = WHOLE_RUN
    ended_by: str = "done"
    ran_on: tuple[str, ...] = ("simulated",)
    work: str = ""
    disturbed: bool = False

    @property
    def emulated(self) -> bool:
        """True if the run used real sockets."""
        return self.ran_on[0] == "emulated"

    @property
    def dropped(self) -> int:
        """Packets dropped at all ports for any cause; -1 if a cause was not counted."""
        counts = [getattr(self, column) for column in DROPS]
        return -1 if min(counts) < 0 else sum(counts)

    def __repr__(self) -> str:
        whose = " ".join(filter(None, (self.name, self.policy, self.job)))
        if self.iteration.count:
            mean = f"{time_text(self.iteration.mean_ps)} per iteration, {share_text(self.exposed_share)} of it waiting"
            return f"<Metrics of {whose}: {mean}>"
        every = self.completion.get("all")
        return f"<Metrics of {whose}: {every.count if every else 0:,} messages>"

    def as_dict(self) -> Json:
        """Return plain numbers and texts for JSON."""
        return {**asdict(self), "completion": {kind: asdict(times) for kind, times in self.completion.items()}}


def measure(result: Result) -> list[Metrics]:
    """Return the metrics of every job of a Result, in order of appearance; one without a job if it is empty."""
    names: list[str] = []
    for table in ("iterations", "messages"):
        codes, texts = dictionary_encoded(result.select(table, "job")["job"])
        unique, first = np.unique(codes, return_index=True)
        names += [texts[code] for code in unique[np.argsort(first)].tolist()]
    return [_measure_job(result, job) for job in dict.fromkeys(names) or [""]]


def ran_on(result: Result) -> tuple[str, ...]:
    """Return the platform of a run: ("simulated",), or ("emulated", "virtual clock", "switches red")."""
    engine = result.summary.get("engine", {})
    if engine.get("kind") != "emulation":
        return ("simulated",)
    return ("emulated", f"{engine.get('clock', '')} clock", f"switches {engine.get('switch', '')}")


def percentile(values: Ints, share: float) -> int:
    """Return the smallest of `values` that at least `share` (above 0, up to 1) of them do not exceed."""
    rank = int(np.ceil(share * len(values) - 1e-9))
    return int(np.partition(values, rank - 1)[rank - 1])


def _measure_job(result: Result, job: str) -> Metrics:
    numbers, iteration, exposed = durations(result, job)
    steady, is_steady = steady_state(numbers)
    iteration, exposed = iteration[is_steady], exposed[is_steady]
    completion = completion_times(result, job)
    everything = np.concatenate([*completion.values(), np.zeros(0, dtype=np.int64)])
    counted = _in_messages(result, job)
    summary, ports = result.summary, result.ports
    totals = summary.get("totals", {})
    total, hops = int(iteration.sum()), int(summary.get("engine", {}).get("packet_hops", 0))
    finished = bool(totals.get("finished", True))
    traffic = 0 < counted["messages"] == counted["flow"]

    platform = ran_on(result)

    def at_ports(column: str) -> int:
        counts = to_numpy(ports[column])
        unknown = min(counts, default=-1 if platform[0] == "emulated" else 0) < 0
        return -1 if unknown else int(counts.sum())

    return Metrics(
        name=summary.get("name", ""),
        policy=summary.get("policy", ""),
        label=summary.get("label", ""),
        job=job,
        finished=finished,
        steady=steady,
        iteration=distribution_of(iteration),
        exposed=distribution_of(exposed),
        exposed_share=int(exposed.sum()) / total if total else 0.0,
        completion={
            "all": distribution_of(everything),
            **{kind: distribution_of(values) for kind, values in completion.items()},
        },
        under_way=counted["under_way"],
        **{column: at_ports(column) for column in (*DROPS, "marks", "control_marks", "trimmed", "pauses")},
        retransmitted=counted["retransmitted"],
        sent_packets=counted["sent_packets"],
        data_packets=counted["packets"],
        loss=_loss(result, job),
        packet_hops=hops,
        hops_simulated=int(result.timing.get("packet_hops_simulated", hops)),
        hops_per_s=float(result.timing.get("hops_per_s", 0.0)),
        simulated_ps=int(totals.get("simulated_ps", 0)),
        traffic=traffic,
        window=measured_flows(result) if traffic else WHOLE_RUN,
        ended_by=str(totals.get("ended_by", "done" if finished else "interrupt")),
        ran_on=platform,
        work=_work(result, job),
        disturbed=not summary.get("engine", {}).get("valid", True),
    )


def _work(result: Result, job: str) -> str:
    """Return the trace and phase of a job from the Result's scenario; empty without one."""
    tables = result.tables.get("job", [])
    own_tables = [table for table in tables if table.get("name") == job]
    return " ".join(str(own_tables[0][key]) for key in ("trace", "phase") if key in own_tables[0]) if own_tables else ""


def _in_messages(result: Result, job: str) -> dict[str, int]:
    """Return sums over the messages of a job. Messages and flows in all; of those that count (`in_window`) the
    undelivered ones and sums of columns."""
    columns = ("retransmitted", "sent_packets", "packets")
    sums = dict.fromkeys(("messages", "under_way", "flow", *columns), 0)
    window = measured_flows(result)
    for part in result.parts("messages", "job", "kind", "start_ps", "end_ps", *columns):
        rows = rows_of_job(part, job)
        sums["messages"] += int(rows.sum())
        sums["flow"] += int((rows & rows_with_text(part, "kind", "flow")).sum())
        rows &= in_window(part, window)
        sums["under_way"] += int((to_numpy(part["end_ps"])[rows] < 0).sum())
        for column in columns:
            sums[column] += int(to_numpy(part[column])[rows].sum())
    return sums


def _loss(result: Result, job: str) -> Loss:
    worst = (0.0, 0.0, -1, 0, 0, 0)  # used, share, message, lost, allowed, size: the first message that used most
    total = everything = 0
    columns = ("job", "kind", "start_ps", "end_ps", "message", "bytes", "lost_bytes", "bound")
    window = measured_flows(result)
    for part in result.parts("messages", *columns):
        rows = rows_of_job(part, job) & (to_numpy(part["end_ps"]) >= 0) & in_window(part, window)
        total += int(to_numpy(part["lost_bytes"])[rows].sum())
        everything += int(to_numpy(part["bytes"])[rows].sum())
        rows &= to_numpy(part["lost_bytes"]) > 0
        if not rows.any():
            continue
        number, size, lost, bound = (to_numpy(part[name])[rows] for name in ("message", "bytes", "lost_bytes", "bound"))
        allowed = allowed_loss_per_message(size, bound)
        used = np.where(allowed > 0, lost / np.maximum(allowed, 1), np.inf)
        share = lost / size
        most = np.flatnonzero(used == used.max())
        row = int(most[np.argmax(share[most])])
        if (float(used[row]), float(share[row])) > worst[:2]:
            counts = (int(column[row]) for column in (number, lost, allowed, size))
            worst = (float(used[row]), float(share[row]), *counts)  # type: ignore[assignment]
    _, share_lost, message, lost_bytes, allowed_bytes, nbytes = worst
    return Loss(
        message, lost_bytes, allowed_bytes, nbytes, share_lost, total, total / everything if everything else 0.0
    )


def distribution_of(values: Ints) -> Times:
    """Return the distribution of durations, picoseconds."""
    if not len(values):
        return Times(0, 0.0, 0, None, 0)
    high = percentile(values, 0.99) if len(values) >= MIN_FOR_P99 else None
    return Times(len(values), float(values.mean()), percentile(values, 0.5), high, int(values.max()))


NO_TIMES = distribution_of(np.zeros(0, dtype=np.int64))


def tail(values: AnyInts, most: int = MANY_POINTS) -> tuple[AnyInts, Floats]:
    """Return (values that occur, percentage of all values as large or larger). At most about `most` points, evenly
    spread on a logarithmic scale of the percentage."""
    unique, counts = np.unique(values, return_counts=True)
    more = len(values) - np.cumsum(counts) + counts
    chosen = np.unique(np.searchsorted(-more, -np.geomspace(more[0], 1, most)).clip(0, len(unique) - 1))
    return unique[chosen], 100 * more[chosen] / len(values)
