"""What a run inside leaves for the outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradwire.emu.agent.report import Reports
from gradwire.emu.programs.rank import RankEnd
from gradwire.emu.switches.base import Drop, PortCounts
from gradwire.scenarios.json_data import Json


@dataclass
class Raw:
    """What a run leaves for the outside.

    reports : of the hosts.
    counts : of the ports, at the end; `samples` (nanoseconds since the beginning, counts) on the way.
    drops : with times since the beginning.
    notes : what else to know of it.
    complaints : what the backend and the watch over the clock found wrong; a run with any is not valid.
    captures : files, by node; `lost_captures` : what could not be written of them, in words.
    kernel : release of the kernel that it ran in.
    """

    reports: Reports
    counts: list[PortCounts] = field(default_factory=list)
    samples: list[tuple[int, list[PortCounts]]] = field(default_factory=list)
    drops: Sequence[Drop] = ()
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    captures: Mapping[str, str] = field(default_factory=dict)
    lost_captures: list[str] = field(default_factory=list)
    kernel: str = ""
    ends: list[RankEnd] = field(default_factory=list)
    """how the ranks of `Plan.programs` ended; `marked`: (packets, bytes) that its rules met, by number"""
    marked: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    began_ns: int = 0
    """when the run began, on the clock inside; of `Plan.programs` only"""
    marks: list[Json] = field(default_factory=list)
    """what ranks have said (`gradwire.emu.programs.outcome.read_marks`)"""
