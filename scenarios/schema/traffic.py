"""Traffic besides training jobs: flows whose times, ends and sizes are known or drawn beforehand.

Every `[[traffic]]` table is one kind of such traffic among some hosts. What they have in common is in `Traffic`; when
a flow starts never depends on how others fare, except where a kind says so (`all_to_all` in shifts, triggers of a
matrix).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Table, refuse
from gradwire.scenarios.schema.transport import AnyTransport
from gradwire.scenarios.units import (
    Fraction,
    PositiveTime,
    Ps,
    Size,
    Time,
    UnitError,
    format_time,
    parse_size,
)

DISTRIBUTIONS = ("web_search", "data_mining", "facebook")
"""Distributions of flow sizes that come with gradwire."""

RANGE = re.compile(r"(.*?)([0-9]+)\.\.(.*?)([0-9]+)")
MOST_HOSTS = 1 << 20


def _hosts(value: Any) -> Any:
    """ "all", or the list with its ranges written out."""
    if value == "all":
        return value
    expected = '"all" or a list of hosts and ranges, such as ["h0", "h8..h15"]'
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise UnitError("names no hosts", expected)
    names: list[str] = []
    for name in value:
        found = RANGE.fullmatch(name)
        if not found:
            names.append(name)
            continue
        prefix, first, other, last = found.groups()
        if prefix != other or not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise UnitError(f'"{name}" is no range', expected)
        names += [f"{prefix}{number}" for number in range(int(first), int(last) + 1)]
    if len(set(names)) != len(names):
        raise UnitError("names a host twice", "distinct hosts")
    if len(names) < 2:
        raise UnitError("is no two hosts", expected)
    return tuple(names)


def _sizes(value: Any) -> str:
    """The name of a distribution, the path of one, or a size."""
    known = ", ".join(f'"{name}"' for name in DISTRIBUTIONS)
    expected = f'{known}, a file such as "sizes.txt", or one size such as "100kB"'
    if not isinstance(value, str):
        raise UnitError("is no distribution of sizes", expected)
    if value in DISTRIBUTIONS or "/" in value or value.endswith(".txt"):
        return value
    try:
        if parse_size(value) > 0:
            return value
    except UnitError:
        pass
    raise UnitError("is no distribution of sizes", expected)


Hosts = Annotated[
    Literal["all"] | tuple[str, ...],
    BeforeValidator(_hosts),
    Field(json_schema_extra={"examples": ["all", ["h0", "h8..h15"]]}),
]
Load = Annotated[float, Field(gt=0, le=1, strict=True)]


class Traffic(Table):
    """What all kinds of traffic have."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    """Letters, digits and . _ + - only; the tables of a Result have it in the place of a job's name."""
    hosts: Hosts = "all"
    """Who takes part: all hosts, or a list of names and ranges such as "h8..h15". Files count hosts in this order."""
    start: Time = Ps(0)
    """When the first flows may start."""
    stop: PositiveTime | None = None
    """No flow starts at this time or later; those under way go on."""
    transport: AnyTransport | None = None
    """What carries these flows, a name or a table; that of the scenario if absent."""
    priority: Annotated[int, Field(ge=0, le=7, strict=True)] = 0
    """Queue of the data packets."""
    bound: Fraction = 0.0
    """Share of a flow's bytes that may be lost."""
    droppable: Flag = False
    """Whether all packets are droppable (Not-ECT), whatever the transport makes of untagged ones."""

    @model_validator(mode="after")
    def _ordered(self) -> Traffic:
        if self.stop is not None and self.stop <= self.start:
            raise refuse("stop", "is not after start", format_time(self.stop), "start < stop")
        return self

    @property
    def endless(self) -> bool:
        """Whether flows start on and on unless the run ends."""
        return False

    @property
    def path(self) -> str | None:
        """The file that the traffic is read from."""
        return None

    def at(self, file: str) -> Traffic:
        """The same with another file."""
        return self

    @property
    def hosts_needed(self) -> int:
        """How many hosts have to take part."""
        return 2


class Poisson(Traffic):
    """Flows that arrive independently of each other: exponential gaps, random ends, sizes from a distribution."""

    kind: Literal["poisson"]
    load: Load
    """Payload that every host sends, as a share of its link's rate, in the long run."""
    sizes: Annotated[str, BeforeValidator(_sizes), Field(json_schema_extra={"examples": list(DISTRIBUTIONS)})]
    """"web_search", "data_mining" or "facebook"; a file with lines "bytes share"; or one size, such as "100kB"."""
    flows: Count | None = None
    """How many in all; any number up to `stop` if absent."""

    @property
    def endless(self) -> bool:
        return self.flows is None and self.stop is None

    @property
    def path(self) -> str | None:
        return self.sizes if "/" in self.sizes or self.sizes.endswith(".txt") else None

    def at(self, file: str) -> Traffic:
        return self.model_copy(update={"sizes": file})


class Repeated(Traffic):
    """What patterns have that are repeated from time to time."""

    size: Size
    """Bytes of every flow."""
    period: PositiveTime | None = None
    """Time from the start of one round to that of the next."""
    rounds: Count | None = None
    """How many; one without a period, and with one as many as there is time for, if absent."""

    @model_validator(mode="after")
    def _repeats(self) -> Repeated:
        if self.period is None and self.rounds is not None and self.rounds > 1:
            raise refuse("rounds", "needs a period", self.rounds, 'period beside it, such as "1ms"')
        return self

    @property
    def endless(self) -> bool:
        return self.period is not None and self.rounds is None and self.stop is None


class Permutation(Repeated):
    """Every host sends one flow and receives one, all at the same time."""

    kind: Literal["permutation"]
    shift: Count | None = None
    """Host i sends to host i + shift, counted in a circle; absent: a random permutation, a new one every round."""


class Incast(Repeated):
    """Bursts in which several hosts send to one at the same time."""

    kind: Literal["incast"]
    fan_in: Count
    """How many hosts send at once, drawn anew for every burst."""
    receiver: Annotated[str, Field(min_length=1)] | None = None
    """Host that receives, the same in every burst; absent: one of the hosts at random, another in every burst."""

    @property
    def hosts_needed(self) -> int:
        among = self.receiver is None or self.hosts == "all" or self.receiver in self.hosts
        return self.fan_in + among


class AllToAll(Repeated):
    """Every host sends a flow to every other one."""

    kind: Literal["all_to_all"]
    order: Literal["at_once", "shifts"] = "at_once"
    """All flows at once; or one after the other: each host sends to the next, when it has received to the next but one,
    and so on."""


class FlowList(Traffic):
    """Flows from a file in the format of HPCC: their number, then lines `src dst group port bytes start-in-seconds`."""

    kind: Literal["flows"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. Lines without the port, as ConWeave has them, are read as well. The group
    and the port are not used: `priority` says which queue."""
    align: Flag = False
    """Whether the first flow starts at `start`, and not the file's time later."""

    @property
    def path(self) -> str | None:
        return self.file

    def at(self, file: str) -> Traffic:
        return self.model_copy(update={"file": file})


class Matrix(Traffic):
    """A traffic matrix of htsim (.cm): `Nodes`, `Connections`, and lines `src->dst id N start PS size BYTES`."""

    kind: Literal["matrix"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. A flow may wait for triggers of deliveries to its own host."""

    @property
    def path(self) -> str | None:
        return self.file

    def at(self, file: str) -> Traffic:
        return self.model_copy(update={"file": file})


AnyTraffic = Annotated[
    Poisson | Permutation | Incast | AllToAll | FlowList | Matrix, Field(discriminator="kind")
]

__all__ = ["AllToAll", "AnyTraffic", "FlowList", "Incast", "Matrix", "Permutation", "Poisson", "Traffic"]
