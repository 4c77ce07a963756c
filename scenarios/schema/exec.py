"""Declares the scenario's table `[exec]`, options of user programs on the testbed (`gradwire exec`); the simulator
ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count, Flag, Natural, ScenarioTable
from gradwire.scenarios.units import PositiveTime, Ps, Size, UnitError, format_size, format_time

PORTS = 1 << 16
MS = 1_000_000_000
LEAST_MEMORY = 128 << 20
"""Half of it does not hold the switches of four hosts; our choice."""
CONGESTION = re.compile(r"[a-z][a-z0-9_]{0,14}")  # TCP_CA_NAME_MAX is 16 [include/net/tcp.h]


def _ports(value: Any) -> tuple[int, int]:
    """Return (first, last) of a port or of "first-last"."""
    expected = 'a port such as 29500, or several such as "29500-29509"'
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    if match is None:
        raise UnitError("is not a port", expected)
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 < first <= last < PORTS:
        raise UnitError("is not a port from 1 to 65535 or an ascending range of these", expected)
    return first, last


def _shown(ports: tuple[int, int]) -> int | str:
    return ports[0] if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


def _control(value: Any) -> str:
    if not isinstance(value, str) or not CONGESTION.fullmatch(value):
        raise UnitError("is not a congestion control", 'one of the kernel\'s, such as "cubic" or "dctcp"')
    return value


ComputeMode = Literal["none", "measured", "trace"]
Ports = Annotated[tuple[int, int], BeforeValidator(_ports), PlainSerializer(_shown, when_used="json")]
Control = Annotated[str, BeforeValidator(_control)]


class ExecHost(ScenarioTable):
    """Exceptions for one host."""

    name: Annotated[str, Field(min_length=1)]
    """The scenario's host, such as "h0"."""
    congestion: Control
    """Congestion control of its TCP connections."""


class ExecMark(ScenarioTable):
    """Rule that assigns a class and importance to packets leaving a host, without the program's knowledge. The first
    matching rule applies. A packet that matches none has the last class, and is important if its TCP is ECN-capable
    (`ecn`)."""

    host: str | None = None
    """Match packets that this host sends; of all hosts if absent."""
    rank: Natural | None = None
    """Match packets that this rank sends, if a host has one rank."""
    to: str | None = None
    """Match packets to this host."""
    port: Ports | None = None
    """Match packets from or to this TCP or UDP port, or one of a range: 29500, or "29500-29509"."""
    protocol: Literal["tcp", "udp"] | None = None
    """Match packets of this protocol."""
    smaller_than: Size | None = None
    """Match IP packets of fewer bytes, such as acknowledgements."""
    priority: Annotated[int, Field(ge=0, le=7, strict=True)] | None = None
    """The class: 0 is served first. Written to the DSCP."""
    important: Flag | None = None
    """true: a switch marks the packet above its threshold (ECT(0) is written to the ECN field); false: with
    selective_drop, the switch drops it (Not-ECT). Marks slow a TCP connection down only if both ends have negotiated
    ECN (`ecn`)."""

    def conflicts(self) -> Iterator[Mistake]:
        if self.priority is None and self.important is None:
            yield Mistake("", "sets neither priority nor important", None, "one of them, or both")
        if self.host is not None and self.rank is not None:
            yield Mistake("rank", "and host are both set", self.rank, "one of them")


class Exec(ScenarioTable):
    """Options for running user programs across the network (docs/exec.md); the command line takes precedence."""

    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Hosts that run the command, in the order of ranks; all if absent."""
    ranks_per_host: Count = 1
    """Copies of the command at every host."""
    grace: PositiveTime = Ps(5_000_000_000_000)
    """Time on the testbed's clock for the other ranks to end by themselves after a rank has failed."""
    mtu: Annotated[int, Field(ge=576, le=65_000, strict=True)] = 1500
    """Bytes of the largest IP packet."""
    congestion: Control | None = None
    """Congestion control of TCP connections of all hosts; the kernel's default if absent."""
    ecn: Flag = False
    """TCP connections negotiate ECN; their packets are important then [RFC 3168]."""
    min_rto: PositiveTime | None = None
    """Smallest retransmission time-out of TCP, in whole milliseconds; the kernel's (200 ms) if absent."""
    compute: ComputeMode = "none"
    """Cost of computing under the virtual clock. none: nothing; measured: its processor time, slept at every
    `gradwire.mark`; trace: the times recorded in `trace`, slept where a model is `gradwire.paced`, otherwise at every
    `gradwire.mark`."""
    trace: Annotated[str, Field(min_length=1)] | None = None
    """Trace with the compute times for compute = "trace": a bundled trace, or the folder of one."""
    compute_scale: Annotated[float, Field(gt=0, le=1000, strict=True)] = 1.0
    """Factor on the measured or recorded times."""
    memory: Size | None = None
    """Memory of the virtual machine behind the virtual clock; 1 GiB and 1 GiB more for each rank if absent, 128 MiB at
    least."""
    host: tuple[ExecHost, ...] = ()
    mark: tuple[ExecMark, ...] = ()

    def conflicts(self) -> Iterator[Mistake]:
        for field, names in (("hosts", list(self.hosts or ())), ("host", [each.name for each in self.host])):
            if len(set(names)) != len(names):
                yield Mistake(field, "name a host twice", names, "each host once")
        if self.min_rto is not None and self.min_rto % MS:
            nearest = Ps(max(MS, (self.min_rto + MS // 2) // MS * MS))
            expected = f"a whole number of them, such as {format_time(nearest)}"
            yield Mistake("min_rto", "is not in whole milliseconds", format_time(self.min_rto), expected)
        if self.memory is not None and self.memory < LEAST_MEMORY:
            expected = f"at least {format_size(LEAST_MEMORY)}, plus the memory of the ranks"
            yield Mistake("memory", "is too small for a kernel and Python", format_size(self.memory), expected)
        if self.trace is not None and self.compute != "trace":
            yield Mistake("trace", "has no effect", self.trace, 'compute = "trace" as well')
