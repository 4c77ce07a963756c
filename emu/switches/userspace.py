"""Backend `userspace`: one process is all switches and links; hosts hang on it by TUN devices.

It needs nothing of the kernel but TUN and network namespaces, follows the simulator's rules to the letter
(`gradwire.emu.userspace.rules`), and sees every packet that is lost. What it cannot do is to be fast, or always on
time: on the wall clock a packet is delivered when the process gets to run, which `substitutions` and `check` watch.
Under virtual time computing takes no time, and none of that matters.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.emu.agent.nic import AHEAD_NS
from gradwire.emu.kernel import queueing
from gradwire.emu.planning.plan import Plan, host_address
from gradwire.emu.planning.probe import Kernel
from gradwire.emu.planning.round_trips import base_round_trip_ns
from gradwire.emu.switches.base import Drop, PortCounts, TestbedError
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.namespaces import find_tool
from gradwire.emu.userspace import card, machine, process, tun
from gradwire.emu.userspace.fabric import port_counts
from gradwire.emu.userspace.layout import BALANCERS
from gradwire.emu.userspace.process import (
    CAPTURE,
    CHANGE,
    COUNTS,
    DROPS,
    LENGTH,
    LOSS,
    STATE,
    WATCH,
    Lateness,
)
from gradwire.scenarios.readable import chosen_text
from gradwire.scenarios.wire import ETHERNET

if TYPE_CHECKING:
    from gradwire.components.engines import Work

ANSWER_S = 30.0
"""The longest that an answer of the process may take."""
STOPPED_S = 5.0
"""The longest that somebody may have stopped it; our choice."""
END_S = 5.0
"""The longest that it may take to end."""
PACKETS_PER_S = 60_000
"""Where `substitutions` begins to warn. Measured on two cores: 280,000 packets/s over one switch when they lie ready in
the devices, but 10 us of processor each, most of it in the kernel, where it is woken for every single one. Beside hosts
that need the same cores, this is our choice."""
LATE_TRIPS = 1
"""A delivery later than so many base round trips disturbs what is measured (our choice): a transport then takes the
machine's lateness for the network's. `Plan.options["late_ms"]` says otherwise."""
LATE_SHARE = 0.01
"""As many deliveries may be: a machine has other things to do (our choice)."""
ANSWERS = 50
"""From so many answers on their mean says something (our choice)."""
NOTED_SHARE = 0.16
"""Of a round trip: answers that are later are told of, as `gradwire.scenarios.schema.fidelity.Fidelity.answers` has
it."""


class Userspace:
    """The kind `userspace`, before there is a network."""

    name = "userspace"
    ahead_ns = AHEAD_NS
    keeps_time = True

    def missing(self, kernel: Kernel | None, plan: Plan) -> list[str]:
        """Why it cannot run this plan; empty if it can. `kernel` None: as far as can be seen from here."""
        found = _missing_here() if kernel is None else _missing_of(kernel)
        if plan.balancing not in BALANCERS:
            found.append(f"load balancing {plan.balancing} is none of {', '.join(BALANCERS)}")
        return found

    def substitutions(self, kernel: Kernel | None, plan: Plan) -> list[str]:
        """What it does otherwise than the plan says; empty if nothing."""
        found = []
        if card.wanted(plan) and (lacking := card.lacking(kernel)):
            found.append(
                "the kernel's TCP hands all it may to the host's port at once, where a real card would hold it back: "
                f"{', '.join(lacking)} is missing here"
            )
        if plan.clock == "wall":
            early = process.early_ps(plan) / 1e6
            found.append(
                f"a packet may be handed to its host up to {early:g} us early, together with others; that makes up for "
                "some of the time that hosts take to answer"
            )
        rate = sum(port.rate for port in plan.ports if port.src < plan.host_count)
        packets = rate // (8 * plan.largest_frame())
        if plan.clock == "wall" and packets > PACKETS_PER_S:
            found.append(
                f"all hosts sending at once are {packets:,} packets/s, more than the about {PACKETS_PER_S:,} that one "
                "process can carry: packets may be late, which is counted"
            )
        return found

    def ready(self) -> dict[str, str]:
        """There is nothing to say."""
        return {}

    def works(self) -> Mapping[str, Work]:
        """Its program."""
        return {machine.SWITCH: machine.work()}

    def make(self, plan: Plan, kernel: Kernel | None = None) -> UserspaceSwitch:
        """A network that is not built yet."""
        return UserspaceSwitch(plan, cards=card.wanted(plan) and not card.lacking(kernel))


def _missing_here() -> list[str]:
    found = []
    if os.geteuid() != 0:
        found.append("it makes network namespaces and TUN devices, which only root may")
    if not os.access(tun.DEVICE, os.R_OK | os.W_OK):
        missing = not Path(tun.DEVICE).exists()
        found.append(f"{tun.DEVICE} " + ("is not there" if missing else "cannot be opened"))
    if find_tool("ip") is None:
        found.append("the command ip (iproute2) is not installed")
    return found


def _missing_of(kernel: Kernel) -> list[str]:
    found = []
    if kernel.namespaces:
        found.append(f"it makes network namespaces: {kernel.namespaces}")
    elif kernel.tun:
        found.append(f"it makes TUN devices: {kernel.tun}")
    if not kernel.has("tool", "ip"):
        found.append(kernel.why_not("tool", "ip"))
    return found


class UserspaceSwitch:
    """A running network; see `gradwire.emu.switches.base.SwitchBackend`. `cards`: hosts hold the kernel's TCP back
    (`gradwire.emu.userspace.card`)."""

    name = "userspace"

    def __init__(self, plan: Plan, *, cards: bool = False) -> None:
        self.plan = plan
        self._cards = cards
        self.process = 0
        """Number of the process; 0: none."""
        self._namespaces: list[int] = []
        self._devices: list[int] = []
        self._names = {port.src: port.device for port in plan.ports if port.src < plan.host_count}
        self._control: socket.socket | None = None
        self._drops: list[Drop] = []
        self._trouble: list[str] = []
        self._stopped: float | None = None

    def build(self) -> None:
        """A namespace per host with its device, address and route."""
        try:
            for host in range(self.plan.host_count):
                namespace = tun.new_namespace()
                self._namespaces.append(namespace)
                name = self._names[host]
                self._devices.append(tun.open_tun(namespace, name))
                mtu = self.plan.largest_frame() - ETHERNET
                port = self.plan.of_node(host)[0]
                # a packet that has left the card's queue waits there no more
                sysctls = kernel_tcp.sysctls(self.plan, port, queueing.ahead_ps(self.plan, port))
                metrics = kernel_tcp.metrics(self.plan, kernel_tcp.tick_ns())
                tun.set_up(namespace, name, host_address(host), mtu, metrics, sysctls)
                if self._cards:
                    with tun.inside(namespace):
                        card.make(self.plan, host)
        except BaseException:
            self.close()
            raise

    def namespace(self, host: int) -> int:
        """File descriptor of a host's network namespace."""
        return self._namespaces[host]

    def start(self) -> None:
        """Fork the process."""
        mine, its = socket.socketpair()
        number = os.fork()
        if number == 0:
            process.live(self.plan, self._devices, its)  # does not return
        its.close()
        mine.settimeout(ANSWER_S)
        self.process, self._control = number, mine
        self.lateness()  # it is there

    def counts(self) -> list[PortCounts]:
        """Of every port."""
        counters = array("q")
        counters.frombytes(self._ask(COUNTS))
        return port_counts(self.plan, counters)

    def drops(self) -> Sequence[Drop]:
        """Every packet that was lost so far, in the order in which it came to light."""
        origin, fresh = self._ask(DROPS + LENGTH.pack(len(self._drops)))
        for time_ps, port, cause, important, priority, message, packet in fresh:
            name = self.plan.ports[port].name
            self._drops.append(
                Drop(message, packet, name, origin + time_ps // 1000, cause, important, priority)
            )
        return self._drops

    def capture(self, paths: Mapping[int, Path]) -> SwitchCapture:
        """Write what crosses the ports of switches, by number of the node, to new files from now on."""
        self._captures({node: str(path) for node, path in paths.items()})
        return SwitchCapture(self, next(iter(paths.values())))

    def _captures(self, paths: Mapping[int, str]) -> None:
        data = pickle.dumps(dict(paths))
        refused = self._ask(CAPTURE + LENGTH.pack(len(data)) + data)
        if refused is not None:
            raise OSError(*refused)

    def begin(self, time_ns: int) -> None:
        self._ask(WATCH + LENGTH.pack(time_ns))

    def over(self) -> None:
        self.begin(0)

    def set_loss(self, port: int, probability: float) -> None:
        self._ask(LOSS + CHANGE.pack(port, round(probability * (1 << 32))))

    def lateness(self) -> Lateness:
        """How late the process has delivered so far."""
        found: Lateness = self._ask(STATE)
        return found

    def ended(self) -> str:
        """Why its process is no more, without asking it anything; "" if it is."""
        if self._control is None:
            return ""
        if stopped_for := self._stopped_for():
            return f"userspace switch: its process {self.process} has been stopped for {stopped_for:.0f} s (SIGSTOP)"
        if not select.select([self._control], [], [], 0)[0]:
            return ""
        try:  # nothing was asked: it has something to say, or nothing any more
            self._ask(b"")
        except TestbedError as error:
            return f"{error.where}: {error.what}"
        return ""

    def _stopped_for(self) -> float:
        """Seconds that its process has been stopped by a signal, once they are `STOPPED_S`; else 0."""
        with suppress(OSError, IndexError):
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "Tt":
                self._stopped = None
            elif self._stopped is None:
                self._stopped = time.monotonic()
            elif (seconds := time.monotonic() - self._stopped) >= STOPPED_S:
                return seconds
        return 0.0

    def notes(self) -> list[str]:
        """How late hosts answer, where that is much of a round trip. Every packet is seen."""
        if self.plan.clock != "wall" or self._control is None:
            return []
        late = self.lateness()
        if self.plan.options.get("answers_late") is not None or not self._slower(late, NOTED_SHARE):
            return []
        return [f"{self._answers(late)}: where rates follow round trips, they rise more slowly here"]

    def _slower(self, late: Lateness, share: float) -> bool:
        """Whether hosts answered later than that share of the base round trip."""
        return late.answers >= ANSWERS and late.answered_ns > share * base_round_trip_ns(self.plan)

    def _answers(self, late: Lateness) -> str:
        return (
            f"hosts answered {late.answered_ns / 1000:.0f} us late on average, and a round trip takes "
            f"{base_round_trip_ns(self.plan) / 1000:.0f} us"
        )

    def check(self) -> list[str]:
        """What has gone wrong inside."""
        found = list(self._trouble)
        if not found and self._control is not None:
            try:
                found += self._complaints(self.lateness())
            except TestbedError as error:
                found.append(f"userspace switch: {error.what}")
        for host, name in self._names.items() if self._namespaces else ():
            lost = tun.lost_in_devices(self._namespaces[host], name)
            if lost:
                found.append(
                    f"the kernel dropped {lost:,} packets between {self.plan.names[host]} and the switch"
                )
        return found

    def _complaints(self, late: Lateness) -> list[str]:
        found = []
        if late.refused:
            found.append(f"the kernel did not take {late.refused:,} packets that the switch delivered")
        if self.plan.clock == "wall":
            own = LATE_TRIPS * base_round_trip_ns(self.plan)
            limit = int(float(self.plan.options.get("late_ms", own / 1e6)) * 1e6)
            many = late.later_than(limit)
            if many > LATE_SHARE * late.count:
                found.append(
                    f"{many:,} of {late.count:,} packets were delivered more than {limit / 1e6:.3g} ms late "
                    f"(the latest {late.worst_ns / 1e6:.1f} ms): the machine is too slow or too busy for these rates"
                )
            share = self.plan.options.get("answers_late")
            if share is not None and self._slower(late, share):
                found.append(
                    f"{self._answers(late)} ({chosen_text(share)} of it are let pass): "
                    "the machine is too slow or too busy"
                )
        return found

    def close(self) -> None:
        """End the process, and let go of devices and namespaces."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.process:
            self._bury()
        for file in (*self._devices, *self._namespaces):
            os.close(file)
        self._devices, self._namespaces = [], []

    def _bury(self) -> None:
        """The process ends by itself when its socket is closed; if it does not, it is made to."""
        number, self.process = self.process, 0
        end = time.monotonic() + END_S
        while os.waitpid(number, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
                return
            time.sleep(0.001)

    def _ask(self, question: bytes) -> Any:
        if self._control is None:
            raise TestbedError("is not running", "userspace switch", usage=False)
        try:
            self._control.sendall(question)
            length = LENGTH.unpack(self._exactly(LENGTH.size))[0]
            answer = pickle.loads(self._exactly(length))
        except TimeoutError:
            raise self._failed(f"has not answered within {ANSWER_S:g} s") from None
        except OSError:
            raise self._failed("has ended") from None
        if isinstance(answer, tuple) and answer[0] == "failed":
            raise self._failed(f"has ended: {answer[1]}")
        return answer

    def _exactly(self, many: int) -> bytes:
        assert self._control is not None
        parts = bytearray()
        while len(parts) < many:
            part = self._control.recv(min(many - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError
            parts += part
        return bytes(parts)

    def _failed(self, what: str) -> TestbedError:
        self._trouble = [f"the process of the userspace switch {what}"]
        return TestbedError(f"its process {what}", "userspace switch", usage=False)


class SwitchCapture:
    """Captures at switches; `path`: one of their files."""

    def __init__(self, switch: UserspaceSwitch, path: Path) -> None:
        self.switch, self.path = switch, path

    def stop(self) -> list[str]:
        """End, with all that has been seen so far; nothing is missed. OSError if a file could not be written."""
        try:
            self.switch._captures({})
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return []


KIND = Userspace()
