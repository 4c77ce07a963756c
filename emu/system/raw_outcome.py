"""`RawResults` declares the raw results of a testbed run, passed from inside the namespaces to the outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradwire.emu.agent.report import Reports
from gradwire.emu.switches.backend_kind import Drop, PortCounts
from gradwire.emu.user_programs.rank import RankEnd
from gradwire.scenarios.json_data import Json


@dataclass
class RawResults:
    """The raw results of a run.

    reports : of the hosts.
    counts : of the ports at the end; `samples` : (nanoseconds since the beginning, counts) during the run.
    drops : with times since the beginning.
    notes : remarks on the run.
    complaints : problems reported by the backend or by late timers; a run with any is not valid.
    captures : files, by node; `lost_captures` : errors of their writing.
    kernel : release of the kernel.
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
    """ends of the ranks of `Plan.programs`; `marked`: (packets, bytes) matched by its rules, by number"""
    marked: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    began_ns: int = 0
    """beginning of the run on the clock inside; of `Plan.programs` only"""
    marks: list[Json] = field(default_factory=list)
    """marks of the ranks (`gradwire.emu.user_programs.outcome.read_marks`)"""
