"""Declares a `gradwire exec` run's command, ranks, marking rules and environment as plain data that other processes can
load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MASTER_PORT = 29500
"""The default of torchrun."""


@dataclass(frozen=True)
class Rank:
    """One copy of the command.

    local : its number among the `local_world` ranks of its host.
    """

    number: int
    node: int
    host: str
    address: str
    local: int
    local_world: int


@dataclass(frozen=True)
class Rule:
    """A marking rule for packets that leave hosts; None in a condition matches everything.

    nodes : the sending hosts. to : destination address. below : IP packets of fewer bytes.
    priority, important : values to set.
    """

    nodes: tuple[int, ...] | None = None
    to: str | None = None
    ports: tuple[int, int] | None = None
    protocol: str | None = None
    below: int | None = None
    priority: int | None = None
    important: bool | None = None


@dataclass(frozen=True)
class Programs:
    """The user programs that run across a network.

    command : the words of the command, with placeholders such as {rank}.
    names : every host's name and address; `host` in the network's order.
    environment : the environment of the command outside; `cwd` : its working directory.
    grace_s : seconds that the other ranks may continue after a failure.
    congestion : TCP congestion control by node, if not the kernel's default.
    compute : "none", "measured" or "trace"; `scale` multiplies the measured or recorded times. times : with "trace",
        the timetable (`gradwire.emu.planning.user_programs.timetable`) of the trace named `trace`, with the digest
        `trace_hash`.
    traffic : True if the plan's program has messages beside the command.
    """

    command: tuple[str, ...]
    ranks: tuple[Rank, ...]
    names: tuple[tuple[str, str], ...]
    environment: Mapping[str, str]
    cwd: str
    grace_s: float = 5.0
    rules: tuple[Rule, ...] = ()
    congestion: Mapping[int, str] = field(default_factory=dict)
    compute: str = "none"
    scale: float = 1.0
    trace: str = ""
    times: str = ""
    trace_hash: str = ""
    master_port: int = MASTER_PORT
    memory_mb: int = 0
    traffic: bool = False


def ranks_of(names: Sequence[str], addresses: Sequence[str], nodes: Sequence[int], per_host: int) -> tuple[Rank, ...]:
    """Return the ranks at the hosts `nodes`, host by host; `names` and `addresses` cover all hosts."""
    return tuple(
        Rank(index * per_host + local, node, names[node], addresses[node], local, per_host)
        for index, node in enumerate(nodes)
        for local in range(per_host)
    )
