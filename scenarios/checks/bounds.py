"""What a job's bounds say that has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradwire.scenarios.schema.bound import Bound, most_of

if TYPE_CHECKING:
    from gradwire.scenarios.schema.job import Job


def bound_remarks(job: Job) -> Iterator[str]:
    """What a job's bounds say that has no effect: keys, and why."""
    for name in ("push_bound", "pull_bound"):
        bound = getattr(job, name)
        given = bound.model_fields_set if isinstance(bound, Bound) else set()
        if "change" in given and bound.critical is None:
            yield f"{name}.change has no effect without {name}.critical"
        if "front_part" in given and bound.front is None:
            yield f"{name}.front_part has no effect without {name}.front and {name}.back"
        if isinstance(bound, Bound) and bound.critical is not None and bound.critical >= bound.most:
            yield f"{name}.critical has no effect: no layer may lose more than {bound.most:g} anyway"
    most = max(most_of(job.push_bound), most_of(job.pull_bound))
    if "bound_most" in job.model_fields_set and job.bound_per == "message":
        yield 'bound_most has no effect with bound_per = "message"'
    elif "bound_most" in job.model_fields_set and job.bound_most < most:
        yield f"bound_most has no effect: the bound is {most:g} already"
    if most_of(job.pull_bound) and job.tagging.magnitude and job.pull_important:
        yield "pull_bound has no effect with pull_important: all packets of the way back are important"
