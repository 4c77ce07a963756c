"""Builds an HTML page's section on runs, with facts, tables, charts, timelines, and commands that repeat the runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.analysis.breakdown import breakdown
from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.analysis.comparison.detailed_metrics import detail_rows
from gradwire.analysis.comparison.markdown_report import facts, provenance
from gradwire.analysis.comparison.tables import KIND_LABELS, headings, whole_networks
from gradwire.analysis.flows import flow_blocks
from gradwire.analysis.measurement_window import completion_times, durations, steady_state
from gradwire.analysis.metrics import DROPS, Metrics, ran_on, tail
from gradwire.analysis.palette import CAUSE_COLOURS, PART_COLOURS, colour_and_dash
from gradwire.analysis.report.charts import Axis, Bars, Chart, Lines, Series, pareto_front
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


@dataclass(frozen=True)
class TimelineOptions:
    """Options of a section of runs. `iteration` : of the timelines; by default a typical one."""

    timelines: bool = True
    iteration: int | None = None
    trace: Trace | None = None


@dataclass
class RebuiltRun:
    """A Result with its rebuilt context, the iteration of its timeline (None if there are only flows), and its number,
    that of its colour."""

    result: Result
    name: str
    found: ResultContext
    iteration: int | None
    number: int


def rebuild_runs(comparison: Comparison, wanted: TimelineOptions) -> tuple[list[RebuiltRun], list[str]]:
    """Rebuild Results whose timeline can be drawn; return them and the reasons why others cannot. Raises `ResultError`
    if a Result lacks the requested iteration."""
    runs: list[RebuiltRun] = []
    notes: list[str] = []
    names = headings(whole_networks(comparison.metrics))
    if not wanted.timelines:
        return [], []
    for number, (result, entries) in enumerate(zip(comparison.results, comparison.metrics, strict=True)):
        name = names[number]
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
        iteration = usual if wanted.iteration is None else wanted.iteration
        runs.append(RebuiltRun(result, name, context, iteration, number))
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
    section.add(setting_card(comparison))
    section.add(tiles(comparison.verdicts))
    section.add(*(chart(item) for item in charts(comparison, parts)))
    section.add(*_timeline(again), bullet_list([*notes, *comparison.identical, *trouble]))
    section.add(*(chart(item) for item in pareto_charts(comparison)))
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
            lanes.append({"name": run.name, "number": run.number, **lanes_of(run.found, run.iteration)})
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
        context, parts = known.get(id(result)), comparison.evidence[number].parts
        if parts is None and context is not None and context.simulated and context.jobs:
            try:
                parts = breakdown.breakdown(context)
            except ResultError as error:
                trouble.append(f"no breakdown: {error}")
        if parts is None:
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
    numbers = [colour_and_dash(runs, number) for number in range(len(runs))]
    looks = dict(zip(names, numbers, strict=True))
    if parts:
        yield from _spent(parts, runs, names)
    if any(entry.iteration.count and name not in parts for (_, entry), name in zip(runs, names, strict=True)):
        yield _iterations(runs, names)
    times = [completion_times(result, entry.job) for result, entry in runs]
    for kind in (kind for kind in KINDS if any(kind in times_by_kind for times_by_kind in times)):
        named = [(name, by_kind[kind]) for name, by_kind in zip(names, times, strict=True) if kind in by_kind]
        says = "Share of messages slower than a time, from being ready to being delivered."
        yield tail_chart(f"Completion of {KIND_LABELS[kind]} messages", says, named, CURVE, looks)
    if (packets := _packets(whole_networks(comparison.metrics))) is not None:
        yield packets


def _iterations(runs: Sequence[tuple[Result, Metrics]], names: Sequence[str]) -> Bars:
    shown = [number for number, (_, entry) in enumerate(runs) if entry.iteration.count]
    values, dots = [], []
    for result, entry in (runs[number] for number in shown):
        mean, exposed = entry.iteration.mean_ps / PS_PER_MS, entry.exposed.mean_ps / PS_PER_MS
        values.append([mean - exposed, exposed])
        dots.append(_dots(result, entry.job))
    return Bars(
        "Iteration time",
        "Means: computing, then waiting for the network. Dots are single iterations of single workers; hollow ones are "
        "the first and the last, which are not in the means.",
        "ms",
        [names[number] for number in shown],
        ["computing", "waiting for the network"],
        ["pale", "c0"],
        values,
        dots,
        [colour_and_dash(runs, number)[0] for number in shown],
    )


def _dots(result: Result, job: str) -> list[tuple[float, str, bool]]:
    numbers, times, _ = durations(result, job)
    _, chosen = steady_state(numbers)
    step = -(-len(numbers) // MOST_DOTS) or 1
    return [
        (float(time) / PS_PER_MS, f"iteration {int(number)}", bool(inside))
        for number, time, inside in zip(numbers[::step], times[::step], chosen[::step], strict=True)
    ]


def _spent(
    parts: dict[str, dict[str, float]], runs: Sequence[tuple[Result, Metrics]], names: Sequence[str]
) -> Iterator[Bars]:
    """Yield the parts of the mean iteration, and its waits alone, which computing would make small."""
    numbers = {name: number for number, name in enumerate(names)}
    colours = [colour_and_dash(runs, numbers[name])[0] for name in parts]
    shown = [part for part in breakdown.PARTS if any(means[part] for means in parts.values())]
    waits = [part for part in shown if part != "computing"]

    def bars(title: str, says: str, kept: Sequence[str], dots: Sequence[list[tuple[float, str, bool]]]) -> Bars:
        labels = [breakdown.PART_LABELS[part] for part in kept]
        values = [[means[part] / PS_PER_MS for part in kept] for means in parts.values()]
        return Bars(
            title, says, "ms", list(parts), labels, [PART_COLOURS[part] for part in kept], values, dots, colours
        )

    yield bars(
        "Breakdown of the mean iteration",
        "Computing, then waiting, by cause. Dots are single iterations of single workers; hollow ones are the first "
        "and the last, which are not in the means.",
        shown,
        [_dots(runs[numbers[name]][0], runs[numbers[name]][1].job) for name in parts],
    )
    if waits and len(waits) < len(shown):
        yield bars("Exposed communication", "The waits of the same iterations on an axis of their own.", waits, ())


def pareto_charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield for each job with several runs its mean iteration against its slowest one, the dominated runs dim."""
    pairs = zip(comparison.results, comparison.metrics, strict=True)
    runs = [(result, entry) for result, entries in pairs for entry in entries]
    names = headings([entry for _, entry in runs])
    for job in dict.fromkeys(entry.job for _, entry in runs if entry.iteration.count):
        chosen = [number for number, (_, entry) in enumerate(runs) if entry.job == job and entry.iteration.count]
        times = [runs[number][1].iteration for number in chosen]
        dots = [(time.mean_ps / PS_PER_MS, time.max_ps / PS_PER_MS) for time in times]
        looks = [colour_and_dash(runs, number)[0] for number in chosen]
        if len(chosen) > 1:
            title = "Typical against slowest iteration" + (f" of {job}" if len(comparison.verdicts) > 1 else "")
            axes = Axis("mean iteration (ms)"), Axis("slowest iteration (ms)")
            yield pareto_chart(title, axes, [names[number] for number in chosen], dots, looks)


def pareto_chart(
    title: str,
    axes: tuple[Axis, Axis],
    names: Sequence[str],
    dots: Sequence[tuple[float, float]],
    colours: Sequence[int],
    is_gain: bool = False,
) -> Lines:
    """Return labelled runs by two measures and the Pareto front. `is_gain` : the second is the better the larger."""
    front = pareto_front([(x, -y if is_gain else y) for x, y in dots])
    series = [
        Series(name, [dot], dots=True, line=False, colour=colour, dim=number not in front, labels=[name])
        for number, (name, dot, colour) in enumerate(zip(names, dots, colours, strict=True))
    ]
    series.append(Series("Pareto front", [dots[number] for number in front], step="after", grey=True))
    better = "left and up" if is_gain else "left and down"
    says = f"Better is {better}. Pale runs are dominated: another is at least as good in both."
    return Lines(title, says, *axes, series)


def tail_chart(
    title: str,
    says: str,
    times: Iterable[tuple[str, AnyInts]],
    points: int,
    looks: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> Lines:
    """Return the tails of completion times (name, picoseconds), each with at most about `points` points. `looks` : by
    name the numbers of colour and dashes."""
    series = []
    for name, values in times:
        ends, shares = tail(values, points)
        curve = list(zip((ends / PS_PER_MS).tolist(), shares.tolist(), strict=True))
        colour, dash = looks.get(name, (-1, -1))
        series.append(Series(name, curve, step="before", colour=colour, dash=dash))
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
        rows += [name, "retransmitted"]
        values.append([*(max(getattr(entry, cause), 0) * scale for cause in causes), 0.0])
        values.append([0.0] * len(causes) + [entry.retransmitted * scale])
    return Bars(
        "Packets dropped and retransmissions",
        "Per 100 data packets, of all jobs and traffic of a run together: dropped, and below it retransmitted.",
        "packets per 100",
        rows,
        [*(f"dropped: {DROPS[cause]}" for cause in causes), "retransmissions"],
        [CAUSE_COLOURS[cause] for cause in (*causes, "retransmitted")],
        values,
        runs=[number for number, entry in enumerate(networks) if entry.data_packets for _ in range(2)],
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
