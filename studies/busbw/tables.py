"""Presents outcomes of collective tests: nccl-tests' table, several outcomes side by side, plots, and plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.units import format_size
from gradwire.studies.busbw.nccl_tests_log import MeasuredTest
from gradwire.studies.busbw.runner import CollectiveTest, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table_lines(test: CollectiveTest, outcome: Outcome) -> list[str]:
    """Return nccl-tests' table of one outcome, with the chosen algorithm in place of its columns of errors."""
    redop = test.redop if test.collective.reduces else "none"
    lines = [
        f"# {test.collective.name} on {outcome.label}, {test.ranks} ranks on {_hosts(outcome)}",
        "#",
        f"#{'size':>13}{'count':>14}{'type':>10}{'redop':>8}{'time':>11}{'algbw':>8}{'busbw':>8}  algorithm",
        f"#{'(B)':>13}{'(elements)':>14}{'':>18}{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}",
    ]
    for row in outcome.rows:
        bandwidths = f"{row.algbw:>8.2f}{row.busbw:>8.2f}"
        lines.append(
            f"{row.size:>14}{row.count:>14}{test.datatype:>10}{redop:>8}{time_text(row.time_us):>11}{bandwidths}"
            f"  {row.algorithm}"
        )
    return [*lines, f"# Avg bus bandwidth    : {outcome.mean_busbw:.4f}", *(f"# {text}" for text in outcome.remarks)]


def time_text(microseconds: float) -> str:
    """Return a time in microseconds as nccl-tests prints it: four significant digits, at least."""
    return f"{microseconds:.{max(0, 2 - max(0, len(str(int(microseconds))) - 2))}f}"


def _hosts(outcome: Outcome) -> str:
    return "one host" if outcome.hosts == 1 else f"{outcome.hosts} hosts"


def side_by_side_lines(
    test: CollectiveTest, outcomes: Sequence[Outcome], measured: MeasuredTest | None = None
) -> list[str]:
    """Return a table with time and bus bandwidth of every outcome, and of a measurement with its ratio to the first."""
    redop = test.redop if test.collective.reduces else "none"
    heads = [outcome.label for outcome in outcomes] + (["measured"] if measured else [])
    width = max(20, *(len(head) + 2 for head in heads))
    sizes = [row.size for row in outcomes[0].rows]
    known = {row.size: row for row in measured.rows} if measured else {}
    lines = [
        f"# {test.collective.name}, {test.ranks} ranks, {test.datatype}, {redop}; time (us) and busbw (GB/s)",
        "#"
        + f"{'size (B)':>13}"
        + "".join(f"{head:>{width}}" for head in heads)
        + (f"{'busbw ratio':>13}" * bool(measured)),
    ]
    for index, size in enumerate(sizes):
        cells = [(row.time_us, row.busbw) for row in (outcome.rows[index] for outcome in outcomes)]
        line = f"{size:>14}" + "".join(f"{_cell(*cell):>{width}}" for cell in cells)
        if measured:
            row = known.get(size)
            line += f"{_cell(row.time_us, row.busbw) if row else '-':>{width}}"
            ratio = row.busbw / cells[0][1] if row and row.busbw and cells[0][1] else None
            line += f"{'-' if ratio is None else f'{ratio:.2f}':>13}"
        lines.append(line)
    means = [outcome.mean_busbw for outcome in outcomes]
    lines.append("# Avg bus bandwidth    : " + ", ".join(f"{mean:.2f}" for mean in means))
    lines += list(dict.fromkeys(f"# {outcome.label}: {text}" for outcome in outcomes for text in outcome.remarks))
    return lines + (_measured_remarks(sizes, measured) if measured else [])


def _cell(time_us: float, busbw: float) -> str:
    return f"{time_text(time_us)} {busbw:8.2f}"


def _measured_remarks(sizes: Sequence[int], measured: MeasuredTest) -> list[str]:
    """Return remarks on rows of a measurement that are not in the table."""
    others = [format_size(row.size) for row in measured.rows if row.size not in set(sizes)]
    wrong = sum(row.wrong > 0 for row in measured.rows)
    texts = []
    if others:
        texts.append(f"# {measured.path}: {len(others)} other sizes, such as {others[0]}")
    if measured.skipped:
        texts.append(f"# {measured.path}: {measured.skipped} damaged lines skipped")
    if wrong:
        texts.append(f"# {measured.path}: {wrong} sizes have wrong values")
    return texts


def as_dict(test: CollectiveTest, outcomes: Sequence[Outcome], measured: MeasuredTest | None) -> Json:
    """Return plain values for JSON."""
    values: Json = {
        "format": 1,
        "collective": test.collective.name,
        "ranks": test.ranks,
        "type": test.datatype,
        "redop": test.redop if test.collective.reduces else "none",
        "outcomes": [
            {
                "label": outcome.label,
                "hosts": outcome.hosts,
                "constants": outcome.constants.as_dict() if outcome.constants else {},
                "remarks": list(outcome.remarks),
                "rows": [vars(row) for row in outcome.rows],
            }
            for outcome in outcomes
        ],
    }
    if measured:
        values["measured"] = {"file": measured.path, "rows": [vars(row) for row in measured.rows]}
    return values


def draw(test: CollectiveTest, outcomes: Sequence[Outcome], measured: MeasuredTest | None) -> Figure:
    """Draw bus bandwidth and time over the size, a curve for each outcome."""
    curves = {outcome.label: [(row.size, row.time_us, row.busbw) for row in outcome.rows] for outcome in outcomes}
    if measured:
        curves["measured"] = [(row.size, row.time_us, row.busbw) for row in measured.rows]
    return draw_curves(f"{test.collective.name}, {test.ranks} ranks", curves)


def draw_curves(title: str, curves: Mapping[str, Sequence[tuple[int, float, float]]]) -> Figure:
    """Draw curves of (bytes, microseconds, GB/s) by label; a measured one as points."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from gradwire.analysis.comparison.plots import PAPER_STYLE, STYLES, WIDTH
    from gradwire.analysis.palette import COLOURS

    with matplotlib.rc_context(PAPER_STYLE):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for index, (label, points) in enumerate(curves.items()):
            shown = [point for point in points if point[0] > 0]
            sizes = [point[0] for point in shown]
            is_measured = label == "measured"
            look = (
                {"marker": "o", "markersize": 2.5, "linestyle": "none"}
                if is_measured
                else {"linestyle": STYLES[index % 7]}
            )
            colour = "#000000" if is_measured else COLOURS[index % 7]
            left.plot(sizes, [point[2] for point in shown], label=label, color=colour, **look)
            right.plot(sizes, [point[1] for point in shown], color=colour, **look)
        for axes, label in ((left, "busbw (GB/s)"), (right, "time (us)")):
            axes.set_xscale("log", base=2)
            ticks = [2**power for power in range(3, 36, 5)]
            axes.set_xticks(ticks, [format_size(tick) for tick in ticks])
            axes.set_xlabel("size")
            axes.set_ylabel(label)
            axes.grid(visible=True, linewidth=0.3)
        left.set_ylim(bottom=0)
        right.set_yscale("log")
        every = [point[0] for points in curves.values() for point in points if point[0] > 0]
        for axes in (left, right):
            axes.set_xlim(min(every) / 1.3, max(every) * 1.3)
        left.legend(loc="upper left")
        figure.suptitle(title, fontsize=8)
    return figure
