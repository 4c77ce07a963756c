"""Builds the beginning of a section on runs: a card with the setting, and tiles with the figures that matter most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from gradwire.analysis.comparison.tables import headings, whole_networks
from gradwire.analysis.report.topology_picture import topology_picture
from gradwire.analysis.verdict.verdict import Verdict
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.readable import accuracy_text, change_text, count_text, share_text, size_text, time_text
from gradwire.scenarios.version import VERSION

if TYPE_CHECKING:
    from gradwire.analysis.comparison.compare import Comparison

MOST_KEYS = 8
"""Keys in which policies differ that the card lists (our choice)."""
IGNORED = ("name", "description", "policy", "seed", "modules")


def setting_card(comparison: Comparison) -> str:
    """Return the job, its model, the network, drawn too, the policies, seeds and version."""
    first = comparison.results[0]
    names = headings(whole_networks(comparison.metrics))
    lines = [*_jobs(first.tables, comparison), *_differences(names, [result.tables for result in comparison.results])]
    summaries = [result.summary for result in [*comparison.results, *comparison.other_seeds]]
    return _card([*lines, *_origin(summaries)], topology_picture(first.tables, first))


def training_card(trainings: Sequence[TrainingResult], tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the same of training runs with these scenarios, and what they train."""
    lines = [*_jobs(tables[0]), *_differences([run.name for run in trainings], tables)]
    trained = {key: tables[0].get("training", {}).get(key, "") for key in ("model", "data")}
    lines[1:1] = [(key, str(value)) for key, value in trained.items() if value]
    return _card([*lines, *_origin([run.summary for run in trainings])], topology_picture(tables[0]))


def _card(lines: Sequence[tuple[str, str]], picture: str) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in lines)
    return f'<div class="setting"><dl class="card">{items}</dl>{picture}</div>'


def _origin(summaries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    seeds = sorted({int(summary.get("seed", 0)) for summary in summaries})
    yield "seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))
    yield "version", f"gradwire {summaries[0].get('versions', {}).get('gradwire', VERSION)}"


def _jobs(tables: Mapping[str, Any], comparison: Comparison | None = None) -> Iterator[tuple[str, str]]:
    usages = {
        verdict.job: run.bottleneck.usage
        for verdict in (comparison.verdicts if comparison else ())
        for run in verdict.runs
        if run.bottleneck.usage is not None
    }
    for job in tables.get("job", []):
        name, exchange = str(job.get("name", "")), job.get("exchange", {})
        kind = exchange.get("kind", "") if isinstance(exchange, Mapping) else exchange
        count = job.get("servers", 0)
        servers = f", {count} server{'s' * (count != 1)}" if count else ""
        yield "job", f"{name}: {job.get('workers', '')} workers{servers}, exchange {kind}"
        usage = usages.get(name)
        if usage is None:
            yield "trace", str(job.get("trace", "")).rpartition("/")[2]
        else:
            layers = usage.entry["layers"]
            part = f", {layers['kept']} of {layers['of']} layers" if usage.is_part else ""
            yield "model", f"{usage.entry['title']}{part}, on {usage.entry['gpu']} (roofline)"
    for traffic in tables.get("traffic", []):
        yield "traffic", f"{traffic.get('name', '')}: {traffic.get('kind', '')}"


def _differences(names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the keys in which runs differ: all of the first run, of each other run those unlike the first one's."""
    flat = [dict(_flattened({key: entry[key] for key in entry if key not in IGNORED})) for entry in tables]
    every = dict.fromkeys(key for values in flat for key in values)
    keys = [key for key in every if len({values.get(key) for values in flat}) > 1]
    for name, values in zip(names, flat, strict=True) if keys else ():
        differing = [key for key in keys if values is flat[0] or values.get(key) != flat[0].get(key)]
        shown = [f"{key} = {values[key]}" for key in differing if key in values]
        more = f", and {len(shown) - MOST_KEYS} more" if len(shown) > MOST_KEYS else ""
        yield name, (", ".join(shown[:MOST_KEYS]) or "defaults") + more


def _flattened(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tables.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _flattened(value, where)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                yield from _flattened(item, where if len(value) == 1 else f"{where}[{number}]")
        else:
            yield where, str(value).lower() if isinstance(value, bool) else str(value)


def tiles(verdicts: Sequence[Verdict]) -> str:
    """Return three tiles for each job: iteration time, exposed communication, and MFU or the bottleneck; of the fastest
    run, beside the first."""
    return "".join(map(_tiles_of, verdicts))


def _tiles_of(verdict: Verdict) -> str:
    best, first = verdict.ranking[0], verdict.runs[0]
    finding, usage = best.bottleneck, best.bottleneck.usage
    run = f"{verdict.prefix}{best.name}" if len(verdict.runs) > 1 else verdict.prefix.rstrip(": ")
    if best is not first:
        change = change_text(best.mean_ps / first.mean_ps)
        run += f", no difference from {first.name}" if first in verdict.alike else f", {change} against {first.name}"
    last = (finding.kind, "", f"{len(verdict.runs)} runs" if len(verdict.runs) > 1 else "")
    waiting = time_text(finding.waiting_ps)
    of_run = f"{best.quoted_name}: " if len(verdict.runs) > 1 else ""
    if usage is not None:
        middle = sum(usage.whole_ps(finding.iteration_ps, finding.waiting_ps)) / 2
        rate = f"{count_text(usage.units_per_s(middle))} {usage.entry['unit']}s/s per GPU"
        last = (share_text(usage.mfu(middle, whole=True)), "MFU", of_run + rate)
    return _row_of_tiles(
        (time_text(best.mean_ps), "per iteration", run),
        (share_text(finding.waiting_share), "of it waits", f"{of_run}{waiting} exposed communication"),
        last,
    )


def training_tiles(trainings: Sequence[TrainingResult]) -> str:
    """Return three tiles of the most accurate training run: accuracy, time or steps, and losses."""
    scored = [run for run in trainings if run.scores and run.steps]
    if not scored:
        return ""
    best = max(scored, key=lambda run: run.scores[-1]["accuracy"])
    steps, name = f"{best.summary['steps_done']:,}", best.name if len(trainings) > 1 else ""
    clock = best.steps[-1]["clock_ps"]
    middle = (time_text(clock), "of simulated time", f"{steps} steps") if best.timed else (steps, "steps", "")
    lost = share_text(sum(row["lost"] for row in best.steps) / len(best.steps))
    sent = size_text(sum(row["sent_bytes"] for row in best.steps))
    accuracy = accuracy_text(best.scores[-1]["accuracy"])
    return _row_of_tiles((accuracy, "accuracy", name), middle, (lost, "of values lost", f"{sent} sent by workers"))


def _row_of_tiles(*tiles: tuple[str, str, str]) -> str:
    """Return tiles side by side, each with a figure, its unit and a note."""
    parts = (
        f'<div class="tile"><b>{escape(figure)}</b> <span>{escape(unit)}</span><p>{escape(note)}</p></div>'
        for figure, unit, note in tiles
    )
    return f'<div class="tiles">{"".join(parts)}</div>'
