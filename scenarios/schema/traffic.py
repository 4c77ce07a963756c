"""Traffic besides training jobs: flows whose times, ends and sizes are known or drawn beforehand.

Every `[[traffic]]` table is one kind of such traffic among some hosts. What they have in common is in `Traffic`; each
kind is a class in a file of its own (see `gradwire.scenarios.components`). When a flow starts never depends on how
others fare, except where a kind says so (`all_to_all` in shifts, triggers of a matrix).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Flag, Table, refuse
from gradwire.scenarios.schema.effect_conditions import Needs, is_marked
from gradwire.scenarios.schema.transport import AnyTransport
from gradwire.scenarios.units import Fraction, PositiveTime, Ps, Size, Time, UnitError, format_time

RANGE = re.compile(r"(.*?)([0-9]+)\.\.(.*?)([0-9]+)")
MOST_HOSTS = 1 << 20


EXAMPLE = 'a list of hosts and ranges, such as ["h0", "h8..h15"]'


def _two_or_all(value: Any) -> Any:
    """ "all", or the list with its ranges written out, of two hosts at least."""
    expected = f'"all" or {EXAMPLE}'
    names = value if value == "all" else _names(value, expected)
    if len(names) < 2:
        raise UnitError("is no two hosts", expected)
    return names


def _any_or_all(value: Any) -> Any:
    """ "all", or the list with its ranges written out."""
    return value if value == "all" else _names(value, f'"all" or {EXAMPLE}')


def _names(value: Any, expected: str = EXAMPLE) -> tuple[str, ...]:
    """The names of a list of hosts, of one at least, with its ranges written out."""
    if not value or not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
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
    return tuple(names)


Hosts = Annotated[
    Literal["all"] | tuple[str, ...],
    BeforeValidator(_two_or_all),
    Field(json_schema_extra={"examples": ["all", ["h0", "h8..h15"]]}),
]
"""Who sends to each other: "all", or two hosts and more."""

Side = Annotated[
    Literal["all"] | tuple[str, ...],
    BeforeValidator(_any_or_all),
    Field(json_schema_extra={"examples": ["all", ["h0", "h8..h15"]]}),
]
"""One of two sides: "all", or one host and more."""

Named = Annotated[
    tuple[str, ...], BeforeValidator(_names), Field(json_schema_extra={"examples": [["h0", "h8..h15"]]})
]
"""One host and more, by name."""


class Traffic(Table, ABC):
    """What all kinds of traffic have."""

    # A class derived from it with a `kind` is a kind of traffic with all there is to know of it: its fields are the
    # keys of its table, the rest says what it needs of the scenario, and makes the flows.

    limit: ClassVar[str] = ""
    """The key that says how many flows or rounds there are, where it may be left out."""

    kind: str
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
    bound: Annotated[
        Fraction,
        Needs(lambda at: ":" in at.transport.kind or at.table.droppable or not at.transport.keeps_important
              or not at.transport.ecn_capable, "all packets are important and have to arrive",
              "traffic.droppable = true, or important_must_arrive = false in the transport", "on the run"),
    ] = 0.0
    """Share of a flow's bytes that may be lost."""
    droppable: Annotated[
        Flag,
        Needs(lambda at: is_marked(at) or at.table.bound > 0 or ":" in at.transport.kind,
              "nothing treats droppable packets differently", "switch.ecn_threshold, or a bound above 0"),
        Needs(lambda at: at.transport.ecn_capable or ":" in at.transport.kind,
              "all packets of its transport are droppable", "a transport whose packets are ECN-capable"),
    ] = False
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

    def at(self, file: str) -> Self:
        """The same with another file."""
        return self

    @property
    def named(self) -> Mapping[str, tuple[str, ...]]:
        """Hosts that the table names beside `hosts`, by key."""
        return {}

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        """What is wrong where so many hosts take part, with paths in this table."""
        if hosts < 2:
            yield Mistake("hosts", f"needs 2 hosts, but {hosts} take part", None, "at least 2")

    @abstractmethod
    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        """Bytes of the largest flow, and the key that says so; 0 where there is none. Files are read for it.

        `where` : the table's place in the scenario, for messages. `hosts` : how many take part, None if that is unknown
        before the network has been read.

        Raises
        ------
        ScenarioError
            A file is missing or damaged; says in which lines.
        """

    def check_hosts(self, setting: Any) -> None:
        """Check what a file says of hosts once the network has been read; `setting` as for `flows_of`.

        Raises
        ------
        ScenarioError
            The file names hosts that the network does not have; says in which lines.
        """

    @abstractmethod
    def flows_of(self, setting: Any) -> Iterator[Any]:
        """The flows, as batches in the order in which they start. `setting`: where and when, a `Setting`; a batch is a
        `Flows` (both in `gradwire.experiment.traffic.base`)."""


class Repeated(Traffic):
    """What patterns have that are repeated from time to time."""

    limit = "rounds"

    size: Size
    """Bytes of every flow."""
    period: Annotated[
        PositiveTime | None, Needs(lambda at: at.table.rounds != 1, "there is one round", "rounds above 1")
    ] = None
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

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        return "size", self.size


class FromFile(Traffic):
    """What kinds have whose flows are in a file."""

    file: Annotated[str, Field(min_length=1)]

    @property
    def path(self) -> str | None:
        return self.file

    def at(self, file: str) -> Self:
        return self.model_copy(update={"file": file})
