"""Draw curves: accuracy against the time and the bytes that it took, means over seeds, a line for each arm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradwire.analysis.claims.arms import label_of
from gradwire.analysis.claims.claim import Setting
from gradwire.analysis.claims.costs import CHANCE
from gradwire.analysis.claims.judge import Judgement
from gradwire.analysis.claims.measures import RATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MS, MB, PERCENT = 1e9, 1e6, 100.0
ROOM = 0.9
"""Of a picture's width, for a legend: letters are a little wider when they are drawn than when they are measured."""
Place = Callable[[str, int], "float | None"]
"""(policy, step) -> where a point lies on the horizontal axis."""


def curves_picture(judgement: Judgement) -> Figure | None:
    """A row of panels for each setting that was run: against the clock, or against the time at each rate and against
    the bytes to and from a worker; None if nothing was run."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from gradwire.analysis.plots import GREY, PAPER, WIDTH

    ran = {setting for setting, _, _ in judgement.figures}
    settings = [each for each in judgement.claim.settings if each.name in ran and each.target]
    if not settings:
        return None
    rows = [_panels(judgement, setting) for setting in settings]
    columns = max(map(len, rows))
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(WIDTH, 3.0 * len(rows)), layout="constrained")
        FigureCanvasAgg(figure)
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
        figure.suptitle("means over seeds; dotted: the accuracy that times are to", fontsize=7, color=GREY)
    return figure


def _legend(part: SubFigure, panel: Axes) -> None:
    """The lines of a panel below its part of the figure, in as many columns as find room side by side."""
    for columns in (3, 2, 1):
        legend = part.legend(
            *panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False
        )
        if columns == 1 or legend.get_window_extent().width <= ROOM * part.bbox.width:
            return
        legend.remove()


def _panels(judgement: Judgement, setting: Setting) -> list[tuple[str, Place]]:
    """(words below, where points lie) of each panel."""

    def mean(policy: str, measure: str) -> float | None:
        spread = judgement.spread(setting.name, policy, measure)
        return spread.mean if spread else None

    def steps_of(measure: str, unit: float) -> Place:
        def place(policy: str, step: int) -> float | None:
            each = mean(policy, measure)
            return None if each is None else step * each / unit

        return place

    if not setting.rates:
        def clock(policy: str, step: int) -> float | None:
            if not step:
                return 0.0
            if policy in setting.lossless:
                each = judgement.spread(setting.lossless[policy], policy, "clock")
                return each.mean * step / MS if each else None
            when = mean(policy, f"clock@{step}")
            return None if when is None else when / MS

        return [("simulated time, ms", clock)]
    found = [(f"ms at {rate.removesuffix('Gbps')} Gbps", steps_of(f"step_{rate}", MS)) for rate in RATES
             if rate in setting.rates]  # fmt: skip
    return [*found, ("MB to and from a worker", steps_of("traffic", MB))]


def _curves(panel: Axes, judgement: Judgement, setting: Setting, place: Place) -> None:
    from gradwire.analysis.plots import COLOURS, GREY

    dashes = ("-", "--", ":")
    for number, policy in enumerate((*setting.policies, *setting.lossless)):
        learner = setting.baseline if policy in setting.lossless else policy
        mine = [each for (name, arm, _), each in judgement.figures.items() if (name, arm) == (setting.name, learner)]
        looks = sorted({int(each.partition("@")[2]) for one in mine for each in one if each.startswith("accuracy@")})
        points = [(place(policy, 0), CHANCE)]
        for step in looks:
            spread = judgement.spread(setting.name, learner, f"accuracy@{step}")
            points.append((place(policy, step), spread.mean if spread else CHANCE))
        there = [(x, PERCENT * y) for x, y in points if x is not None]
        if len(there) < 2:
            continue
        panel.plot(
            [x for x, _ in there], [y for _, y in there], label=label_of(policy), linewidth=1.1,
            color=COLOURS[number % len(COLOURS)], linestyle=dashes[number // len(COLOURS) % 3],
        )  # fmt: skip
    panel.axhline(PERCENT * setting.target, color=GREY, linewidth=0.7, linestyle=":")
    panel.set_xlim(left=0)
    panel.grid(color="#E5E5E5", linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
