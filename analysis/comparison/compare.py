"""`compare` measures several Results; `Comparison` prints their metrics side by side and writes report, tables, figures
and Results.

`Comparison.write` makes these files; the directory appears complete or not at all:

    report.md               the compared runs, the table, the conclusions from the figures, and a list of the files
    comparison.json         all metrics and the violated bounds, for programs
    comparison.csv          the same metrics, one line per run and job; comparison.parquet with types
    report.html             the same as one page, if requested
    flows.csv               completion times and slowdowns of traffic by size, if there is any
    *.png (*.pdf, *.svg)    see `gradwire.analysis.comparison.plots`
    results/<policy>/       the Results themselves, for `gradwire compare` and for a closer look
"""

from __future__ import annotations

import csv
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.analysis import figure_files
from gradwire.analysis.comparison.detailed_metrics import DetailedMetrics, detail_rows, detailed_metrics
from gradwire.analysis.comparison.scenario_diff import scenario_differences
from gradwire.analysis.comparison.tables import (
    WIDTH,
    MetricsTable,
    headings,
    html_table,
    print_rows,
    run_tables,
    shown_entries,
    whole_networks,
)
from gradwire.analysis.flows import flow_blocks, flow_times, write_flows
from gradwire.analysis.metrics import DROPS, Metrics, Times, measure, ran_on
from gradwire.result_store.digest import content_digest
from gradwire.result_store.folders.output_folder import new_folder
from gradwire.result_store.loss_bound_check import Unsound, check_loss_invariant
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import as_pandas
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import time_text
from gradwire.scenarios.terminal_text import printable

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.figure import Figure

    from gradwire.analysis.breakdown.breakdown import Breakdown
    from gradwire.analysis.verdict.bottleneck import Evidence
    from gradwire.analysis.verdict.verdict import Verdict

FORMAT = 2
"""Version of comparison.json."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results and the figures computed from them.

    results : in the order of display.
    metrics : one entry per job of each Result, in the same order.
    violations : every broken loss bound of every Result.
    breakdowns : of the iterations of each Result, in the same order; None unless requested.
    other_seeds : runs of the same scenarios with further seeds. Tables leave them out; verdicts count them.
    """

    results: list[Result]
    metrics: list[list[Metrics]]
    violations: list[Unsound]
    breakdowns: list[Breakdown] | None = None
    other_seeds: list[Result] = field(default_factory=list)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The evidence on the bottleneck of each run, as far as it is known or quickly computed."""
        from gradwire.analysis.verdict.bottleneck import evidence_of

        breakdowns = self.breakdowns or repeat(None)
        return [evidence_of(result, parts) for result, parts in zip(self.results, breakdowns, strict=False)]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each job: its bottleneck and its fastest run; none for traffic alone."""
        if not any(entry.iteration.count for entry in self.flat):
            return []
        from gradwire.analysis.verdict.verdict import verdicts

        return verdicts(self.results, self.metrics, self.evidence, self.other_seeds)

    @property
    def flat(self) -> list[Metrics]:
        """The metrics of all runs, jobs and traffic in one list."""
        return [entry for entries in self.metrics for entry in entries]

    @property
    def tables(self) -> list[MetricsTable]:
        """The tables of jobs (or else of traffic) and, if it is not the same, of the network."""
        return run_tables(self.metrics)

    @property
    def shown(self) -> list[Metrics]:
        """The columns of the first table: the jobs, or else the traffic. Flows have separate tables."""
        return shown_entries(self.metrics)

    @property
    def differences(self) -> list[str]:
        """Differences other than policy: one sentence per Result with another network, job or traffic."""
        return scenario_differences(self.results, headings(whole_networks(self.metrics)))

    @cached_property
    def identical(self) -> list[str]:
        """Groups of runs with byte-identical Results, one sentence per group."""
        groups: dict[str, list[str]] = {}
        if len(self.results) > 1:
            for result in self.results:
                groups.setdefault(content_digest(result), []).append(str(result.summary["policy"]))
        return [f"{' and '.join(names)}: the same Result, to the byte" for names in groups.values() if len(names) > 1]

    @property
    def title(self) -> str:
        """The names of the scenarios."""
        return ", ".join(dict.fromkeys(entry.name for entry in self.flat))

    @property
    def cut_short(self) -> list[str]:
        """Names of the runs that reached their wall-clock limit, a limit which is not part of the scenario."""
        return [
            f"{result.summary['name']} {result.summary['policy']}, at "
            f"{time_text(result.summary['totals']['simulated_ps'])} of "
            f"{'simulated time' if ran_on(result)[0] == 'simulated' else 'the run'}"
            for result in self.results
            if result.summary.get("totals", {}).get("ended_by") == "max_wall"
        ]

    def __repr__(self) -> str:
        sound = f"{len(self.violations)} loss bounds broken" if self.violations else "every loss bound held"
        return f"<Comparison of {len(self.results)} runs: {' | '.join(headings(self.flat))}; {sound}>"

    def _repr_html_(self) -> str:
        """Return the notebook view: the tables and notes that the command line prints."""
        tables = [html_table(self.title + table.title, table.names, table.rows) for table in self.tables]
        for traffic, names, rows in flow_blocks(self.results, self.metrics):
            tables.append(html_table(f"{self.title}: flows of {traffic}", names, rows))
        notes = [f"<p>note: {escape(note)}</p>" for note in self._notes]
        return "".join([*(f"<p><b>{escape(each.text)}</b></p>" for each in self.verdicts), *tables, *notes])

    @property
    def _notes(self) -> list[str]:
        """Sentences below the tables."""
        seeds = sorted({int(result.summary.get("seed", 0)) for result in self.other_seeds})
        first = sorted({int(result.summary.get("seed", 0)) for result in self.results})
        of_seeds = [f"tables show seed {first[0]}; the verdict covers seeds {first[0]} to {seeds[-1]}"] if seeds else []
        return [*of_seeds, *self.differences, *self.identical]

    @property
    def table(self) -> pyarrow.Table:
        """One row per run and job, with the columns of comparison.csv; missing values are null."""
        return rows_table(self.flat)

    def to_pandas(self) -> pandas.DataFrame:
        """Return `table` as a pandas DataFrame. Raises MissingExtraError if pandas is not installed."""
        return as_pandas(self.table)

    def plot(self) -> dict[str, Figure]:
        """Return the figures that `write` draws, by name, if there is data for them."""
        from gradwire.analysis.comparison.plots import breakdown_figure, figures

        drawn = figures(self.results, self.metrics)
        if self.breakdowns is not None and (parts := breakdown_figure(headings(self.flat), self.means)) is not None:
            drawn["breakdown"] = parts
        return drawn

    @property
    def means(self) -> list[dict[str, float]]:
        """Mean picoseconds of the parts of an iteration, for every entry of `flat`; empty for traffic."""
        parts = zip(self.breakdowns or [], self.metrics, strict=True)
        return [parts_of_run.means(entry.job) for parts_of_run, entries in parts for entry in entries]

    @cached_property
    def details(self) -> list[list[DetailedMetrics]]:
        """Further figures that explain `metrics`, in the same order."""
        return [
            [detailed_metrics(result, entry.job) for entry in entries]
            for result, entries in zip(self.results, self.metrics, strict=True)
        ]

    def print(self, details: bool = False) -> None:
        """Print the verdict and the tables to stdout; with `details` also the one that explains them."""
        for verdict in self.verdicts:
            print(textwrap.fill(printable(verdict.text), WIDTH, break_on_hyphens=False), end="\n\n")
        for table in self.tables:
            print_rows(table.names, table.rows, self.title + table.title)
        for traffic, names, rows in flow_blocks(self.results, self.metrics):
            print_rows(names, rows, f"{self.title}: flows of {traffic}")
        if details:
            flat = [entry for entries in self.details for entry in entries]
            print_rows(headings(self.flat), detail_rows(flat), f"{self.title}: details")
        if self.breakdowns is not None:
            from gradwire.analysis.breakdown.breakdown import breakdown_rows

            shown = [(name, mean) for name, mean in zip(headings(self.flat), self.means, strict=True) if mean]
            rows = breakdown_rows([mean for _, mean in shown])
            print_rows([name for name, _ in shown], rows, f"{self.title}: breakdown of the mean iteration")
        for text in self._notes:
            print(f"note: {text}")

    def as_dict(self) -> Json:
        """Return everything as plain values for JSON, times in picoseconds."""
        return {
            "format": FORMAT,
            "name": self.title,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "sound": not self.violations,
            "violations": [violation._asdict() for violation in self.violations],
            "differences": self.differences,
            "identical": self.identical,
            "runs": [
                {
                    "summary": result.summary,
                    "timing": result.timing,
                    "jobs": [entry.as_dict() for entry in entries],
                    "details": [entry.as_dict() for entry in details],
                    **({} if self.breakdowns is None else {"breakdown": self.breakdowns[number].as_dict()}),
                    "flows": [times.as_dict() for entry in entries for times in flow_times(result, entry.job)],
                }
                for number, (result, entries, details) in enumerate(
                    zip(self.results, self.metrics, self.details, strict=True)
                )
            ],
        }

    def write(self, directory: str | Path, plots: str = "png", page: bool = False) -> Path:
        """Write report, metrics, figures and Results to a new directory; with `page` also one HTML page.

        `plots` : format of the figures, one of `gradwire.analysis.figure_files.PLOT_FORMATS`.
        Raises `ResultError` if the directory exists or cannot be written.
        """
        from gradwire.analysis.comparison.markdown_report import HTML_PAGE, report

        figure_files.check_plots(plots, "plots")
        with new_folder(directory) as partial:
            folders = result_folders(self.results)
            everything = [*self.results, *self.other_seeds]
            for result, folder in zip(everything, result_folders(everything), strict=True):
                result.write(partial / "results" / folder)
            figures = json.dumps({**self.as_dict(), "folders": folders}, indent=2, sort_keys=True)
            (partial / "comparison.json").write_text(figures + "\n", encoding="utf-8")
            write_rows(self.flat, partial)
            write_flows(self.results, self.metrics, partial)
            pictures = figure_files.save_all(self.plot(), partial, plots)
            if page:
                from gradwire.analysis.report.run_sections import comparison_page

                paths = [str(Path(directory) / "results" / folder) for folder in folders]
                (partial / HTML_PAGE).write_text(comparison_page(self, paths), encoding="utf-8")
            text = report(self, [picture.name for picture in pictures], folders, HTML_PAGE if page else "")
            (partial / "report.md").write_text(text, encoding="utf-8")
        return Path(directory)

    def write_alone(self, directory: str | Path, plots: str) -> Path:
        """Write the only Result to a new directory, as `Result.write`, with figures in the format `plots`."""
        figure_files.check_plots(plots, "plots")
        (result,) = self.results
        with new_folder(directory) as partial:
            inner = result.write(partial / "result")
            for path in inner.iterdir():
                path.rename(partial / path.name)
            inner.rmdir()
            figure_files.save_all(self.plot(), partial, plots)
        return Path(directory)


def compare(results: Sequence[Result], parts: bool = False, other_seeds: Sequence[Result] = ()) -> Comparison:
    """Measure Results and check the loss bound of every message in them; with `parts`, break down their iterations too.
    `other_seeds` are runs of the same scenarios with further seeds, for the verdict. Raises `ResultError` if a
    breakdown is requested and impossible (`gradwire.analysis.breakdown.breakdown`)."""
    violations = [violation for result in [*results, *other_seeds] for violation in check_loss_invariant(result)]
    breakdowns = None
    if parts:
        from gradwire.analysis.breakdown.breakdown import breakdown

        breakdowns = [breakdown(result) for result in results]
    metrics = [measure(result) for result in results]
    return Comparison(list(results), metrics, violations, breakdowns, list(other_seeds))


def result_folders(results: Sequence[Result]) -> list[str]:
    """Return a folder name per Result: its policy, with scenario and platform if they vary, numbered if still equal."""
    several = len({result.summary.get("name") for result in results}) > 1
    mixed = len({ran_on(result)[0] for result in results}) > 1
    folders: list[str] = []
    for result in results:
        policy, name = result.summary.get("policy", "result"), result.summary.get("name", "")
        words = [name] * several + [str(policy)] + [ran_on(result)[0]] * mixed
        plain = re.sub(r"[^\w.+-]+", "_", "-".join(words)).strip(".") or "result"
        folder, number = plain, 2
        while folder in folders:
            folder, number = f"{plain}-{number}", number + 1
        folders.append(folder)
    return folders


def flat_row(metrics: Metrics, heading: str) -> Json:
    """Return one line of comparison.csv: nested metrics become columns such as `push_p99_ps`."""
    row: Json = {
        "run": heading,
        "name": metrics.name,
        "policy": metrics.policy,
        "job": metrics.job,
        "ran_on": ", ".join(metrics.ran_on),
        "disturbed": metrics.disturbed,
        "finished": metrics.finished,
        "ended_by": metrics.ended_by,
        "iterations": metrics.steady.count,
        "first_iteration": metrics.steady.first,
        "last_iteration": metrics.steady.last,
        **_times_columns("iteration", "samples", metrics.iteration),
        "exposed_mean_ps": metrics.exposed.mean_ps,
        "exposed_share": metrics.exposed_share,
    }
    for kind, times in metrics.completion.items():
        row |= _times_columns(kind, "messages", times)
    for name in (
        "under_way", *DROPS, "marks", "control_marks", "trimmed", "pauses", "retransmitted", "sent_packets",
        "data_packets", "packet_hops", "hops_simulated", "hops_per_s", "simulated_ps",
    ):  # fmt: skip
        row[name] = getattr(metrics, name)
    loss = metrics.loss
    return row | {
        "worst_message": loss.message,
        "worst_lost_bytes": loss.lost_bytes,
        "worst_allowed_bytes": loss.allowed_bytes,
        "worst_bytes": loss.bytes,
        "worst_share": loss.share,
        "lost_bytes": loss.total_bytes,
        "lost_share": loss.total_share,
    }


def _times_columns(prefix: str, counted: str, times: Times) -> Json:
    return {f"{prefix}_{counted if name == 'count' else name}": value for name, value in vars(times).items()}


def rows_table(metrics_list: Sequence[Metrics]) -> pyarrow.Table:
    """Return a table with one row per entry; missing values, such as a kind of message, are null."""
    import pyarrow

    rows = [flat_row(metrics, name) for metrics, name in zip(metrics_list, headings(metrics_list), strict=True)]
    columns = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: [row.get(name) for row in rows] for name in columns})


def write_rows(metrics_list: Sequence[Metrics], directory: Path) -> None:
    """Write comparison.csv and comparison.parquet."""
    import pyarrow.parquet

    table = rows_table(metrics_list)
    with (directory / "comparison.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table.column_names)
        writer.writeheader()
        writer.writerows(table.to_pylist())
    pyarrow.parquet.write_table(table, directory / "comparison.parquet")
