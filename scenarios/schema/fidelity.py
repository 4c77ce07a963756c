"""`[fidelity]`: how far an emulated run may be from the simulated one.

It says nothing about either run, so it is no part of a scenario's digest.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from gradwire.scenarios.schema.base import Flag, Natural, Table
from gradwire.scenarios.units import UnitError

OFF = "off"


def _parse(value: Any) -> float | None:
    if value is None or value == OFF:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnitError("is no tolerance", f'a plain number such as 0.02, or "{OFF}"')
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


class Fidelity(Table):
    """What `gradwire fidelity` lets pass: the largest difference of emulated figures from simulated ones, as a fraction
    of the simulated ones (0.02 is 2 %), or "off" for those that are to be shown and not judged. The defaults are for
    the wall clock; under virtual time 0.02 and 0.03 can be asked for."""

    completion_mean: Tolerance = 0.10
    """Mean completion time of the messages of one kind and job."""
    completion_p50: Tolerance = 0.10
    """Their median."""
    completion_p99: Tolerance = 0.10
    """Their 99th percentile."""
    iteration: Tolerance = 0.10
    """Mean iteration time of a job."""
    throughput: Tolerance = 0.10
    """From host to host: what was delivered over the time in which messages of that pair were under way. The mean over
    a job's pairs of how much it differs, up or down."""
    drops: Tolerance = 0.10
    """Packets dropped, by cause."""
    drops_packets: Natural = 10
    """So many packets more or less are no difference."""
    marks: Tolerance = 0.10
    """Congestion marks made."""
    marks_packets: Natural = 10
    """So many marks more or less are no difference."""
    loss: Tolerance = 0.02
    """The share of a message's bytes that were lost; the mean over the messages of how much it differs, in absolute
    terms: 2 % here and 3 % there differ by 0.01."""
    answers: Tolerance = 0.16
    """How late hosts may answer on the wall clock, on average, as a fraction of the base round trip. A run in which
    they were later is disturbed: machines that are too slow for such round trips make transports slower. The switches
    of `userspace` can tell; with all, a run is disturbed if one timer in a hundred of a host was two base round trips
    late. "off": neither is looked at."""
    seeds: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """So many runs of each world, with the scenario's seed and those that follow, and from the second on with cables
    that are longer by less than a tenth of a packet's time, the same in both. Figures are of the messages of all of
    them together. What single lost packets decide takes several."""
    spread: Annotated[int, Field(ge=0, le=64, strict=True)] = 0
    """So often the simulation is made again with every cable longer by less than a tenth of a packet's time. What these
    runs differ by among themselves is decided by nanoseconds, and no emulated figure between their smallest and their
    largest is judged to differ."""
    per_port: Flag = False
    """Drops and marks have to agree at every port as well, not only in total."""
