"""Tabulates training runs side by side and plots their accuracy against steps, bytes sent and simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import line_style
from gradwire.analysis.comparison.tables import TableRow
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.readable import accuracy_text, share_text, size_text, time_text

MEASURES = (
    ("step", "steps", 1.0),
    ("sent_bytes", "sent by all workers, MiB", 2.0**20),
    ("clock_ps", "simulated time, ms", 1e9),
)
"""Measures for the x axis of accuracy: column of the scores, label, unit."""
LOG_RATIO = 20
"""Ratio of largest to smallest value above which an axis is logarithmic."""
MOST_LEGEND_ENTRIES = 4
"""Largest number of runs whose legend fits inside a panel."""


def rows_of(trainings: Sequence[TrainingResult], until: float | None = None) -> list[TableRow]:
    """Return the table: a row per figure, a column per training run."""
    last = [training.scores[-1] if training.scores else None for training in trainings]
    lost = [_mean([row["lost"] for row in training.steps]) for training in trainings]
    rows = [
        ("steps", [f"{training.summary['steps_done']:,}" for training in trainings]),
        ("final accuracy", [accuracy_text(score["accuracy"]) if score else "none" for score in last]),
        ("final loss", [f"{score['loss']:.4f}" if score else "none" for score in last]),
        ("sent by all workers", [size_text(sum(row["sent_bytes"] for row in run.steps)) for run in trainings]),
        *_pulled(trainings),
        ("lost, mean of the steps", [share_text(share) for share in lost]),
        *_stale(trainings),
        *_time(trainings),
    ]
    if until is not None:
        rows.append((f"time to accuracy {until:g}", [_reached(training, until) for training in trainings]))
    return [TableRow(label, cells) for label, cells in rows]


def _time(trainings: Sequence[TrainingResult]) -> list[tuple[str, list[str]]]:
    """Return the rows on time, if the network of any run takes time (rule-based and ideal networks do not)."""
    if not any(run.timed for run in trainings):
        return []
    means = [_mean([row["time_ps"] for row in run.steps]) for run in trainings]
    return [
        ("simulated time", [time_text(run.steps[-1]["clock_ps"]) if run.timed else "none" for run in trainings]),
        *_coding(trainings),
        ("  per step, mean", [time_text(mean) if mean else "none" for mean in means]),
    ]


def _coding(trainings: Sequence[TrainingResult]) -> list[tuple[str, list[str]]]:
    """Return the row on encoding and decoding, if the clock of any run includes them."""
    if all(run.summary.get("encode_time", "none") == "none" for run in trainings):
        return []
    totals = [sum(row["encode_ps"] + row["decode_ps"] for row in run.steps) for run in trainings]
    cells = [
        "not included"
        if (encode_time := run.summary.get("encode_time", "none")) == "none"
        else f"{time_text(total)} ({encode_time if encode_time == 'measured' else f'{encode_time:g} ns an element'})"
        for total, run in zip(totals, trainings, strict=True)
    ]
    return [("  encoding and decoding", cells)]


def _stale(trainings: Sequence[TrainingResult]) -> list[tuple[str, list[str]]]:
    """Return the row on staleness of asynchronous workers: updates by others since a push's gradients were computed."""
    if not any(run.turns for run in trainings):
        return []
    behind = [[row["stale"] for row in run.turns] for run in trainings]
    cells = [f"{_mean(counts):.3g} (max {max(counts)})" if counts else "none" for counts in behind]
    return [("updates behind, mean", cells)]


def _pulled(trainings: Sequence[TrainingResult]) -> list[tuple[str, list[str]]]:
    """Return the row on bytes sent by servers, if a system counts them."""
    sums = [sum(row["pulled_bytes"] for row in run.steps) for run in trainings]
    if not any(sums):
        return []
    return [("sent by servers", [size_text(total) if total else "not counted" for total in sums])]


def table_of(trainings: Sequence[TrainingResult], until: float | None = None) -> tuple[list[str], list[TableRow], str]:
    """Return the arguments of `print_rows` for the table."""
    return [run.name for run in trainings], rows_of(trainings, until), "training"


def draw_training_runs(trainings: Sequence[TrainingResult]) -> Figure:
    """Plot the validation accuracy against steps, bytes sent and, if there is any, simulated time."""
    return draw_arms([(run.name, [run]) for run in trainings])


def draw_arms(arms: Sequence[tuple[str, Sequence[TrainingResult]]]) -> Figure:
    """Plot arms trained from several seeds: their means, and each seed as a thin line.

    If runs were evaluated at different steps, as with a target accuracy, only the seeds are drawn.
    arms : name, and training runs.
    """
    trainings = [run for _, runs in arms for run in runs]
    timed = any(run.timed for run in trainings)
    shown = [measure for measure in MEASURES if timed or measure[0] != "clock_ps"]
    figure = Figure(figsize=(4.2 * len(shown), 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (column, words, unit) in zip(panels, shown, strict=True):
        for number, (name, runs) in enumerate(arms):
            scores = [[row for row in run.scores if column != "clock_ps" or row["clock_ps"]] for run in runs]
            lines = [[(row[column] / unit, 100 * row["accuracy"]) for row in rows] for rows in scores]
            style = line_style(number)
            if not have_equal_steps(runs):
                for at, line in enumerate(lines):
                    axes.plot(*_split(line), label=None if at else name, marker="o", markersize=2, linewidth=1, **style)
                continue
            for line in lines if len(lines) > 1 else ():
                axes.plot(*_split(line), linewidth=0.6, alpha=0.4, color=style["color"])
            axes.plot(*_split(_middle(lines)), label=name, marker="o", markersize=3, **style)
        ends = [run.scores[-1][column] for run in trainings if run.scores and run.scores[-1][column]]
        if ends and max(ends) > LOG_RATIO * min(ends):
            axes.set_xscale("log")
        axes.set_xlabel(words)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, %")
    if len(arms) > MOST_LEGEND_ENTRIES:
        figure.set_figwidth(figure.get_figwidth() + 3)
        named = panels[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside right center", frameon=False, fontsize="small")
    else:
        panels[-1].legend(frameon=False, fontsize="small")
    return figure


Line = Sequence[tuple[float, float]]


def _split(line: Line) -> tuple[list[float], list[float]]:
    return [x for x, _ in line], [y for _, y in line]


def have_equal_steps(trainings: Sequence[TrainingResult]) -> bool:
    """Return True if all runs were evaluated at the same steps, so that their mean is defined."""
    return len({tuple(row["step"] for row in run.scores) for run in trainings}) <= 1


def _middle(lines: Sequence[Line]) -> Line:
    """Return the mean of lines, point by point."""
    return [(_mean([x for x, _ in points]), _mean([y for _, y in points])) for points in zip(*lines, strict=True)]


def save_arms(arms: Sequence[tuple[str, Sequence[TrainingResult]]], path: Path) -> None:
    """Write the figure of `draw_arms` in the format of the path's ending."""
    from gradwire.analysis.figure_files import save_figure

    save_figure(draw_arms(arms), path)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _reached(training: TrainingResult, until: float) -> str:
    for row in training.scores:
        if row["accuracy"] >= until:
            return time_text(row["clock_ps"]) if training.timed else f"none, after {row['step']:,} steps"
    return "not reached"
