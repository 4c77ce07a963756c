"""Prints tables of ports, waiting times, drops and layers for `gradwire telemetry`; `telemetry.describe` computes their
values.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.analysis.comparison.tables import Grid, print_grid
from gradwire.analysis.telemetry.telemetry import SHARES, percentile_key
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.readable import count_text, share_text, size_text, time_text

MOST_PORTS = 10
MOST_LAYERS = 12


def print_telemetry(telemetry: JsonView, wanted: bool) -> None:
    """Print the output of `describe`; only the busiest ports, unless ports were `wanted`."""
    title = f"{telemetry['name']}, {telemetry['policy']}"
    for grid in grids(telemetry, None if wanted else MOST_PORTS):
        print_grid(grid._replace(title=f"{title}: {grid.title}"))
    if telemetry["drops_not_listed"]:
        print(f"Lost: {telemetry['drops_not_listed']:,} packets counted by the switches; not all are listed.")
    missing = [
        f"{what} ({key})"
        for table, what, key in (
            ("samples", "queues over time", 'output.queue_samples = "10us"'),
            ("delays", "waiting times", "output.delays = true"),
            ("packets", "single packets", "output.packet_log = true"),
        )
        if not telemetry["recorded"][table]
    ]
    if telemetry["ran_on"][0] == "emulated":  # has neither delays nor a packet log
        missing = missing[:1] if not telemetry["recorded"]["samples"] else []
        missing.append("single packets (gradwire emulate --pcap FOLDER)")
    if missing:
        print(f"Not recorded: {', '.join(missing)}.")


def grids(telemetry: JsonView, most: int | None) -> list[Grid]:
    """Return the tables."""
    tables = []
    shown = telemetry["ports"][:most]
    if shown:
        sampled = any("mean_queue_bytes" in entry for entry in shown)
        head = ["port", "packets", "deepest queue"]
        if sampled:
            head += ["mean queue", "p99", "utilisation", "highest"]
        rows = [_port_cells(entry, sampled) for entry in shown]
        first = "the deepest" if all(entry["peak_queue_bytes"] is not None for entry in shown) else "the busiest"
        tables.append(Grid(f"queues{_of(shown, telemetry['ports'], first)}", head, rows))
    for key, words, entries in (
        ("hop", "waiting times by hop", telemetry["waiting_by_hop"]),
        ("port", "waiting times", sorted(telemetry["waiting"], key=lambda entry: -entry["p99_ps"])),
    ):
        shown = entries[: most if key == "port" else None]
        if shown:
            head = [key, "packets", "p50", "p99", "p99.9", "longest"]
            times = (*map(percentile_key, SHARES), "max_ps")
            rows = [
                [entry[key], count_text(entry["packets"]), *(f"< {time_text(entry[name])}" for name in times)]
                for entry in shown
            ]
            tables.append(Grid(f"{words}{_of(shown, entries, 'the longest')}", head, rows))
    if telemetry["drops"]:
        head = ["cause", "queue", "of", "tag", "packets"]
        rows = []
        for entry in telemetry["drops"]:
            of = "TCP" if entry["data"] is None else "data" if entry["data"] else "control"
            tag = "important" if entry["important"] else "droppable"
            cause = entry["cause"].replace("_", " ")
            rows.append([cause, str(entry["priority"]), of, tag, count_text(entry["packets"])])
        tables.append(Grid("packets lost", head, rows))
    touched = [entry for entry in telemetry["layers"] if any(entry[name] for name in ("lost", "marked", "trimmed"))]
    shown = touched if most is None else touched[:MOST_LAYERS]
    if shown:
        head = ["layer", "queue", "packets", "lost", "marked", "trimmed"]
        rows = []
        for entry in shown:
            layer = "-" if entry["layer"] < 0 else str(entry["layer"])
            counts = [_count_and_part(entry, name) for name in ("lost", "marked", "trimmed")]
            rows.append([layer, str(entry["priority"]), count_text(entry["packets"]), *counts])
        tables.append(Grid(f"data packets by layer{_of(shown, touched, 'the first')}", head, rows))
    return tables


def _port_cells(entry: JsonView, sampled: bool) -> list[str]:
    deepest = entry["peak_queue_bytes"]
    cells = [entry["port"], count_text(entry["packets"]), "-" if deepest is None else size_text(deepest)]
    if sampled and "mean_queue_bytes" in entry:
        cells += [size_text(entry["mean_queue_bytes"]), size_text(entry["p99_queue_bytes"])]
        cells += [share_text(entry["mean_utilisation"]), share_text(entry["max_utilisation"])]
    elif sampled:
        cells += ["-"] * 4
    return cells


def _count_and_part(entry: JsonView, name: str) -> str:
    count = entry[name]
    if count is None:
        return "-"
    return f"{count_text(count)} ({share_text(count / entry['packets'])})" if count else "0"


def _of(shown: Sequence[object], whole: Sequence[object], which: str) -> str:
    return f", {which} {len(shown)} of {len(whole)}" if len(shown) < len(whole) else ""
