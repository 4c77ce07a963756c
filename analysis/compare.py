"""compare: several Results side by side, as a table, files and a short report.

What `Comparison.write` leaves behind:

    report.md               what was compared, the table, what the figures say, and what each file is
    comparison.json         all metrics and the violated bounds, for programs
    comparison.csv          the same metrics, one line per run and job; comparison.parquet with types
    report.html             the same as one file to open, if it was asked for
    flows.csv               completion times and slowdowns of traffic by size, if there is any
    *.png (*.pdf, *.svg)    see `gradwire.analysis.plots`
    results/<policy>/       the Results themselves, for `gradwire compare` and for a closer look

The directory appears complete or not at all.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.analysis.detail import Detail, detail, detail_rows
from gradwire.analysis.figures import check_plots
from gradwire.analysis.flows import flow_blocks, flow_times, write_flows
from gradwire.analysis.metrics import DROPS, Metrics, measure, ran_on
from gradwire.analysis.tables import (
    Table,
    headings,
    html_table,
    print_rows,
    run_tables,
    shown_entries,
    whole_networks,
)
from gradwire.analysis.unlike import differences
from gradwire.scenarios.content import content_digest
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.output import new_folder
from gradwire.scenarios.readable import time_text
from gradwire.scenarios.result import Result, as_pandas
from gradwire.scenarios.soundness import Unsound, check_loss_invariant

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.figure import Figure

    from gradwire.analysis.breakdown import Breakdown

FORMAT = 2
"""Version of comparison.json."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results and what was computed from them.

    Attributes
    ----------
    results : in the order in which they are shown.
    metrics : one entry per job of each Result, in the same order.
    violations : every broken loss bound of every Result; none if all is well.
    breakdowns : what the iterations of each Result were spent on, in the same order; None unless it was asked for.
    """

    results: list[Result]
    metrics: list[list[Metrics]]
    violations: list[Unsound]
    breakdowns: list[Breakdown] | None = None

    @property
    def flat(self) -> list[Metrics]:
        """The metrics of all runs, jobs and traffic in one list."""
        return [entry for entries in self.metrics for entry in entries]

    @property
    def tables(self) -> list[Table]:
        """The tables of jobs (without any, of traffic) and, where it is another matter, of the network."""
        return run_tables(self.metrics)

    @property
    def shown(self) -> list[Metrics]:
        """The columns of the first table: the jobs; without any, the traffic. Flows have tables of their own."""
        return shown_entries(self.metrics)

    @property
    def differences(self) -> list[str]:
        """What is not alike besides policies, one sentence per Result that is of another network, job or traffic."""
        return differences(self.results, headings(whole_networks(self.metrics)))

    @cached_property
    def identical(self) -> list[str]:
        """Runs that came out the same to the byte, one sentence per group."""
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
        """What the wall clock has ended, by name: how far it came is no property of the scenario."""
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
        """What notebooks show: the tables and notes that the command line prints."""
        tables = [html_table(self.title + each.title, each.names, each.rows) for each in self.tables]
        for traffic, names, rows in flow_blocks(self.results, self.metrics):
            tables.append(html_table(f"{self.title}: flows of {traffic}", names, rows))
        return "".join([*tables, *(f"<p>note: {escape(note)}</p>" for note in self.differences)])

    @property
    def table(self) -> pyarrow.Table:
        """One row per run and job, with the columns of comparison.csv; what a run does not have is null."""
        return rows_table(self.flat)

    def to_pandas(self) -> pandas.DataFrame:
        """`table` as a pandas DataFrame. Raises MissingExtraError if that is not installed."""
        return as_pandas(self.table)

    def plot(self) -> dict[str, Figure]:
        """The pictures that `write` draws, as matplotlib figures by name, as far as there is something to draw."""
        from gradwire.analysis.plots import figures

        return {**figures(self.results, self.metrics), **self._breakdown_figure()}

    def _breakdown_figure(self) -> dict[str, Figure]:
        if self.breakdowns is None:
            return {}
        from gradwire.analysis.breakdown_plot import breakdown_figure

        figure = breakdown_figure(headings(self.flat), self.means)
        return {} if figure is None else {"breakdown": figure}

    @property
    def means(self) -> list[dict[str, float]]:
        """Of every entry of `flat`, the mean picoseconds of the parts of an iteration; none of traffic."""
        parts = zip(self.breakdowns or [], self.metrics, strict=True)
        return [each.means(entry.job) for each, entries in parts for entry in entries]

    @cached_property
    def details(self) -> list[list[Detail]]:
        """What explains the figures of `metrics`, in the same order."""
        return [
            [detail(result, entry.job) for entry in entries]
            for result, entries in zip(self.results, self.metrics, strict=True)
        ]

    def print(self, details: bool = False) -> None:
        """Print the table to stdout; with `details` another one that explains it."""
        for each in self.tables:
            print_rows(each.names, each.rows, self.title + each.title)
        for traffic, names, rows in flow_blocks(self.results, self.metrics):
            print_rows(names, rows, f"{self.title}: flows of {traffic}")
        if details:
            flat = [each for entries in self.details for each in entries]
            print_rows(headings(self.flat), detail_rows(flat), f"{self.title}: in detail")
        if self.breakdowns is not None:
            from gradwire.analysis.breakdown import breakdown_rows

            kept = [(name, each) for name, each in zip(headings(self.flat), self.means, strict=True) if each]
            rows = breakdown_rows([each for _, each in kept])
            print_rows([name for name, _ in kept], rows, f"{self.title}: mean iteration, in parts")
        for text in [*self.differences, *self.identical]:
            print(f"note: {text}")

    def as_dict(self) -> Json:
        """Everything a program may want: plain values, times in picoseconds, JSON-safe."""
        return {
            "format": FORMAT,
            "name": self.title,
            "sound": not self.violations,
            "violations": [violation._asdict() for violation in self.violations],
            "differences": self.differences,
            "identical": self.identical,
            "runs": [
                {
                    "summary": result.summary,
                    "timing": result.timing,
                    "jobs": [entry.as_dict() for entry in entries],
                    "details": [each.as_dict() for each in details],
                    **({} if self.breakdowns is None else {"breakdown": self.breakdowns[number].as_dict()}),
                    "flows": [
                        times.as_dict() for entry in entries for times in flow_times(result, entry.job)
                    ],
                }
                for number, (result, entries, details) in enumerate(
                    zip(self.results, self.metrics, self.details, strict=True)
                )
            ],
        }

    def write(self, directory: str | Path, plots: str = "png", page: bool = False) -> Path:
        """Write report, figures, pictures and Results to a new directory.

        `plots` is the pictures' format, one of `gradwire.analysis.figures.PLOTS`; with `page` there is the same as one
        HTML file to open, too (`gradwire.analysis.html`).

        Raises `ResultError` if something is there already, or it cannot be written.
        """
        from gradwire.analysis.figures import save_all
        from gradwire.analysis.report import PAGE, report

        check_plots(plots, "plots")
        with new_folder(directory) as partial:
            folders = result_folders(self.results)
            for result, folder in zip(self.results, folders, strict=True):
                result.write(partial / "results" / folder)
            _write_json(partial / "comparison.json", {**self.as_dict(), "folders": folders})
            write_rows(self.flat, partial)
            write_flows(self.results, self.metrics, partial)
            pictures = save_all(self.plot(), partial, plots)
            if page:
                from gradwire.analysis.html.given import comparison_page

                places = [str(Path(directory) / "results" / folder) for folder in folders]
                (partial / PAGE).write_text(comparison_page(self, places), encoding="utf-8")
            text = report(self, [picture.name for picture in pictures], folders, PAGE if page else "")
            (partial / "report.md").write_text(text, encoding="utf-8")
        return Path(directory)

    def write_alone(self, directory: str | Path, plots: str) -> Path:
        """Write the only Result to a new directory, as `Result.write`, with pictures of the format `plots`."""
        from gradwire.analysis.figures import save_all

        check_plots(plots, "plots")
        (result,) = self.results
        with new_folder(directory) as partial:
            inner = result.write(partial / "result")
            for path in inner.iterdir():
                path.rename(partial / path.name)
            inner.rmdir()
            save_all(self.plot(), partial, plots)
        return Path(directory)


def compare(results: Sequence[Result], parts: bool = False) -> Comparison:
    """Measure Results and check the loss bound of every message in them; with `parts`, say what their iterations were
    spent on, too, which raises `ResultError` where that cannot be known (`gradwire.analysis.breakdown`)."""
    violations = [violation for result in results for violation in check_loss_invariant(result)]
    breakdowns = None
    if parts:
        from gradwire.analysis.breakdown import breakdown

        breakdowns = [breakdown(result) for result in results]
    return Comparison(list(results), [measure(result) for result in results], violations, breakdowns)


def result_folders(results: Sequence[Result]) -> list[str]:
    """A folder name per Result: its policy, with its scenario and on what it ran if there are several, numbered if
    still alike."""
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
    """One line of comparison.csv: nested metrics become columns such as `push_p99_ps`."""
    row: Json = {
        "run": heading, "name": metrics.name, "policy": metrics.policy, "job": metrics.job,
        "ran_on": ", ".join(metrics.ran_on), "disturbed": metrics.disturbed,
        "finished": metrics.finished, "ended_by": metrics.ended_by, "iterations": metrics.steady.count,
        "first_iteration": metrics.steady.first, "last_iteration": metrics.steady.last,
        "iteration_samples": metrics.iteration.count,
        "iteration_mean_ps": metrics.iteration.mean_ps, "iteration_p50_ps": metrics.iteration.p50_ps,
        "iteration_p99_ps": metrics.iteration.p99_ps, "iteration_max_ps": metrics.iteration.max_ps,
        "exposed_mean_ps": metrics.exposed.mean_ps, "exposed_share": metrics.exposed_share,
    }  # fmt: skip
    for kind, times in metrics.completion.items():
        row |= {
            f"{kind}_messages": times.count, f"{kind}_mean_ps": times.mean_ps, f"{kind}_p50_ps": times.p50_ps,
            f"{kind}_p99_ps": times.p99_ps, f"{kind}_max_ps": times.max_ps,
        }  # fmt: skip
    for name in (
        "under_way", *DROPS, "marks", "control_marks", "trimmed", "pauses", "retransmitted", "sent_packets",
        "data_packets", "packet_hops", "hops_simulated", "hops_per_s", "simulated_ps",
    ):  # fmt: skip
        row[name] = getattr(metrics, name)
    loss = metrics.loss
    return row | {
        "worst_message": loss.message, "worst_lost_bytes": loss.lost_bytes,
        "worst_allowed_bytes": loss.allowed_bytes, "worst_bytes": loss.bytes, "worst_share": loss.share,
        "lost_bytes": loss.total_bytes, "lost_share": loss.total_share,
    }  # fmt: skip


def rows_table(metrics_list: Sequence[Metrics]) -> pyarrow.Table:
    """One row per entry. What a run does not have, such as a kind of message, is null."""
    import pyarrow

    rows = [
        flat_row(metrics, name) for metrics, name in zip(metrics_list, headings(metrics_list), strict=True)
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: [row.get(name) for row in rows] for name in columns})


def write_rows(metrics_list: Sequence[Metrics], directory: Path) -> None:
    """comparison.csv and comparison.parquet."""
    import pyarrow.parquet

    table = rows_table(metrics_list)
    with (directory / "comparison.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table.column_names)
        writer.writeheader()
        writer.writerows(table.to_pylist())
    pyarrow.parquet.write_table(table, directory / "comparison.parquet")


def _write_json(path: Path, data: Json) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
