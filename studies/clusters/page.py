"""Presents measured clusters beside the model as one page: errors, misses with their reasons, constants, every row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import numpy as np

from gradwire.analysis.comparison.tables import Grid
from gradwire.analysis.report import html_page as html
from gradwire.analysis.report.charts import Axis, Lines, Series
from gradwire.result_store.folders.output_folder import atomic_replace
from gradwire.scenarios.units import format_size
from gradwire.studies.clusters.fit import ACCELERATOR_RANGES, FABRIC_RANGES
from gradwire.studies.clusters.leave_out import Errors, Judged, errors_of, remark_on
from gradwire.studies.clusters.measurements import ONE_HOST
from gradwire.studies.clusters.simai_ratio import ratio_grid
from gradwire.studies.clusters.study import Study, as_dict, constants_toml, omission, verdict_lines

HEAD = ["rows >= 1 MiB", "busbw error, median", "95th percentile", "rows < 1 MiB", "within 1.5x", "median factor"]


def study_page(study: Study) -> str:
    """Return the page."""
    title = "Measured clusters and the model of bus bandwidth"
    summary = html.PageSection("Outcome", "summary", verdict_lines(study)[0])
    summary.add(html.bullet_list(verdict_lines(study)[1:]))
    summary.add(
        html.grid(_errors_grid("by fabric class, its clusters left out one by one", study.by_cluster, "fabric_class"))
    )
    summary.add(html.grid(_errors_grid("by fabric class, the whole class left out", study.by_fabric, "fabric_class")))
    clusters = html.PageSection(
        "Clusters", "errors", "Each cluster by constants fitted without it; large misses have a reason."
    )
    clusters.add(html.grid(_errors_grid("by cluster", study.by_cluster, "cluster")))
    clusters.add(html.grid(_reasons(study), words=True), html.grid(_omitted(study), words=True))
    one_host = [each for each in study.inside if each.sweep.fabric_class == ONE_HOST]
    if one_host:
        clusters.add(html.grid(_errors_grid("inside one host, by the fit itself (not left out)", one_host, "cluster")))
    constants = html.PageSection("Constants", "fit", "Fitted to all clusters: the defaults of the presets.")
    constants.add(html.grid(_fabrics(study)), html.grid(_accelerators(study)))
    other = html.PageSection("SimAI's ratios", "published", "aliyun/SimAI publishes ratios of unstated origin.")
    other.add(html.grid(ratio_grid()))
    rows = html.PageSection("Rows", "data", "Every judged size: measured beside predicted without the cluster.")
    for name in study.clusters:
        rows.add(html.heading(name))
        for each in study.by_cluster:
            if each.sweep.cluster == name:
                rows.add(_sweep_chart(each), html.collapsible("all sizes", html.grid(_rows(each))))
    return html.html_page(title, [summary, clusters, constants, other, rows], "gradwire reproduce clusters")


def _errors_grid(title: str, judged: Sequence[Judged], key: str) -> Grid:
    groups: dict[str, list[Judged]] = {}
    for each in judged:
        groups.setdefault(getattr(each.sweep, key), []).append(each)
    rows = [[name, *_cells(errors_of(members))] for name, members in sorted(groups.items())]
    return Grid(title, [key.replace("_", " "), *HEAD], [*rows, ["all", *_cells(errors_of(judged))]])


def _cells(found: Errors) -> list[str]:
    shares = (found.median, found.p95, found.within)
    median, p95, within = (f"{100 * value:.1f} %" if isfinite(value) else "" for value in shares)
    factor = f"{found.factor:.2f}" if isfinite(found.factor) else ""
    return [str(found.large), median, p95, str(found.small), within, factor]


def _reasons(study: Study) -> Grid:
    rows = [[name, reason] for name in study.clusters if (reason := remark_on(name))]
    return Grid("what is known of misses", ["cluster", "reason"], rows)


def _omitted(study: Study) -> Grid:
    rows = [[name, str(count), omission(name)] for name, count in sorted(study.omitted.items())]
    return Grid("rows on several hosts that are not judged", ["cluster", "rows", "reason"], rows)


def _fabrics(study: Study) -> Grid:
    names = list(FABRIC_RANGES)
    rows = [
        [name, *(f"{getattr(constants, key):.4g}" for key in names)]
        for name, constants in sorted(study.fitted.fabrics.items())
        if name != ONE_HOST
    ]
    return Grid("by fabric class", ["class", *names], rows)


def _accelerators(study: Study) -> Grid:
    names = list(ACCELERATOR_RANGES)
    rows = [
        [name, *(f"{getattr(constants, key):.4g}" for key in names)]
        for name, constants in sorted(study.fitted.accelerators.items())
    ]
    return Grid("by accelerator", ["accelerator", *names], rows)


def _sweep_chart(judged: Judged) -> str:
    sweep = judged.sweep
    title = f"{sweep.collective}, {sweep.hosts} hosts, {sweep.ranks} ranks"
    spread = (
        f" Repeated {sweep.repeats} times: largest over smallest time {sweep.spread:.2f}." if sweep.repeats > 1 else ""
    )
    says = f"{sweep.library} {sweep.setting}. {sweep.source}.{spread}"
    measured = tuple(zip(sweep.size.tolist(), sweep.busbw.tolist(), strict=True))
    predicted = tuple(zip(sweep.size.tolist(), judged.predicted_busbw.tolist(), strict=True))
    series = (Series("measured", measured, dots=True, line=False), Series("predicted", predicted))
    return html.chart(Lines(title, says, Axis("size (bytes)", "log"), Axis("busbw (GB/s)"), series))


def _rows(judged: Judged) -> Grid:
    sweep = judged.sweep
    columns = (sweep.size, sweep.time_us, judged.predicted_us, sweep.busbw, judged.predicted_busbw)
    rows = [
        [
            format_size(int(size)),
            f"{time:.4g}",
            f"{guess:.4g}",
            f"{busbw:.4g}",
            f"{other:.4g}",
            f"{guess / time:.2f}",
            name,
        ]
        for size, time, guess, busbw, other, name in zip(
            *(np.asarray(c) for c in columns), judged.algorithms, strict=True
        )
    ]
    head = ["size", "measured (us)", "predicted (us)", "measured busbw", "predicted busbw", "time ratio", "chosen"]
    return Grid("", head, rows)


def write_study(study: Study, folder: Path) -> None:
    """Write page.html, clusters.json and constants.toml into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "page.html": study_page(study),
        "clusters.json": json.dumps(as_dict(study)),
        "constants.toml": constants_toml(study),
    }
    for name, text in files.items():
        with atomic_replace(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
