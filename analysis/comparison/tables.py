"""Builds tables of metrics with one column per run and prints them as terminal text, Markdown or HTML.

`run_tables` selects rows and wording for the printed table, the report and the tests. More than `PER_TABLE` runs give
several tables, one below the other.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, NamedTuple, TextIO

from gradwire.analysis.metrics import DROPS, NO_TIMES, Metrics, Times
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import change_text, count_text, share_text, time_text
from gradwire.scenarios.terminal_text import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

WIDTH = 100
PER_TABLE = 4
LABEL_WIDTH = 30

KIND_LABELS = {kind: kind.replace("_", "-") for kind in KINDS}
KIND_LABELS |= {"tensor_parallel": "TP", "context_parallel": "CP", "expert_parallel": "EP", "data_parallel": "DP"}

ALWAYS_SHOWN = ("drops_tail", "drops_selective", "drops_loss")
"""Causes of drops whose line appears even if there are none."""

END_REMARKS = {
    "interrupt": "interrupted",
    "duration": "ended by its duration",
    "max_wall": "time limit reached",
    "stall": "stalled",
}
"""Remarks on an unfinished run."""


class TableRow(NamedTuple):
    """One line of the table: its label, and a text per run. `section` starts a group of lines."""

    label: str
    cells: list[str]
    section: bool = False


class Grid(NamedTuple):
    """A table with headings of columns, and texts."""

    title: str
    head: list[str]
    rows: list[list[str]]


def heading(metrics: Metrics, metrics_list: Sequence[Metrics]) -> str:
    """Return a run's heading among others: its label, and what distinguishes it."""
    text = metrics.label or metrics.policy
    same = [other for other in metrics_list if (other.label or other.policy) == text]
    if len({other.name for other in metrics_list}) > 1 and metrics.name:
        text = f"{metrics.name}: {text}"
    if len({(other.name, other.job) for other in same}) > 1 and metrics.job:
        text = f"{text}, {metrics.job}"
    for level, words in enumerate(metrics.ran_on):
        others = metrics_list if not level else same
        if len({other.ran_on[level] for other in others if len(other.ran_on) > level}) > 1:
            text = f"{text}, {words}"
    remarks = [] if metrics.finished else [END_REMARKS.get(metrics.ended_by, metrics.ended_by)]
    remarks += ["disturbed"] if metrics.disturbed else []
    return f"{text} ({', '.join(remarks)})" if remarks else text


def headings(metrics_list: Sequence[Metrics]) -> list[str]:
    """Return one heading per run, all different."""
    texts = [heading(metrics, metrics_list) for metrics in metrics_list]
    return [
        f"{text} [{1 + texts[:index].count(text)}]" if texts.count(text) > 1 else text
        for index, text in enumerate(texts)
    ]


class MetricsTable(NamedTuple):
    """A table with a column per run: the end of its title, names of columns, and lines."""

    title: str
    names: list[str]
    rows: list[TableRow]


def run_tables(runs: Sequence[Sequence[Metrics]]) -> list[MetricsTable]:
    """Return the tables of a comparison from the metrics of each Result. Ports do not count by job. If Results have
    several jobs, or traffic besides, the counters of ports are a separate table with a column per Result, so that no
    job is charged with them and nothing is shown twice."""
    jobs = shown_entries(runs)
    names = headings(jobs)
    if all(len(entries) == 1 for entries in runs):
        return [MetricsTable("", names, [*job_rows(jobs), *network_rows(jobs)])]
    whole = whole_networks(runs)
    return [
        MetricsTable("", names, job_rows(jobs)),
        MetricsTable(": the whole network, jobs and traffic together", headings(whole), network_rows(whole)),
    ]


def shown_entries(runs: Sequence[Sequence[Metrics]]) -> list[Metrics]:
    """Return the jobs of all Results, or else the traffic."""
    flat = [entry for entries in runs for entry in entries]
    return [entry for entry in flat if not entry.traffic] or flat


def whole_networks(runs: Sequence[Sequence[Metrics]]) -> list[Metrics]:
    """Return one entry per Result with the packets of all its jobs and traffic, and the counters of ports. The other
    figures are those of the Result's first job."""
    counts = ("retransmitted", "sent_packets", "data_packets", "under_way")
    whole = []
    for entries in runs:
        sums: Json = {name: sum(getattr(entry, name) for entry in entries) for name in counts}
        whole.append(replace(entries[0], job=entries[0].job if len(entries) == 1 else "", **sums))
    return whole


def job_rows(metrics_list: Sequence[Metrics]) -> list[TableRow]:
    """Return the rows on each job or traffic itself, cells in the order of `metrics_list`."""
    row = partial(_row, metrics_list)
    rows = []
    if any(m.iteration.count for m in metrics_list) or not any("flow" in m.completion for m in metrics_list):
        rows += _iteration_rows(metrics_list)
    occurring = [(kind, KIND_LABELS[kind]) for kind in KINDS if any(kind in m.completion for m in metrics_list)]
    for kind, label in occurring if len(occurring) == 1 else [("all", "message"), *occurring]:
        all_times = [m.completion.get(kind, NO_TIMES) for m in metrics_list]
        rows.append(TableRow(f"{label} completion, p50", [median_text(t) for t in all_times], kind == "all"))
        rows.append(tail_row("  ", all_times))
    rows += [
        row("retransmissions", lambda m: count_text(m.retransmitted)),
        row("  per data packet", lambda m: share_text(m.retransmitted / m.data_packets) if m.data_packets else "-"),
        row("worst loss of a message", lambda m: share_text(m.loss.share) if m.loss.lost_bytes else "none", True),
        row(
            "  lost / allowed bytes",
            lambda m: f"{m.loss.lost_bytes:,} / {m.loss.allowed_bytes:,}" if m.loss.lost_bytes else "-",
        ),
        row("lost of all bytes", lambda m: share_text(m.loss.total_share)),
    ]
    if any(m.under_way for m in metrics_list):
        rows.append(row("messages not delivered", lambda m: count_text(m.under_way)))
    return rows


def network_rows(metrics_list: Sequence[Metrics]) -> list[TableRow]:
    """Return the counters of all ports, cells in the order of `metrics_list`."""
    row = partial(_row, metrics_list)
    rows = []
    for column, words in DROPS.items():
        if column in ALWAYS_SHOWN or any(getattr(m, column) > 0 for m in metrics_list):
            rows.append(row(f"drops: {words}", partial(_count, column), section=column == ALWAYS_SHOWN[0]))
    rows.append(row("CE marks", partial(_count, "marks")))
    optional = {"control_marks": "  on acknowledgements", "trimmed": "packets trimmed", "pauses": "pauses"}
    for column, words in optional.items():
        if any(getattr(m, column) > 0 for m in metrics_list):
            rows.append(row(words, partial(_count, column)))
    if not all(m.emulated for m in metrics_list):
        rows.append(row("packet-hops", lambda m: "-" if m.emulated else count_text(m.packet_hops), True))
        if any(m.hops_simulated != m.packet_hops for m in metrics_list):
            rows.append(row("  of them simulated", lambda m: "-" if m.emulated else count_text(m.hops_simulated)))
        rows.append(row("  simulated per second", lambda m: count_text(m.hops_per_s) if m.hops_per_s else "-"))
    return rows


def _iteration_rows(metrics_list: Sequence[Metrics]) -> list[TableRow]:
    row = partial(_row, metrics_list)
    rows = [row("iteration time, mean", lambda m: _time(m.iteration, m.iteration.mean_ps), section=True)]
    if len(metrics_list) > 1:
        rows.append(row("  against the first", partial(_against_first, metrics_list)))
    return [
        *rows,
        row("  averaged iterations", lambda m: str(m.steady) if m.iteration.count else "-"),
        row("  samples (worker-iterations)", lambda m: count_text(m.iteration.count)),
        tail_row("iteration time, ", [m.iteration for m in metrics_list]),
        row("exposed communication, mean", lambda m: _time(m.exposed, m.exposed.mean_ps)),
        row("  share of the iteration", lambda m: share_text(m.exposed_share) if m.iteration.count else "-"),
    ]


def tail_label(all_times: Sequence[Times]) -> str:
    """Return the label of the tail figure: "p99" if all runs have enough values for one, else "max" for all of them."""
    return "p99" if all(times.p99_ps is not None for times in all_times if times.count) else "max"


def reference_run(metrics: Metrics, metrics_list: Sequence[Metrics]) -> Metrics | None:
    """Return the first run of the same job, the reference for `metrics`; None if none precedes it. The same job has the
    same name and work, and both times cover a steady state or neither does."""
    for other in metrics_list:
        if other is metrics:
            return None
        same = (other.job, other.work, other.traffic) == (metrics.job, metrics.work, metrics.traffic)
        if same and other.iteration.count and other.steady.is_steady == metrics.steady.is_steady:
            return other
    return None


def _row(
    metrics_list: Sequence[Metrics], label: str, cell: Callable[[Metrics], str], section: bool = False
) -> TableRow:
    return TableRow(label, [cell(metrics) for metrics in metrics_list], section)


def split_columns(names: Sequence[str], rows: Sequence[TableRow]) -> Iterator[tuple[list[str], list[TableRow]]]:
    """Split a table into parts of at most `PER_TABLE` columns."""
    for start in range(0, len(names), PER_TABLE):
        part = slice(start, start + PER_TABLE)
        yield list(names[part]), [TableRow(row.label, row.cells[part], row.section) for row in rows]


def print_rows(names: Sequence[str], rows: Sequence[TableRow], title: str, file: TextIO | None = None) -> None:
    """Print one table of runs, called `names`, to a file, or to stdout; more than `PER_TABLE` below each other. Styled
    on a terminal, else plain text of `WIDTH` characters."""
    for part, lines in split_columns(names, rows):
        console, table = _console_and_table(title, file or sys.stdout)
        table.add_column("", no_wrap=True, max_width=LABEL_WIDTH)
        for name in part:
            table.add_column(name, justify="right", overflow="fold")
        for index, row in enumerate(lines):
            is_last = index + 1 == len(lines) or lines[index + 1].section
            table.add_row(row.label, *row.cells, end_section=is_last)
        console.print(table)


def table_text(names: Sequence[str], rows: Sequence[TableRow], title: str) -> str:
    """Return what `print_rows` prints."""
    text = io.StringIO()
    print_rows(names, rows, title, text)
    return text.getvalue()


def print_grid(grid: Grid) -> None:
    """Print a grid to stdout."""
    console, table = _console_and_table(grid.title, sys.stdout)
    for number, name in enumerate(grid.head):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    console.print(table)


def _console_and_table(title: str, file: TextIO) -> tuple[Console, RichTable]:
    from rich import box
    from rich.table import Table as RichTable

    on_terminal = file.isatty()
    table = RichTable(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD if on_terminal else box.ASCII2,
        show_edge=on_terminal,
        header_style="bold",
        pad_edge=False,
    )
    return console(file=file, width=None if on_terminal else WIDTH, highlight=False), table


def markdown_rows(names: Sequence[str], rows: Sequence[TableRow]) -> str:
    """Return a table of runs, called `names`, as Markdown."""
    lines = []
    for part, lines_of_part in split_columns(names, rows):
        lines += ["| | " + " | ".join(part) + " |", "|---|" + "---:|" * len(part)]
        lines += [f"| {row.label.replace('  ', '&nbsp; ')} | " + " | ".join(row.cells) + " |" for row in lines_of_part]
        lines.append("")
    return "\n".join(lines)


def html_table(title: str, names: Sequence[str], rows: Sequence[TableRow], corner: str = "") -> str:
    """Return a table of runs, called `names`, as HTML for notebooks and pages. `corner` : heading of the labels."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (corner, *names))
    lines = ""
    for row in rows:
        cells = "".join(f'<td style="text-align: right">{escape(cell)}</td>' for cell in row.cells)
        lines += f"<tr><td>{escape(row.label).replace('  ', '&nbsp; ')}</td>{cells}</tr>"
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _time(times: Times, picoseconds: float) -> str:
    return time_text(picoseconds) if times.count else "-"


def _count(name: str, metrics: Metrics) -> str:
    count = getattr(metrics, name)
    return count_text(count) if count >= 0 else "-"


def median_text(times: Times) -> str:
    """Return the median; "-" without samples."""
    return _time(times, times.p50_ps)


def tail_row(label: str, all_times: Sequence[Times]) -> TableRow:
    """Return the line of the tail figures of all runs, whose label ends with the figure."""
    late = tail_label(all_times)
    return TableRow(label + late, [tail_text(times, late) for times in all_times])


def tail_text(times: Times, words: str) -> str:
    """Return the 99th percentile, or the largest value and the number of samples, as `tail_label` selects."""
    if not times.count:
        return "-"
    if words == "p99" and times.p99_ps is not None:
        return time_text(times.p99_ps)
    return f"{time_text(times.max_ps)} ({times.count:,} sample{'s' * (times.count != 1)})"


def _against_first(metrics_list: Sequence[Metrics], metrics: Metrics) -> str:
    first = reference_run(metrics, metrics_list)
    value, base = metrics.iteration.mean_ps, first.iteration.mean_ps if first else 0
    return change_text(value / base) if base and value else "-"
