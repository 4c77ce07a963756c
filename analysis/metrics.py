"""Metrics: the figures of one job in one Result, computed from its tables.

Integers in, integers out: times stay picoseconds and sizes bytes until somebody prints them. A percentile is a
value that occurred (the smallest one that at least the wanted share of values does not exceed), so it is exact and
the same on every machine. A p99 is given from `ENOUGH` values on: of fewer it would be their largest by another name.

What is measured where:

* iteration times and exposed communication: the table of iterations, over all workers and the iterations of a job's
  steady state (`gradwire.analysis.measured`);
* completion times: delivered messages, from being ready at the sending job to being delivered at the receiving
  one; waiting for the sender's scheduler is part of it;
* of traffic: flows that begin in the scenario's measured window;
* drops and marks: the table of ports, hence of all jobs together and of acknowledgements too; -1 where a testbed has
  not counted them;
* loss: delivered messages. The worst is the one that used most of what its bound allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from gradwire.analysis.measured import (
    WHOLE_RUN,
    Span,
    completion_times,
    durations,
    in_window,
    is_text,
    measured_flows,
    of_job,
    steady_state,
)
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.loss import allowed_losses
from gradwire.scenarios.readable import share_text, time_text
from gradwire.scenarios.result import Result
from gradwire.scenarios.schema.measured import Window

DROPS: Mapping[str, str] = {
    "drops_tail": "tail",
    "drops_selective": "selective",
    "drops_loss": "link loss",
    "drops_evicted": "evicted",
    "drops_down": "link down",
    "drops_no_route": "no route",
}
"""Causes of drops: columns of the table of ports, and what people call them."""


ENOUGH = 100
"""Values from which on a p99 is given: with fewer, not one lies above it."""


@dataclass(frozen=True)
class Times:
    """A distribution of durations, picoseconds; all zero if there are none. `p99_ps` is None of fewer than `ENOUGH`."""

    count: int
    mean_ps: float
    p50_ps: int
    p99_ps: int | None
    max_ps: int


@dataclass(frozen=True)
class Loss:
    """The message that lost most of what it may lose, and all messages together.

    Attributes
    ----------
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
        """Lost over allowed; above 1 the bound is broken, infinite if nothing may be lost and something was."""
        if not self.lost_bytes:
            return 0.0
        return self.lost_bytes / self.allowed_bytes if self.allowed_bytes else float("inf")


@dataclass(frozen=True, repr=False)
class Metrics:
    """One job of one Result.

    Attributes
    ----------
    name, policy, label : of the scenario and of its variant, as `Result.summary` has them.
    job : whose iterations and messages these are.
    finished : false if the run was ended before its jobs were done.
    steady : the iterations that `iteration` and `exposed` are of.
    iteration : per worker and iteration of those.
    exposed : time of an iteration in which its worker did not compute.
    exposed_share : of their iteration time.
    completion : per kind of message ("push", "pull", ...), and "all" of them; those of `steady`, if a job's.
    under_way : messages that had not been delivered when the run ended.
    drops_tail, ..., drops_no_route, marks, control_marks, trimmed : packets, at all ports; not of this job alone; -1:
        unknown. `control_marks`: of the marks, those on acknowledgements and other control packets.
    pauses : pause frames that stopped something, at all ports.
    retransmitted, sent_packets, data_packets : packets sent again, sent in all (with probes), needed at least.
    loss : what was not delivered.
    packet_hops : packets times links crossed, acknowledgements included; not of this job alone.
    hops_simulated : those of them that were not left out because their iterations repeat others.
    hops_per_s : of these, per second of wall-clock time; 0 if unknown. All three are the simulator's alone.
    simulated_ps : when the run ended.
    traffic : whether this is no job but traffic beside them.
    window : of traffic, in which its flows begin.
    ended_by : what ended the run: "done", "duration", "max_wall", "stall" or "interrupt".
    ran_on : ("simulated",), or ("emulated", the clock, what the switches were).
    work : what its iterations are of, as far as it is known: trace and phase. Only times of the same work compare.
    disturbed : whether the machine has disturbed the run, so that its figures say nothing about the network.
    """

    name: str
    policy: str
    label: str
    job: str
    finished: bool
    steady: Span
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
        """Whether this comes from real sockets."""
        return self.ran_on[0] == "emulated"

    @property
    def dropped(self) -> int:
        """Packets dropped at all ports, whatever the cause; -1 if one cause was not counted."""
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
        """Plain numbers and texts, for JSON."""
        return {
            **asdict(self),
            "completion": {kind: asdict(times) for kind, times in self.completion.items()},
        }


def measure(result: Result) -> list[Metrics]:
    """The metrics of every job of a Result, in the order in which the jobs appear; one without a job if it is empty."""
    names = [text for table in ("iterations", "messages") for text in _occurring(result, table, "job")]
    return [_measure_job(result, job) for job in dict.fromkeys(names)] or [_measure_job(result, "")]


def _occurring(result: Result, table: str, column: str) -> list[str]:
    """The texts of a column in the order in which they appear."""
    codes, texts = numbered(result.select(table, column)[column])
    found, first = np.unique(codes, return_index=True)
    return [texts[code] for code in found[np.argsort(first)].tolist()]


def ran_on(result: Result) -> tuple[str, ...]:
    """("simulated",), or ("emulated", "virtual clock", "switches red"): on what a Result came about."""
    engine = result.summary.get("engine", {})
    if engine.get("kind") != "emulation":
        return ("simulated",)
    return ("emulated", f"{engine.get('clock', '')} clock", f"switches {engine.get('switch', '')}")


def percentile(values: Ints, share: float) -> int:
    """The smallest of `values` that at least `share` (above 0, up to 1) of them do not exceed."""
    rank = int(np.ceil(share * len(values) - 1e-9))
    return int(np.partition(values, rank - 1)[rank - 1])


def _measure_job(result: Result, job: str) -> Metrics:
    numbers, iteration, exposed = durations(result, job)
    steady, chosen = steady_state(numbers)
    iteration, exposed = iteration[chosen], exposed[chosen]
    completion = completion_times(result, job)
    everything = np.concatenate([*completion.values(), np.zeros(0, dtype=np.int64)])
    counted = _in_messages(result, job)
    summary, ports = result.summary, result.ports
    totals = summary.get("totals", {})
    total, hops = int(iteration.sum()), int(summary.get("engine", {}).get("packet_hops", 0))
    finished = bool(totals.get("finished", True))
    traffic = 0 < counted["messages"] == counted["flow"]

    place = ran_on(result)

    def at_ports(column: str) -> int:
        counts = numpy_of(ports[column])
        unknown = min(counts, default=-1 if place[0] == "emulated" else 0) < 0  # real machines have no ports of ours
        return -1 if unknown else int(counts.sum())

    return Metrics(
        name=summary.get("name", ""),
        policy=summary.get("policy", ""),
        label=summary.get("label", ""),
        job=job,
        finished=finished,
        steady=steady,
        iteration=times_of(iteration),
        exposed=times_of(exposed),
        exposed_share=int(exposed.sum()) / total if total else 0.0,
        completion={
            "all": times_of(everything),
            **{kind: times_of(values) for kind, values in completion.items()},
        },
        under_way=counted["under_way"],
        **{column: at_ports(column) for column in DROPS},
        marks=at_ports("marks"),
        control_marks=at_ports("control_marks"),
        trimmed=at_ports("trimmed"),
        pauses=at_ports("pauses"),
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
        ran_on=place,
        work=_work(result, job),
        disturbed=not summary.get("engine", {}).get("valid", True),
    )


def _work(result: Result, job: str) -> str:
    """Trace and phase of a job, from the scenario that the Result holds; empty without one."""
    tables = result.tables.get("job", [])
    mine = [table for table in tables if table.get("name") == job]
    return " ".join(str(mine[0][key]) for key in ("trace", "phase") if key in mine[0]) if mine else ""


def _in_messages(result: Result, job: str) -> dict[str, int]:
    """Sums over the messages of a job: how many, and how many of them are flows; of those that count
    (`in_window`) how many were not delivered, and of columns."""
    columns = ("retransmitted", "sent_packets", "packets")
    found = dict.fromkeys(("messages", "under_way", "flow", *columns), 0)
    window = measured_flows(result)
    for part in result.parts("messages", "job", "kind", "start_ps", "end_ps", *columns):
        mine = of_job(part, job)
        found["messages"] += int(mine.sum())
        found["flow"] += int((mine & is_text(part, "kind", "flow")).sum())
        mine &= in_window(part, window)
        found["under_way"] += int((numpy_of(part["end_ps"])[mine] < 0).sum())
        for column in columns:
            found[column] += int(numpy_of(part[column])[mine].sum())
    return found


def _loss(result: Result, job: str) -> Loss:
    worst = (0.0, 0.0, -1, 0, 0, 0)  # used, share; message; lost, allowed, size: the first of those that used most
    total = everything = 0
    columns = ("job", "kind", "start_ps", "end_ps", "message", "bytes", "lost_bytes", "bound")
    window = measured_flows(result)
    for part in result.parts("messages", *columns):
        rows = of_job(part, job) & (numpy_of(part["end_ps"]) >= 0) & in_window(part, window)
        total += int(numpy_of(part["lost_bytes"])[rows].sum())
        everything += int(numpy_of(part["bytes"])[rows].sum())
        rows &= numpy_of(part["lost_bytes"]) > 0
        if not rows.any():
            continue
        number, size, lost, bound = (
            numpy_of(part[name])[rows] for name in ("message", "bytes", "lost_bytes", "bound")
        )
        allowed = allowed_losses(size, bound)
        used = np.where(allowed > 0, lost / np.maximum(allowed, 1), np.inf)
        share = lost / size
        most = np.flatnonzero(used == used.max())
        row = int(most[np.argmax(share[most])])
        if (float(used[row]), float(share[row])) > worst[:2]:
            worst = (
                float(used[row]), float(share[row]), int(number[row]), int(lost[row]), int(allowed[row]), int(size[row])
            )  # fmt: skip
    _, share_lost, message, lost_bytes, allowed_bytes, nbytes = worst
    return Loss(
        message, lost_bytes, allowed_bytes, nbytes, share_lost, total, total / everything if everything else 0.0
    )


def times_of(values: Ints) -> Times:
    """The distribution of some durations, picoseconds."""
    if not len(values):
        return Times(0, 0.0, 0, None, 0)
    high = percentile(values, 0.99) if len(values) >= ENOUGH else None
    return Times(len(values), float(values.mean()), percentile(values, 0.5), high, int(values.max()))
