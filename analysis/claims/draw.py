"""Draw: one picture per claim, the measure that it is about by setting and policy; the seeds' range as a bar."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from gradwire.analysis.claims.judge import Judgement
from gradwire.analysis.claims.measures import TIMES, WORDS
from gradwire.analysis.claims.policies import POLICIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 4
"""Settings side by side in one row."""


def picture(judgement: Judgement) -> Figure | None:
    """A row of panels, one per setting, with a bar per policy; None if nothing was run."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from gradwire.analysis.plots import COLOURS, GREY, PAPER, WIDTH

    claim = judgement.claim
    settings = [each for each in claim.settings if any(s == each.name for s, _, _ in judgement.figures)]
    if not settings:
        return None
    shown = list(dict.fromkeys(policy for setting in settings for policy in setting.policies))
    colours = dict(zip(shown, (COLOURS * 4)[: len(shown)], strict=True))
    scale, unit = _scale(judgement, claim.shown)
    rows = -(-len(settings) // PANELS)
    deepest = max(len(each.policies) for each in settings)
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(WIDTH, rows * (0.75 + 0.21 * deepest)), layout="constrained")
        FigureCanvasAgg(figure)
        columns = min(len(settings), PANELS)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for number, (panel, setting) in enumerate(zip(panels, settings, strict=False)):
            labels = []
            for place, policy in enumerate(setting.policies):
                spread = judgement.spread(setting.name, policy, claim.shown)
                labels.append(POLICIES[policy].label)
                if spread is None:
                    continue
                middle = spread.median / scale
                error = [[middle - min(spread.values) / scale], [max(spread.values) / scale - middle]]
                panel.barh(
                    place, middle, color=colours[policy], height=0.7, xerr=error, ecolor="black", capsize=2
                )
                panel.annotate(
                    f" {middle:.3g}", (max(spread.values) / scale, place), va="center", fontsize=6.5
                )
            panel.set_yticks(
                range(len(labels)),
                [fill(each, 30) for each in labels]
                if number % columns == 0
                or labels != [POLICIES[p].label for p in settings[number - number % columns].policies]
                else [""] * len(labels),
            )
            panel.invert_yaxis()
            panel.margins(x=0.3)
            panel.set_xlim(left=0)
            panel.set_title(fill(setting.name, 28))
            panel.grid(axis="x", color="#DDDDDD", linewidth=0.5)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        for panel in panels[len(settings) :]:
            panel.set_visible(False)
        figure.supxlabel(
            f"{WORDS[claim.shown]}{f' ({unit})' if unit else ''}; bars: smallest to largest of the seeds",
            fontsize=7.5,
            color=GREY,
        )
    return figure


def _scale(judgement: Judgement, measure: str) -> tuple[float, str]:
    if measure not in TIMES:
        return 1.0, ""
    largest = max((each.get(measure, 0.0) for each in judgement.figures.values()), default=0.0)
    return (1e9, "ms") if largest >= 1e9 else (1e6, "us")
