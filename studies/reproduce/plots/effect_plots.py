"""Draws the accuracy of a claim's policies (arms) minus the baseline's, in points, with 95 % intervals over paired
seeds.

Arms on an axis (shares lost) become curves, one for each setting, in one panel; others a row each, a panel per
setting, filled if the effect is resolved and hollow if it may be chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import GREY, PAPER_STYLE
from gradwire.analysis.confidence_intervals import half_width
from gradwire.analysis.palette import COLOURS
from gradwire.studies.reproduce.plots.panels import annotate, finish_rows, panels_of, paper_figure
from gradwire.studies.reproduce.policies import POLICIES, label_of
from gradwire.studies.reproduce.verdicts import Effect, Judgement, effects_of

POINTS = 100.0
PANELS_PER_ROW = 2
"""Panels in a row, with the names of arms beside them."""


def effects_figure(judgement: Judgement) -> Figure | None:
    """Plot a claim whose settings have baselines; None if nothing was run."""
    effects = effects_of(judgement)
    if not effects:
        return None
    numbered = all(POLICIES[effect.policy].number is not None for effect in effects)
    settings = list(dict.fromkeys(effect.setting for effect in effects))
    with matplotlib.rc_context(PAPER_STYLE):
        if numbered:
            figure = paper_figure(2.6 + 0.2 * len(settings), 0.62)
            _curves(figure.subplots(), settings, effects)
            return figure
        columns = min(len(settings), PANELS_PER_ROW)
        rows = -(-len(settings) // columns)
        deepest = max(sum(effect.setting == setting for effect in effects) for setting in settings)
        pitch = 0.33 if any("\n" in _name(effect) for effect in effects) else 0.24
        figure = paper_figure(rows * (0.75 + pitch * deepest))
        for panel, setting in zip(panels_of(figure, len(settings), columns), settings, strict=True):
            _rows(panel, setting, [effect for effect in effects if effect.setting == setting])
        words = "accuracy minus the baseline's (points); hollow: unresolved"
        figure.supxlabel(words, color=GREY, fontsize=matplotlib.rcParams["axes.labelsize"])
    return figure


def _curves(panel: Axes, settings: Sequence[str], effects: Sequence[Effect]) -> None:
    shift = 0.12
    for number, setting in enumerate(settings):
        in_setting = [effect for effect in effects if effect.setting == setting]
        offset = shift * (number - (len(settings) - 1) / 2)
        shares = [POINTS * (POLICIES[effect.policy].number or 0.0) + offset for effect in in_setting]
        means = [POINTS * effect.change.mean for effect in in_setting]
        halves = [_half(effect) for effect in in_setting]
        panel.errorbar(
            [0.0, *shares],
            [0.0, *means],
            yerr=[0.0, *halves],
            color=COLOURS[number % len(COLOURS)],
            marker="os^Dv"[number % 5],
            markersize=3.5,
            capsize=2,
            linewidth=1,
            label=setting,
        )
    panel.axhline(0, color=GREY, linewidth=0.6)
    panel.axhspan(-1, 1, color="#EEEEEE", zorder=0)
    annotate(panel, "within a point", (1, 1), ("axes fraction", "data"), (-3, -8), "right")
    panel.set_xlabel("packets lost, %")
    panel.set_ylabel("accuracy minus that without loss (points)")
    panel.spines[["top", "right"]].set_visible(False)
    panel.get_figure().legend(frameon=False, loc="outside lower center")  # type: ignore[union-attr]


def _rows(panel: Axes, setting: str, effects: Sequence[Effect]) -> None:
    for row, effect in enumerate(effects):
        colour = COLOURS[0] if effect.resolved else GREY
        panel.errorbar(
            POINTS * effect.change.mean,
            row,
            xerr=_half(effect),
            color=colour,
            marker="o",
            markersize=4.5,
            capsize=2.5,
            markerfacecolor=colour if effect.resolved else "white",
            linewidth=1,
        )
    panel.axvline(0, color=GREY, linewidth=0.6)
    panel.set_yticks(range(len(effects)), [_name(effect) for effect in effects])
    panel.set_ylim(len(effects) - 0.5, -0.5)
    panel.set_title(fill(setting, 40))
    finish_rows(panel)


def _name(effect: Effect) -> str:
    """Return an arm's label beside its row, in one line or more."""
    return fill(label_of(effect.policy), 34)


def _half(effect: Effect) -> float:
    """Return half of the interval, in points; zero for a single seed."""
    return POINTS * half_width(effect.change.values) if len(effect.change.values) > 1 else 0.0
