"""Compares pairs of simulated and emulated runs for `gradwire fidelity`, prints the tables and writes a folder of
report files.

fidelity.json        every figure of both runs, for programs
fidelity.csv         the judged and the reported figures, one per line
fidelity.png         see `gradwire.analysis.fidelity.fidelity_plot`
results/simulated/   the Results themselves; of several seeds results/seed-3/simulated/ and so on
results/emulated/
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from gradwire.analysis.comparison.pooled_runs import pooled
from gradwire.analysis.comparison.tables import Grid, print_grid
from gradwire.analysis.confidence_intervals import confidence_interval
from gradwire.analysis.fidelity.fidelity import Agreement, agreement, mean_completion
from gradwire.analysis.fidelity.fidelity_measure import PACKETS, Measure, relative
from gradwire.result_store.folders.output_folder import new_folder
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.readable import time_text
from gradwire.scenarios.schema.fidelity import Fidelity

HEADINGS = ["", "simulated", "emulated", "difference", "allowed", "verdict"]
RANGE_HEADING = "simulations"
"""Heading of the range of the simulations, if it is known."""
MOST_PORTS = 8
"""Ports in the table: those with the largest differences (all are in the JSON)."""


class FidelityReport(NamedTuple):
    """Comparison of a simulated and an emulated world: verdict, lines of text, and data for programs.

    `simulated`, `emulated` : the compared runs, pooled if several. `results` : each run, by the name of its folder.
    """

    passed: bool
    lines: list[str]
    data: Json
    found: Agreement
    simulated: Result
    emulated: Result
    results: dict[str, Result]


def compare_runs(
    simulated: Sequence[Result],
    emulated: Sequence[Result],
    tolerances: Fidelity,
    *,
    others: Sequence[Sequence[Result]] = (),
    quiet: bool = False,
) -> FidelityReport:
    """Compare runs of both worlds by the tolerances of their scenario: one of each, or several pairs with a seed each.

    The messages of several pairs are judged together. Prints the tables to stdout unless `quiet`; the verdict's lines
    are left to the caller.

    others : simulations that differ from `simulated` by nanoseconds only; each entry has one for each seed.

    Raises `ResultError` if there is no run, one has no partner, or several of a world have the same seed.
    """
    _paired(simulated, emulated)
    one, other = pooled(simulated), pooled(emulated)
    found = agreement(one, other, tolerances, [pooled(runs) for runs in others])
    seeds = by_seed(simulated, emulated) if len(simulated) > 1 else []
    if not quiet:
        for table in [*([seeds_grid(seeds)] if seeds else []), *fidelity_grids(found)]:
            print_grid(table)
    data = {**found.as_dict(), "seeds": seeds, "mean_difference": mean_difference(seeds)}
    results = results_of(simulated, emulated, len(simulated) > 1)
    return FidelityReport(found.is_within, found.verdicts(), data, found, one, other, results)


def _paired(simulated: Sequence[Result], emulated: Sequence[Result]) -> None:
    where = "compare_runs(simulated, emulated)"
    if not simulated or len(simulated) != len(emulated):
        counts = f"{len(simulated)} simulated and {len(emulated)} emulated"
        raise ResultError(f"runs are not in pairs: got {counts}", where, "equal numbers, at least one of each")
    seeds = [run.summary.get("seed") for run in simulated]
    if len(set(seeds)) < len(seeds):
        seed_list = ", ".join(map(str, seeds))
        raise ResultError(f"seeds are not distinct: got {seed_list}", where, "a different seed for each pair")


def results_of(simulated: Sequence[Result], emulated: Sequence[Result], several: bool) -> dict[str, Result]:
    """Return every run by the name of its folder below results/; with `several` seeds, one folder for each."""
    return {
        f"seed-{run.summary['seed']}/{world}" if several else world: run
        for world, runs in (("simulated", simulated), ("emulated", emulated))
        for run in runs
    }


def by_seed(simulated: Sequence[Result], emulated: Sequence[Result]) -> list[Json]:
    """Return, per seed, the mean completion time (ps) of what both worlds delivered, and their difference; or None."""
    rows: list[Json] = []
    for pair in zip(simulated, emulated, strict=True):
        means = mean_completion(*pair)
        sim, emu = means or (None, None)
        difference = relative(*means) if means else None
        rows.append({"seed": pair[0].summary["seed"], "sim": sim, "emu": emu, "difference": difference})
    return rows


def mean_difference(rows: Sequence[JsonView]) -> Json | None:
    """Return the mean of the seeds' differences and, with two or more, its 95 % interval; None without any."""
    known = [row["difference"] for row in rows if row["difference"] is not None]
    if not known:
        return None
    low, high = confidence_interval(known) if len(known) > 1 else (None, None)
    return {"seeds": len(known), "mean": fmean(known), "low": low, "high": high}


def seeds_grid(rows: Sequence[JsonView]) -> Grid:
    """Return the table of seeds, with the mean difference and its 95 % interval if there are two or more."""
    cells = []
    for row in rows:
        figures = ["-", "-", "none in both"]
        if row["sim"] is not None:
            figures = [time_text(row["sim"]), time_text(row["emu"]), _percent(row["difference"])]
        cells.append([str(row["seed"]), *figures])
    mean_of_seeds = mean_difference(rows)
    if mean_of_seeds is not None:
        mean, high = mean_of_seeds["mean"], mean_of_seeds["high"]
        wide = "" if high is None else f" ± {100 * (high - mean):.2f}"
        cells.append(["mean difference", "", "", f"{_percent(mean)}{wide}"])
    return Grid("mean completion time, seed by seed", ["seed", "simulated", "emulated", "difference"], cells)


def _percent(share: float | None) -> str:
    return "from none" if share is None else f"{100 * share:+.1f} %"


def fidelity_grids(agreement: Agreement) -> list[Grid]:
    """Return the tables: all figures, then the ports that differ most, then the counters by class."""
    port_names = {port["port"] for port in agreement.ports}
    scatter = any(measure.low is not None for measure in agreement.measures)
    head = [*HEADINGS[:2], RANGE_HEADING, *HEADINGS[2:]] if scatter else HEADINGS
    whole = [measure for measure in agreement.measures if _port(measure) not in port_names]
    ports = [measure for measure in agreement.measures if _port(measure) in port_names]
    ports.sort(key=lambda measure: (measure.is_within is not False, -abs(measure.emu - measure.sim)))
    tables = [
        Grid(f"{agreement.name}: simulated and emulated", head, [measure_row(measure, scatter) for measure in whole])
    ]
    if ports:
        title = "ports" if len(ports) <= MOST_PORTS else f"ports: the {MOST_PORTS} largest differences of {len(ports)}"
        tables.append(Grid(title, head, [measure_row(measure, scatter) for measure in ports[:MOST_PORTS]]))
    if agreement.classes:
        rows = []
        for row in agreement.classes:
            counts = ["unknown" if count < 0 else f"{count:,}" for count in (*row["drops"], *row["marked"])]
            rows.append([f"queue {row['priority']}", *counts])
        columns = ["", "drops sim.", "drops emu.", "marks seen sim.", "marks seen emu."]
        tables.append(Grid("by class", columns, rows))
    return tables


def write_report(shown: FidelityReport, directory: str | Path) -> Path:
    """Write everything to a new directory, which appears complete or not at all. Raises `ResultError` if it exists."""
    from gradwire.analysis.fidelity.fidelity_plot import draw_fidelity

    with new_folder(directory) as partial:
        for name, result in shown.results.items():
            result.write(partial / "results" / name)
        text = json.dumps(shown.data, indent=2, sort_keys=True)
        (partial / "fidelity.json").write_text(text + "\n", encoding="utf-8")
        rows = [measure.as_dict() for measure in shown.found.measures]
        with (partial / "fidelity.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        draw_fidelity(shown.found, shown.simulated, shown.emulated, partial / "fidelity.png")
    return Path(directory)


def _port(measure: Measure) -> str:
    return measure.where.split(",")[0] if measure.unit == PACKETS else ""


def measure_row(measure: Measure, scatter: bool) -> list[str]:
    """Return a line of the table; `scatter` : with the range of the simulations."""
    range_ = [measure.range_text()] if scatter else []
    rest = [measure.text(measure.emu), measure.difference_text(), measure.allowed_text(), measure.verdict()]
    return [measure.title, measure.text(measure.sim), *range_, *rest]
