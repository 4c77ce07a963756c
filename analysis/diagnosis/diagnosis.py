"""`diagnose_log` finds what costs a job time, from the log of its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.analysis.diagnosis.call_times import CallClass, CallTimes, call_times
from gradwire.analysis.diagnosis.findings import HANG, HEALTHY, Finding
from gradwire.analysis.diagnosis.hangs import disagreements, hang
from gradwire.analysis.diagnosis.interruptions import Stall, flapping_link
from gradwire.analysis.diagnosis.lateness import late_rank
from gradwire.analysis.diagnosis.slow_links import slow_link
from gradwire.traces.collective_logs.records import CollectiveLog


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The timed calls of a log, and what is wrong: `findings`, the costliest first; empty for a healthy job."""

    times: CallTimes
    findings: Sequence[Finding]
    stalls: Sequence[Stall]
    limits: Sequence[str]

    @property
    def verdict(self) -> str:
        """Kind of the costliest finding."""
        return self.findings[0].kind if self.findings else HEALTHY


def diagnose_log(log: CollectiveLog, expected_ns: Mapping[CallClass, float] | None = None) -> Diagnosis:
    """Return what is wrong with a job. `expected_ns` : simulated transfer times, which reveal a slow link also where no
    group is comparable."""
    times = call_times(log)
    findings = []
    flapping, stalls = flapping_link(times)
    stalled = {id(stall.call) for stall in stalls if not stall.is_pause}
    steady = [call for call in times.calls if id(call) not in stalled]
    for finding in (hang(log), flapping, slow_link(times, steady, expected_ns or {}), late_rank(times, steady)):
        if finding is not None:
            findings.append(finding)
    findings.sort(key=lambda finding: (finding.kind != HANG, -finding.share))
    return Diagnosis(times, findings, stalls, [*disagreements(log), *_limits(times)])


def _limits(times: CallTimes) -> list[str]:
    """Return sentences on what the log cannot show."""
    log, limits = times.log, []
    if missing := log.missing_ranks:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        limits.append(
            f"{len(missing)} of {log.world_size} ranks have no log ({named}): what they cause is seen at others"
        )
    if not times.calls:
        limits.append("no durations: set TORCH_NCCL_ENABLE_TIMING=1 for late ranks and slow links")
    elif times.untimed:
        limits.append(f"{times.untimed} collectives have no duration")
    return limits
