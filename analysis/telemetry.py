"""Telemetry: what happened at the ports of one run, from the tables of its Result.

* queues and utilisation: the table of samples. The utilisation of a period is what began to be sent in it, over what
  the link as built could have carried; what it could not have, of the packet that is under way at its end, counts in
  the next;
* waiting times: the table of delays. It knows bins only, so that a percentile is the upper end of its bin, at most a
  quarter above the true value;
* drops by cause, queue, layer and importance: the table of drops; congestion marks and cut packets by queue and layer:
  those of data that arrived, from the table of messages.

What a testbed has not counted is None: queues that its switches do not see, marks and losses of the kernel's TCP by
message. Its samples are taken when there is time to; they are put at multiples of a period, see `series`.

A *hop* is a kind of link: all ports from leaves to spines are one, whatever their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradwire.analysis.metrics import DROPS, percentile, ran_on
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.result import Result
from gradwire.scenarios.units import format_time
from gradwire.traces.room import refuse_beyond

if TYPE_CHECKING:
    import pyarrow

Integers = NDArray[np.int64]

FORMAT = 1
"""Version of what `--json` prints."""
MOST_SAMPLES = 100_000
SHARES = (0.5, 0.99, 0.999)
PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True)
class Series:
    """One port as time goes by, at every multiple of the period from 0 to the last sample. Where there is no sample
    nothing waits, and nothing has begun to be sent since the multiple before.

    Attributes
    ----------
    port : its name; parallel cables between the same two nodes have the same and follow each other.
    period_ps : time between two entries.
    queue_bytes : int64 per entry.
    utilisation : float per entry, of the period that ends there.
    """

    port: str
    period_ps: int
    queue_bytes: Integers
    utilisation: NDArray[np.float64]


def all_ports(result: Result) -> list[str]:
    """The names of all ports, in the order of the table of ports."""
    return list(dict.fromkeys(result.ports["port"].to_pylist()))


def chosen_ports(result: Result, wanted: Sequence[str]) -> list[str]:
    """Ports by their names or by those of nodes, which stand for all their ports; all if none are wanted.

    Raises
    ------
    ResultError
        With every name that is neither.
    """
    known = all_ports(result)
    if not wanted:
        return known
    unknown = [name for name in wanted if not any(_names(name, port) for port in known)]
    if unknown:
        like = f"a port such as {known[-1]} or a node such as {known[-1].split('->')[0]}" if known else ""
        raise ResultError(f"no such port or node: {', '.join(unknown)}", "ports.parquet", like)
    return [port for port in known if any(_names(name, port) for name in wanted)]


def series(result: Result, ports: Sequence[str] | None = None) -> list[Series]:
    """The samples, port by port, of those that were sampled.

    Samples of a testbed are not at multiples of a period. Theirs is the median time between two samples; a queue is
    the latest that was seen by then, and what was sent between two samples is spread evenly.

    Raises
    ------
    ResultError
        The Result does not say with what period its ports were sampled, or they were not.
    """
    table = result.samples
    if not table.num_rows:
        return []
    time = numpy_of(table["time_ps"])
    width = int(np.count_nonzero(time == time[0]))  # ports sampled at a time
    names = table["port"].slice(0, width).to_pylist()
    times = time[::width]
    regular = (np.diff(times) > 0).all() and np.array_equal(np.repeat(times, width), time)
    if not regular or names * len(times) != table["port"].to_pylist():
        what = "does not have every port at each of its times"
        raise ResultError(what, "samples.parquet", "the samples as the run took them")
    queue, sent, rate = (
        numpy_of(table[name]).reshape(-1, width) for name in ("queue_bytes", "sent_bytes", "rate_bps")
    )
    if ran_on(result)[0] == "emulated":
        period, times, queue, sent = _at_multiples(times, queue, sent)
    else:
        period = _period(result, times)
    slots = times // period
    refuse_beyond(2 * 8 * width * (int(slots[-1]) + 1), "to show the samples", "samples.parquet")
    found = []
    for number, name in enumerate(names):
        if ports is None or name in ports:
            waits, begun = np.zeros((2, slots[-1] + 1), dtype=np.int64)
            waits[slots] = queue[:, number]
            begun[slots] = sent[:, number]
            full = rate[0, number] / 8 * period / PS_PER_S
            found.append(Series(name, period, waits, _utilisation(np.maximum.accumulate(begun), full)))
    return found


def _period(result: Result, times: Integers) -> int:
    """Picoseconds between two samples, as the scenario had it: times that are there do not tell, there may be few."""
    period = int(result.summary.get("sample_period_ps") or 0)
    if period <= 0 or (times % period).any():
        what = "does not say how far apart its samples are"
        if period > 0:
            what = f"has samples that are no multiples of {format_time(period)}"
        raise ResultError(what, "result.json: sample_period_ps", "output.queue_samples of the scenario")
    return period


def _utilisation(begun: Integers, full: float) -> NDArray[np.float64]:
    """Per period the share of what a link could have carried, from the bytes begun by its end. What is more than it
    could have counts in the next one, and so on: all bytes count, once."""
    most = full * np.arange(len(begun))
    carried = most + np.minimum.accumulate(begun - most)
    return np.minimum(np.diff(carried, prepend=0.0) / full, 1.0)  # it is no more, but for rounding


def _at_multiples(times: Integers, queue: Integers, sent: Integers) -> tuple[int, Integers, Integers, Integers]:
    """The median time between two samples, and samples `[time, port]` as if taken at its multiples."""
    period = max(1, int(np.median(np.diff(times, prepend=0))), int(times[-1]) // MOST_SAMPLES)
    grid = period * np.arange(1, -(-int(times[-1]) // period) + 1)
    before = np.searchsorted(times, grid, side="right") - 1
    waits = np.where(before[:, np.newaxis] >= 0, queue[np.maximum(before, 0)], 0)
    from_zero = np.concatenate([[0], times])
    columns = [np.interp(grid, from_zero, np.concatenate([[0], column])) for column in sent.T]
    return period, grid, waits, np.stack(columns, axis=1).astype(np.int64)


def hop(port: str) -> str:
    """The kind of link that a port feeds: "leaf0->spine3" is leaf->spine."""
    return re.sub(r"\d+", "", port)


def waiting(result: Result, ports: Sequence[str] | None = None, by_hop: bool = False) -> list[Json]:
    """How long packets waited: per port (or per hop) how many were counted, percentiles and the longest, picoseconds,
    each as the upper end of its bin."""
    table = result.delays
    names = np.array(table["port"].to_pylist(), dtype=object)
    if ports is not None:
        table = table.filter(np.isin(names, np.array(ports, dtype=object)))
        names = np.array(table["port"].to_pylist(), dtype=object)
    if by_hop:
        names = np.array([hop(name) for name in names], dtype=object)
    upper, counts = numpy_of(table["to_ps"]), numpy_of(table["packets"])
    found = []
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(upper[rows], kind="stable")]
        reached = np.cumsum(counts[rows])
        entry: Json = {"hop" if by_hop else "port": name, "packets": int(reached[-1])}
        for share in SHARES:
            rank = int(np.ceil(share * reached[-1] - 1e-9))
            entry[share_name(share)] = int(upper[rows[np.searchsorted(reached, rank)]])
        entry["max_ps"] = int(upper[rows[-1]])
        found.append(entry)
    return found


def share_name(share: float) -> str:
    """What a percentile is called: p50_ps, p999_ps."""
    return f"p{100 * share:g}_ps".replace(".", "")


def queues(result: Result, ports: Sequence[str] | None = None) -> list[Json]:
    """Per port what was sent, the deepest queue, and where it was sampled the mean and p99 of the queue and the mean
    and highest utilisation; the deepest queue first, or where queues are not known the port that sent most packets."""
    table = result.ports
    sampled: dict[str, Series] = {}
    for each in series(result, ports):
        sampled.setdefault(each.port, each)
    found = []
    for port, packets, sent, peak in zip(
        *(table[name].to_pylist() for name in ("port", "packets", "bytes", "peak_queue_bytes")), strict=True
    ):
        if (ports is not None and port not in ports) or (packets == 0 and peak <= 0):
            continue
        deepest = peak if peak >= 0 else None
        entry: Json = {"port": port, "packets": packets, "bytes": sent, "peak_queue_bytes": deepest}
        seen = sampled.get(port)
        if seen is not None:
            entry["mean_queue_bytes"] = float(seen.queue_bytes.mean())
            entry["p99_queue_bytes"] = percentile(seen.queue_bytes, 0.99)
            entry["mean_utilisation"] = float(seen.utilisation[1:].mean())
            entry["max_utilisation"] = float(seen.utilisation.max())
        found.append(entry)
    if any(entry["peak_queue_bytes"] is None for entry in found):
        return sorted(found, key=lambda entry: -entry["packets"])
    return sorted(found, key=lambda entry: -entry["peak_queue_bytes"])


def drops(result: Result, ports: Sequence[str] | None = None) -> list[Json]:
    """Packets lost, by cause, queue, importance and whether they held data (None: of the kernel's TCP, nobody knows);
    the most frequent first."""
    table = _at(result.drops, ports)
    data = (numpy_of(table["packet"]) >= 0).tolist()
    if ran_on(result)[0] == "emulated" and over_tcp(result):
        known = (numpy_of(table["message"]) >= 0).tolist()
        data = [of if there else None for of, there in zip(data, known, strict=True)]
    columns = (table[name].to_pylist() for name in ("cause", "priority", "important"))
    return _counted(("cause", "priority", "important", "data"), zip(*columns, data, strict=True))


def layers(result: Result, ports: Sequence[str] | None = None) -> list[Json]:
    """Per layer and queue: messages, packets of data needed, packets of data lost (at `ports`), arrived with a mark,
    arrived as headers only; layer -1 is what belongs to none. None is what a testbed does not know."""
    table = result.messages
    numbers = numpy_of(table["message"])
    lost = np.zeros(len(numbers), dtype=np.int64)
    dropped = _at(result.drops, ports)
    of_data = numpy_of(dropped["message"])[numpy_of(dropped["packet"]) >= 0]
    rows = np.searchsorted(numbers, of_data)
    known = rows < len(numbers)
    known[known] = numbers[rows[known]] == of_data[known]
    np.add.at(lost, rows[known], 1)
    columns = {name: numpy_of(table[name]) for name in ("packets", "marked", "trimmed")} | {"lost": lost}
    seen, tcp = sees_losses(result), np.isin(table["job"].to_pylist(), over_tcp(result))
    if ran_on(result)[0] == "simulated":
        tcp[:] = False
    keys = numpy_of(table["layer"]).astype(np.int64) * 8 + numpy_of(table["priority"])
    found = []
    for key in np.unique(keys).tolist():
        own = keys == key
        sums: dict[str, int | None] = {name: int(values[own].sum()) for name, values in columns.items()}
        if columns["marked"][own].min() < 0:
            sums["marked"] = None
        if not seen or tcp[own].any():
            sums["lost"] = None
        found.append({"layer": key >> 3, "priority": key & 7, "messages": int(own.sum()), **sums})
    return found


def sees_losses(result: Result) -> bool:
    """Whether the table of drops has every packet that was dropped, not only counts."""
    return ran_on(result)[0] == "simulated" or counted_drops(result) == result.drops.num_rows


def counted_drops(result: Result, ports: Sequence[str] | None = None) -> int:
    """Packets lost, as the ports have counted them."""
    table = _at(result.ports, ports)
    return sum(int(np.maximum(numpy_of(table[column]), 0).sum()) for column in DROPS)


def over_tcp(result: Result) -> list[str]:
    """Jobs and traffic whose data goes over TCP: on a testbed the kernel's, which does not tell of single packets."""
    return [name for name, used in result.summary.get("transports", {}).items() if used.get("wire") == "tcp"]


def describe(result: Result, ports: Sequence[str] | None = None) -> Json:
    """Everything a program may want: plain values, times in picoseconds, JSON-safe."""
    summary = result.summary
    return {
        "format": FORMAT,
        "name": summary.get("name", ""),
        "policy": summary.get("policy", ""),
        "ran_on": list(ran_on(result)),
        "simulated_ps": summary.get("totals", {}).get("simulated_ps", 0),
        "recorded": {name: bool(getattr(result, name).num_rows) for name in ("samples", "delays", "packets")},
        "ports": queues(result, ports),
        "waiting_by_hop": waiting(result, ports, by_hop=True),
        "waiting": waiting(result, ports),
        "drops": drops(result, ports),
        "drops_not_listed": 0 if sees_losses(result) else counted_drops(result, ports),
        "layers": layers(result, ports),
    }


def _names(name: str, port: str) -> bool:
    return name in (port, port.split("->")[0])


def _at(table: pyarrow.Table, ports: Sequence[str] | None) -> pyarrow.Table:
    if ports is None:
        return table
    names = np.array(table["port"].to_pylist(), dtype=object)
    return table.filter(np.isin(names, np.array(ports, dtype=object)))


def _counted(names: Sequence[str], keys: Iterable[tuple[object, ...]]) -> list[Json]:
    counts: dict[tuple[object, ...], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{**dict(zip(names, key, strict=True)), "packets": count} for key, count in ordered]
