"""Programs of one's own across the testbed: `gradwire exec`. The simulator does not look at it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from gradwire.scenarios.schema.base import Count, Flag, Natural, Table, refuse
from gradwire.scenarios.units import PositiveTime, Ps, Size, UnitError, format_size, format_time

PORTS = 1 << 16
MS = 1_000_000_000
LEAST_MEMORY = 128 << 20
"""With half of it the switches of four hosts do not fit; our choice."""
CONGESTION = re.compile(r"[a-z][a-z0-9_]{0,14}")  # TCP_CA_NAME_MAX is 16 [include/net/tcp.h]


def _ports(value: Any) -> tuple[int, int]:
    """(first, last) of a port or of "first-last"."""
    expected = 'a port such as 29500, or several such as "29500-29509"'
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    if found is None:
        raise UnitError("is no port", expected)
    first, last = int(found[1]), int(found[2] or found[1])
    if not 0 < first <= last < PORTS:
        raise UnitError("is no port from 1 to 65535, or none up to another", expected)
    return first, last


def _shown(ports: tuple[int, int]) -> int | str:
    return ports[0] if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


def _control(value: Any) -> str:
    if not isinstance(value, str) or not CONGESTION.fullmatch(value):
        raise UnitError("is no name of a congestion control", 'one that the kernel has, such as "cubic" or "dctcp"')
    return value


Computing = Literal["none", "measured", "trace"]
Ports = Annotated[tuple[int, int], BeforeValidator(_ports), PlainSerializer(_shown, when_used="json")]
Control = Annotated[str, BeforeValidator(_control)]


class ExecHost(Table):
    """What is otherwise at one host."""

    name: Annotated[str, Field(min_length=1)]
    """The scenario's host, such as "h0"."""
    congestion: Control
    """Congestion control of its TCP connections."""


class ExecMark(Table):
    """A rule for packets that leave a host: which class they belong to, and whether they are important, without the
    program's knowing. The first rule that a packet meets is its own; one that meets none has the last class, and is
    important if its TCP asks for congestion marks (`ecn`)."""

    host: str | None = None
    """Of packets that this host sends; of all hosts if absent."""
    rank: Natural | None = None
    """Of packets that this rank sends, where a host has one rank."""
    to: str | None = None
    """Of packets to this host."""
    port: Ports | None = None
    """Of packets from or to this TCP or UDP port, or one of several: 29500, or "29500-29509"."""
    protocol: Literal["tcp", "udp"] | None = None
    """Of packets of this protocol."""
    smaller_than: Size | None = None
    """Of IP packets of fewer bytes, such as acknowledgements."""
    priority: Annotated[int, Field(ge=0, le=7, strict=True)] | None = None
    """The class: 0 is served first. Written to the DSCP."""
    important: Flag | None = None
    """Whether a switch marks the packet above its threshold (true; ECT(0) is written to the ECN field) or, with
    selective_drop, drops it (false; Not-ECT). Marks slow a TCP connection down only where its ends have agreed on them
    (`ecn`)."""

    @model_validator(mode="after")
    def _says_something(self) -> ExecMark:
        if self.priority is None and self.important is None:
            raise refuse("", "says neither a priority nor whether packets are important", None, "one of them, or both")
        if self.host is not None and self.rank is not None:
            raise refuse("rank", "and host are both given", self.rank, "one of them")
        return self


class Exec(Table):
    """How programs of one's own run across the network (docs/exec.md); what the command line says goes before it."""

    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Hosts that run the command, in the order of ranks; all if absent."""
    ranks_per_host: Count = 1
    """So many copies of the command at every host."""
    grace: PositiveTime = Ps(5_000_000_000_000)
    """When a rank has failed, the others have so long to end by themselves, on the testbed's clock."""
    mtu: Annotated[int, Field(ge=576, le=65_000, strict=True)] = 1500
    """Bytes of the largest IP packet."""
    congestion: Control | None = None
    """Congestion control of TCP connections of all hosts; the kernel's own choice if absent."""
    ecn: Flag = False
    """TCP connections ask for congestion marks; their packets are important then [RFC 3168]."""
    min_rto: PositiveTime | None = None
    """Smallest retransmission time-out of TCP, in whole milliseconds; the kernel's (200 ms) if absent."""
    compute: Computing = "none"
    """What computing costs under the virtual clock. none: nothing; measured: what it took of the processor, slept at
    every `gradwire.mark`; trace: what `trace` has recorded, slept where a model is `gradwire.paced`, otherwise at every
    `gradwire.mark`."""
    trace: Annotated[str, Field(min_length=1)] | None = None
    """Whose times computing takes with compute = "trace": a bundled trace, or the folder of one."""
    compute_scale: Annotated[float, Field(gt=0, le=1000, strict=True)] = 1.0
    """Of what has been measured or recorded, so many times."""
    memory: Size | None = None
    """Of the virtual machine that is the virtual clock; 1 GiB and 1 GiB more for each rank if absent, 128 MiB at
    least."""
    host: tuple[ExecHost, ...] = ()
    mark: tuple[ExecMark, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> Exec:
        for field, names in (("hosts", list(self.hosts or ())), ("host", [each.name for each in self.host])):
            if len(set(names)) != len(names):
                raise refuse(field, "name a host twice", names, "each host once")
        if self.min_rto is not None and self.min_rto % MS:
            nearest = Ps(max(MS, (self.min_rto + MS // 2) // MS * MS))
            expected = f"a whole number of them, such as {format_time(nearest)}"
            raise refuse("min_rto", "is not in whole milliseconds", format_time(self.min_rto), expected)
        if self.memory is not None and self.memory < LEAST_MEMORY:
            expected = f"{format_size(LEAST_MEMORY)} or more, and what the ranks take"
            raise refuse("memory", "is too little for a kernel and Python", format_size(self.memory), expected)
        if self.trace is not None and self.compute != "trace":
            raise refuse("trace", "has no effect", self.trace, 'compute = "trace" as well')
        return self
