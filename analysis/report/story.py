"""Builds the beginning of a section on runs: a card with the setting, and tiles with the figures that matter most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from gradwire.analysis.comparison.tables import headings, whole_networks
from gradwire.analysis.report.topology_picture import topology_picture
from gradwire.analysis.verdict.verdict import Verdict
from gradwire.result_store.result import Result
from gradwire.scenarios.readable import change_text, count_text, share_text, time_text
from gradwire.scenarios.version import VERSION

if TYPE_CHECKING:
    from gradwire.analysis.comparison.compare import Comparison

MOST_KEYS = 8
"""Keys in which policies differ that the card lists (our choice)."""
IGNORED = ("name", "description", "policy", "seed", "modules")


def setting_card(comparison: Comparison) -> str:
    """Return the job, its model, the network, drawn too, the policies, seeds and version."""
    first = comparison.results[0]
    lines = [*_jobs(first, comparison), *_policies(comparison)]
    seeds = sorted({int(result.summary.get("seed", 0)) for result in [*comparison.results, *comparison.other_seeds]})
    lines.append(("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))))
    lines.append(("version", f"gradwire {first.summary.get('versions', {}).get('gradwire', VERSION)}"))
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in lines)
    return f'<div class="setting"><dl class="card">{items}</dl>{topology_picture(first)}</div>'


def _jobs(result: Result, comparison: Comparison) -> Iterator[tuple[str, str]]:
    usages = {
        verdict.job: run.bottleneck.usage
        for verdict in comparison.verdicts
        for run in verdict.runs
        if run.bottleneck.usage is not None
    }
    for job in result.tables.get("job", []):
        name, exchange = str(job.get("name", "")), job.get("exchange", {})
        kind = exchange.get("kind", "") if isinstance(exchange, Mapping) else exchange
        servers = f", {job['servers']} servers" if job.get("servers") else ""
        yield "job", f"{name}: {job.get('workers', '')} workers{servers}, exchange {kind}"
        usage = usages.get(name)
        if usage is None:
            yield "trace", str(job.get("trace", "")).rpartition("/")[2]
        else:
            layers = usage.entry["layers"]
            part = f", {layers['kept']} of {layers['of']} layers" if usage.is_part else ""
            yield "model", f"{usage.entry['title']}{part}, on {usage.entry['gpu']} (roofline)"
    for traffic in result.tables.get("traffic", []):
        yield "traffic", f"{traffic.get('name', '')}: {traffic.get('kind', '')}"


def _policies(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the keys in which the runs differ: of each run the values."""
    if len(comparison.results) < 2:
        return
    kept = [{key: value for key, value in result.tables.items() if key not in IGNORED} for result in comparison.results]
    flat = [dict(_flattened(tables)) for tables in kept]
    every = dict.fromkeys(key for values in flat for key in values)
    keys = [key for key in every if len({values.get(key) for values in flat}) > 1]
    names = headings(whole_networks(comparison.metrics))
    for name, values in zip(names, flat, strict=True):
        shown = [f"{key} = {values[key]}" for key in keys[:MOST_KEYS] if key in values]
        more = f", and {len(keys) - MOST_KEYS} more keys" if len(keys) > MOST_KEYS else ""
        yield name, (", ".join(shown) or "defaults") + more


def _flattened(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tables.items():
        where = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _flattened(value, where)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                yield from _flattened(item, where if len(value) == 1 else f"{where}[{number}]")
        else:
            yield where, str(value)


def tiles(verdicts: Sequence[Verdict]) -> str:
    """Return three tiles for each job: iteration time, exposed communication, and MFU or throughput; of the fastest
    run, beside the first."""
    parts = []
    for verdict in verdicts:
        best, first = verdict.ranking[0], verdict.runs[0]
        finding = best.bottleneck
        against = "" if best is first else f"{change_text(best.mean_ps / first.mean_ps)} against {first.name}"
        run = f"{verdict.prefix}{best.name}" if len(verdict.runs) > 1 else verdict.prefix.rstrip(": ")
        parts.append(_tile(time_text(best.mean_ps), "per iteration", against or run))
        share = share_text(finding.waiting_share)
        parts.append(_tile(share, "of it waits", f"{time_text(finding.waiting_ps)} exposed communication"))
        usage = finding.usage
        if usage is not None:
            low, high = usage.whole_ps(finding.iteration_ps, finding.waiting_ps)
            middle = (low + high) / 2
            rate = f"{count_text(usage.units_per_s(middle))} {usage.entry['unit']}s/s per GPU"
            parts.append(_tile(share_text(usage.mfu(middle, whole=True)), "MFU", rate))
        else:
            parts.append(_tile(finding.kind, "", f"{len(verdict.runs)} runs" if len(verdict.runs) > 1 else ""))
    return f'<div class="tiles">{"".join(parts)}</div>' if parts else ""


def _tile(figure: str, unit: str, note: str) -> str:
    return f'<div class="tile"><b>{escape(figure)}</b> <span>{escape(unit)}</span><p>{escape(note)}</p></div>'
