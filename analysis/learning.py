"""Trainings side by side: a table, and accuracy against steps, bytes and time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gradwire.analysis.plots import look
from gradwire.analysis.tables import Row, print_rows
from gradwire.scenarios.learned import Learned
from gradwire.scenarios.readable import accuracy_text, share_text, size_text, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = (
    ("step", "steps", 1.0),
    ("sent_bytes", "what all workers sent, MiB", 2.0**20),
    ("clock_ps", "simulated time, ms", 1e9),
)
"""What accuracy is drawn against: column of the scores, words, unit."""
WIDE = 20
"""Times as much as the least, from which on an axis is logarithmic."""
MANY = 4
"""Trainings that are named within a panel."""


def rows_of(trainings: Sequence[Learned], until: float | None = None) -> list[Row]:
    """The table: a row per figure, a column per training."""
    last = [each.scores[-1] if each.scores else None for each in trainings]
    lost = [_mean([row["lost"] for row in each.steps]) for each in trainings]
    found = [
        ("steps", [f"{each.summary['steps_done']:,}" for each in trainings]),
        ("accuracy at the end", [accuracy_text(each["accuracy"]) if each else "none" for each in last]),
        ("loss at the end", [f"{each['loss']:.4f}" if each else "none" for each in last]),
        ("sent by all workers", [size_text(sum(row["sent_bytes"] for row in each.steps)) for each in trainings]),
        *_pulled(trainings),
        ("lost of it, mean of the steps", [share_text(share) for share in lost]),
        *_stale(trainings),
        *_time(trainings),
    ]
    if until is not None:
        found.append((f"time to accuracy {until:g}", [_reached(each, until) for each in trainings]))
    return [Row(label, cells) for label, cells in found]


def _time(trainings: Sequence[Learned]) -> list[tuple[str, list[str]]]:
    """How long it took, where the network of any of them takes time: by a rule, or with an ideal one, nothing does."""
    if not any(each.timed for each in trainings):
        return []
    means = [_mean([row["time_ps"] for row in each.steps]) for each in trainings]
    return [
        ("simulated time", [time_text(each.steps[-1]["clock_ps"]) if each.timed else "none" for each in trainings]),
        *_coding(trainings),
        ("  per step, mean", [time_text(mean) if mean else "none" for mean in means]),
    ]


def _coding(trainings: Sequence[Learned]) -> list[tuple[str, list[str]]]:
    """What encoding and decoding took, where that is on the clock of any of them."""
    if all(each.summary.get("encode_time", "none") == "none" for each in trainings):
        return []
    totals = [sum(row["encode_ps"] + row["decode_ps"] for row in each.steps) for each in trainings]
    cells = [
        "not on it" if (how := each.summary.get("encode_time", "none")) == "none"
        else f"{time_text(total)} ({how if how == 'measured' else f'{how:g} ns an element'})"
        for total, each in zip(totals, trainings, strict=True)
    ]  # fmt: skip
    return [("  of it encoding and decoding", cells)]


def _stale(trainings: Sequence[Learned]) -> list[tuple[str, list[str]]]:
    """How many updates others had made since what a push was computed at, where workers come one by one."""
    if not any(each.turns for each in trainings):
        return []
    behind = [[row["stale"] for row in each.turns] for each in trainings]
    cells = [f"{_mean(each):.3g} (at most {max(each)})" if each else "none" for each in behind]
    return [("updates behind, mean", cells)]


def _pulled(trainings: Sequence[Learned]) -> list[tuple[str, list[str]]]:
    """What servers sent back, where a system counts it."""
    sums = [sum(row["pulled_bytes"] for row in each.steps) for each in trainings]
    if not any(sums):
        return []
    return [("sent back by servers", [size_text(each) if each else "not counted" for each in sums])]


def print_learned(trainings: Sequence[Learned], until: float | None = None, file: TextIO | None = None) -> None:
    """The table, for people, on stdout unless into a file."""
    print_rows([each.name for each in trainings], rows_of(trainings, until), "training", file)


def table_text(trainings: Sequence[Learned], until: float | None = None) -> str:
    """The same as plain text."""
    text = io.StringIO()
    print_learned(trainings, until, text)
    return text.getvalue()


def draw_learned(trainings: Sequence[Learned]) -> Figure:
    """Accuracy on data that is not learned from, against steps, bytes sent and simulated time where there is any."""
    return draw_arms([(each.name, [each]) for each in trainings])


def draw_arms(arms: Sequence[tuple[str, Sequence[Learned]]]) -> Figure:
    """The same of arms that were trained from several seeds: their means, and each seed as a thin line; or every seed
    alone where they have not been looked at equally often, as with an accuracy with which a training is over.

    arms : name, and trainings.
    """
    from matplotlib.figure import Figure

    trainings = [each for _, those in arms for each in those]
    timed = any(each.timed for each in trainings)
    shown = [each for each in MEASURES if timed or each[0] != "clock_ps"]
    figure = Figure(figsize=(4.2 * len(shown), 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (column, words, unit) in zip(panels, shown, strict=True):
        for number, (name, those) in enumerate(arms):
            lines = [[(row[column] / unit, 100 * row["accuracy"]) for row in each.scores
                      if column != "clock_ps" or row["clock_ps"]] for each in those]  # fmt: skip
            style = look(number)
            if not alike(those):
                for at, line in enumerate(lines):
                    axes.plot(*_split(line), label=None if at else name, marker="o", markersize=2, linewidth=1, **style)
                continue
            for line in lines if len(lines) > 1 else ():
                axes.plot(*_split(line), linewidth=0.6, alpha=0.4, color=style["color"])
            axes.plot(*_split(_middle(lines)), label=name, marker="o", markersize=3, **style)
        ends = [each.scores[-1][column] for each in trainings if each.scores and each.scores[-1][column]]
        if ends and max(ends) > WIDE * min(ends):
            axes.set_xscale("log")
        axes.set_xlabel(words)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, %")
    if len(arms) > MANY:
        figure.set_figwidth(figure.get_figwidth() + 3)
        named = panels[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside right center", frameon=False, fontsize="small")
    else:
        panels[-1].legend(frameon=False, fontsize="small")
    return figure


Line = Sequence[tuple[float, float]]


def _split(line: Line) -> tuple[list[float], list[float]]:
    return [x for x, _ in line], [y for _, y in line]


def alike(trainings: Sequence[Learned]) -> bool:
    """Whether all have been looked at after the same steps, so that there is a mean of them."""
    return len({tuple(row["step"] for row in each.scores) for each in trainings}) <= 1


def _middle(lines: Sequence[Line]) -> Line:
    """The mean of lines, point by point."""
    return [(_mean([x for x, _ in points]), _mean([y for _, y in points])) for points in zip(*lines, strict=True)]


def save_learned(trainings: Sequence[Learned], path: Path) -> None:
    """Write the picture in the format of the path's ending."""
    save_arms([(each.name, [each]) for each in trainings], path)


def save_arms(arms: Sequence[tuple[str, Sequence[Learned]]], path: Path) -> None:
    """The same of arms that were trained from several seeds."""
    from gradwire.analysis.figures import save_figure

    save_figure(draw_arms(arms), path)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _reached(training: Learned, until: float) -> str:
    for row in training.scores:
        if row["accuracy"] >= until:
            return time_text(row["clock_ps"]) if training.timed else f"none, after {row['step']:,} steps"
    return "not reached"
