"""Draws maps of the share of packets lost in a ring, by sender and hop, one for each arm."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.analysis.comparison.plots import GREY, PAPER_STYLE
from gradwire.scenarios.arrays import Floats
from gradwire.studies.reproduce.lost_packets import PLACE_PREFIX
from gradwire.studies.reproduce.plots.panels import annotate, paper_figure
from gradwire.studies.reproduce.policies import label_of
from gradwire.studies.reproduce.verdicts import Judgement

PERCENT = 100.0
COLUMNS = 2
"""Maps in a row."""


def loss_map_figure(judgement: Judgement) -> Figure | None:
    """Plot a map for each arm of a ring, all with one colour scale; None if there is none."""
    seed = min((seed for _, _, seed in judgement.figures), default=0)
    maps = [
        (policy, shares, judgement.figures[setting.name, policy, seed])
        for setting in judgement.claim.settings
        for policy in setting.policies
        for shares in [map_of(judgement.figures.get((setting.name, policy, seed), {}))]
        if shares is not None and shares.shape[1] > 1
    ]
    if not maps:
        return None
    rows = -(-len(maps) // COLUMNS)
    most = max(float(shares.max()) for _, shares, _ in maps)
    with matplotlib.rc_context(PAPER_STYLE):
        figure = paper_figure(0.35 + 2.0 * rows)
        panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
        for panel, (policy, shares, figures) in zip(panels.flatten(), maps, strict=False):
            drawn = panel.imshow(PERCENT * shares, aspect="auto", cmap="Blues", vmin=0.0, vmax=PERCENT * most)
            _halves(panel, shares.shape[1] // 2)
            panel.set_title(f"{fill(label_of(policy), 46)}\n{_words(figures)}", pad=13)
        for panel in panels.flatten()[len(maps) :]:
            panel.set_visible(False)
        for panel in panels[-1]:
            panel.set_xlabel("hop")
        for panel in panels[:, 0]:
            panel.set_ylabel("sender")
            panel.set_yticks(range(maps[0][1].shape[0]))
        figure.colorbar(drawn, ax=panels, label="packets lost, %", aspect=34, fraction=0.04, pad=0.015)
        figure.supxlabel(f"mean over all steps of seed {seed}", color=GREY, fontsize=7.5)
    return figure


def map_of(figures: Mapping[str, float]) -> Floats | None:
    """Return the share lost, by sender and hop; None if unknown."""
    cells = {
        tuple(map(int, name.removeprefix(PLACE_PREFIX).split(","))): share
        for name, share in figures.items()
        if name.startswith(PLACE_PREFIX)
    }
    if not cells:
        return None
    shares = np.zeros(np.max(list(cells), axis=0) + 1)
    for place, share in cells.items():
        shares[place] = share
    return shares


def _halves(panel: Axes, hops: int) -> None:
    """Draw a line between the halves of the hops, and their names."""
    panel.axvline(hops - 0.5, color="black", linewidth=0.8)
    panel.set_xticks(range(0, 2 * hops, 2))
    for middle, words in ((0.25, "reduce-scatter"), (0.75, "all-gather")):
        annotate(panel, words, (middle, 1), "axes fraction", (0, 3), "center")


def _words(figures: Mapping[str, float]) -> str:
    """Describe the loss and its deviation from chance."""
    parts = [f"{PERCENT * figures['lost']:.2g} % lost"] if "lost" in figures else []
    parts += [f"runs {figures['runs']:.2g} × chance"] if "runs" in figures else []
    parts += [f"workers' correlation {figures['together']:.2f}"] if "together" in figures else []
    return ", ".join(parts)
