"""`Finding` names one cause of lost time in a job, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HEALTHY, STRAGGLER, SLOW_LINK, FLAPPING, HANG = "healthy", "straggler", "slow_link", "flapping_link", "hang"
TITLES = {
    HEALTHY: "healthy",
    STRAGGLER: "late rank",
    SLOW_LINK: "slow link",
    FLAPPING: "link that comes and goes",
    HANG: "hang",
}


@dataclass(frozen=True)
class Finding:
    """One cause.

    kind : one of TITLES. ranks : late or missing ranks, or both ends of the link, the sender first; empty if unknown.
    why : "compute", "host", "link" or "path". group : title of the process group that shows it best.
    share : part of the recorded time that it costs, 0 to 1. summary, evidence : sentences.
    """

    kind: str
    ranks: tuple[int, ...]
    why: str
    group: str
    share: float
    summary: str
    evidence: Sequence[str] = field(default_factory=tuple)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe values."""
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "why": self.why,
            "group": self.group,
            "share": round(self.share, 4),
            "summary": self.summary,
            "evidence": list(self.evidence),
        }
