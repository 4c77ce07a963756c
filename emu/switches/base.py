"""What a switch backend is: it builds the network of a plan in namespaces, counts what happens there, and takes it
down.

A backend gives every host of the plan a network namespace in which the host's address
(`gradwire.emu.planning.plan.host_address`) is on a device and all other hosts' addresses are reachable. What lies in
between is its own affair: Linux namespaces that forward (`red`, `bpf`) or one process that is the whole network
(`userspace`).

It runs inside namespaces that are private already (`gradwire.emu.control.runner`), so that its names cannot clash and
nothing outlives the process. Whatever cannot be done exactly as the plan says is returned by `substitutions`, in
words for people; whatever it cannot do at all by `missing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from gradwire.emu.planning.plan import Plan
from gradwire.scenarios.errors import GradwireError

if TYPE_CHECKING:
    from gradwire.components.engines import Work


@dataclass
class PortCounts:
    """What a port has counted so far; see the Result's table of ports. -1: this backend cannot tell."""

    port: str
    packets: int = 0
    bytes: int = 0
    drops_tail: int = 0
    drops_selective: int = 0
    drops_loss: int = 0
    marks: int = 0
    peak_queue_bytes: int = -1
    queue_bytes: int = 0
    """waiting at this moment"""
    by_queue: list[Mapping[str, int]] = field(default_factory=list)
    """the same per queue, as far as known: keys packets, bytes, drops_tail, drops_selective, marks"""

    def since(self, before: PortCounts) -> PortCounts:
        """What has been counted since an earlier look; what waits, and the longest queue, are as they are now."""
        own = {name: getattr(self, name) - getattr(before, name) for name in COUNTERS}
        queues: list[Mapping[str, int]] = [
            {key: value - then.get(key, 0) for key, value in now.items()}
            for now, then in zip(self.by_queue, before.by_queue, strict=True)
        ]
        return replace(self, **own, by_queue=queues)


COUNTERS = ("packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "marks")
"""Of `PortCounts`, what only grows."""


@dataclass(frozen=True)
class Drop:
    """A packet that a backend saw lost. Times are nanoseconds of CLOCK_MONOTONIC."""

    message: int
    packet: int
    port: str
    time_ns: int
    cause: str
    important: bool
    priority: int


class TestbedError(GradwireError):
    """The testbed cannot be built or has failed: one line for people. `usage`: it is the input's or the machine's
    fault, exit code 2; otherwise the run failed, exit code 1."""

    __test__ = False

    def __init__(self, what: str, where: str = "", expected: str = "", usage: bool = True) -> None:
        super().__init__(what, where, expected)
        self.args = (what, where, expected, usage)
        self.usage = usage
        self.exit_code = 2 if usage else 1


class SwitchBackend(Protocol):
    """A running network."""

    name: str

    def build(self) -> None:
        """Make everything and compare what the kernel says with what was asked; TestbedError on any difference."""

    def namespace(self, host: int) -> int:
        """File descriptor of a host's network namespace, for setns(2)."""

    def start(self) -> None:
        """Begin to forward (processes of the backend's own start here)."""

    def begin(self, time_ns: int) -> None:
        """All is connected, and the run begins at that time of the monotonic clock, which is soon: how late anything is
        matters from then on, and not while hosts are still being set up, and have this machine for themselves for
        milliseconds. The longest queue of a port is that of the run."""

    def over(self) -> None:
        """The run is over, and hosts are asked for their reports: nothing is late any more."""

    def counts(self) -> list[PortCounts]:
        """Of every port of a switch and of the hosts' ports, by number of the port; at any time while it runs."""

    def drops(self) -> Sequence[Drop]:
        """Packets that were lost, as far as the backend saw them one by one; empty if it only counts."""

    def set_loss(self, port: int, probability: float) -> None:
        """From now on the cable of a port loses packets with this probability; 1: it is cut."""

    def check(self) -> list[str]:
        """What has gone wrong inside (a process that died, a clock that ran away); empty if nothing."""

    def notes(self) -> list[str]:
        """What else to know of the run, at its end; nothing that makes it less valid."""

    def close(self) -> None:
        """End its processes. Namespaces go with the runner."""


class BackendKind(Protocol):
    """A class of backends, before there is a network."""

    name: str
    ahead_ns: int
    """How far ahead of their schedule hosts send on the wall clock (`gradwire.emu.agent.nic`): as far as its ports let
    packets go before their time, and as agents are late."""
    keeps_time: bool
    """On the wall clock its ports reckon with the times at which things were due, and do not make up for late timers by
    being ahead at times (docs/fidelity.md)."""

    def missing(self, kernel: Any, plan: Plan) -> list[str]:
        """Why it cannot run this plan on this kernel (`gradwire.emu.planning.probe.Kernel`); empty if it can."""

    def substitutions(self, kernel: Any, plan: Plan) -> list[str]:
        """What it does otherwise than the plan says; empty if nothing."""

    def ready(self) -> dict[str, str]:
        """Compile what takes long inside a virtual machine, and say where it is: options of the plan."""

    def works(self) -> Mapping[str, Work]:
        """What else has to be compiled for it, as agents are (`gradwire.emu.native.kept`), by name."""

    def make(self, plan: Plan, kernel: Any) -> SwitchBackend:
        """A network that is not built yet."""
