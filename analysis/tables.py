"""Tables: metrics side by side, one column per run, for a terminal of 100 characters, a log file or Markdown.

`table_rows` decides what is shown and how it is worded; the printed table, the report and the tests take it from
there. More than `PER_TABLE` runs make several tables one below the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from analysis.metrics import DROPS, Metrics, Times
from scenarios.result import KINDS

WIDTH = 100
PER_TABLE = 4
LABEL_WIDTH = 30

TIME_STEPS = ((1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us"), (1_000, "ns"))
COUNT_STEPS = ((1_000_000_000, " G"), (1_000_000, " M"))
SIZE_STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))

KIND_WORDS = {
    "push": "push",
    "pull": "pull",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "flow": "flow",
}

ALWAYS_SHOWN = ("drops_tail", "drops_selective", "drops_loss")
"""Drops of these causes have a line in the table even where there are none."""

ENDED = {"interrupt": "interrupted", "duration": "ended by its duration", "max_wall": "time was up", "stall": "stalled"}
"""What is said of an unfinished run."""


class Row(NamedTuple):
    """One line of the table: what it is, and a text per run. `section` starts a group of lines."""

    label: str
    cells: list[str]
    section: bool = False


class Grid(NamedTuple):
    """A table with a line per thing: what its columns are called, and texts."""

    title: str
    head: list[str]
    rows: list[list[str]]


def time_text(picoseconds: float) -> str:
    """A duration with three digits and a fitting unit, such as "41.7 ms"."""
    for scale, unit in TIME_STEPS:
        if abs(picoseconds) >= scale:
            return f"{three_digits(picoseconds / scale)} {unit}"
    return f"{picoseconds:.0f} ps"


def count_text(number: float) -> str:
    """A count with separators, or in millions from a million on: "33,157", "1.4 M"."""
    for scale, unit in COUNT_STEPS:
        if number >= scale:
            return f"{three_digits(number / scale)}{unit}"
    return f"{number:,.0f}"


def size_text(size: float) -> str:
    """Bytes with three digits and a fitting 1024-based unit."""
    for scale, unit in SIZE_STEPS:
        if size >= scale:
            return f"{three_digits(size / scale)} {unit}"
    return f"{size:.0f} B"


def share_text(share: float) -> str:
    """A fraction as a percentage, three digits; never 0 % for something."""
    if 0 < share < 0.00005:
        return "< 0.01 %"
    return f"{three_digits(100 * share)} %" if share else "0 %"


def three_digits(value: float) -> str:
    """1.23, 12.3, 123: three significant digits for numbers from 1 to 999, none after the point above."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def heading(metrics: Metrics, metrics_list: Sequence[Metrics]) -> str:
    """What a run is called among others: its label, and as much more as tells it apart."""
    text = metrics.label or metrics.policy
    same = [other for other in metrics_list if (other.label or other.policy) == text]
    if len({other.name for other in metrics_list}) > 1 and metrics.name:
        text = f"{metrics.name}: {text}"
    if len({(other.name, other.job) for other in same}) > 1 and metrics.job:
        text = f"{text}, {metrics.job}"
    for place, words in enumerate(metrics.ran_on):
        others = metrics_list if not place else same
        if len({other.ran_on[place] for other in others if len(other.ran_on) > place}) > 1:
            text = f"{text}, {words}"
    remarks = [] if metrics.finished else [ENDED.get(metrics.ended_by, metrics.ended_by)]
    remarks += ["disturbed"] if metrics.disturbed else []
    return f"{text} ({', '.join(remarks)})" if remarks else text


def headings(metrics_list: Sequence[Metrics]) -> list[str]:
    """One heading per run, no two alike."""
    texts = [heading(metrics, metrics_list) for metrics in metrics_list]
    return [
        f"{text} [{1 + texts[:index].count(text)}]" if texts.count(text) > 1 else text
        for index, text in enumerate(texts)
    ]


def table_rows(metrics_list: Sequence[Metrics]) -> list[Row]:
    """The lines of the table, cells in the order of `metrics_list`."""

    def row(label: str, cell: Callable[[Metrics], str], section: bool = False) -> Row:
        return Row(label, [cell(metrics) for metrics in metrics_list], section)

    rows = []
    if any(m.iteration.count for m in metrics_list) or not any("flow" in m.completion for m in metrics_list):
        rows.append(row("iteration time, mean", lambda m: _time(m.iteration, m.iteration.mean_ps), True))
        if len(metrics_list) > 1:
            first = metrics_list[0]
            rows.append(row("  against the first", lambda m: "-" if m is first else _relative(m, first)))
        rows += [
            row("iteration time, p99", lambda m: _time(m.iteration, m.iteration.p99_ps)),
            row("exposed communication, mean", lambda m: _time(m.exposed, m.exposed.mean_ps)),
            row(
                "  share of the iteration",
                lambda m: share_text(m.exposed_share) if m.iteration.count else "-",
            ),
        ]
    for kind, label in _kinds(metrics_list):
        for number, quantile in enumerate(("p50", "p99")):
            words = f"{label} completion, p50" if quantile == "p50" else "  p99"
            rows.append(
                row(words, partial(_completion, kind, quantile), section=kind == "all" and not number)
            )
    for column, words in DROPS.items():
        if column in ALWAYS_SHOWN or any(getattr(m, column) > 0 for m in metrics_list):
            rows.append(row(f"drops: {words}", partial(_count, column), section=column == ALWAYS_SHOWN[0]))
    rows.append(row("CE marks", partial(_count, "marks")))
    rare = {"control_marks": "  on acknowledgements", "trimmed": "packets trimmed", "pauses": "pauses"}
    for column, words in rare.items():
        if any(getattr(m, column) > 0 for m in metrics_list):
            rows.append(row(words, partial(_count, column)))
    rows += [
        row("packets sent again", lambda m: count_text(m.retransmitted)),
        row("  per packet of data", lambda m: _share_of(m.retransmitted, m.data_packets)),
        row("worst loss of a message", lambda m: _worst(m), True),
        row("  lost / allowed bytes", lambda m: _worst_bytes(m)),
        row("lost of all bytes", lambda m: share_text(m.loss.total_share)),
    ]
    if not all(m.emulated for m in metrics_list):
        rows += [
            row("packet-hops simulated", lambda m: "-" if m.emulated else count_text(m.packet_hops), True),
            row("packet-hops per second", lambda m: count_text(m.hops_per_s) if m.hops_per_s else "-"),
        ]
    if any(m.under_way for m in metrics_list):
        rows.append(row("messages not delivered yet", lambda m: count_text(m.under_way)))
    return rows


def blocks(metrics_list: Sequence[Metrics]) -> Iterator[tuple[list[str], list[Row]]]:
    """(headings, lines) of each table of at most `PER_TABLE` runs."""
    yield from in_parts(headings(metrics_list), table_rows(metrics_list))


def in_parts(names: Sequence[str], rows: Sequence[Row]) -> Iterator[tuple[list[str], list[Row]]]:
    """A table in parts of at most `PER_TABLE` columns."""
    for start in range(0, len(names), PER_TABLE):
        part = slice(start, start + PER_TABLE)
        yield list(names[part]), [Row(row.label, row.cells[part], row.section) for row in rows]


def print_table(metrics_list: Sequence[Metrics], title: str) -> None:
    """Print to stdout: with lines and weight on a terminal, plain text of `WIDTH` characters elsewhere."""
    for names, rows in blocks(metrics_list):
        print_rows(names, rows, title)


def print_rows(names: Sequence[str], rows: Sequence[Row], title: str) -> None:
    """Print one table of runs, called `names`, to stdout; more than `PER_TABLE` below each other."""
    for part, lines in in_parts(names, rows):
        console, table = _console_and_table(title)
        table.add_column("", no_wrap=True, max_width=LABEL_WIDTH)
        for name in part:
            table.add_column(name, justify="right", overflow="fold")
        for index, row in enumerate(lines):
            ends = index + 1 == len(lines) or lines[index + 1].section
            table.add_row(row.label, *row.cells, end_section=ends)
        console.print(table)


def print_grid(grid: Grid) -> None:
    """Print a table with a line per thing to stdout."""
    console, table = _console_and_table(grid.title)
    for number, name in enumerate(grid.head):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    console.print(table)


def _console_and_table(title: str) -> tuple[Any, Any]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    on_terminal = sys.stdout.isatty()
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD if on_terminal else box.ASCII2,
        show_edge=on_terminal,
        header_style="bold",
        pad_edge=False,
    )
    return Console(file=sys.stdout, width=None if on_terminal else WIDTH, highlight=False), table


def markdown_table(metrics_list: Sequence[Metrics]) -> str:
    """The same as Markdown."""
    return markdown_rows(headings(metrics_list), table_rows(metrics_list))


def markdown_rows(names: Sequence[str], rows: Sequence[Row]) -> str:
    """One table of runs, called `names`, as Markdown."""
    lines = []
    for part, some in in_parts(names, rows):
        lines += ["| | " + " | ".join(part) + " |", "|---|" + "---:|" * len(part)]
        lines += [f"| {row.label.replace('  ', '&nbsp; ')} | " + " | ".join(row.cells) + " |" for row in some]
        lines.append("")
    return "\n".join(lines)


def _kinds(metrics_list: Sequence[Metrics]) -> list[tuple[str, str]]:
    """(kind, word for people) of what occurs; all together only if there are several kinds."""
    found = [kind for kind in KINDS if any(kind in m.completion for m in metrics_list)]
    words = [(kind, KIND_WORDS[kind]) for kind in found]
    return [("all", "message"), *words] if len(words) != 1 else words


def _time(times: Times, picoseconds: float) -> str:
    return time_text(picoseconds) if times.count else "-"


def _count(name: str, metrics: Metrics) -> str:
    count = getattr(metrics, name)
    return count_text(count) if count >= 0 else "-"


def _completion(kind: str, quantile: str, metrics: Metrics) -> str:
    times = metrics.completion.get(kind)
    return time_text(times.p50_ps if quantile == "p50" else times.p99_ps) if times and times.count else "-"


def _relative(metrics: Metrics, first: Metrics) -> str:
    value, base = metrics.iteration.mean_ps, first.iteration.mean_ps
    return f"{100 * (value / base - 1):+.1f} %" if base and value else "-"


def _share_of(part: int, whole: int) -> str:
    return share_text(part / whole) if whole else "-"


def _worst(metrics: Metrics) -> str:
    loss = metrics.loss
    return share_text(loss.share) if loss.lost_bytes else "none"


def _worst_bytes(metrics: Metrics) -> str:
    loss = metrics.loss
    return f"{loss.lost_bytes:,} / {loss.allowed_bytes:,}" if loss.lost_bytes else "-"
