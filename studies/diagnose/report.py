"""`diagnose` reads the log of a job, diagnoses it and simulates its largest collectives beside the measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradwire.analysis.diagnosis.call_times import CallClass, CallTimes, call_times
from gradwire.analysis.diagnosis.diagnosis import Diagnosis, diagnose_log
from gradwire.analysis.diagnosis.findings import SLOW_LINK, TITLES
from gradwire.analysis.diagnosis.slow_links import MIN_EXPECTED_RATIO
from gradwire.scenarios.errors import GradwireError
from gradwire.studies.diagnose.simulated_calls import SIMULATED, DiagnosisNetwork, built_in_network, simulated_ns
from gradwire.traces.collective_logs.loading import LoadedLogs, load_logs
from gradwire.traces.collective_logs.records import bus_factor

MAX_CLASSES = 8
"""Classes of collectives in the table."""
MAX_SIMULATED = 4
MIN_SIMULATED_BYTES = 1 << 20
"""Smaller collectives take the time of their software, which is not simulated."""
MIN_FACTOR = 1.2
Progress = Callable[[float, str], None]


class MeasuredClass(NamedTuple):
    """Comparable calls of a log: number, measured and simulated transfer times.

    median_ns, p95_ns : of the calls. bus_gbs : bus bandwidth of the median, GB/s. simulated_ns : None if not simulated.
    """

    kind: CallClass
    calls: int
    median_ns: float
    p95_ns: float
    bus_gbs: float
    simulated_ns: float | None

    @property
    def simulated_bus_gbs(self) -> float | None:
        """Bus bandwidth of the simulated time."""
        return None if self.simulated_ns is None else _bus_gbs(self.kind, self.simulated_ns)


class PolicyTime(NamedTuple):
    """Simulated time of the largest collective in ns under a policy: with the slow link found, and without."""

    policy: str
    found_ns: float | None
    healthy_ns: float


@dataclass(frozen=True, eq=False)
class DiagnosisReport:
    """Everything on the page: the logs, the diagnosis, measured and simulated classes, and policies."""

    logs: LoadedLogs
    diagnosis: Diagnosis
    classes: Sequence[MeasuredClass]
    policies: Sequence[PolicyTime] = ()
    network: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def verdict(self) -> str:
        """The first sentence: what is wrong, or that the job is healthy."""
        findings = self.diagnosis.findings
        return findings[0].summary if findings else "the job is healthy: no late rank, no slow or interrupted link"

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe values of all of it."""
        log = self.logs.log
        return {
            "verdict": self.diagnosis.verdict,
            "summary": self.verdict,
            "findings": [finding.as_dict() for finding in self.diagnosis.findings],
            "log": {
                "format": log.source,
                "about": log.about,
                "ranks": len(log.ranks),
                "world_size": log.world_size,
                "collectives": len(log),
                "seconds": self.diagnosis.times.span_ns / 1e9,
                "skipped": {what: count for what, count in sorted(log.skipped.items()) if count},
            },
            "classes": [
                {
                    **row.kind._asdict(),
                    "calls": row.calls,
                    "median_ms": row.median_ns / 1e6,
                    "p95_ms": row.p95_ns / 1e6,
                    "busbw_gbs": row.bus_gbs,
                    "simulated_ms": None if row.simulated_ns is None else row.simulated_ns / 1e6,
                    "simulated_busbw_gbs": row.simulated_bus_gbs,
                }
                for row in self.classes
            ],
            "network": self.network,
            "policies": [
                {
                    "policy": row.policy,
                    "with_slow_link_ms": None if row.found_ns is None else row.found_ns / 1e6,
                    "healthy_ms": row.healthy_ns / 1e6,
                }
                for row in self.policies
            ],
            "activities": [
                {
                    "rank": each.rank,
                    "idle_share": each.idle / each.span if each.span else 0.0,
                    "compute_share": each.compute / each.span if each.span else 0.0,
                    "communication_share": each.communication / each.span if each.span else 0.0,
                    "overlap_share": each.overlap_share,
                }
                for each in self.logs.activities
            ],
            "limits": list(self.diagnosis.limits),
            "notes": list(self.notes),
        }


def diagnose(
    *paths: str | Path,
    network: DiagnosisNetwork | None = None,
    simulated: bool = True,
    trusted: bool = True,
    on_progress: Progress | None = None,
) -> DiagnosisReport:
    """Return the diagnosis of the logs of one job: flight recorder dumps, Inspector lines or profiles of its ranks.

    network : the one to simulate on, by default `built_in_network()`. `simulated` : False leaves simulations out.
    trusted : the network is the job's, so collectives that take far longer than simulated reveal a slow link.

    Raises TraceError for files that cannot be read, and GradwireError if the network does not suit the job.
    """
    show = on_progress or (lambda share, words: None)
    logs = load_logs(paths, lambda share, words: show(0.6 * share, words))
    times = call_times(logs.log)
    chosen = network or built_in_network()
    notes: list[str] = []
    expected: dict[CallClass, float] = {}
    if simulated:
        for kind in simulable(times)[:MAX_SIMULATED]:
            show(0.7, f"simulate {kind.title}")
            expected[kind] = simulated_ns(kind, hosts_in(times, kind), chosen)
    is_trusted = trusted and network is not None
    rows = classes_of(times, expected)
    worst = max((row.median_ns / row.simulated_ns for row in rows if row.simulated_ns), default=0.0)
    if worst > MIN_EXPECTED_RATIO and not is_trusted:
        what = f"transfers take up to {worst:.1f} times as long as simulated on {chosen.title}"
        notes.append(f"{what}; give the rate of the job's NICs with --nic, or a network with --on, to have that judged")
    diagnosis = diagnose_log(logs.log, expected if is_trusted else None)
    policies: list[PolicyTime] = []
    if simulated and expected:
        policies = _policies(diagnosis, next(iter(expected)), chosen, show, notes)
    show(1.0, "done")
    return DiagnosisReport(logs, diagnosis, rows, policies, chosen.title, notes)


def simulable(times: CallTimes) -> list[CallClass]:
    """Return the classes that can be simulated, the one that takes most time first."""
    totals = {
        kind: sum(call.transfer for call in calls)
        for kind, calls in times.by_class.items()
        if kind.crosses_hosts and kind.kind in SIMULATED and kind.nbytes >= MIN_SIMULATED_BYTES
    }
    return sorted(totals, key=lambda kind: -totals[kind])


def hosts_in(times: CallTimes, kind: CallClass) -> int:
    """Return the number of hosts of a class's first group."""
    group = times.log.groups[times.by_class[kind][0].group]
    ranks = list(group.members) or times.by_class[kind][0].ranks.tolist()
    return len(set(times.host_of[ranks].tolist()))


def classes_of(times: CallTimes, expected: dict[CallClass, float]) -> list[MeasuredClass]:
    """Return the classes that take most time, with their simulated times."""
    rows = []
    for kind, calls in times.by_class.items():
        transfers = np.array([call.transfer for call in calls], dtype=np.float64)
        median = float(np.median(transfers))
        p95 = float(np.quantile(transfers, 0.95))
        rows.append(MeasuredClass(kind, len(calls), median, p95, _bus_gbs(kind, median), expected.get(kind)))
    return sorted(rows, key=lambda row: -row.calls * row.median_ns)[:MAX_CLASSES]


def _bus_gbs(kind: CallClass, took_ns: float) -> float:
    return kind.nbytes / took_ns * bus_factor(kind.kind, kind.members) if took_ns > 0 and kind.nbytes > 0 else 0.0


def _policies(
    diagnosis: Diagnosis, kind: CallClass, network: DiagnosisNetwork, show: Progress, notes: list[str]
) -> list[PolicyTime]:
    """Return the largest class's times under each policy; with a slow link, if one was found."""
    hosts = hosts_in(diagnosis.times, kind)
    factor = _slow_factor(diagnosis, kind)
    if factor > MIN_FACTOR and network.has_topology:
        notes.append("the scenario has its own topology, so the slow link is not put into it")
        factor = 1.0
    rows = []
    for number, policy in enumerate(["", *network.policies]):
        show(0.75 + 0.06 * number, f"simulate {policy or 'as it is'}")
        try:
            found = simulated_ns(kind, hosts, network.with_slow_link(factor), policy) if factor > MIN_FACTOR else None
            rows.append(PolicyTime(policy or "as it is", found, simulated_ns(kind, hosts, network, policy)))
        except GradwireError as error:
            if not policy:
                raise
            notes.append(f"{policy}: {error}")
    return rows


def _slow_factor(diagnosis: Diagnosis, kind: CallClass) -> float:
    """Return by how much the class's slowest group exceeds its fastest, if a slow link was found; else 1."""
    if all(finding.kind != SLOW_LINK for finding in diagnosis.findings):
        return 1.0
    by_group: dict[int, list[float]] = {}
    for call in diagnosis.times.by_class[kind]:
        by_group.setdefault(call.group, []).append(float(call.transfer))
    medians = [float(np.median(values)) for values in by_group.values()]
    return max(medians) / max(min(medians), 1.0)


def text_of(report: DiagnosisReport) -> list[str]:
    """Return the lines for a terminal."""
    log, times = report.logs.log, report.diagnosis.times
    about = ", ".join(f"{key} {value}" for key, value in log.about.items())
    lines = [
        f"{log.source}: {len(log):,} collectives of {len(log.ranks)} of {log.world_size} ranks in "
        f"{times.span_ns / 1e9:,.1f} s{f' ({about})' if about else ''}",
        *(f"left out: {count} x {what}" for what, count in sorted(log.skipped.items()) if count),
        "",
        f"verdict: {report.verdict}",
    ]
    for finding in report.diagnosis.findings:
        lines += [
            "",
            f"{TITLES[finding.kind]} ({finding.why}, {100 * finding.share:.1f} % of the time): {finding.summary}",
        ]
        lines += [f"  {sentence}" for sentence in finding.evidence]
    lines += [f"note: {limit}" for limit in [*report.diagnosis.limits, *report.notes]]
    if report.classes:
        lines += [
            "",
            f"{'collective':<46}{'calls':>7}{'ms':>10}{'p95':>10}{'busbw':>8}{'simulated ms':>14}{'busbw':>8}",
        ]
        lines += [_class_line(row) for row in report.classes]
        simulated = f"; simulated on {report.network}" if any(row.simulated_ns for row in report.classes) else ""
        lines += [f"  transfer times, without waiting; busbw in GB/s{simulated}"]
    if report.policies:
        lines += [
            "",
            f"{report.policies[0].policy and 'largest collective, simulated':<46}{'slow link':>12}{'healthy':>12}",
        ]
        for policy in report.policies:
            found = "-" if policy.found_ns is None else f"{policy.found_ns / 1e6:,.2f} ms"
            lines.append(f"  {policy.policy:<44}{found:>12}{policy.healthy_ns / 1e6:>9,.2f} ms")
    for each in report.logs.activities:
        idle, compute, communication = (
            f"{100 * part / each.span:.1f} %" for part in (each.idle, each.compute, each.communication)
        )
        lines.append(
            f"rank {each.rank}: idle {idle}, computing {compute}, communicating {communication}, "
            f"of which {100 * each.overlap_share:.1f} % overlap"
        )
    return lines


def _class_line(row: MeasuredClass) -> str:
    simulated, bus = "-", "-"
    if row.simulated_ns is not None and row.simulated_bus_gbs is not None:
        simulated, bus = f"{row.simulated_ns / 1e6:,.2f}", f"{row.simulated_bus_gbs:,.1f}"
    measured = f"{row.median_ns / 1e6:>10,.2f}{row.p95_ns / 1e6:>10,.2f}{row.bus_gbs:>8,.1f}"
    return f"  {row.kind.title:<44}{row.calls:>7,}{measured}{simulated:>14}{bus:>8}"
