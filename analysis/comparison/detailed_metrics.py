"""Computes metrics that explain a run's figures (retransmissions, time-outs in the tail, p99 by class) for `gradwire
compare --all-metrics`.

* retransmissions of pushes and of pulls: `retransmitted` over `packets`, of all messages;
* time-outs: messages with a retransmission time-out, and their share of the slowest 1 %. If they are most of it, the
  tail is due to time-outs and not to volume;
* completion from release: without the wait in the sender's own scheduler, which completion from readiness includes;
* p99 by class: by `priority`, 0 is served first;
* busbw of collectives: bytes that a rank sends, by all its cards and its scale-up port, on average over the ranks that
  send or receive, over the time in which messages of the kind are under way. For a ring, and any other algorithm that
  sends no byte twice, that is the bus bandwidth of nccl-tests, `algbw * 2 (n - 1) / n` for an all-reduce and `algbw *
  (n - 1) / n` for its halves: those factors are the bytes sent by a rank over the size;
* useful share of the busiest upstream link: see `gradwire.analysis.links`.

Times cover delivered messages of the steady state, as in `gradwire.analysis.measurement_window`; counts cover all
messages. Flows count if they begin in the measured window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.analysis.comparison.tables import KIND_LABELS, TableRow, median_text, tail_row
from gradwire.analysis.links import Bundle, busiest_upstream
from gradwire.analysis.measurement_window import durations, in_window, measured_flows, steady_state
from gradwire.analysis.metrics import NO_TIMES, Times, distribution_of, percentile
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import AnyArray, Ints
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import count_text, share_text, three_digits

PORT = re.compile(r"\.(nic\d+|up)$")
"""End of the name of a network card or a scale-up port, after that of its host or accelerator."""
TAIL_SHARE = 0.01
"""Share of the messages that forms the tail."""
PARALLEL = tuple(kind for kind in KINDS if kind.endswith("_parallel"))
COLLECTIVES = ("reduce_scatter", "all_gather", *PARALLEL, "collective")
"""Kinds of messages that have a bus bandwidth."""


@dataclass(frozen=True)
class DetailedMetrics:
    """Detailed metrics of one job (or traffic) of one Result.

    again : retransmissions over data packets, per kind of message that occurs.
    timed_out, messages : messages with a time-out, and all messages; `timed_out` is -1 if unknown.
    timeouts : number of time-outs.
    tail_timed_out : share of the slowest `TAIL_SHARE` of the delivered messages that had one.
    from_ready, from_release : completion times; `from_release` is empty if releases are unknown.
    by_class : completion times from readiness by priority.
    busbw : bytes per second, per kind of collective that occurs.
    upstream : the bundle of the busiest upstream link of the whole network; None if unknown.
    """

    job: str
    again: Mapping[str, float]
    timed_out: int
    messages: int
    timeouts: int
    tail_timed_out: float
    from_ready: Times
    from_release: Times
    by_class: Mapping[int, Times]
    busbw: Mapping[str, float]
    upstream: Bundle | None

    def as_dict(self) -> Json:
        """Return plain values for JSON."""
        return {
            **vars(self),
            "again": dict(self.again),
            "busbw": dict(self.busbw),
            "from_ready": vars(self.from_ready),
            "from_release": vars(self.from_release),
            "by_class": {str(priority): vars(times) for priority, times in self.by_class.items()},
            "upstream": None if self.upstream is None else {**self.upstream._asdict(), "share": self.upstream.share},
        }


def detailed_metrics(result: Result, job: str) -> DetailedMetrics:
    """Return the detailed metrics of a job or traffic, by its name."""
    columns = _messages_of(result, job)
    timeouts: Ints = columns["timeouts"]
    chosen = columns["end_ps"] >= 0
    steady, _ = steady_state(durations(result, job)[0])
    if steady.is_steady:
        chosen &= (columns["iteration"] >= steady.first) & (columns["iteration"] <= steady.last)
    duration = (columns["end_ps"] - columns["start_ps"])[chosen]
    known = chosen & (columns["released_ps"] >= 0)
    priority = columns["priority"][chosen]
    again = {}
    for number, kind in enumerate(KINDS):
        rows = columns["kind"] == number
        if packets := int(columns["packets"][rows].sum()):
            again[kind] = int(columns["retransmitted"][rows].sum()) / packets
    unknown = bool(len(timeouts)) and int(timeouts.min()) < 0
    return DetailedMetrics(
        job=job,
        again=again,
        timed_out=-1 if unknown else int((timeouts > 0).sum()),
        messages=len(timeouts),
        timeouts=-1 if unknown else int(timeouts.sum()),
        tail_timed_out=_share_in_tail(duration, timeouts[chosen]),
        from_ready=distribution_of(duration),
        from_release=distribution_of((columns["end_ps"] - columns["released_ps"])[known]),
        by_class={int(level): distribution_of(duration[priority == level]) for level in np.unique(priority)},
        busbw={
            kind: _bus_bandwidth({name: values[rows] for name, values in columns.items()})
            for kind in COLLECTIVES
            if (rows := chosen & (columns["kind"] == KINDS.index(kind))).any()
        },
        upstream=busiest_upstream(result),
    )


def _bus_bandwidth(columns: Json) -> float:
    """Return the bytes that a rank sends per second in which any of these messages is under way."""
    ranks = len(np.union1d(columns["src"], columns["dst"]))
    order = np.argsort(columns["start_ps"], kind="stable")
    start, end = columns["start_ps"][order], np.maximum.accumulate(columns["end_ps"][order])
    before = np.concatenate((start[:1], end[:-1]))
    active = int((end - np.maximum(start, before)).clip(0).sum())
    return float(columns["bytes"].sum()) / ranks * 1e12 / max(active, 1)


def _messages_of(result: Result, job: str) -> Json:
    """Return the columns of a job's messages; kinds as indices into `KINDS`, senders and receivers as ranks."""
    plain = (
        "iteration",
        "bytes",
        "packets",
        "priority",
        "start_ps",
        "released_ps",
        "end_ps",
        "retransmitted",
        "timeouts",
    )
    blocks: dict[str, list[AnyArray]] = {name: [np.zeros(0, dtype=np.int64)] for name in ("kind", "src", "dst", *plain)}
    ranks: dict[str, int] = {}
    window = measured_flows(result)
    for part in result.parts("messages", "job", "kind", "src", "dst", *plain):
        (jobs, names), (kind, kinds) = dictionary_encoded(part["job"]), dictionary_encoded(part["kind"])
        rows = (jobs == (names.index(job) if job in names else -1)) & in_window(part, window)
        blocks["kind"].append(np.array([KINDS.index(kind_name) for kind_name in kinds], dtype=np.int8)[kind[rows]])
        for end in ("src", "dst"):
            node, nodes = dictionary_encoded(part[end])
            numbers = [ranks.setdefault(PORT.sub("", name), len(ranks)) for name in nodes]
            blocks[end].append(np.array(numbers, dtype=np.int64)[node[rows]])
        for name in plain:
            blocks[name].append(to_numpy(part[name])[rows])
    return {name: np.concatenate(columns[min(1, len(columns) - 1) :]) for name, columns in blocks.items()}


def _share_in_tail(duration: Ints, timeouts: Ints) -> float:
    """Return the share of messages with a time-out among those at or above the 99th percentile."""
    if not len(duration):
        return 0.0
    slow = duration >= percentile(duration, 1 - TAIL_SHARE)
    return float((timeouts[slow] > 0).mean())


def detail_rows(details: Sequence[DetailedMetrics]) -> list[TableRow]:
    """Return the table of detailed metrics, cells in the order of `details`."""
    rows: list[TableRow] = []
    for kind in (kind for kind in KINDS if any(kind in entry.again for entry in details)):
        cells = [share_text(entry.again[kind]) if kind in entry.again else "-" for entry in details]
        rows.append(TableRow(f"{KIND_LABELS[kind]} retransmissions", cells, not rows))
    for kind in (kind for kind in KINDS if any(kind in entry.busbw for entry in details)):
        cells = [f"{three_digits(entry.busbw[kind] / 1e9)} GB/s" if kind in entry.busbw else "-" for entry in details]
        rows.append(TableRow(f"{KIND_LABELS[kind]} busbw", cells))
    rows += [
        TableRow("messages with a time-out", [_known(entry, entry.timed_out) for entry in details], True),
        TableRow("  time-outs", [_known(entry, entry.timeouts) for entry in details]),
        TableRow(
            "  of the slowest 1 %",
            [share_text(entry.tail_timed_out) if entry.timed_out >= 0 else "-" for entry in details],
        ),
    ]
    for label, name in (("from ready", "from_ready"), ("from release", "from_release")):
        all_times: list[Times] = [getattr(entry, name) for entry in details]
        rows.append(TableRow(f"completion {label}, p50", [median_text(t) for t in all_times], name == "from_ready"))
        rows.append(tail_row("  ", all_times))
    for level in sorted({priority for entry in details for priority in entry.by_class}):
        rows.append(tail_row(f"class {level}, ", [entry.by_class.get(level, NO_TIMES) for entry in details]))
    upstream = [entry.upstream for entry in details]
    rows.append(TableRow("busiest upstream link", [bundle.busiest if bundle else "-" for bundle in upstream], True))
    rows.append(TableRow("  useful share", [share_text(bundle.share) if bundle else "-" for bundle in upstream]))
    return rows


def _known(entry: DetailedMetrics, count: int) -> str:
    return count_text(count) if entry.timed_out >= 0 else "-"
