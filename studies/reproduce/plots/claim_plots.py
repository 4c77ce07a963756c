"""`claim_figure` draws a claim's measure by setting and policy, as bars that span the seeds' range.

Settings with a baseline show effects (`effect_plots`), and rings the places of lost packets (`loss_maps`).
"""

from __future__ import annotations

from textwrap import fill

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import GREY, PAPER_STYLE
from gradwire.analysis.palette import COLOURS
from gradwire.studies.reproduce.claim import Setting
from gradwire.studies.reproduce.measures import MEASURE_LABELS, TIMES
from gradwire.studies.reproduce.plots.accuracy_curves import accuracy_figure
from gradwire.studies.reproduce.plots.effect_plots import effects_figure
from gradwire.studies.reproduce.plots.loss_maps import loss_map_figure
from gradwire.studies.reproduce.plots.panels import finish_rows, panels_of, paper_figure
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.verdicts import Judgement

PANELS = 4
"""Settings in one row."""
LONGEST = 5.0
"""Length of the longest bar over the shortest one; longer ones are cut off."""
LETTERS = 60
"""Characters of a title over a whole row."""


def claim_figure(judgement: Judgement) -> Figure | None:
    """Plot a row of panels, one per setting, with a bar per policy; None if nothing was run."""
    claim = judgement.claim
    if claim.shown == "lost_places":
        return loss_map_figure(judgement)
    if claim.shown.startswith("to"):
        return accuracy_figure(judgement)
    if any(setting.baseline for setting in claim.settings):
        return effects_figure(judgement)
    settings = [setting for setting in claim.settings if any(s == setting.name for s, _, _ in judgement.figures)]
    if not settings:
        return None
    policies = list(dict.fromkeys(policy for setting in settings for policy in setting.policies))
    colours = dict(zip(policies, (COLOURS * 4)[: len(policies)], strict=True))
    has_own_measures = any(setting.shown for setting in settings)
    has_equal_policies = len({setting.policies for setting in settings}) == 1
    columns = min(len(settings), PANELS if has_equal_policies else 2)
    rows = -(-len(settings) // columns)
    heights = [
        max(len(setting.policies) for setting in settings[row * columns : (row + 1) * columns]) for row in range(rows)
    ]
    with matplotlib.rc_context(PAPER_STYLE):
        figure = paper_figure(0.2 * sum(heights) + rows * (0.7 + 0.3 * has_own_measures) + 0.25)
        panels = panels_of(figure, len(settings), columns, height_ratios=heights)
        for number, (panel, setting) in enumerate(zip(panels, settings, strict=True)):
            measure = setting.shown or claim.shown
            first = settings[number - number % columns].policies  # labels its row, if the panels have the same policies
            rows_of = first if set(setting.policies) <= set(first) else setting.policies
            _bars(panel, judgement, setting, measure, {policy: colours[policy] for policy in rows_of})
            is_labelled = number % columns and rows_of is first
            panel.set_yticks(range(len(rows_of)), ["" if is_labelled else label_of(policy) for policy in rows_of])
            panel.set_ylim(heights[number // columns] - 0.4, -0.6)
            panel.margins(x=0.3)
            panel.set_xlim(left=0)
            panel.set_title(fill(setting.name, LETTERS if columns == 1 else min(26, LETTERS // columns)))
            if has_own_measures:
                panel.set_xlabel(fill(_words(judgement, measure), 36), color=GREY)
            finish_rows(panel)
        words = "lines: range of the seeds"
        if any("fluid" in figures for figures in judgement.figures.values()):
            words += "; ticks: fluid bound"
        words = words if has_own_measures else f"{_words(judgement, claim.shown)}; {words}"
        figure.supxlabel(words, fontsize=7.5, color=GREY)
    return figure


def _bars(panel: Axes, judgement: Judgement, setting: Setting, measure: str, colours: dict[str, str]) -> None:
    """Draw a bar per policy with the range over the seeds and its median, and a tick at the fluid bound of an
    iteration. `colours` : by policy, in order."""
    scale, _ = _scale(judgement, measure)
    spreads = {policy: judgement.over_seeds(setting.name, policy, measure) for policy in colours}
    longest = LONGEST * min((spread.median / scale for spread in spreads.values() if spread), default=0.0)
    for row, policy in enumerate(colours):
        spread = spreads[policy]
        if spread is None:
            continue
        ends = spread.median, min(spread.values), max(spread.values)
        middle, low, high = (min(value / scale, longest) for value in ends)
        error = [[middle - low], [high - middle]]
        panel.barh(row, middle, color=colours[policy], height=0.7, xerr=error, ecolor="black", capsize=2)
        number = spread.median / scale
        text = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
        panel.annotate(f" {text}" if number < longest else f" {text} (cut off)", (high, row), va="center", fontsize=6.5)
        fluid = judgement.over_seeds(setting.name, policy, "fluid") if measure == "iteration" else None
        if fluid is not None:
            panel.vlines(fluid.median / scale, row - 0.35, row + 0.35, color="black", linewidth=1.2)


def _words(judgement: Judgement, measure: str) -> str:
    unit = _scale(judgement, measure)[1]
    return f"{MEASURE_LABELS[measure]}{f' ({unit})' if unit else ''}"


def _scale(judgement: Judgement, measure: str) -> tuple[float, str]:
    """Return the unit of an axis and its name."""
    if measure not in TIMES:
        return 1.0, ""
    largest = max((figures.get(measure, 0.0) for figures in judgement.figures.values()), default=0.0)
    return (1e9, "ms") if largest >= 1e9 else (1e6, "us")
