"""Defines the base classes of switch backends, `Backend` (a kind) and `SwitchBackend` (a running network), their counts
and error.

A backend gives every host of the plan a network namespace with a device that has the host's address
(`gradwire.emu.planning.plan.host_address`) and reaches all other hosts. The network between them is either Linux
namespaces that forward (`red`, `bpf`) or one process (`userspace`).

It runs inside private namespaces (`gradwire.emu.control.runner`), so that its names cannot clash and nothing outlives
the process. `substitutions` returns messages about departures from the plan; `missing` those about impossible features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gradwire.scenarios.errors import GradwireError

if TYPE_CHECKING:
    from gradwire.emu.planning.plan import TestbedPlan
    from gradwire.jit.engine_cache import CompileTask

BALANCERS = ("ecmp", "spray_random", "spray_round_robin")
"""Load balancers of the backends, in the order of their rules (`port.c`, `userspace_switch/rules.py`)."""
AHEAD_NS = 1_200_000
"""Lead of packets over the ideal schedule on the wall clock; our choice. More are sent when half of it is left. A port
of the kernel may take two frames at once, and agents are late by a few tenths of a millisecond."""


@dataclass
class PortCounts:
    """The counts of a port; see the Result's table of ports. -1: unknown to this backend."""

    port: str
    packets: int = 0
    bytes: int = 0
    drops_tail: int = 0
    drops_selective: int = 0
    drops_loss: int = 0
    marks: int = 0
    peak_queue_bytes: int = -1
    queue_bytes: int = 0
    """bytes in the queue now"""
    by_queue: list[Mapping[str, int]] = field(default_factory=list)
    """known counts per queue: keys packets, bytes, drops_tail, drops_selective, marks"""

    def difference(self, before: PortCounts) -> PortCounts:
        """Return the counts since an earlier reading; current and peak queue lengths are unchanged."""
        differences = {name: getattr(self, name) - getattr(before, name) for name in COUNTERS}
        queues: list[Mapping[str, int]] = [
            {key: value - then.get(key, 0) for key, value in now.items()}
            for now, then in zip(self.by_queue, before.by_queue, strict=True)
        ]
        return replace(self, **differences, by_queue=queues)


COUNTERS = ("packets", "bytes", "drops_tail", "drops_selective", "drops_loss", "marks")
"""Monotonic fields of `PortCounts`."""


@dataclass(frozen=True)
class Drop:
    """A dropped packet seen by a backend. Times are nanoseconds of CLOCK_MONOTONIC."""

    message: int
    packet: int
    port: str
    time_ns: int
    cause: str
    important: bool
    priority: int


class TestbedError(GradwireError):
    """The testbed cannot be built or has failed; the message has one line.

    usage : True if the input or the machine is at fault (exit code 2), False if the run failed (exit code 1).
    """

    __test__ = False

    def __init__(self, what: str, where: str = "", expected: str = "", usage: bool = True) -> None:
        super().__init__(what, where, expected)
        self.args = (what, where, expected, usage)
        self.usage = usage
        self.exit_code = 2 if usage else 1


class ActiveCapture(Protocol):
    """A capture in progress; `path`: a file of it."""

    path: Path

    def stop(self) -> list[str]:
        """End the capture; return messages about missed packets. Raises OSError if a file could not be written."""


class SwitchBackend(ABC):
    """A running network."""

    name: str

    @abstractmethod
    def build(self) -> None:
        """Make the network and compare it with the kernel's state; raise TestbedError on any difference."""

    @abstractmethod
    def namespace(self, host: int) -> int:
        """Return the file descriptor of a host's network namespace, for setns(2)."""

    def start(self) -> None:
        """Begin to forward; processes of the backend start here."""

    def begin(self, time_ns: int) -> None:
        """Begin the run at a time of the monotonic clock, which is soon; everything is connected. Lateness counts from
        then on, not during the setup of hosts, which may occupy the machine for milliseconds. Peak queue lengths count
        from then on, too."""

    def end_run(self) -> None:
        """End the run before hosts send their reports; lateness does not count any more."""

    @abstractmethod
    def counts(self) -> list[PortCounts]:
        """Return the counts of all ports of switches and hosts, by port number; at any time during the run."""

    def drops(self) -> Sequence[Drop]:
        """Return dropped packets that the backend saw individually; empty if it only counts."""
        return []

    @abstractmethod
    def set_loss(self, port: int, probability: float) -> None:
        """Set the loss probability of a port's cable from now on; 1: it is cut."""

    @abstractmethod
    def check(self) -> list[str]:
        """Return problems inside (a dead process, a late clock); empty if none."""

    def exit_reason(self) -> str:
        """Return why it has ended, without a request to its processes; "" if it is running."""
        return ""

    def capture(self, paths: Mapping[int, Path]) -> ActiveCapture | None:
        """Begin to capture packets at ports of switches in new files, by node. None if its switches have devices, at
        which packets are captured (`gradwire.emu.system.capture`)."""
        return None

    def notes(self) -> list[str]:
        """Return remarks on the run at its end that do not make it invalid."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End its processes. Namespaces end with the runner."""


class Backend(ABC):
    """A kind of backend, before a network exists. A listing of the kinds imports their files, so these import what they
    need on use."""

    kind: ClassVar[str]
    """Its name in scenarios."""
    balancers: ClassVar[tuple[str, ...]] = BALANCERS
    """Names of its load balancers, which do not use the functions of `gradwire.protocols.load_balancers`."""
    ahead_ns: ClassVar[int] = AHEAD_NS
    """Lead of hosts over their schedule on the wall clock (`gradwire.emu.agent.nic`), for early departures at its ports
    and late agents."""
    keeps_time: ClassVar[bool] = False
    """True if its ports use due times on the wall clock, instead of compensating for late timers by sending early at
    times (docs/fidelity.md)."""

    @abstractmethod
    def missing(self, kernel: Any, plan: TestbedPlan) -> list[str]:
        """Return why it cannot run this plan on this kernel (`gradwire.emu.planning.kernel_features`); empty if it
        can."""

    @abstractmethod
    def substitutions(self, kernel: Any, plan: TestbedPlan) -> list[str]:
        """Return its departures from the plan; empty if none."""

    def ready(self) -> dict[str, str]:
        """Compile what would be slow inside a virtual machine; return options of the plan with its location."""
        return {}

    def build_units(self) -> Mapping[str, CompileTask]:
        """Return its other units to compile, by name (`gradwire.emu.native.code_cache`)."""
        return {}

    @abstractmethod
    def make(self, plan: TestbedPlan, kernel: Any) -> SwitchBackend:
        """Return a network that is not built yet."""
