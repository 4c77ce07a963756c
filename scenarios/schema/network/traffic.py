"""Declares the base classes of [[traffic]] tables, flows beside jobs that are known or drawn beforehand
(`gradwire.workload.traffic`).

Every `[[traffic]]` table is one kind of such traffic among some hosts. `TrafficTable` holds the common keys; each kind
is a class in its own file (see `gradwire.scenarios.loading.registry`). The start of a flow does not depend on other
flows, except for kinds that define it so (`all_to_all` in shifts, triggers of a matrix).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, FileNamingTable, Flag
from gradwire.scenarios.schema.effect_conditions import Precondition, is_marked
from gradwire.scenarios.schema.network.transport import AnyTransport
from gradwire.scenarios.units import Fraction, PositiveTime, Ps, Size, Time, UnitError, format_time

RANGE = re.compile(r"(.*?)([0-9]+)\.\.(.*?)([0-9]+)")
MOST_HOSTS = 1 << 20


EXAMPLE = 'a list of hosts and ranges, such as ["h0", "h8..h15"]'


def _two_or_all(value: Any) -> Any:
    """Return "all", or the list of at least two hosts with its ranges expanded."""
    expected = f'"all" or {EXAMPLE}'
    names = value if value == "all" else _names(value, expected)
    if len(names) < 2:
        raise UnitError("names fewer than two hosts", expected)
    return names


def _any_or_all(value: Any) -> Any:
    """Return "all", or the list with its ranges expanded."""
    return value if value == "all" else _names(value, f'"all" or {EXAMPLE}')


def _names(value: Any, expected: str = EXAMPLE) -> tuple[str, ...]:
    """Return the names of a non-empty list of hosts with its ranges expanded."""
    if not value or not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise UnitError("names no hosts", expected)
    names: list[str] = []
    for name in value:
        match = RANGE.fullmatch(name)
        if not match:
            names.append(name)
            continue
        prefix, first, other, last = match.groups()
        if prefix != other or not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise UnitError(f'"{name}" is not a range', expected)
        names += [f"{prefix}{number}" for number in range(int(first), int(last) + 1)]
    if len(set(names)) != len(names):
        raise UnitError("names a host twice", "distinct hosts")
    return tuple(names)


Hosts = Annotated[
    Literal["all"] | tuple[str, ...],
    BeforeValidator(_two_or_all),
    Field(json_schema_extra={"examples": ["all", ["h0", "h8..h15"]]}),
]
"""Hosts that send to each other: "all", or at least two."""

Side = Annotated[
    Literal["all"] | tuple[str, ...],
    BeforeValidator(_any_or_all),
    Field(json_schema_extra={"examples": ["all", ["h0", "h8..h15"]]}),
]
"""Hosts of one of two sides: "all", or at least one."""

NamedHosts = Annotated[
    tuple[str, ...], BeforeValidator(_names), Field(json_schema_extra={"examples": [["h0", "h8..h15"]]})
]
"""At least one host, by name."""


class TrafficTable(FileNamingTable, ABC):
    """Common keys of all kinds of traffic."""

    # A subclass with a `kind` is a complete kind of traffic: its fields are the keys of its table, the rest states its
    # requirements on the scenario and creates the flows.

    limit: ClassVar[str] = ""
    """Key of the number of flows or rounds, if it is optional."""

    kind: str
    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")]
    """Letters, digits and . _ + - only; it takes the place of a job's name in the tables of a Result."""
    hosts: Hosts = "all"
    """Participating hosts: all, or a list of names and ranges such as "h8..h15". Files count hosts in this order."""
    start: Time = Ps(0)
    """Earliest start of flows."""
    stop: PositiveTime | None = None
    """No flow starts at this time or later; flows in flight continue."""
    transport: AnyTransport | None = None
    """Transport of these flows, a name or a table; that of the scenario if absent."""
    priority: Annotated[int, Field(ge=0, le=7, strict=True)] = 0
    """Queue of the data packets."""
    bound: Annotated[
        Fraction,
        Precondition(
            lambda at: (
                ":" in at.transport.kind
                or at.table.droppable
                or not at.transport.keeps_important
                or not at.transport.ecn_capable
            ),
            "all packets are important and must arrive",
            "traffic.droppable = true, or important_must_arrive = false in the transport",
            "on the run",
        ),
    ] = 0.0
    """Share of a flow's bytes that may be lost."""
    droppable: Annotated[
        Flag,
        Precondition(
            lambda at: is_marked(at) or at.table.bound > 0 or ":" in at.transport.kind,
            "nothing treats droppable packets differently",
            "switch.ecn_threshold, or a bound above 0",
        ),
        Precondition(
            lambda at: at.transport.ecn_capable or ":" in at.transport.kind,
            "all packets of its transport are droppable",
            "a transport whose packets are ECN-capable",
        ),
    ] = False
    """Make all packets droppable (Not-ECT), whatever the transport does with untagged ones."""

    def conflicts(self) -> Iterator[Mistake]:
        if self.stop is not None and self.stop <= self.start:
            yield Mistake("stop", "is not after start", format_time(self.stop), "start < stop")

    @property
    def endless(self) -> bool:
        """True if flows start until the run ends."""
        return False

    @property
    def named_hosts(self) -> Mapping[str, tuple[str, ...]]:
        """Hosts that the table names beside `hosts`, by key."""
        return {}

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        """Yield the conflicts with this number of participating hosts, with paths in this table."""
        if hosts < 2:
            yield Mistake("hosts", f"needs 2 hosts, but {hosts} take part", None, "at least 2")

    @abstractmethod
    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        """Return the bytes of the largest flow, and the key that sets it; 0 if there is none. Reads files.

        `where` : the table's path in the scenario, for messages. `hosts` : number of participants, None before the
        network has been read.

        Raises ScenarioError if a file is missing or damaged; with the lines.
        """

    def check_hosts(self, setting: Any) -> None:
        """Check the hosts in a file once the network has been read; `setting` as for `flows_of`. Raises ScenarioError
        if the file names hosts that the network does not have; with the lines."""

    @abstractmethod
    def flows_of(self, setting: Any) -> Iterator[Any]:
        """Yield the flows as batches in the order of their starts. `setting`: a `Setting`; a batch is a `Flows` (both
        in `gradwire.workload.traffic.base`)."""


class RepeatedTraffic(TrafficTable):
    """Common keys of patterns in rounds."""

    limit = "rounds"

    size: Size
    """Bytes of every flow."""
    period: Annotated[
        PositiveTime | None, Precondition(lambda at: at.table.rounds != 1, "there is one round", "rounds above 1")
    ] = None
    """Time from the start of one round to that of the next."""
    rounds: Count | None = None
    """Number of rounds; if absent, one without a period, and with one until the end."""

    def conflicts(self) -> Iterator[Mistake]:
        yield from super().conflicts()
        if self.period is None and self.rounds is not None and self.rounds > 1:
            yield Mistake("rounds", "needs a period", self.rounds, 'period beside it, such as "1ms"')

    @property
    def endless(self) -> bool:
        return self.period is not None and self.rounds is None and self.stop is None

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        return "size", self.size


class FileTraffic(TrafficTable):
    """Common keys of kinds whose flows are in a file."""

    file: Annotated[str, Field(min_length=1)]
