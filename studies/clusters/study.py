"""`run_study` fits the model to measured clusters, judges it on those left out, and writes one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from math import isfinite
from pathlib import Path

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.loading.toml import write_toml
from gradwire.studies.clusters.fit import ACCELERATOR_RANGES, Fitted, fit, fitted_names
from gradwire.studies.clusters.leave_out import Errors, Judged, errors_of, judge, leave_out, modelled, remark_on
from gradwire.studies.clusters.measurements import ONE_HOST, Sweep, read_measurements, sweeps_of

OnProgress = Callable[[float, str], object]
JSON_KEYS = ("cluster", "fabric_class", "collective", "setting", "hosts")
MEDIAN_BAR, P95_BAR = 0.10, 0.30
"""Goals for the bus bandwidth of clusters left out, from 1 MiB on: median and 95th percentile of the error."""


@dataclass(frozen=True)
class Study:
    """Outcome of a study.

    source : the data. fitted : constants fitted to all clusters. inside : all sweeps, judged by these. by_cluster,
    by_fabric : sweeps on several hosts, judged by constants fitted without their cluster, or without all clusters of
    their fabric class. omitted : rows by cluster that the model does not cover.
    """

    source: str
    fitted: Fitted
    inside: tuple[Judged, ...]
    by_cluster: tuple[Judged, ...]
    by_fabric: tuple[Judged, ...]
    omitted: dict[str, int]

    @property
    def clusters(self) -> list[str]:
        """Names of the judged clusters."""
        return list(dict.fromkeys(each.sweep.cluster for each in self.by_cluster))

    def median_over_clusters(self) -> float:
        """Return the median over clusters of their median busbw errors."""
        medians = sorted(
            value
            for name in self.clusters
            if isfinite(value := errors_of([each for each in self.by_cluster if each.sweep.cluster == name]).median)
        )
        middle = len(medians) // 2
        if not medians:
            return float("nan")
        return medians[middle] if len(medians) % 2 else (medians[middle - 1] + medians[middle]) / 2


def bundled_measurements() -> Path:
    """Return the file of measurements from openly licensed sources."""
    return Path(str(resources.files("gradwire.studies.clusters") / "measurements.csv"))


def study(path: Path | None = None, on_progress: OnProgress | None = None) -> Study:
    """Fit and judge the measurements of a file, or the bundled ones. Raises ScenarioError if it cannot be read."""
    show = on_progress or (lambda share, words: None)
    file = path or bundled_measurements()
    rows = read_measurements(file)
    show(0.0, "fit to all clusters")
    sweeps = [each for each in modelled(sweeps_of(rows, str(file))) if each.hosts > 1 or each.host.gpus == 8]
    fitted = fit(sweeps)
    parts = (
        tuple(leave_out(sweeps, fitted, key, _part(show, begin, end)))
        for key, begin, end in ((_cluster, 0.1, 0.7), (_fabric, 0.7, 1.0))
    )
    by_cluster, by_fabric = parts
    omitted: dict[str, int] = {}
    for row in rows:
        if row["nodes"] != "1" and (remark_on(row["cluster"], "omitted") or row["collective"] == "ib_write_bw"):
            omitted[row["cluster"]] = omitted.get(row["cluster"], 0) + 1
    return Study(file.name, fitted, tuple(judge(sweeps, fitted)), by_cluster, by_fabric, omitted)


def _cluster(sweep: Sweep) -> str:
    return sweep.cluster


def _fabric(sweep: Sweep) -> str:
    return sweep.fabric_class


def _part(show: OnProgress, begin: float, end: float) -> OnProgress:
    return lambda share, words: show(begin + share * (end - begin), words)


def constants_toml(study: Study) -> str:
    """Return the fitted constants as TOML, with the spread of the errors of their classes."""
    tables: Json = {"fabric": {}, "accelerator": {}}
    for name, constants in sorted(study.fitted.fabrics.items()):
        if name != ONE_HOST:
            found = errors_of([each for each in study.by_cluster if each.sweep.fabric_class == name])
            tables["fabric"][name] = {key: getattr(constants, key) for key in fitted_names(name)}
            tables["fabric"][name] |= {"error_median": round(found.median, 3), "error_p95": round(found.p95, 3)}
    for name, constants in sorted(study.fitted.accelerators.items()):
        tables["accelerator"][name] = {key: getattr(constants, key) for key in ACCELERATOR_RANGES}
    head = (
        "# Constants fitted by `gradwire reproduce clusters` to public measurements (docs/collective.md).\n"
        "# error_...: of the bus bandwidth from 1 MiB on, for clusters of the class that were left out of the fit.\n\n"
    )
    return head + write_toml(tables)


def verdict_lines(study: Study) -> list[str]:
    """Return the outcome in sentences."""
    one, other = errors_of(study.by_cluster), errors_of(study.by_fabric)
    lines = [
        f"Data: {study.source}; {len(study.clusters)} clusters of several hosts, each judged by a fit without it.",
        _sentence("Leave one cluster out", one),
        f"Median over clusters of their median errors: {_percent(study.median_over_clusters())}.",
        _sentence("Leave one fabric class out", other),
        f"Goals [ours]: median {_percent(MEDIAN_BAR)}: {_reached(one.median, MEDIAN_BAR)}; 95th percentile "
        f"{_percent(P95_BAR)}: {_reached(one.p95, P95_BAR)}.",
    ]
    for name in sorted({each.sweep.fabric_class for each in study.by_cluster}):
        lines.append(
            _sentence(f"Class {name}", errors_of([e for e in study.by_cluster if e.sweep.fabric_class == name]))
        )
    return lines


def _sentence(title: str, found: Errors) -> str:
    parts = []
    if found.large:
        median, p95 = _percent(found.median), _percent(found.p95)
        parts.append(f"busbw error from 1 MiB on: median {median}, 95th percentile {p95} ({found.large} rows)")
    if found.small:
        within = f"{100 * found.within:.0f} % of {found.small} rows"
        parts.append(f"times below 1 MiB: {within} within a factor of 1.5, median factor {found.factor:.2f}")
    return f"{title}: {'; '.join(parts) or 'no rows'}."


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if isfinite(value) else "none"


def _reached(value: float, goal: float) -> str:
    return "reached" if value <= goal else "not reached"


def as_dict(study: Study) -> Json:
    """Return plain values for JSON, every row included."""
    return {
        "format": 1,
        "source": study.source,
        "verdict": verdict_lines(study),
        "cluster_left_out": _clean(asdict(errors_of(study.by_cluster))),
        "fabric_left_out": _clean(asdict(errors_of(study.by_fabric))),
        "omitted": [
            {"cluster": name, "rows": rows, "reason": omission(name)} for name, rows in sorted(study.omitted.items())
        ],
        "sweeps": [
            {
                **{
                    key: getattr(each.sweep, key)
                    for key in ("cluster", "fabric_class", "collective", "setting", "hosts")
                },
                "ranks": each.sweep.ranks,
                "source": each.sweep.source,
                "size": each.sweep.size.tolist(),
                "measured_us": each.sweep.time_us.tolist(),
                "predicted_us": [round(value, 3) for value in each.predicted_us.tolist()],
                "algorithms": list(each.algorithms),
            }
            for each in study.by_cluster
        ],
    }


def omission(cluster: str) -> str:
    """Return the reason for which a cluster, or its rows of a tool, is not judged."""
    return remark_on(cluster, "omitted") or "perftest between two NICs: no collective"


def _clean(values: Json) -> Json:
    return {key: value if not isinstance(value, float) or isfinite(value) else None for key, value in values.items()}
