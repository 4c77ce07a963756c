"""Plots accuracy against time and bytes, as means over seeds with a line for each arm (policy)."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from gradwire.analysis.comparison.plots import GREY, PAPER_STYLE
from gradwire.analysis.palette import COLOURS
from gradwire.studies.reproduce.claim import Setting
from gradwire.studies.reproduce.measures import CHANCE, RATES
from gradwire.studies.reproduce.plots.panels import paper_figure
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.verdicts import Judgement

MS, MB, PERCENT = 1e9, 1e6, 100.0
LEGEND_SHARE = 0.9
"""Share of a figure's width available for a legend: drawn letters are a little wider than measured ones."""
Place = Callable[[str, int], "float | None"]
"""(policy, step) -> position on the horizontal axis."""


def accuracy_figure(judgement: Judgement) -> Figure | None:
    """Plot a row of panels per setting; None if nothing was run. The x axis is the clock, or the time at each rate and
    the bytes to and from a worker."""
    run_settings = {setting for setting, _, _ in judgement.figures}
    settings = [setting for setting in judgement.claim.settings if setting.name in run_settings and setting.target]
    if not settings:
        return None
    rows = [_panels(judgement, setting) for setting in settings]
    columns = max(map(len, rows))
    with matplotlib.rc_context(PAPER_STYLE):
        figure = paper_figure(3.0 * len(rows))
        parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
        for setting, panels, part in zip(settings, rows, parts, strict=True):
            row = part.subplots(1, columns, squeeze=False, sharey=True)[0]
            for panel, (words, place) in zip(row, panels, strict=False):
                _curves(panel, judgement, setting, place)
                panel.set_xlabel(words)
            for panel in row[len(panels) :]:
                panel.set_visible(False)
            row[0].set_ylabel("accuracy, %")
            row[0].set_title(setting.name, loc="left")
            _legend(part, row[0])
        figure.suptitle("means over seeds; dotted: target accuracy", fontsize=7, color=GREY)
    return figure


def _legend(part: SubFigure, panel: Axes) -> None:
    """Add the legend of a panel below its part of the figure, in as many columns as fit."""
    for columns in (3, 2, 1):
        legend = part.legend(
            *panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False
        )
        if columns == 1 or legend.get_window_extent().width <= LEGEND_SHARE * part.bbox.width:
            return
        legend.remove()


def _panels(judgement: Judgement, setting: Setting) -> list[tuple[str, Place]]:
    """Return (axis label, position function) of each panel."""

    def mean(policy: str, measure: str) -> float | None:
        spread = judgement.over_seeds(setting.name, policy, measure)
        return spread.mean if spread else None

    def steps_of(measure: str, unit: float) -> Place:
        def position(policy: str, step: int) -> float | None:
            step_mean = mean(policy, measure)
            return None if step_mean is None else step * step_mean / unit

        return position

    if not setting.rates:

        def clock(policy: str, step: int) -> float | None:
            if not step:
                return 0.0
            if policy in setting.lossless:
                clock_spread = judgement.over_seeds(setting.lossless[policy], policy, "clock")
                return clock_spread.mean * step / MS if clock_spread else None
            when = mean(policy, f"clock@{step}")
            return None if when is None else when / MS

        return [("simulated time, ms", clock)]
    labels = [
        (f"ms at {rate.removesuffix('Gbps')} Gbps", steps_of(f"step_{rate}", MS))
        for rate in RATES
        if rate in setting.rates
    ]
    return [*labels, ("MB to and from a worker", steps_of("traffic", MB))]


def _curves(panel: Axes, judgement: Judgement, setting: Setting, place: Place) -> None:
    dashes = ("-", "--", ":")
    for number, policy in enumerate((*setting.policies, *setting.lossless)):
        learner = setting.baseline if policy in setting.lossless else policy
        runs = [run for (name, arm, _), run in judgement.figures.items() if (name, arm) == (setting.name, learner)]
        prefix = "accuracy@"
        evaluations = sorted(
            {int(name.removeprefix(prefix)) for run in runs for name in run if name.startswith(prefix)}
        )
        points = [(place(policy, 0), CHANCE)]
        for step in evaluations:
            spread = judgement.over_seeds(setting.name, learner, f"accuracy@{step}")
            points.append((place(policy, step), spread.mean if spread else CHANCE))
        known = [(x, PERCENT * y) for x, y in points if x is not None]
        if len(known) < 2:
            continue
        panel.plot(
            [x for x, _ in known],
            [y for _, y in known],
            label=label_of(policy),
            linewidth=1.1,
            color=COLOURS[number % len(COLOURS)],
            linestyle=dashes[number // len(COLOURS) % 3],
        )
    panel.axhline(PERCENT * setting.target, color=GREY, linewidth=0.7, linestyle=":")
    panel.set_xlim(left=0)
    panel.grid(color="#E5E5E5", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
