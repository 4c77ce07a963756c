"""What `gradwire fidelity` shows of two runs and leaves behind.

fidelity.json        every figure of both runs, for programs
fidelity.csv         the judged and the reported figures, one per line
fidelity.png         see `gradwire.analysis.fidelity_plot`
results/simulated/   the Results themselves
results/emulated/
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradwire.analysis.fidelity import Agreement, agreement
from gradwire.analysis.fidelity_measure import PACKETS, Measure
from gradwire.analysis.tables import Grid, print_grid
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.output import new_folder
from gradwire.scenarios.result import Result

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

HEAD = ["", "simulated", "emulated", "difference", "allowed", "verdict"]
SCATTER = "simulations"
"""The column of what simulations differ by among themselves, where that is known."""
MOST_PORTS = 8
"""Ports shown: those with the largest differences (all are in the JSON)."""


class Shown(NamedTuple):
    """Whether the runs agree, what to tell people about it, and everything for programs."""

    passed: bool
    lines: list[str]
    data: Json
    found: Agreement


def show_fidelity(
    sim: Result,
    emu: Result,
    scenario: Scenario,
    *,
    others: Sequence[Result] = (),
    quiet: bool = False,
    out: str | Path | None = None,
) -> Shown:
    """Compare a simulated and an emulated run by the tolerances of their scenario.

    Prints the tables to stdout unless `quiet`; the verdict's lines are left to the caller. `out`: a new directory for
    what the module's docstring lists. Raises `ResultError` if it exists already.
    """
    found = agreement(sim, emu, scenario.fidelity, others)
    if not quiet:
        for table in grids(found):
            print_grid(table)
    if out is not None:
        write(found, sim, emu, out)
    return Shown(found.passed, found.verdicts(), found.as_dict(), found)


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


def write(found: Agreement, sim: Result, emu: Result, directory: str | Path) -> Path:
    """Everything to a new directory, which appears complete or not at all."""
    from gradwire.analysis.fidelity_plot import draw_fidelity

    with new_folder(directory) as partial:
        sim.write(partial / "results" / "simulated")
        emu.write(partial / "results" / "emulated")
        text = json.dumps(found.as_dict(), indent=2, sort_keys=True)
        (partial / "fidelity.json").write_text(text + "\n", encoding="utf-8")
        rows = [each.as_dict() for each in found.measures]
        with (partial / "fidelity.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        draw_fidelity(found, sim, emu, partial / "fidelity.png")
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
