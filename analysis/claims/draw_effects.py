"""Draw effects: what arms change against their baseline, in points, with 95 % intervals over paired seeds.

Arms that lie on an axis (shares lost) become curves, one for each setting, in one panel; others a row each, a panel per
setting, filled where the effect is resolved and hollow where it may be chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from gradwire.analysis.claims.arms import ARMS, label_of
from gradwire.analysis.claims.effects import Effect, effects_of
from gradwire.analysis.claims.intervals import half_width
from gradwire.analysis.claims.judge import Judgement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 100.0
MOST = 2
"""Panels side by side, which have names of arms beside them."""


def effects_picture(judgement: Judgement) -> Figure | None:
    """The picture of a claim whose settings have baselines; None if nothing was run."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from gradwire.analysis.plots import GREY, PAPER, WIDTH

    effects = effects_of(judgement)
    if not effects:
        return None
    numbered = all(each.policy in ARMS and ARMS[each.policy].number is not None for each in effects)
    settings = list(dict.fromkeys(each.setting for each in effects))
    with matplotlib.rc_context(PAPER):
        if numbered:
            figure = Figure(figsize=(WIDTH * 0.62, 2.6 + 0.2 * len(settings)), layout="constrained")
            FigureCanvasAgg(figure)
            _curves(figure.subplots(), settings, effects)
            return figure
        columns = min(len(settings), MOST)
        rows = -(-len(settings) // columns)
        deepest = max(sum(each.setting == setting for each in effects) for setting in settings)
        pitch = 0.33 if any("\n" in _name(each) for each in effects) else 0.24
        figure = Figure(figsize=(WIDTH, rows * (0.75 + pitch * deepest)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for panel, setting in zip(panels, settings, strict=False):
            _rows(panel, setting, [each for each in effects if each.setting == setting])
        for panel in panels[len(settings) :]:
            panel.set_visible(False)
        words = "accuracy, less that without any of it (points); hollow: unresolved"
        figure.supxlabel(words, color=GREY, fontsize=matplotlib.rcParams["axes.labelsize"])
    return figure


def _curves(panel: Axes, settings: Sequence[str], effects: Sequence[Effect]) -> None:
    from gradwire.analysis.plots import COLOURS, GREY

    shift = 0.12
    for number, setting in enumerate(settings):
        mine = [each for each in effects if each.setting == setting]
        aside = shift * (number - (len(settings) - 1) / 2)
        shares = [POINTS * (ARMS[each.policy].number or 0.0) + aside for each in mine]
        means = [POINTS * each.change.mean for each in mine]
        halves = [_half(each) for each in mine]
        panel.errorbar(
            [0.0, *shares], [0.0, *means], yerr=[0.0, *halves], color=COLOURS[number], marker="os^Dv"[number % 5],
            markersize=3.5, capsize=2, linewidth=1, label=setting,
        )  # fmt: skip
    panel.axhline(0, color=GREY, linewidth=0.6)
    panel.axhspan(-1, 1, color="#EEEEEE", zorder=0)
    panel.annotate("within a point", (1, 1), xycoords=("axes fraction", "data"), xytext=(-3, -8), ha="right",
                   textcoords="offset points", fontsize=6.5, color=GREY)  # fmt: skip
    panel.set_xlabel("packets lost, %")
    panel.set_ylabel("accuracy, less that without loss (points)")
    panel.spines[["top", "right"]].set_visible(False)
    panel.get_figure().legend(frameon=False, loc="outside lower center")  # type: ignore[union-attr]


def _rows(panel: Axes, setting: str, effects: Sequence[Effect]) -> None:
    from gradwire.analysis.plots import COLOURS, GREY

    for place, each in enumerate(effects):
        colour = COLOURS[0] if each.resolved else GREY
        panel.errorbar(
            POINTS * each.change.mean, place, xerr=_half(each), color=colour, marker="o", markersize=4.5, capsize=2.5,
            markerfacecolor=colour if each.resolved else "white", linewidth=1,
        )  # fmt: skip
    panel.axvline(0, color=GREY, linewidth=0.6)
    panel.set_yticks(range(len(effects)), [_name(each) for each in effects])
    panel.set_ylim(len(effects) - 0.5, -0.5)
    panel.set_title(fill(setting, 40))
    panel.grid(axis="x", color="#DDDDDD", linewidth=0.5)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _name(effect: Effect) -> str:
    """What an arm is called beside its row, in one line or more."""
    return fill(label_of(effect.policy), 34)


def _half(effect: Effect) -> float:
    """Half of the interval, in points; nothing where one seed gives none."""
    return POINTS * half_width(effect.change.values) if len(effect.change.values) > 1 else 0.0
