"""Draw: one picture per claim, the measure that it is about by setting and policy; the seeds' range as a bar. Where
settings have a baseline, what the others change against it (`draw_effects`), or where in a ring packets were lost
(`draw_places`)."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from gradwire.analysis.claims.arms import label_of
from gradwire.analysis.claims.claim import Setting
from gradwire.analysis.claims.draw_curves import curves_picture
from gradwire.analysis.claims.draw_effects import effects_picture
from gradwire.analysis.claims.draw_places import places_picture
from gradwire.analysis.claims.judge import Judgement
from gradwire.analysis.claims.measures import TIMES, WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 4
"""Settings side by side in one row."""
LETTERS = 60
"""Of a title over a whole row."""


def picture(judgement: Judgement) -> Figure | None:
    """A row of panels, one per setting, with a bar per policy; None if nothing was run."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from gradwire.analysis.plots import COLOURS, GREY, PAPER, WIDTH

    claim = judgement.claim
    if claim.shown == "lost_places":
        return places_picture(judgement)
    if claim.shown.startswith("to"):
        return curves_picture(judgement)
    if any(each.baseline for each in claim.settings):
        return effects_picture(judgement)
    settings = [each for each in claim.settings if any(s == each.name for s, _, _ in judgement.figures)]
    if not settings:
        return None
    shown = list(dict.fromkeys(policy for setting in settings for policy in setting.policies))
    colours = dict(zip(shown, (COLOURS * 4)[: len(shown)], strict=True))
    several = any(each.shown for each in settings)
    alike = len({each.policies for each in settings}) == 1
    columns = min(len(settings), PANELS if alike else 2)
    rows = -(-len(settings) // columns)
    heights = [
        max(len(each.policies) for each in settings[row * columns : (row + 1) * columns]) for row in range(rows)
    ]
    with matplotlib.rc_context(PAPER):
        figure = Figure(
            figsize=(WIDTH, 0.2 * sum(heights) + rows * (0.7 + 0.3 * several) + 0.25), layout="constrained"
        )
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flatten()
        for number, (panel, setting) in enumerate(zip(panels, settings, strict=False)):
            measure = setting.shown or claim.shown
            first = settings[number - number % columns].policies  # in its row, told of for all that have no others
            rows_of = first if set(setting.policies) <= set(first) else setting.policies
            _bars(panel, judgement, setting, measure, {policy: colours[policy] for policy in rows_of})
            told = number % columns and rows_of is first
            panel.set_yticks(range(len(rows_of)), ["" if told else label_of(policy) for policy in rows_of])
            panel.set_ylim(heights[number // columns] - 0.4, -0.6)
            panel.margins(x=0.3)
            panel.set_xlim(left=0)
            panel.set_title(fill(setting.name, LETTERS if columns == 1 else min(26, LETTERS // columns)))
            if several:
                panel.set_xlabel(fill(_words(judgement, measure), 36), color=GREY)
            panel.grid(axis="x", color="#DDDDDD", linewidth=0.5)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        for panel in panels[len(settings) :]:
            panel.set_visible(False)
        words = "lines: smallest to largest of the seeds"
        words = words if several else f"{_words(judgement, claim.shown)}; {words}"
        figure.supxlabel(words, fontsize=7.5, color=GREY)
    return figure


def _bars(panel: Axes, judgement: Judgement, setting: Setting, measure: str, colours: dict[str, str]) -> None:
    """A bar per policy, the range over the seeds on it and its median beside it. `colours`: of the policies, in their
    order."""
    scale, _ = _scale(judgement, measure)
    for place, policy in enumerate(colours):
        spread = judgement.spread(setting.name, policy, measure)
        if spread is None:
            continue
        middle, low, high = spread.median / scale, min(spread.values) / scale, max(spread.values) / scale
        error = [[middle - low], [high - middle]]
        panel.barh(place, middle, color=colours[policy], height=0.7, xerr=error, ecolor="black", capsize=2)
        text = f" {middle:,.0f}" if middle >= 1000 else f" {middle:.3g}"
        panel.annotate(text, (high, place), va="center", fontsize=6.5)


def _words(judgement: Judgement, measure: str) -> str:
    unit = _scale(judgement, measure)[1]
    return f"{WORDS[measure]}{f' ({unit})' if unit else ''}"


def _scale(judgement: Judgement, measure: str) -> tuple[float, str]:
    """What a unit of the axis is, and what it is called."""
    if measure not in TIMES:
        return 1.0, ""
    largest = max((each.get(measure, 0.0) for each in judgement.figures.values()), default=0.0)
    return (1e9, "ms") if largest >= 1e9 else (1e6, "us")
