"""Programs: which command runs at which host, as plain data that the inside needs; no kernel, no scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MASTER_PORT = 29500
"""As torchrun has it."""


@dataclass(frozen=True)
class Rank:
    """One copy of the command. `local` : its number among those of its host, of which there are `local_world`."""

    number: int
    node: int
    host: str
    address: str
    local: int
    local_world: int


@dataclass(frozen=True)
class Rule:
    """A rule for packets that leave hosts; None: whatever it is. `nodes` : of the hosts that send. `to` : an address.
    `below` : IP packets of fewer bytes. `priority` and `important` : what they become."""

    nodes: tuple[int, ...] | None = None
    to: str | None = None
    ports: tuple[int, int] | None = None
    protocol: str | None = None
    below: int | None = None
    priority: int | None = None
    important: bool | None = None


@dataclass(frozen=True)
class Programs:
    """What runs across a network.

    command : the words as they were given, with places such as {rank} still in them.
    names : every host's name and address; `host` in the network's order.
    environment : what the command would see outside; `cwd` : where it runs.
    grace_s : how long the others may go on when a rank has failed.
    congestion : of a node's TCP, where it is not the kernel's choice.
    compute : "none", "measured" or "trace", and `scale` of what has been measured or recorded. times : with "trace",
        the timetable (`gradwire.emu.programs.timetable`) of the trace named `trace`, with the digest `trace_hash`.
    traffic : whether the plan's program has messages beside the command.
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
    """The ranks at some hosts, host by host. `names` and `addresses` are of all hosts."""
    return tuple(
        Rank(place * per_host + local, node, names[node], addresses[node], local, per_host)
        for place, node in enumerate(nodes)
        for local in range(per_host)
    )
