"""`Controller` starts an agent per host, takes all agents through a run, and collects their reports.

    start -> open (all sockets listen) -> connect -> clocks -> go at a common time -> run -> report -> end

Every step has a time limit, and the error names what was waited for. A run ends when the jobs are done (without jobs:
when every message has been delivered), at its duration, or on a stall: no message delivered anywhere and no host
computing for the plan's `wait_s` plus the time of the largest message.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress

from gradwire.emu.agent.message_validation import check_report
from gradwire.emu.agent.report import HostReport, Reports
from gradwire.emu.control.agents import NAMED, Agents
from gradwire.emu.control.launchers import Launcher
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.wire.header import ForeignDataError

SECOND = 1_000_000_000
LEAD_NS = 50_000_000
"""From the end of the preparations to the common beginning; more if agents answer slowly."""
LEAD_PER_HOST_NS = 2_000_000
QUESTIONS = 5
PAUSE_S = 0.2
SHARES = 64
"""Number of hosts that may send to one: the largest testbed."""
STATE_WAIT_S = 5.0
SALVAGE_S = 5.0
"""Time limit for collecting reports of an interrupted or failed run."""


class RunObserver:
    """Observer of a run, for derived classes: by itself it does nothing."""

    def ready(self) -> None:
        """Handle that all is connected."""

    def begin(self, time_ns: int) -> None:
        """Handle the beginning at a time of this process's monotonic clock, as soon as it is known."""

    def progress(self, delivered: int, messages: int) -> None:
        """Handle a change of the number of delivered messages."""

    def check(self) -> Sequence[str]:
        """Return problems elsewhere, which end the run; called at least every `pause()` seconds, or five times
        a second. May raise KeyboardInterrupt."""
        return ()

    def pause(self) -> float:
        """Return the seconds until the next call of `check` is due."""
        return math.inf

    def end_run(self) -> None:
        """Handle the end of the run, however it ended, before hosts are asked for their reports."""


class Controller:
    """One run of a plan, whose agents are started by `launcher` (`gradwire.emu.control.launchers`)."""

    def __init__(self, plan: TestbedPlan, launcher: Launcher, observer: RunObserver | None = None) -> None:
        self.plan, self._launcher, self._observer = plan, launcher, observer or RunObserver()
        self.nodes = plan.program.hosts
        self.reports = Reports.empty(len(plan.program.messages))
        self._has_workers = any(process.worker >= 0 for process in plan.program.processes)
        self._agents: Agents | None = None
        self.began_ns = 0
        """the common beginning on this process's monotonic clock; 0 before it is set"""

    def run(self) -> Reports:
        """Run the plan from the start of the agents to their end; return the reports. Raises TestbedError: an agent
        failed, or the run stalled; `self.reports` has the partial results; KeyboardInterrupt: all agents have been
        stopped; `self.reports` has the partial results."""
        try:
            self.prepare()
            self.start()
            self.wait()
        except KeyboardInterrupt:
            self.reports.ended_by = "interrupt"
            self._collect_partial_results()
            raise
        except TestbedError:
            self.reports.ended_by = "failure"
            self._collect_partial_results()
            raise
        else:
            self.collect(self.plan.wait_s)
            self._observer.progress(int((self.reports.end_ns >= 0).sum()), len(self.reports.end_ns))
        finally:
            self.close()
        return self.reports

    def _collect_partial_results(self) -> None:
        with suppress(Exception):
            self._mark_over()
        with suppress(Exception):
            self.collect(SALVAGE_S)

    def prepare(self) -> None:
        """Start the agents and have them open and connect their sockets."""
        self._agents = agents = Agents(self.plan, self._launcher, self.nodes)
        for request, reply, purpose in (
            ("open", "opened", "open their sockets"),
            ("connect", "connected", "connect to the others"),
        ):
            agents.send_all(request)
            agents.wait_for_all(reply, self.plan.wait_s, purpose)
        self._measure_clocks()

    def _measure_clocks(self) -> None:
        """Measure the offset of every agent's clock by the fastest of several queries, and that round trip. Forked
        agents share this process's clock."""
        agents = self._all()
        for node, child in agents.children.items():
            best = (SECOND * 3600, 0)
            for number in range(QUESTIONS):
                sent_ns = time.monotonic_ns()
                agents.heard[node].pop("clock", None)
                agents.send(node, "clock", number)
                deadline = time.monotonic() + self.plan.wait_s
                while agents.heard[node].get("clock", (-1, 0))[0] != number:
                    if time.monotonic() > deadline:
                        raise TestbedError(
                            f"no clock reading from {agents.name(node)} within {self.plan.wait_s:g} s",
                            "agents",
                            usage=False,
                        )
                    agents.receive(deadline - time.monotonic())
                received_ns = time.monotonic_ns()
                agent_ns = agents.heard[node]["clock"][1]
                best = min(best, (received_ns - sent_ns, agent_ns - (sent_ns + received_ns) // 2))
            self.reports.round_trips[node] = best[0]
            self.reports.offsets[node] = 0 if child.has_plan else best[1]

    def start(self) -> int:
        """Begin; return the common beginning on this process's monotonic clock in ns."""
        agents = self._all()
        slowest = max(self.reports.round_trips.values(), default=0)
        self._observer.ready()
        self.began_ns = time.monotonic_ns() + max(LEAD_NS, 4 * slowest) + LEAD_PER_HOST_NS * len(self.nodes)
        for node in self.nodes:
            agents.send(node, "go", self.began_ns + self.reports.offsets[node])
        self._observer.begin(self.began_ns)
        return self.began_ns

    def wait(self) -> None:
        agents, limit = self._all(), self.plan.duration_ps
        largest = int(self.plan.program.messages.nbytes.max(initial=0))
        patience = self.plan.wait_s + SHARES * largest * 8 / min(port.rate for port in self.plan.ports)
        end = None if limit is None else self.began_ns + limit // 1000
        messages = len(self.plan.program.messages)
        delivered, last_progress = 0, max(time.monotonic(), self.began_ns / SECOND)
        while True:
            statuses = [agents.heard[node].get("status") for node in self.nodes]
            if all(status is not None and status[2 if self._has_workers else 3] for status in statuses):
                self.reports.ended_by = "done"
                break
            now = time.monotonic_ns()
            if end is not None and now >= end:
                self.reports.ended_by = "duration"
                break
            received = [status for status in statuses if status is not None]
            count = sum(status[0] for status in received)
            if count != delivered or any(status[1] for status in received):
                last_progress = max(last_progress, now / SECOND)
            if count != delivered:
                self._observer.progress(count, messages)
            delivered = count
            if now / SECOND - last_progress > patience:
                raise TestbedError(self._stall_message(patience), "run", usage=False)
            quietest = min(agents.when, key=agents.when.__getitem__)
            if time.monotonic() - max(agents.when[quietest], self.began_ns / SECOND) > self.plan.wait_s:
                raise TestbedError(
                    f"no status for {self.plan.wait_s:g} s, but its process is alive",
                    f"agent of {agents.name(quietest)}",
                    usage=False,
                )
            if problems := self._observer.check():
                raise TestbedError("; ".join(problems), "network", usage=False)
            wait = PAUSE_S if end is None else min(PAUSE_S, (end - now) / SECOND)
            agents.receive(min(wait, self._observer.pause()))
        self._mark_over()

    def _mark_over(self) -> None:
        """Record the end of the run, if it has begun."""
        if not self.began_ns or self.reports.over_ns:
            return
        self.reports.over_ns = time.monotonic_ns() - self.began_ns
        self._observer.end_run()

    def _stall_message(self, patience: float) -> str:
        """Return the message of a stall: what the agents wait for."""
        agents = self._all()
        agents.forget("state")
        agents.send_all("state")
        with suppress(TestbedError):
            agents.wait_for_all("state", STATE_WAIT_S, "report their state")
        states = [agents.heard[node]["state"] for node in self.nodes if "state" in agents.heard[node]]
        delivered = {message for state in states for message in state[2]}
        undelivered = [message for state in states for message in state[1] if message not in delivered]
        rows = self.plan.program.messages
        names = [
            f"message {message} from {agents.name(int(rows.src[message]))} to {agents.name(int(rows.dst[message]))}"
            for message in sorted(undelivered)
        ]
        lines = [line for state in states for line in state[0]]
        reasons = names or lines or ["unknown reasons"]
        others = f" and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
        silent = [agents.name(node) for node in self.nodes if "state" not in agents.heard[node]]
        quiet = f"; no answer from {', '.join(silent[:NAMED])}" if silent else ""
        return f"no progress for {patience:.3g} s; waiting for {', '.join(reasons[:NAMED])}{others}{quiet}"

    def collect(self, wait_s: float) -> None:
        """Collect the reports of all agents; those missing after `wait_s` seconds become problems."""
        agents = self._all()
        agents.forget("report")
        for node in list(agents.children):
            if agents.children[node].status() is None:
                agents.send(node, "report")
        deadline = time.monotonic() + wait_s
        done_nodes: set[int] = set()
        while len(done_nodes) < len(self.nodes) and time.monotonic() < deadline:
            with suppress(TestbedError):
                agents.receive(min(0.2, deadline - time.monotonic()))
            for node in self.nodes:
                if node in done_nodes:
                    continue
                answer = agents.heard[node].get("report")
                if answer is not None:
                    report: HostReport = answer[0]
                    done_nodes.add(node)
                    try:
                        check_report(report, node, self.plan.program)
                    except ForeignDataError as error:
                        self.reports.problems.append(f"{agents.name(node)}: no report: {error}")
                    else:
                        self.reports.add(report)
                elif agents.children[node].status() is not None:
                    done_nodes.add(node)
                    self.reports.problems.append(f"{agents.name(node)}: no report: its agent has ended")
        missing = [agents.name(node) for node in self.nodes if node not in done_nodes]
        if missing:
            self.reports.problems.append(f"no report from {', '.join(missing)} within {wait_s:g} s")

    def close(self) -> None:
        if self._agents is not None:
            self._agents.close()
            self._agents = None

    def _all(self) -> Agents:
        if self._agents is None:
            raise RuntimeError("call prepare() first")
        return self._agents
