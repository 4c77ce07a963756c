"""Builds an HTML page's section on runs, with facts, tables, charts, timelines, and commands that repeat the runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.analysis.breakdown import breakdown
from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.analysis.comparison.detailed_metrics import detail_rows
from gradwire.analysis.comparison.markdown_report import facts, provenance
from gradwire.analysis.comparison.tables import KIND_LABELS, headings, whole_networks
from gradwire.analysis.flows import flow_blocks
from gradwire.analysis.measurement_window import completion_times, durations, steady_state
from gradwire.analysis.metrics import DROPS, Metrics, ran_on, tail
from gradwire.analysis.report.charts import Axis, Bars, Chart, Lines, Series
from gradwire.analysis.report.html_page import (
    PageSection,
    bare_table,
    bullet_list,
    chart,
    code,
    collapsible,
    heading,
    html_page,
    paragraph,
    table,
    timeline,
)
from gradwire.analysis.report.lanes import lanes_of, typical_iteration
from gradwire.analysis.report.story import setting_card, tiles
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.arrays import AnyInts
from gradwire.scenarios.errors import GradwireError, ResultError
from gradwire.scenarios.json_data import Json
from gradwire.traces.trace import Trace

if TYPE_CHECKING:
    from gradwire.analysis.comparison.compare import Comparison

PS_PER_MS = 1e9
CURVE = 250
"""Points of a curve."""
MOST_TIMELINES = 6
MOST_DOTS = 400
PART_COLOURS = dict(zip(breakdown.PARTS, "pale grey dim c3 c4 c0 c1 c5 ink".split(), strict=True))
CAUSE_COLOURS = ("c5", "c4", "c3", "c1", "ink", "c0")
"""Colours of the causes in DROPS, in their order; retransmissions are pale."""


@dataclass(frozen=True)
class TimelineOptions:
    """Options of a section of runs. `iteration` : of the timelines; by default a typical one."""

    timelines: bool = True
    iteration: int | None = None
    trace: Trace | None = None


@dataclass
class RebuiltRun:
    """A Result with its rebuilt context, and the iteration of its timeline; None if there are only flows."""

    result: Result
    name: str
    found: ResultContext
    iteration: int | None


def rebuild_runs(comparison: Comparison, wanted: TimelineOptions) -> tuple[list[RebuiltRun], list[str]]:
    """Rebuild Results whose timeline can be drawn; return them and the reasons why others cannot. Raises `ResultError`
    if a Result lacks the requested iteration."""
    runs: list[RebuiltRun] = []
    notes: list[str] = []
    names = headings(whole_networks(comparison.metrics))
    if not wanted.timelines:
        return [], []
    for result, entries, name in zip(comparison.results, comparison.metrics, names, strict=True):
        if len(runs) == MOST_TIMELINES:
            notes.append(f"timelines are shown for the first {MOST_TIMELINES} runs")
            break
        try:
            context = ResultContext(result, wanted.trace, name)
        except GradwireError as error:
            notes.append(f"no timeline: {error}")
            continue
        usual = None if entries[0].traffic else typical_iteration(context, entries[0].job)
        if wanted.iteration is not None and not (to_numpy(result.iterations["iteration"]) == wanted.iteration).any():
            raise ResultError(f"has no iteration {wanted.iteration}", name, f"an iteration such as {usual}")
        runs.append(RebuiltRun(result, name, context, usual if wanted.iteration is None else wanted.iteration))
    return runs, notes


def run_section(
    comparison: Comparison, paths: Sequence[str], again: Sequence[RebuiltRun], notes: Sequence[str]
) -> PageSection:
    """Return the section of a comparison or one Result. `paths` : path of each Result, "" if it is not stored."""
    alone = len(comparison.results) == 1
    section = PageSection(comparison.title, "run" if alone else f"{len(comparison.results)} runs")
    sentences = list(facts(comparison))
    section.lead = " ".join(verdict.text for verdict in comparison.verdicts)
    if not section.lead and sentences:
        section.lead, sentences = sentences[0], sentences[1:]
    parts, trouble = _parts(comparison, again)
    section.add(tiles(comparison.verdicts))
    section.add(setting_card(comparison))
    section.add(*(chart(item) for item in charts(comparison, parts)))
    section.add(*_timeline(again), bullet_list([*notes, *comparison.identical, *trouble]))
    section.add(heading("Figures"))
    section.add(bullet_list(sentences))
    section.add(*(table((comparison.title + item.title), item.names, item.rows) for item in comparison.tables))
    for traffic, names, rows in flow_blocks(comparison.results, comparison.metrics):
        section.add(table(f"flows of {traffic}", names, rows))
    flat = [entry for entries in comparison.details for entry in entries]
    names = headings(comparison.flat)
    details = bare_table("", names, detail_rows(flat))
    section.add(collapsible("Details: time-outs, classes, waiting for release", details))
    section.add(*_how(comparison, paths))
    return section


def comparison_page(comparison: Comparison, paths: Sequence[str], command: str = "") -> str:
    """Return the page of a comparison whose Results are, or will be, at `paths`."""
    again, notes = rebuild_runs(comparison, TimelineOptions())
    return html_page(comparison.title, [run_section(comparison, paths, again, notes)], command)


def _timeline(again: Sequence[RebuiltRun]) -> Iterator[str]:
    lanes: list[Json] = []
    trouble: list[str] = []
    for run in again:
        try:
            lanes.append({"name": run.name, **lanes_of(run.found, run.iteration)})
        except GradwireError as error:
            trouble.append(f"no timeline: {error}")
    if lanes:
        yield heading("Timeline")
        yield paragraph(
            "For each host: its worker's activity and waits, and below it every message that it sends, from when "
            "it is ready (pale while it is held back) until it is delivered. Below all hosts: packets dropped, and "
            "queues."
        )
        yield timeline(lanes)
    yield bullet_list(trouble)


def _parts(comparison: Comparison, again: Sequence[RebuiltRun]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return the parts of mean iterations by heading, and the reasons why others are unknown."""
    means_by_heading: dict[str, dict[str, float]] = {}
    trouble: list[str] = []
    names = iter(headings(comparison.flat))
    known = {id(run.result): run.found for run in again}
    for number, (result, entries) in enumerate(zip(comparison.results, comparison.metrics, strict=True)):
        own_names = [next(names) for _ in entries]
        context = known.get(id(result))
        if context is None or not context.simulated or not context.jobs:
            continue
        try:
            parts = comparison.evidence[number].parts or breakdown.breakdown(context)
        except ResultError as error:
            trouble.append(f"no breakdown: {error}")
            continue
        means_by_heading |= {
            name: means for name, entry in zip(own_names, entries, strict=True) if (means := parts.means(entry.job))
        }
    return means_by_heading, trouble


# --- plots -----------------------------------------------------------------------------------------------------------


def charts(comparison: Comparison, parts: dict[str, dict[str, float]]) -> Iterator[Chart]:
    """Yield the plots of runs that have data."""
    pairs = zip(comparison.results, comparison.metrics, strict=True)
    runs = [(result, entry) for result, entries in pairs for entry in entries]
    names = headings([entry for _, entry in runs])
    if parts:
        yield _spent(parts, runs, names)
    if any(entry.iteration.count and name not in parts for (_, entry), name in zip(runs, names, strict=True)):
        yield _iterations(runs, names)
    times = [completion_times(result, entry.job) for result, entry in runs]
    for kind in (kind for kind in KINDS if any(kind in times_by_kind for times_by_kind in times)):
        named = [(name, by_kind[kind]) for name, by_kind in zip(names, times, strict=True) if kind in by_kind]
        says = "Share of messages slower than a time, from being ready to being delivered."
        yield tail_chart(f"Completion of {KIND_LABELS[kind]} messages", says, named, CURVE, names)
    if (packets := _packets(whole_networks(comparison.metrics))) is not None:
        yield packets


def _iterations(runs: Sequence[tuple[Result, Metrics]], names: Sequence[str]) -> Bars:
    shown = [(run, name) for run, name in zip(runs, names, strict=True) if run[1].iteration.count]
    values, dots = [], []
    for (result, entry), _ in shown:
        mean, exposed = entry.iteration.mean_ps / PS_PER_MS, entry.exposed.mean_ps / PS_PER_MS
        values.append([mean - exposed, exposed])
        dots.append(_dots(result, entry.job))
    return Bars(
        "Iteration time",
        "Means: computing, then waiting for the network. Dots are single iterations of single workers; hollow ones are "
        "the first and the last, which are not in the means.",
        "ms",
        [name for _, name in shown],
        ["computing", "waiting for the network"],
        ["pale", "c0"],
        values,
        dots,
    )


def _dots(result: Result, job: str) -> list[tuple[float, str, bool]]:
    numbers, times, _ = durations(result, job)
    _, chosen = steady_state(numbers)
    step = -(-len(numbers) // MOST_DOTS) or 1
    return [
        (float(time) / PS_PER_MS, f"iteration {int(number)}", bool(inside))
        for number, time, inside in zip(numbers[::step], times[::step], chosen[::step], strict=True)
    ]


def _spent(parts: dict[str, dict[str, float]], runs: Sequence[tuple[Result, Metrics]], names: Sequence[str]) -> Bars:
    by_name = dict(zip(names, runs, strict=True))
    shown = [part for part in breakdown.PARTS if any(means[part] for means in parts.values())]
    return Bars(
        "Breakdown of the mean iteration",
        "Computing, then waiting, by cause. Dots are single iterations of single workers; hollow ones are the first "
        "and the last, which are not in the means.",
        "ms",
        list(parts),
        [breakdown.PART_LABELS[part] for part in shown],
        [PART_COLOURS[part] for part in shown],
        [[means[part] / PS_PER_MS for part in shown] for means in parts.values()],
        [_dots(by_name[name][0], by_name[name][1].job) for name in parts],
        without="computing" if "computing" in shown and len(shown) > 1 else "",
    )


def tail_chart(
    title: str, says: str, times: Iterable[tuple[str, AnyInts]], points: int, names: Sequence[str] = ()
) -> Lines:
    """Return the tails of completion times (name, picoseconds), each with at most about `points` points. `names` : all
    runs, in the order of their colours."""
    series = []
    for name, values in times:
        ends, shares = tail(values, points)
        curve = list(zip((ends / PS_PER_MS).tolist(), shares.tolist(), strict=True))
        colour = names.index(name) if name in names else -1
        series.append(Series(name, curve, step="before", colour=colour))
    axes = Axis("completion time (ms)", "log"), Axis("messages slower than x (%)", "log")
    return Lines(title, says, *axes, series)


def _packets(networks: Sequence[Metrics]) -> Bars | None:
    names = headings(networks)
    shown_networks = [(entry, name) for entry, name in zip(networks, names, strict=True) if entry.data_packets]
    if not any(max(entry.dropped, 0) + entry.retransmitted for entry, _ in shown_networks):
        return None
    causes = [cause for cause in DROPS if any(getattr(entry, cause) > 0 for entry, _ in shown_networks)]
    rows, values = [], []
    for entry, name in shown_networks:
        scale = 100 / entry.data_packets
        rows += [f"{name}: dropped", f"{name}: retransmissions"]
        values.append([*(max(getattr(entry, cause), 0) * scale for cause in causes), 0.0])
        values.append([0.0] * len(causes) + [entry.retransmitted * scale])
    colours = [CAUSE_COLOURS[list(DROPS).index(cause) % len(CAUSE_COLOURS)] for cause in causes]
    return Bars(
        "Packets dropped and retransmissions",
        "Per 100 data packets, of all jobs and traffic of a run together.",
        "packets per 100",
        rows,
        [*(f"dropped: {DROPS[cause]}" for cause in causes), "retransmissions"],
        [*colours, "pale"],
        values,
    )


# --- provenance ------------------------------------------------------------------------------------------------------


def _how(comparison: Comparison, paths: Sequence[str]) -> Iterator[str]:
    yield heading("Run it again")
    pairs = zip(comparison.results, paths, strict=True)
    commands = [command for result, path in pairs for command in _commands(result, path)]
    if commands:
        yield code("\n".join(dict.fromkeys(commands)))
    else:
        yield paragraph("Save the scenario below as a file; `gradwire run FILE` runs it.")
    names = headings(whole_networks(comparison.metrics))
    for result, name in zip(comparison.results, names, strict=True):
        if result.scenario:
            owner = f" of {name}" if len(names) > 1 else ""
            yield collapsible(f"Scenario{owner} of the run", code(result.scenario.strip()))
    yield collapsible("Versions and hashes", bullet_list(provenance(comparison)))


def _commands(result: Result, path: str) -> Iterator[str]:
    """Yield the original command, and one that repeats the run."""
    if command := result.timing.get("command"):
        yield str(command)
    clock = result.summary.get("engine", {}).get("clock")
    if path and ran_on(result)[0] == "simulated":
        yield shlex.join(["gradwire", "run", path])
    elif path and clock:
        programs = result.summary.get("programs", {})
        arguments = [str(Path(path) / "scenario.toml"), "--clock", clock]
        if programs:
            traced = ["--trace", programs["trace"]] if "trace" in programs else []
            yield shlex.join(["gradwire", "exec", *arguments, *traced, "--", *programs.get("command", ())])
        else:
            yield shlex.join(["gradwire", "emulate", *arguments])
