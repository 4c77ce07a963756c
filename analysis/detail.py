"""Details: what explains a run's figures, beyond those that every comparison shows (`gradwire compare --all-metrics`).

* packets sent again, pushes and pulls apart: `retransmitted` over `packets`, of all messages;
* time-outs: messages that met a retransmission time-out, and what share of the slowest 1 % they are. Where that is most
  of them, the tail is made of time-outs and not of volume;
* completion from release: without the waiting in the sender's own scheduler, which completion from readiness has;
* p99 by class: by `priority`, 0 is served first;
* useful share of the busiest upstream link: see `gradwire.analysis.links`.

Times are of delivered messages of the steady state, as in `gradwire.analysis.measured`; counts are of all messages.
Flows of traffic count as far as they begin in the measured window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.analysis.links import Bundle, busiest_upstream
from gradwire.analysis.measured import durations, in_window, measured_flows, steady_state
from gradwire.analysis.metrics import Times, percentile, times_of
from gradwire.analysis.tables import KIND_WORDS, Row, late_text, late_words
from gradwire.scenarios.arrays import AnyArray, Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.readable import count_text, share_text, time_text
from gradwire.scenarios.result import KINDS, Result

SLOWEST = 0.01
"""The share of messages that is the tail."""


@dataclass(frozen=True)
class Detail:
    """One job (or traffic) of one Result.

    Attributes
    ----------
    again : per kind of message that occurs, packets sent again over packets of data.
    timed_out, messages : messages that met a time-out, of how many; `timed_out` is -1 where that is not known.
    timeouts : time-outs that they met.
    tail_timed_out : share of the slowest `SLOWEST` of the delivered messages that met one.
    from_ready, from_release : completion times; `from_release` has no values where release is not known.
    by_class : completion times from readiness by priority.
    upstream : the bundle of the busiest upstream link, of the whole network; None if unknown.
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
    upstream: Bundle | None

    def as_dict(self) -> Json:
        """Plain values, for JSON."""
        return {
            "job": self.job,
            "again": dict(self.again),
            "timed_out": self.timed_out,
            "messages": self.messages,
            "timeouts": self.timeouts,
            "tail_timed_out": self.tail_timed_out,
            "from_ready": vars(self.from_ready),
            "from_release": vars(self.from_release),
            "by_class": {str(priority): vars(times) for priority, times in self.by_class.items()},
            "upstream": None
            if self.upstream is None
            else {**self.upstream._asdict(), "share": self.upstream.share},
        }


def detail(result: Result, job: str) -> Detail:
    """The details of one job or traffic, by its name."""
    columns = _messages_of(result, job)
    met: Ints = columns["timeouts"]
    chosen = columns["end_ps"] >= 0
    steady, _ = steady_state(durations(result, job)[0])
    if steady.is_steady:
        chosen &= (columns["iteration"] >= steady.first) & (columns["iteration"] <= steady.last)
    taken = (columns["end_ps"] - columns["start_ps"])[chosen]
    known = chosen & (columns["released_ps"] >= 0)
    priority = columns["priority"][chosen]
    unknown = bool(len(met)) and int(met.min()) < 0
    return Detail(
        job=job,
        again=_again(columns),
        timed_out=-1 if unknown else int((met > 0).sum()),
        messages=len(met),
        timeouts=-1 if unknown else int(met.sum()),
        tail_timed_out=_tail(taken, met[chosen]),
        from_ready=times_of(taken),
        from_release=times_of((columns["end_ps"] - columns["released_ps"])[known]),
        by_class={int(each): times_of(taken[priority == each]) for each in np.unique(priority)},
        upstream=busiest_upstream(result),
    )


def _messages_of(result: Result, job: str) -> Json:
    """Columns of the messages of a job; kinds as indices into `KINDS`."""
    plain = ("iteration", "packets", "priority", "start_ps", "released_ps", "end_ps", "retransmitted", "timeouts")
    found: dict[str, list[AnyArray]] = {name: [np.zeros(0, dtype=np.int64)] for name in ("kind", *plain)}
    window = measured_flows(result)
    for part in result.parts("messages", "job", "kind", *plain):
        (jobs, names), (kind, kinds) = numbered(part["job"]), numbered(part["kind"])
        mine = (jobs == (names.index(job) if job in names else -1)) & in_window(part, window)
        found["kind"].append(np.array([KINDS.index(each) for each in kinds], dtype=np.int8)[kind[mine]])
        for name in plain:
            found[name].append(numpy_of(part[name])[mine])
    return {name: np.concatenate(columns[min(1, len(columns) - 1) :]) for name, columns in found.items()}


def _again(columns: Json) -> dict[str, float]:
    found = {}
    for number, kind in enumerate(KINDS):
        those = columns["kind"] == number
        packets = int(columns["packets"][those].sum())
        if packets:
            found[kind] = int(columns["retransmitted"][those].sum()) / packets
    return found


def _tail(taken: Ints, met: Ints) -> float:
    """Of the messages that took as long as the 99th percentile or longer: the share that met a time-out."""
    if not len(taken):
        return 0.0
    slow = taken >= percentile(taken, 1 - SLOWEST)
    return float((met[slow] > 0).mean())


def detail_rows(details: Sequence[Detail]) -> list[Row]:
    """A table of details, cells in the order of `details`."""
    rows: list[Row] = []
    for kind in (kind for kind in KINDS if any(kind in each.again for each in details)):
        cells = [share_text(each.again[kind]) if kind in each.again else "-" for each in details]
        rows.append(Row(f"{KIND_WORDS[kind]} packets sent again", cells, not rows))
    rows += [
        Row("messages with a time-out", [_known(each, each.timed_out) for each in details], True),
        Row("  time-outs", [_known(each, each.timeouts) for each in details]),
        Row("  of the slowest 1 %", [
            share_text(each.tail_timed_out) if each.timed_out >= 0 else "-" for each in details
        ]),
    ]  # fmt: skip
    for label, name in (("from ready", "from_ready"), ("from release", "from_release")):
        all_times: list[Times] = [getattr(each, name) for each in details]
        rows.append(
            Row(f"completion {label}, p50", [_cell(t, t.p50_ps) for t in all_times], name == "from_ready")
        )
        late = late_words(all_times)
        rows.append(Row("  " + late, [late_text(times, late) for times in all_times]))
    for each in sorted({priority for entry in details for priority in entry.by_class}):
        all_times = [entry.by_class.get(each, times_of(np.zeros(0, dtype=np.int64))) for entry in details]
        late = late_words(all_times)
        rows.append(Row(f"class {each}, {late}", [late_text(times, late) for times in all_times], False))
    upstream = [each.upstream for each in details]
    rows.append(Row("busiest upstream link", [each.busiest if each else "-" for each in upstream], True))
    rows.append(Row("  useful share", [share_text(each.share) if each else "-" for each in upstream]))
    return rows


def _known(each: Detail, count: int) -> str:
    return count_text(count) if each.timed_out >= 0 else "-"


def _cell(times: Times, value: float) -> str:
    return time_text(value) if times.count else "-"
