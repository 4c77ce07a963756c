"""`UserspaceSwitch` makes hosts' namespaces and TUN devices, starts the switch process, and requests counts, drops and
captures from it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from gradwire.emu.planning.base_rtt import base_round_trip_ns
from gradwire.emu.planning.plan import TestbedPlan, host_address
from gradwire.emu.switches.backend_kind import Drop, PortCounts, SwitchBackend, TestbedError
from gradwire.emu.switches.linux_network import queueing
from gradwire.emu.switches.userspace_switch import host_nic, process, tun
from gradwire.emu.switches.userspace_switch.fabric import port_counts
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.namespaces import inside, new_namespace
from gradwire.emu.system.processes import fork
from gradwire.scenarios.readable import exact_percent_text
from gradwire.scenarios.wire import ETHERNET

ANSWER_S = 30.0
"""Time limit of an answer of the process."""
STOPPED_S = 5.0
"""Time after which a stopped process (SIGSTOP) is reported; our choice."""
END_S = 5.0
"""Time limit for its end."""
LATE_TRIPS = 1
"""Lateness of a delivery in base round trips that disturbs a measurement (our choice), because transports take it for
network delay. `TestbedPlan.options["late_ms"]` overrides it."""
LATE_SHARE = 0.01
"""Share of late deliveries that is tolerated, since the machine runs other processes (our choice)."""
ANSWERS = 50
"""Minimum number of answers for a meaningful mean (our choice)."""
NOTED_SHARE = 0.16
"""Mean delay of answers, as a share of the base round trip, above which there is a note; the default of
`gradwire.scenarios.schema.fidelity.Fidelity.answers`."""


class UserspaceSwitch(SwitchBackend):
    """A running network; see `gradwire.emu.switches.backend_kind.SwitchBackend`.

    cards : hosts have NIC queues for the kernel's TCP (`gradwire.emu.switches.userspace_switch.host_nic`).
    """

    name = "userspace"

    def __init__(self, plan: TestbedPlan, *, cards: bool = False) -> None:
        self.plan = plan
        self._cards = cards
        self.process = 0
        """Process number; 0: none."""
        self._namespaces: list[int] = []
        self._devices: list[int] = []
        self._names = {port.src: port.device for port in plan.ports if port.src < plan.host_count}
        self._control: Connection | None = None
        self._drops: list[Drop] = []
        self._trouble: list[str] = []
        self._stopped: float | None = None

    def build(self) -> None:
        """Make a namespace per host with its device, address and route."""
        try:
            for host in range(self.plan.host_count):
                namespace = new_namespace()
                self._namespaces.append(namespace)
                name = self._names[host]
                self._devices.append(tun.open_tun(namespace, name))
                mtu = self.plan.largest_frame() - ETHERNET
                port = self.plan.ports_of_node(host)[0]
                # a packet that has left the NIC's queue no longer counts
                sysctls = kernel_tcp.sysctls(self.plan, port, queueing.ahead_ps(self.plan, port))
                metrics = kernel_tcp.metrics(self.plan, kernel_tcp.tick_ns())
                tun.set_up(namespace, name, host_address(host), mtu, metrics, sysctls)
                if self._cards:
                    with inside(namespace):
                        host_nic.make(self.plan, host)
        except BaseException:
            self.close()
            raise

    def namespace(self, host: int) -> int:
        return self._namespaces[host]

    def start(self) -> None:
        self._control, child_end = Pipe()
        self.process = fork(lambda: process.run_process(self.plan, self._devices, child_end))
        child_end.close()
        self.lateness()  # waits until it runs

    def counts(self) -> list[PortCounts]:
        return port_counts(self.plan, self._request("counts"))

    def drops(self) -> Sequence[Drop]:
        """Return all packets lost so far, in order of detection."""
        origin, fresh = self._request("drops", len(self._drops))
        for time_ps, port, cause, important, priority, message, packet in fresh:
            name = self.plan.ports[port].name
            self._drops.append(Drop(message, packet, name, origin + time_ps // 1000, cause, important, priority))
        return self._drops

    def capture(self, paths: Mapping[int, Path]) -> SwitchCapture:
        self._set_captures({node: str(path) for node, path in paths.items()})
        return SwitchCapture(self, next(iter(paths.values())))

    def _set_captures(self, paths: Mapping[int, str]) -> None:
        error = self._request("capture", dict(paths))
        if error is not None:
            raise OSError(*error)

    def begin(self, time_ns: int) -> None:
        self._request("watch", time_ns)

    def end_run(self) -> None:
        self.begin(0)

    def set_loss(self, port: int, probability: float) -> None:
        self._request("set_loss", port, round(probability * (1 << 32)))

    def lateness(self) -> process.Lateness:
        lateness: process.Lateness = self._request("lateness")
        return lateness

    def exit_reason(self) -> str:
        if self._control is None:
            return ""
        if stopped_for := self._stopped_for():
            return f"userspace switch: its process {self.process} has been stopped for {stopped_for:.0f} s (SIGSTOP)"
        if not self._control.poll():
            return ""
        try:  # without a request: an error message, or the end
            self._request()
        except TestbedError as error:
            return f"{error.where}: {error.what}"
        return ""

    def _stopped_for(self) -> float:
        """Return the seconds since its process was stopped by a signal, if at least `STOPPED_S`; otherwise 0."""
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
        """Return a note on the delay of hosts' answers, if it is a large share of a round trip."""
        if self.plan.clock != "wall" or self._control is None:
            return []
        lateness = self.lateness()
        if self.plan.options.get("answers_late") is not None or not self._slower(lateness, NOTED_SHARE):
            return []
        return [f"{self._answers(lateness)}: rates that depend on round trips rise more slowly here"]

    def _slower(self, lateness: process.Lateness, share: float) -> bool:
        """Return True if hosts answered later than that share of the base round trip."""
        return lateness.answers >= ANSWERS and lateness.answered_ns > share * base_round_trip_ns(self.plan)

    def _answers(self, lateness: process.Lateness) -> str:
        return (
            f"mean delay of hosts' answers {lateness.answered_ns / 1000:.0f} us, base round-trip time "
            f"{base_round_trip_ns(self.plan) / 1000:.0f} us"
        )

    def check(self) -> list[str]:
        problems = list(self._trouble)
        if not problems and self._control is not None:
            try:
                problems += self._warnings(self.lateness())
            except TestbedError as error:
                problems.append(f"userspace switch: {error.what}")
        for host, name in self._names.items() if self._namespaces else ():
            lost = tun.lost_in_devices(self._namespaces[host], name)
            if lost:
                problems.append(f"the kernel dropped {lost:,} packets between {self.plan.names[host]} and the switch")
        return problems

    def _warnings(self, lateness: process.Lateness) -> list[str]:
        problems = []
        if lateness.refused:
            problems.append(f"the kernel did not accept {lateness.refused:,} packets of the switch")
        if self.plan.clock == "wall":
            default_ns = LATE_TRIPS * base_round_trip_ns(self.plan)
            limit = int(float(self.plan.options.get("late_ms", default_ns / 1e6)) * 1e6)
            late_count = lateness.count_later_than(limit)
            if late_count > LATE_SHARE * lateness.count:
                problems.append(
                    f"{late_count:,} of {lateness.count:,} packets were delivered more than {limit / 1e6:.3g} ms late "
                    f"(max {lateness.worst_ns / 1e6:.1f} ms): the machine is too slow or too busy for these rates"
                )
            share = self.plan.options.get("answers_late")
            if share is not None and self._slower(lateness, share):
                problems.append(
                    f"{self._answers(lateness)} (limit {exact_percent_text(share)} of it): "
                    "the machine is too slow or too busy"
                )
        return problems

    def close(self) -> None:
        """End the process and close devices and namespaces."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.process:
            self._end_process()
        for file in (*self._devices, *self._namespaces):
            os.close(file)
        self._devices, self._namespaces = [], []

    def _end_process(self) -> None:
        """Wait for the end of the process after its socket has been closed; kill it at the time limit."""
        number, self.process = self.process, 0
        end = time.monotonic() + END_S
        while os.waitpid(number, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
                return
            time.sleep(0.001)

    def _request(self, *question: object) -> Any:
        if self._control is None:
            raise TestbedError("not running", "userspace switch", usage=False)
        try:
            if question:
                self._control.send(question)
            if not self._control.poll(ANSWER_S):
                raise self._failed(f"did not answer within {ANSWER_S:g} s")
            answer = self._control.recv()
        except (OSError, EOFError):
            raise self._failed("ended") from None
        if isinstance(answer, RuntimeError):
            raise self._failed(f"ended: {answer}")
        return answer

    def _failed(self, what: str) -> TestbedError:
        self._trouble = [f"the process of the userspace switch {what}"]
        return TestbedError(f"its process {what}", "userspace switch", usage=False)


class SwitchCapture:
    """Captures at switches; `path`: one of their files."""

    def __init__(self, switch: UserspaceSwitch, path: Path) -> None:
        self.switch, self.path = switch, path

    def stop(self) -> list[str]:
        """End the capture, which misses no packets; raise OSError if a file could not be written."""
        try:
            self.switch._set_captures({})
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return []
