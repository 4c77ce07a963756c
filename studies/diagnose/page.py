"""Builds the HTML page of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwire.analysis.comparison.tables import TableRow
from gradwire.analysis.diagnosis.findings import TITLES
from gradwire.analysis.diagnosis.lateness import waits
from gradwire.analysis.report.charts import Axis, Bars, Lines, Series
from gradwire.analysis.report.html_page import (
    PageSection,
    bullet_list,
    chart,
    code,
    collapsible,
    heading,
    html_page,
    paragraph,
    table,
)
from gradwire.result_store.folders.output_folder import new_file
from gradwire.scenarios.interrupt import defer_interrupt
from gradwire.studies.diagnose.report import DiagnosisReport, text_of

MAX_CALLS = 400
"""Calls of a class in the plot of times."""


def write_page(report: DiagnosisReport, out: Path, command: str = "") -> int:
    """Write the page of a diagnosis to a new file and return its bytes."""
    text = html_page("Diagnosis", [section_of(report)], command)
    with defer_interrupt(), new_file(out) as partial:
        partial.write_text(text, encoding="utf-8")
    return len(text.encode())


def section_of(report: DiagnosisReport) -> PageSection:
    """Return the page's only section."""
    section = PageSection("Diagnosis", TITLES[report.diagnosis.verdict], report.verdict[0].upper() + report.verdict[1:])
    for number, finding in enumerate(report.diagnosis.findings):
        share = f"{TITLES[finding.kind]}, {finding.why}: {100 * finding.share:.1f} % of the time"
        section.add(heading(share), paragraph(finding.summary) if number else "", bullet_list(finding.evidence))
    section.add(bullet_list([*report.diagnosis.limits, *report.notes]))
    if report.diagnosis.times.calls:
        section.add(*(chart(item) for item in _charts(report)))
    section.add(heading("Measured and simulated"), _classes(report), *_policies(report), *_activities(report))
    skipped = [f"{count} x {what}" for what, count in sorted(report.logs.log.skipped.items()) if count]
    section.add(collapsible("As text", code("\n".join(text_of(report)))), collapsible("Left out", bullet_list(skipped)))
    return section


def _charts(report: DiagnosisReport) -> Iterator[Lines]:
    times = report.diagnosis.times
    sums = waits(times, times.calls)
    ranks = [rank for rank in times.log.ranks if sums.calls[rank]]
    yield Lines(
        "Waiting of each rank",
        "Seconds that a rank waits in collectives for others, and that others wait for this rank alone. A late rank "
        "waits least, and causes most.",
        Axis("rank"),
        Axis("seconds"),
        [
            Series("waits", [(rank, sums.total[rank] / 1e9) for rank in ranks], dots=True),
            Series("causes waiting", [(rank, sums.caused[rank] / 1e9) for rank in ranks], dots=True),
        ],
    )
    kind, calls = max(times.by_class.items(), key=lambda item: sum(call.transfer for call in item[1]))
    by_group: dict[int, list[tuple[float, float]]] = {}
    for call in calls[:: -(-len(calls) // MAX_CALLS)]:
        by_group.setdefault(call.group, []).append((float(call.sequence), call.transfer / 1e6))
    yield Lines(
        f"Transfer times: {kind.title}",
        "Each call, by its number in its group, without waiting for late members.",
        Axis("call"),
        Axis("ms", "log"),
        [Series(times.log.groups[group].title, points, dots=True, line=False) for group, points in by_group.items()][
            :12
        ],
    )


def _classes(report: DiagnosisReport) -> str:
    names = ["calls", "measured (ms)", "95 % (ms)", "busbw (GB/s)", "simulated (ms)", "simulated busbw (GB/s)"]
    rows = []
    for row in report.classes:
        cells = [f"{row.calls:,}", f"{row.median_ns / 1e6:,.2f}", f"{row.p95_ns / 1e6:,.2f}", f"{row.bus_gbs:,.1f}"]
        if row.simulated_ns is None or row.simulated_bus_gbs is None:
            cells += ["-", "-"]
        else:
            cells += [f"{row.simulated_ns / 1e6:,.2f}", f"{row.simulated_bus_gbs:,.1f}"]
        rows.append(TableRow(row.kind.title, cells))
    return table(f"Transfer times, simulated on {report.network}", names, rows, "collective")


def _policies(report: DiagnosisReport) -> Iterator[str]:
    if report.policies:
        yield heading("What a policy would change")
        yield paragraph(
            "The collective that takes most time, simulated. A slow link is put beside the first host's NIC."
        )
        rows = [
            TableRow(
                row.policy,
                ["-" if row.found_ns is None else f"{row.found_ns / 1e6:,.2f}", f"{row.healthy_ns / 1e6:,.2f}"],
            )
            for row in report.policies
        ]
        yield table("Time in ms", ["with the slow link", "without"], rows, "policy")


def _activities(report: DiagnosisReport) -> Iterator[str]:
    if report.logs.activities:
        yield heading("Accelerators")
        yield chart(
            Bars(
                "Time of each accelerator",
                "Computing, communication that is not hidden behind it, copies alone, and nothing.",
                "ms",
                [f"rank {each.rank}" for each in report.logs.activities],
                ["computing", "communication alone", "copies alone", "idle"],
                ["pale", "c0", "c3", "grey"],
                [
                    [
                        each.compute / 1e3,
                        (each.communication - each.overlap) / 1e3,
                        (each.busy - each.compute - each.communication + each.overlap) / 1e3,
                        each.idle / 1e3,
                    ]
                    for each in report.logs.activities
                ],
            )
        )
