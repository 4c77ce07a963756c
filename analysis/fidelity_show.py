"""What `gradwire fidelity` shows of two runs and leaves behind.

fidelity.json        every figure of both runs, for programs
fidelity.csv         the judged and the reported figures, one per line
fidelity.png         see `gradwire.analysis.fidelity_plot`
results/simulated/   the Results themselves; of several seeds results/seed-3/simulated/ and so on
results/emulated/
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from gradwire.analysis.claims.intervals import interval
from gradwire.analysis.fidelity import Agreement, agreement, mean_completion
from gradwire.analysis.fidelity_measure import PACKETS, Measure, relative
from gradwire.analysis.pooled import pooled
from gradwire.analysis.tables import Grid, print_grid
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.output import new_folder
from gradwire.scenarios.readable import time_text
from gradwire.scenarios.result import Result

if TYPE_CHECKING:
    from gradwire.scenarios.schema.fidelity import Fidelity

HEAD = ["", "simulated", "emulated", "difference", "allowed", "verdict"]
SCATTER = "simulations"
"""The column of what simulations differ by among themselves, where that is known."""
MOST_PORTS = 8
"""Ports shown: those with the largest differences (all are in the JSON)."""


class Shown(NamedTuple):
    """Two worlds compared: whether they agree, what to tell people about it, and everything for programs. `simulated`,
    `emulated` : what was compared, several runs pooled. `results` : each run, by the name of its folder."""

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
) -> Shown:
    """Compare runs of both worlds by the tolerances of their scenario (its `fidelity`): one of each, or several pairs
    with a seed each, whose messages are judged together.

    Prints the tables to stdout unless `quiet`; the verdict's lines are left to the caller.

    Parameters
    ----------
    others : simulations that differ from `simulated` by nanoseconds only, in each entry one for each seed.

    Raises
    ------
    ResultError
        There is no run, one has no partner, or several of a world have the same seed.
    """
    _paired(simulated, emulated)
    one, other = pooled(simulated), pooled(emulated)
    found = agreement(one, other, tolerances, [pooled(each) for each in others])
    seeds = by_seed(simulated, emulated) if len(simulated) > 1 else []
    if not quiet:
        for table in [*([seeds_grid(seeds)] if seeds else []), *grids(found)]:
            print_grid(table)
    data = {**found.as_dict(), "seeds": seeds, "mean_difference": mean_difference(seeds)}
    results = results_of(simulated, emulated, len(simulated) > 1)
    return Shown(found.passed, found.verdicts(), data, found, one, other, results)


def _paired(simulated: Sequence[Result], emulated: Sequence[Result]) -> None:
    where = "compare_runs(simulated, emulated)"
    if not simulated or len(simulated) != len(emulated):
        many = f"{len(simulated)} simulated and {len(emulated)} emulated"
        raise ResultError(f"runs are no pairs (got {many})", where, "as many of each, one at least")
    seeds = [run.summary.get("seed") for run in simulated]
    if len(set(seeds)) < len(seeds):
        given = ", ".join(map(str, seeds))
        raise ResultError(f"seeds are no different ones (got {given})", where, "a seed for each pair")


def results_of(simulated: Sequence[Result], emulated: Sequence[Result], several: bool) -> dict[str, Result]:
    """Every run by the name of its folder below results/, where those of `several` seeds have one for each."""
    return {
        f"seed-{run.summary['seed']}/{world}" if several else world: run
        for world, runs in (("simulated", simulated), ("emulated", emulated))
        for run in runs
    }


def by_seed(simulated: Sequence[Result], emulated: Sequence[Result]) -> list[Json]:
    """Mean completion time of what both worlds delivered under each seed, in ps, and how far they are apart; None where
    that is nothing."""
    rows: list[Json] = []
    for pair in zip(simulated, emulated, strict=True):
        means = mean_completion(*pair)
        sim, emu = means or (None, None)
        difference = relative(*means) if means else None
        rows.append({"seed": pair[0].summary["seed"], "sim": sim, "emu": emu, "difference": difference})
    return rows


def mean_difference(rows: Sequence[JsonView]) -> Json | None:
    """What the seeds that say something say together: the mean of their differences, and its 95 % interval if they are
    two or more; None where none says anything."""
    known = [row["difference"] for row in rows if row["difference"] is not None]
    if not known:
        return None
    low, high = interval(known) if len(known) > 1 else (None, None)
    return {"seeds": len(known), "mean": fmean(known), "low": low, "high": high}


def seeds_grid(rows: Sequence[JsonView]) -> Grid:
    """Every seed, and what they say together of the mean difference: its 95 % interval, if two or more can say
    something."""
    cells = []
    for row in rows:
        seed, sim = str(row["seed"]), row["sim"]
        nothing = [seed, "-", "-", "none in both"]
        cells.append(
            nothing if sim is None else [seed, time_text(sim), time_text(row["emu"]), _percent(row["difference"])]
        )
    together = mean_difference(rows)
    if together is not None:
        mean, high = together["mean"], together["high"]
        wide = "" if high is None else f" ± {100 * (high - mean):.2f}"
        cells.append(["mean difference", "", "", f"{_percent(mean)}{wide}"])
    return Grid("mean completion time, seed by seed", ["seed", "simulated", "emulated", "difference"], cells)


def _percent(share: float | None) -> str:
    return "from none" if share is None else f"{100 * share:+.1f} %"


def grids(found: Agreement) -> list[Grid]:
    """The tables: all figures, then the ports that differ most, then what is known by class."""
    single = {port["port"] for port in found.ports}
    scatter = any(each.low is not None for each in found.measures)
    head = [*HEAD[:2], SCATTER, *HEAD[2:]] if scatter else HEAD
    whole = [each for each in found.measures if _port(each) not in single]
    ports = [each for each in found.measures if _port(each) in single]
    ports.sort(key=lambda each: (each.passed is not False, -abs(each.emu - each.sim)))
    tables = [Grid(f"{found.name}: simulated and emulated", head, [measure_row(each, scatter) for each in whole])]
    if ports:
        title = (
            "ports"
            if len(ports) <= MOST_PORTS
            else f"ports, the {MOST_PORTS} largest differences of {len(ports)}"
        )
        tables.append(Grid(title, head, [measure_row(each, scatter) for each in ports[:MOST_PORTS]]))
    if found.classes:
        rows = [
            [
                f"queue {row['priority']}",
                *(_many(row[what][side]) for what in ("drops", "marked") for side in (0, 1)),
            ]
            for row in found.classes
        ]
        columns = ["", "drops sim.", "drops emu.", "marks seen sim.", "marks seen emu."]
        tables.append(Grid("by class", columns, rows))
    return tables


def write(shown: Shown, directory: str | Path) -> Path:
    """Everything to a new directory, which appears complete or not at all. Raises `ResultError` if there is one."""
    from gradwire.analysis.fidelity_plot import draw_fidelity

    with new_folder(directory) as partial:
        for name, result in shown.results.items():
            result.write(partial / "results" / name)
        text = json.dumps(shown.data, indent=2, sort_keys=True)
        (partial / "fidelity.json").write_text(text + "\n", encoding="utf-8")
        rows = [each.as_dict() for each in shown.found.measures]
        with (partial / "fidelity.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        draw_fidelity(shown.found, shown.simulated, shown.emulated, partial / "fidelity.png")
    return Path(directory)


def _port(measure: Measure) -> str:
    return measure.where.split(",")[0] if measure.unit == PACKETS else ""


def measure_row(measure: Measure, scatter: bool) -> list[str]:
    """A line of the table; `scatter`: with what simulations differ by."""
    range_ = [measure.range_text()] if scatter else []
    rest = [measure.text(measure.emu), measure.difference_text(), measure.allowed_text(), measure.verdict()]
    return [measure.title, measure.text(measure.sim), *range_, *rest]


def _many(count: int) -> str:
    return "unknown" if count < 0 else f"{count:,}"
