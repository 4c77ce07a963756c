"""Composes the Markdown report of a comparison of Results, with every sentence computed from their figures.

The report states figures and their sources, and no conclusion that a reader could not check in the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.analysis.comparison.tables import headings, markdown_rows, whole_networks
from gradwire.analysis.flows import flow_blocks
from gradwire.analysis.metrics import DROPS, Metrics, ran_on
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.result import Result
from gradwire.scenarios.readable import count_text, share_text, size_text, time_text

if TYPE_CHECKING:
    from gradwire.analysis.comparison.compare import Comparison

HTML_PAGE = "report.html"
"""File name of the HTML page, if requested (`gradwire.studies.report`)."""
MOST_VIOLATIONS = 10
MOST_PORTS = 3

FIGURE_CAPTIONS = {
    "breakdown": "Parts of the mean iteration: computing, then waiting by cause (docs/timeline.md).",
    "iteration_time": "Mean iteration time of each run: compute (pale) and waiting for the network (full colour). "
    "Dots are single iterations of single workers; hollow ones are the first and the last, which are not in the means.",
    "completion_time": "Share of messages slower than a time, counted from being ready to send. "
    "Both axes are logarithmic; every message counts the same, whatever its size. Dots are p99.",
    "packets_again": "Packets dropped by cause, and retransmissions, per 100 data packets, of all jobs and "
    "traffic of a run together.",
}


def report(comparison: Comparison, pictures: Sequence[str], folders: Sequence[str], page: str = "") -> str:
    """Return the text of report.md.

    pictures : names of the files beside the report.
    folders : of the Results, below `results/`, in order.
    page : name of the HTML page beside it, if any.
    """
    lines = [f"# {comparison.title}", "", *(f"**{verdict.text}**\n" for verdict in comparison.verdicts)]
    lines += [*(f"{line}  " for line in provenance(comparison)), ""]
    for table in comparison.tables:
        lines += [f"## {table.title[2].upper()}{table.title[3:]}", ""] if table.title else []
        lines.append(markdown_rows(table.names, table.rows))
    flows = flow_blocks(comparison.results, comparison.metrics)
    for traffic, names, rows in flows:
        lines += [f"## Flows of {traffic}", "", markdown_rows(names, rows)]
    lines += ["## What the figures say", "", *(f"* {fact}" for fact in facts(comparison)), ""]
    for picture in pictures:
        image = "" if picture.endswith(".pdf") else "!"  # Markdown shows no PDF
        lines += [f"{image}[{picture}]({picture})", "", FIGURE_CAPTIONS.get(picture.partition(".")[0], ""), ""]
    lines += ["## Files", ""]
    lines += [
        "| file | what |",
        "|---|---|",
        *([f"| {page} | this and more as one page to open in a browser, with timelines |"] if page else []),
        "| comparison.json | everything above, for programs; times in picoseconds |",
        "| comparison.csv, comparison.parquet | one line per run and job |",
        *(["| flows.csv | the tables of flows, with all percentiles |"] if flows else []),
        *(f"| results/{folder}/ | the Result: result.json and its Parquet tables |" for folder in folders),
        "",
        "`gradwire compare` reads these Result directories again.",
    ]
    return "\n".join(lines) + "\n"


def facts(comparison: Comparison) -> Iterator[str]:
    """Yield the sentences that follow from the tables."""
    runs, names = comparison.flat, headings(comparison.flat)
    measured = [(entry, name) for entry, name in zip(runs, names, strict=True) if entry.iteration.count]
    for entry, name in measured:
        compute = entry.iteration.mean_ps - entry.exposed.mean_ps
        yield (
            f"{name}: {time_text(entry.iteration.mean_ps)} per iteration, {time_text(compute)} of it computing and "
            f"{time_text(entry.exposed.mean_ps)} ({share_text(entry.exposed_share)}) waiting; mean of "
            f"{entry.iteration.count:,} iterations of single workers ({entry.steady})."
        )
    whole = whole_networks(comparison.metrics)
    for result, entry, name in zip(comparison.results, whole, headings(whole), strict=True):
        yield from _losses(result, entry, name)
    yield from (f"{text}." for text in comparison.differences)
    yield _bound(comparison)
    for entry, name in zip(runs, names, strict=True):
        if not entry.finished:
            of = "the run" if entry.emulated else "simulated time"
            yield f"{name}: unfinished, so its figures cover {time_text(entry.simulated_ps)} of {of} only."
    for result, entries in zip(comparison.results, comparison.metrics, strict=True):
        if entries[0].disturbed:
            why = "; ".join(result.summary["engine"].get("disturbed", ()))
            yield f"**{names[runs.index(entries[0])]}: not valid**, the machine disturbed the run: {why}."


def _losses(result: Result, entry: Metrics, name: str) -> Iterator[str]:
    """Yield a sentence on drops by port and retransmissions, of everything in a Result together."""
    dropped, retransmitted = entry.dropped, entry.retransmitted
    trimmed = f"{count_text(entry.trimmed)} were trimmed to their headers, " if entry.trimmed > 0 else ""
    if dropped < 0:
        yield f"{name}: drops were not counted."
        return
    if not dropped:
        yield f"{name}: no packet was dropped; {trimmed}{count_text(retransmitted)} were retransmitted."
        return
    ports = result.ports
    drops = np.sum([to_numpy(ports[column]) for column in DROPS], axis=0)
    top = np.argsort(-drops, kind="stable")[:MOST_PORTS]
    where = ", ".join(
        f"{ports['port'][int(port)].as_py()} {share_text(drops[port] / dropped)}" for port in top if drops[port]
    )
    yield (
        f"{name}: {count_text(dropped)} packets were dropped, most of them at {where}; {trimmed}"
        f"{count_text(retransmitted)} were retransmitted for {count_text(entry.data_packets)} data packets."
    )


def _bound(comparison: Comparison) -> str:
    broken = comparison.violations
    if not broken:
        count = sum(
            int((to_numpy(part["end_ps"]) >= 0).sum())
            for result in comparison.results
            for part in result.parts("messages", "end_ps")
        )
        return f"No message of {count:,} was delivered with more loss than its bound."
    shown = "; ".join(str(violation) for violation in broken[:MOST_VIOLATIONS])
    more = f"; and {len(broken) - MOST_VIOLATIONS} more" if len(broken) > MOST_VIOLATIONS else ""
    return f"**The loss bound is broken {len(broken)} times**: {shown}{more}."


def provenance(comparison: Comparison) -> list[str]:
    """Return versions and hashes, once if all runs agree."""
    lines = []
    versions = {
        ", ".join(f"{name} {version}" for name, version in sorted(result.summary.get("versions", {}).items()))
        for result in comparison.results
    }
    traces = {result.summary.get("trace_hash", "")[:12] for result in comparison.results}
    seeds = {str(result.summary.get("seed", "")) for result in comparison.results}
    trace, seed = ", ".join(sorted(traces)), ", ".join(sorted(seeds))
    lines.append(f"Versions: {'; '.join(sorted(versions))}. Trace {trace}. Seed {seed}.")
    for result in comparison.results:
        totals = result.summary.get("totals", {})
        lines.append(
            f"{result.summary.get('policy', '')}: scenario {result.summary.get('scenario_hash', '')[:12]}, "
            f"{count_text(totals.get('messages', 0))} messages of {size_text(totals.get('bytes', 0))} in all, "
            f"{time_text(totals.get('simulated_ps', 0))} {_platform(result)}."
        )
    return lines


def _platform(result: Result) -> str:
    """Describe the platform of a run, and its deviations from the scenario."""
    engine = result.summary.get("engine", {})
    if ran_on(result)[0] == "simulated":
        return "simulated"
    text = f"on real sockets ({', '.join(ran_on(result)[1:])}, Linux {engine.get('kernel', '')})"
    differs = "; ".join(engine.get("substitutions", ()))
    return f"{text}, not as the scenario says: {differs}" if differs else text
