"""Computes queues, utilisation, waiting times, drops and marks of a run's ports from the tables of its Result.

* Queues and utilisation come from the table of samples. The utilisation of a period is the bytes whose transmission
  began in it, over the capacity of the link as built; the part of a packet that exceeds the period counts in the next.
* Waiting times come from the table of delays. It has bins only, so a percentile is the upper end of its bin, at most a
  quarter above the true value.
* Drops by cause, queue, layer and importance come from the table of drops; congestion marks and trimmed packets by
  queue and layer from the table of messages, for data that arrived.

Values that a testbed did not count are None: queues that its switches do not see, marks and losses of the kernel's TCP
by message. Its samples are irregular; they are moved to multiples of a period, see `series`.

A *hop* is a kind of link: all ports from leaves to spines are one hop, whatever their numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradwire.analysis.metrics import DROPS, percentile, ran_on
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.units import format_time
from gradwire.traces.storage.memory_limits import refuse_beyond

if TYPE_CHECKING:
    import pyarrow


FORMAT = 1
"""Version of the `--json` output."""
MOST_SAMPLES = 100_000
SHARES = (0.5, 0.99, 0.999)
PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True)
class PortSeries:
    """Queue and utilisation of one port over time, at every multiple of the period from 0 to the last sample.

    Without a sample the queue is empty and no transmission has begun since the previous multiple.

    port : its name; parallel cables between two nodes share it and follow each other.
    period_ps : time between two entries.
    queue_bytes : int64 per entry.
    utilisation : float per entry, for the period that ends there.
    """

    port: str
    period_ps: int
    queue_bytes: Ints
    utilisation: Floats


def chosen_ports(result: Result, wanted: Sequence[str]) -> list[str]:
    """Return ports by their names, or by a node's name for all its ports; all ports if none are named. Raises
    `ResultError` if a name is neither; all such names are listed."""
    known = list(dict.fromkeys(result.ports["port"].to_pylist()))
    if not wanted:
        return known
    unknown = [name for name in wanted if not any(_names(name, port) for port in known)]
    if unknown:
        like = f"a port such as {known[-1]} or a node such as {known[-1].split('->')[0]}" if known else ""
        raise ResultError(f"no such port or node: {', '.join(unknown)}", "ports.parquet", like)
    return [port for port in known if any(_names(name, port) for name in wanted)]


def series(result: Result, ports: Sequence[str] | None = None) -> list[PortSeries]:
    """Return the samples of every sampled port.

    Samples of a testbed are not at multiples of a period. The median time between two samples is taken as the period;
    queues have their latest sample, and the bytes sent between two samples are spread evenly.

    Raises `ResultError` if the Result lacks the sampling period, or its samples do not fit it.
    """
    table = result.samples
    if not table.num_rows:
        return []
    time = to_numpy(table["time_ps"])
    width = int(np.count_nonzero(time == time[0]))  # ports sampled at a time
    names = table["port"].slice(0, width).to_pylist()
    times = time[::width]
    regular = (np.diff(times) > 0).all() and np.array_equal(np.repeat(times, width), time)
    if not regular or names * len(times) != table["port"].to_pylist():
        what = "does not have every port at each of its times"
        raise ResultError(what, "samples.parquet", "the samples as the run took them")
    queue, sent, rate = (to_numpy(table[name]).reshape(-1, width) for name in ("queue_bytes", "sent_bytes", "rate_bps"))
    if ran_on(result)[0] == "emulated":
        period, times, queue, sent = _at_multiples(times, queue, sent)
    else:
        period = _period(result, times)
    slots = times // period
    refuse_beyond(2 * 8 * width * (int(slots[-1]) + 1), "to show the samples", "samples.parquet")
    all_series = []
    for number, name in enumerate(names):
        if ports is None or name in ports:
            waits, begun = np.zeros((2, slots[-1] + 1), dtype=np.int64)
            waits[slots], begun[slots] = queue[:, number], sent[:, number]
            full = rate[0, number] / 8 * period / PS_PER_S
            all_series.append(PortSeries(name, period, waits, _utilisation(np.maximum.accumulate(begun), full)))
    return all_series


def _period(result: Result, times: Ints) -> int:
    """Return the sampling period (ps) of the scenario; sample times do not determine it, as there may be few."""
    period = int(result.summary.get("sample_period_ps") or 0)
    if period <= 0 or (times % period).any():
        what = "does not record its sampling period"
        if period > 0:
            what = f"has samples that are not at multiples of {format_time(period)}"
        raise ResultError(what, "result.json: sample_period_ps", "output.queue_samples of the scenario")
    return period


def _utilisation(begun: Ints, full: float) -> Floats:
    """Return per period the share of a link's capacity, from the bytes begun by its end. Bytes beyond the capacity
    count in the next period, and so on: every byte counts once."""
    most = full * np.arange(len(begun))
    carried = most + np.minimum.accumulate(begun - most)
    return np.minimum(np.diff(carried, prepend=0.0) / full, 1.0)  # exceeds 1 only by rounding


def _at_multiples(times: Ints, queue: Ints, sent: Ints) -> tuple[int, Ints, Ints, Ints]:
    """Return the median time between two samples, and samples `[time, port]` moved to its multiples."""
    period = max(1, int(np.median(np.diff(times, prepend=0))), int(times[-1]) // MOST_SAMPLES)
    grid = period * np.arange(1, -(-int(times[-1]) // period) + 1)
    before = np.searchsorted(times, grid, side="right") - 1
    waits = np.where(before[:, np.newaxis] >= 0, queue[np.maximum(before, 0)], 0)
    from_zero = np.concatenate([[0], times])
    columns = [np.interp(grid, from_zero, np.concatenate([[0], column])) for column in sent.T]
    return period, grid, waits, np.stack(columns, axis=1).astype(np.int64)


def hop_of(port: str) -> str:
    """Return the kind of link that a port feeds: "leaf0->spine3" gives leaf->spine."""
    return re.sub(r"\d+", "", port)


def waiting_times(result: Result, ports: Sequence[str] | None = None, by_hop: bool = False) -> list[Json]:
    """Return waiting times per port (or per hop): count, percentiles and maximum, each the upper end of its bin
    (ps)."""
    table = _at(result.delays, ports)
    of = hop_of if by_hop else str
    names = np.array([of(name) for name in table["port"].to_pylist()], dtype=object)
    upper, counts = to_numpy(table["to_ps"]), to_numpy(table["packets"])
    entries = []
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(upper[rows], kind="stable")]
        reached = np.cumsum(counts[rows])
        entry: Json = {"hop" if by_hop else "port": name, "packets": int(reached[-1])}
        for share in SHARES:
            rank = int(np.ceil(share * reached[-1] - 1e-9))
            entry[percentile_key(share)] = int(upper[rows[np.searchsorted(reached, rank)]])
        entry["max_ps"] = int(upper[rows[-1]])
        entries.append(entry)
    return entries


def percentile_key(share: float) -> str:
    """Return the key of a percentile: p50_ps, p999_ps."""
    return f"p{100 * share:g}_ps".replace(".", "")


def queues(result: Result, ports: Sequence[str] | None = None) -> list[Json]:
    """Return per port the packets and bytes sent, deepest queue, and, if sampled, queue and utilisation statistics.
    Sampled: mean and p99 of the queue, mean and highest utilisation. The deepest queue comes first or, if queues are
    unknown, the port that sent most packets."""
    table = result.ports
    sampled: dict[str, PortSeries] = {}
    for port_series in series(result, ports):
        sampled.setdefault(port_series.port, port_series)
    entries = []
    for port, packets, sent, peak in zip(
        *(table[name].to_pylist() for name in ("port", "packets", "bytes", "peak_queue_bytes")), strict=True
    ):
        if (ports is not None and port not in ports) or (packets == 0 and peak <= 0):
            continue
        deepest = peak if peak >= 0 else None
        entry: Json = {"port": port, "packets": packets, "bytes": sent, "peak_queue_bytes": deepest}
        samples = sampled.get(port)
        if samples is not None:
            entry["mean_queue_bytes"] = float(samples.queue_bytes.mean())
            entry["p99_queue_bytes"] = percentile(samples.queue_bytes, 0.99)
            entry["mean_utilisation"] = float(samples.utilisation[1:].mean())
            entry["max_utilisation"] = float(samples.utilisation.max())
        entries.append(entry)
    by = "packets" if any(entry["peak_queue_bytes"] is None for entry in entries) else "peak_queue_bytes"
    return sorted(entries, key=lambda entry: -entry[by])


def drops(result: Result, ports: Sequence[str] | None = None) -> list[Json]:
    """Return packets lost by cause, queue, importance and whether they held data; the most frequent first. `data` is
    None for the kernel's TCP, where it is unknown."""
    table = _at(result.drops, ports)
    data = (to_numpy(table["packet"]) >= 0).tolist()
    if ran_on(result)[0] == "emulated" and jobs_over_tcp(result):
        known = (to_numpy(table["message"]) >= 0).tolist()
        data = [of if there else None for of, there in zip(data, known, strict=True)]
    names = ("cause", "priority", "important")
    counts = Counter(zip(*(table[name].to_pylist() for name in names), data, strict=True))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{**dict(zip((*names, "data"), key, strict=True)), "packets": count} for key, count in ordered]


def layers(result: Result, ports: Sequence[str] | None = None) -> list[Json]:
    """Return per layer and queue: messages, data packets needed, lost (at `ports`), marked and trimmed on arrival.
    Layer -1 stands for messages without a layer. None: unknown to a testbed."""
    table = result.messages
    numbers = to_numpy(table["message"])
    lost = np.zeros(len(numbers), dtype=np.int64)
    dropped = _at(result.drops, ports)
    of_data = to_numpy(dropped["message"])[to_numpy(dropped["packet"]) >= 0]
    rows = np.searchsorted(numbers, of_data)
    known = rows < len(numbers)
    known[known] = numbers[rows[known]] == of_data[known]
    np.add.at(lost, rows[known], 1)
    columns = {name: to_numpy(table[name]) for name in ("packets", "marked", "trimmed")} | {"lost": lost}
    seen, tcp = has_all_drops(result), np.isin(table["job"].to_pylist(), jobs_over_tcp(result))
    if ran_on(result)[0] == "simulated":
        tcp[:] = False
    keys = to_numpy(table["layer"]).astype(np.int64) * 8 + to_numpy(table["priority"])
    entries = []
    for key in np.unique(keys).tolist():
        rows_of_key = keys == key
        sums: dict[str, int | None] = {name: int(values[rows_of_key].sum()) for name, values in columns.items()}
        if columns["marked"][rows_of_key].min() < 0:
            sums["marked"] = None
        if not seen or tcp[rows_of_key].any():
            sums["lost"] = None
        entries.append({"layer": key >> 3, "priority": key & 7, "messages": int(rows_of_key.sum()), **sums})
    return entries


def has_all_drops(result: Result) -> bool:
    """Return True if the table of drops has every dropped packet, not only counts."""
    return ran_on(result)[0] == "simulated" or counted_drops(result) == result.drops.num_rows


def counted_drops(result: Result, ports: Sequence[str] | None = None) -> int:
    """Return the packets lost according to the port counters."""
    table = _at(result.ports, ports)
    return sum(int(np.maximum(to_numpy(table[column]), 0).sum()) for column in DROPS)


def jobs_over_tcp(result: Result) -> list[str]:
    """Return the jobs and traffic over TCP: on a testbed the kernel's, which does not report single packets."""
    return [name for name, used in result.summary.get("transports", {}).items() if used.get("wire") == "tcp"]


def describe(result: Result, ports: Sequence[str] | None = None) -> Json:
    """Return everything as plain values for JSON, times in picoseconds."""
    summary = result.summary
    return {
        "format": FORMAT,
        "name": summary.get("name", ""),
        "policy": summary.get("policy", ""),
        "ran_on": list(ran_on(result)),
        "simulated_ps": summary.get("totals", {}).get("simulated_ps", 0),
        "recorded": {name: bool(getattr(result, name).num_rows) for name in ("samples", "delays", "packets")},
        "ports": queues(result, ports),
        "waiting_by_hop": waiting_times(result, ports, by_hop=True),
        "waiting": waiting_times(result, ports),
        "drops": drops(result, ports),
        "drops_not_listed": 0 if has_all_drops(result) else counted_drops(result, ports),
        "layers": layers(result, ports),
    }


def _names(name: str, port: str) -> bool:
    return name in (port, port.split("->")[0])


def _at(table: pyarrow.Table, ports: Sequence[str] | None) -> pyarrow.Table:
    if ports is None:
        return table
    names = np.array(table["port"].to_pylist(), dtype=object)
    return table.filter(np.isin(names, np.array(ports, dtype=object)))
