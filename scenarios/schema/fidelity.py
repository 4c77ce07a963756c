"""Declares the scenario's table `[fidelity]`, the tolerances of emulated against simulated figures that `gradwire
fidelity` judges by.

They affect neither run, so they are not part of a scenario's digest.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from gradwire.scenarios.schema.base import Flag, Natural, ScenarioTable
from gradwire.scenarios.units import UnitError

OFF = "off"


def _parse(value: Any) -> float | None:
    if value is None or value == OFF:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnitError("is not a tolerance", f'a plain number such as 0.02, or "{OFF}"')
    if not 0 <= value < float("inf"):
        raise UnitError("is out of range", f'0 or more, such as 0.02, or "{OFF}"')
    return float(value)


Tolerance = Annotated[
    float | None,
    BeforeValidator(_parse),
    PlainSerializer(lambda value: OFF if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"enum": [OFF]}]}),
]
"""A fraction of the simulated figure; None ("off" in files): reported but not judged."""


class Fidelity(ScenarioTable):
    """Tolerances of `gradwire fidelity`: largest differences of emulated from simulated figures. They are fractions of
    the simulated figures (0.02 is 2 %), or "off" for figures that are reported but not judged. The defaults are for the
    wall clock; under virtual time 0.02 and 0.03 are realistic."""

    completion_mean: Tolerance = 0.10
    """Mean completion time of the messages of one kind and job."""
    completion_p50: Tolerance = 0.10
    """Their median."""
    completion_p99: Tolerance = 0.10
    """Their 99th percentile."""
    iteration: Tolerance = 0.10
    """Mean iteration time of a job."""
    throughput: Tolerance = 0.10
    """Throughput per pair of hosts: delivered bytes over the time in which messages of that pair were in flight. Mean
    absolute difference over a job's pairs."""
    drops: Tolerance = 0.10
    """Packets dropped, by cause."""
    drops_packets: Natural = 10
    """Differences of up to this many packets are ignored."""
    marks: Tolerance = 0.10
    """Congestion marks set by switches."""
    marks_packets: Natural = 10
    """Differences of up to this many marks are ignored."""
    loss: Tolerance = 0.02
    """Lost share of a message's bytes; mean absolute difference over the messages: 2 % and 3 % differ by 0.01."""
    answers: Tolerance = 0.16
    """Maximum mean delay of hosts' reactions on the wall clock, as a fraction of the base round trip. A run above it is
    disturbed: machines too slow for such round trips slow transports down. Only `userspace` switches measure it; with
    any backend, a run is disturbed if one timer in a hundred of a host was two base round trips late. "off": neither is
    checked."""
    seeds: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Runs of each world, with the scenario's seed and the following ones; from the second on, cables are longer by
    less than a tenth of a packet's time, equally in both. Figures cover the messages of all of them. Outcomes that
    depend on single lost packets need several."""
    spread: Annotated[int, Field(ge=0, le=64, strict=True)] = 0
    """Extra simulations, each with every cable longer by less than a tenth of a packet's time. Their differences are
    due to nanoseconds, so an emulated figure between their smallest and their largest is not judged to differ."""
    per_port: Flag = False
    """Compare drops and marks at every port as well, not only in total."""
