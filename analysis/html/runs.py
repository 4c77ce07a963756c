"""Runs on a page: Results side by side, in sentences, tables, plots, a timeline, and how to run them again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.analysis import breakdown
from gradwire.analysis.detail import detail_rows
from gradwire.analysis.flows import flow_blocks
from gradwire.analysis.html.charts import Axis, Bars, Chart, Lines, Series
from gradwire.analysis.html.lanes import lanes_of, usual_iteration
from gradwire.analysis.html.pieces import (
    Section,
    bare_table,
    chart,
    code,
    folded,
    heading,
    listed,
    paragraph,
    table,
    timeline,
)
from gradwire.analysis.measured import completion_times, durations, steady_state
from gradwire.analysis.metrics import DROPS, Metrics, ran_on
from gradwire.analysis.ran import Ran
from gradwire.analysis.report import facts, provenance
from gradwire.analysis.tables import KIND_WORDS, headings, whole_networks
from gradwire.analysis.tail import later
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.errors import GradwireError, ResultError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.result import KINDS, Result

if TYPE_CHECKING:
    from gradwire.analysis.compare import Comparison
    from gradwire.traces.trace import Trace

PS_PER_MS = 1e9
CURVE = 250
"""Points of a curve."""
MOST_TIMELINES = 6
MOST_DOTS = 400
PART_COLOURS = {
    "computing": "pale", "straggler": "grey", "server": "dim", "scheduler": "c3", "sharing": "c4",
    "serialisation": "c0", "queueing": "c1", "retransmission": "c5", "timeouts": "ink",
}  # fmt: skip
CAUSE_COLOURS = ("c5", "c4", "c3", "c1", "ink", "c0")
"""Of the causes of DROPS, in their order; what is sent again is pale."""


@dataclass(frozen=True)
class Wanted:
    """What a section of runs is to have. `iteration`: that of the timelines, the usual one if absent."""

    timelines: bool = True
    iteration: int | None = None
    trace: Trace | None = None


@dataclass
class Again:
    """A Result that has been made again, and the iteration that is looked into; None where there are only flows."""

    result: Result
    name: str
    found: Ran
    iteration: int | None


def made_again(comparison: Comparison, wanted: Wanted) -> tuple[list[Again], list[str]]:
    """Results of which a timeline can be drawn, and why of others none can.

    Raises
    ------
    ResultError
        An iteration is asked for that a Result does not have.
    """
    runs: list[Again] = []
    notes: list[str] = []
    names = headings(whole_networks(comparison.metrics))
    if not wanted.timelines:
        return [], []
    for result, entries, name in zip(comparison.results, comparison.metrics, names, strict=True):
        if len(runs) == MOST_TIMELINES:
            notes.append(f"timelines are of the first {MOST_TIMELINES} runs")
            break
        try:
            found = Ran(result, wanted.trace, name)
        except GradwireError as error:
            notes.append(f"no timeline: {error}")
            continue
        usual = None if entries[0].traffic else usual_iteration(found, entries[0].job)
        if wanted.iteration is not None and not (numpy_of(result.iterations["iteration"]) == wanted.iteration).any():
            raise ResultError(f"has no iteration {wanted.iteration}", name, f"such as {usual}")
        runs.append(Again(result, name, found, usual if wanted.iteration is None else wanted.iteration))
    return runs, notes


def run_section(comparison: Comparison, places: Sequence[str], again: Sequence[Again], notes: Sequence[str]) -> Section:
    """The section of a comparison, or of one Result. `places`: where each Result is, "" where it is nowhere."""
    alone = len(comparison.results) == 1
    section = Section(comparison.title, "run" if alone else f"{len(comparison.results)} runs")
    said = list(facts(comparison))
    section.lead, said = (said[0], said[1:]) if said else ("", [])
    section.add(listed(said))
    parts, trouble = _parts(comparison, again)
    section.add(*(chart(each) for each in charts(comparison, parts)))
    section.add(*_timeline(again), listed([*notes, *comparison.identical, *trouble]))
    section.add(heading("Figures"))
    section.add(*(table((comparison.title + each.title), each.names, each.rows) for each in comparison.tables))
    for traffic, names, rows in flow_blocks(comparison.results, comparison.metrics):
        section.add(table(f"flows of {traffic}", names, rows))
    flat = [each for entries in comparison.details for each in entries]
    names = headings(comparison.flat)
    section.add(folded("In detail: time-outs, classes, waiting for release", bare_table("", names, detail_rows(flat))))
    section.add(*_how(comparison, places))
    return section


def _timeline(again: Sequence[Again]) -> Iterator[str]:
    lanes: list[Json] = []
    trouble: list[str] = []
    for each in again:
        try:
            lanes.append({"name": each.name, **lanes_of(each.found, each.iteration)})
        except GradwireError as error:
            trouble.append(f"no timeline: {error}")
    if lanes:
        yield heading("What happened when")
        yield paragraph(
            "Of each host: what its worker computes and waits for, and below it every message that it sends, from when "
            "it is ready (pale while it is held back) until it is delivered. Below all hosts: packets dropped, and "
            "queues."
        )
        yield timeline(lanes)
    yield listed(trouble)


def _parts(comparison: Comparison, again: Sequence[Again]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """What mean iterations were spent on, by heading, of what is known; and why not of others."""
    found: dict[str, dict[str, float]] = {}
    trouble: list[str] = []
    names = iter(headings(comparison.flat))
    known = {id(each.result): each.found for each in again}
    for result, entries in zip(comparison.results, comparison.metrics, strict=True):
        own = [next(names) for _ in entries]
        made = known.get(id(result))
        if made is None or not made.simulated or not made.jobs:
            continue
        try:
            parts = breakdown.of(made)
        except ResultError as error:
            trouble.append(f"not known what the time was spent on: {error}")
            continue
        found |= {name: means for name, entry in zip(own, entries, strict=True) if (means := parts.means(entry.job))}
    return found, trouble


# --- plots -----------------------------------------------------------------------------------------------------------


def charts(comparison: Comparison, parts: dict[str, dict[str, float]]) -> Iterator[Chart]:
    """The plots of runs, as far as there is something to draw."""
    pairs = zip(comparison.results, comparison.metrics, strict=True)
    runs = [(result, entry) for result, own in pairs for entry in own]
    names = headings([entry for _, entry in runs])
    if any(entry.iteration.count for _, entry in runs):
        yield _iterations(runs, names)
    if parts:
        yield _spent(parts)
    yield from _completion(runs, names)
    packets = _packets(whole_networks(comparison.metrics))
    if packets is not None:
        yield packets


def _iterations(runs: Sequence[tuple[Result, Metrics]], names: Sequence[str]) -> Bars:
    kept = [(run, name) for run, name in zip(runs, names, strict=True) if run[1].iteration.count]
    values, dots = [], []
    for (result, entry), _ in kept:
        mean, exposed = entry.iteration.mean_ps / PS_PER_MS, entry.exposed.mean_ps / PS_PER_MS
        values.append([mean - exposed, exposed])
        dots.append(_dots(result, entry.job))
    return Bars(
        "Iteration time",
        "Means: computing, then waiting for the network. Dots are single iterations of single workers; hollow ones are "
        "the first and the last, which are not in the means.",
        "ms", [name for _, name in kept], ["computing", "waiting for the network"], ["pale", "c0"], values, dots,
    )  # fmt: skip


def _dots(result: Result, job: str) -> list[tuple[float, str, bool]]:
    numbers, times, _ = durations(result, job)
    _, chosen = steady_state(numbers)
    step = -(-len(numbers) // MOST_DOTS) or 1
    return [
        (float(time) / PS_PER_MS, f"iteration {int(number)}", bool(inside))
        for number, time, inside in zip(numbers[::step], times[::step], chosen[::step], strict=True)
    ]


def _spent(parts: dict[str, dict[str, float]]) -> Bars:
    shown = [part for part in breakdown.PARTS if any(each[part] for each in parts.values())]
    return Bars(
        "What the mean iteration was spent on", "Computing, then waiting, by cause.", "ms", list(parts),
        [breakdown.WORDS[part] for part in shown], [PART_COLOURS[part] for part in shown],
        [[each[part] / PS_PER_MS for part in shown] for each in parts.values()],
    )  # fmt: skip


def _completion(runs: Sequence[tuple[Result, Metrics]], names: Sequence[str]) -> Iterator[Lines]:
    times = [completion_times(result, entry.job) for result, entry in runs]
    for kind in (kind for kind in KINDS if any(kind in found for found in times)):
        series = []
        for name, found in zip(names, times, strict=True):
            if kind in found:
                values, shares = later(found[kind], CURVE)
                points = list(zip((values / PS_PER_MS).tolist(), shares.tolist(), strict=True))
                series.append(Series(name, points, step="before"))
        yield Lines(
            f"Completion of {KIND_WORDS[kind]} messages",
            "The share of messages that took so long or longer, from being ready to being delivered.",
            Axis("completion time (ms)", "log"), Axis("took so long or longer (%)", "log"), series,
        )  # fmt: skip


def _packets(networks: Sequence[Metrics]) -> Bars | None:
    names = headings(networks)
    kept = [(entry, name) for entry, name in zip(networks, names, strict=True) if entry.data_packets]
    if not any(max(entry.dropped, 0) + entry.retransmitted for entry, _ in kept):
        return None
    shown = [cause for cause in DROPS if any(getattr(entry, cause) > 0 for entry, _ in kept)]
    rows, values = [], []
    for entry, name in kept:
        scale = 100 / entry.data_packets
        rows += [f"{name}: dropped", f"{name}: sent again"]
        values.append([*(max(getattr(entry, cause), 0) * scale for cause in shown), 0.0])
        values.append([0.0] * len(shown) + [entry.retransmitted * scale])
    colours = [CAUSE_COLOURS[list(DROPS).index(cause) % len(CAUSE_COLOURS)] for cause in shown]
    return Bars(
        "Packets dropped and sent again", "Per 100 packets of data, by all jobs and traffic of a run together.",
        "packets per 100", rows, [*(f"dropped: {DROPS[cause]}" for cause in shown), "sent again"], [*colours, "pale"],
        values,
    )  # fmt: skip


# --- where it is from ------------------------------------------------------------------------------------------------


def _how(comparison: Comparison, places: Sequence[str]) -> Iterator[str]:
    """Scenarios, commands, versions."""
    yield heading("Run it again")
    commands: list[str] = []
    for result, place in zip(comparison.results, places, strict=True):
        commands += _commands(result, place)
    if commands:
        yield code("\n".join(dict.fromkeys(commands)))
    else:
        yield paragraph("Save the scenario below as a file; `gradwire run FILE` runs it.")
    names = headings(whole_networks(comparison.metrics))
    for result, name in zip(comparison.results, names, strict=True):
        if result.scenario:
            whose = f" of {name}" if len(names) > 1 else ""
            yield folded(f"The scenario{whose}, as it ran", code(result.scenario.strip()))
    yield folded("Versions and hashes", listed(provenance(comparison)))


def _commands(result: Result, place: str) -> Iterator[str]:
    """What ran it first, and what runs it again."""
    if command := result.timing.get("command"):
        yield str(command)
    clock = result.summary.get("engine", {}).get("clock")
    if place and ran_on(result)[0] == "simulated":
        yield shlex.join(["gradwire", "run", place])
    elif place and clock:
        programs = result.summary.get("programs", {})
        kept = [str(Path(place) / "scenario.toml"), "--clock", clock]
        if programs:
            traced = ["--trace", programs["trace"]] if "trace" in programs else []
            yield shlex.join(["gradwire", "exec", *kept, *traced, "--", *programs.get("command", ())])
        else:
            yield shlex.join(["gradwire", "emulate", *kept])
