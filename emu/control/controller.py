"""Controller: starts an agent per host, takes them through a run together, and gathers what they know.

    start -> open (all sockets listen) -> connect -> clocks -> go at a common time -> run -> report -> end

Every step is waited for within bounds, and what was waited for is said when they are passed. A run ends when the jobs
are done (without jobs: when every message has been delivered), at its duration, or when nothing has moved for the
plan's `wait_s`, and the time that the largest message may take: no message delivered anywhere and nobody computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from gradwire.emu.agent.report import HostReport, Reports
from gradwire.emu.agent.said import check_report
from gradwire.emu.control.agents import NAMED, Agents
from gradwire.emu.control.launchers import Launcher
from gradwire.emu.planning.plan import Plan
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.wire.header import NotOurs

Progress = Callable[[int, int], None]
SECOND = 1_000_000_000
LEAD_NS = 50_000_000
"""From the last word of the preparations to the common beginning; more where questions take long."""
LEAD_PER_HOST_NS = 2_000_000
QUESTIONS = 5
PAUSE_S = 0.2
SHARES = 64
"""As many hosts as a testbed has at most may send to one."""
STATE_WAIT_S = 5.0
SOON_S = 5.0
"""What is left of a run that has been cut or has failed is worth so long a wait."""


def longest_message_s(plan: Plan) -> float:
    """Seconds that the largest message takes with `SHARES` others on the slowest link."""
    largest = int(plan.program.messages.nbytes.max(initial=0))
    return SHARES * largest * 8 / min(port.rate for port in plan.ports)


class Controller:
    """One run of a plan.

    `launcher` starts agents (`gradwire.emu.control.launchers`); `progress(delivered, messages)` is called now and then;
    `check()` is asked for what has gone wrong elsewhere (`SwitchBackend.check`) and ends the run if it says something;
    at least every `pause()` seconds, or five times a second. `ready()` is called when all is connected, `begin(ns)`
    hears when the run is going to begin, and `over()` that it is over, however it ended, before hosts are asked for
    their reports.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        progress: Progress | None = None,
        check: Callable[[], Sequence[str]] | None = None,
        pause: Callable[[], float] | None = None,
        begin: Callable[[int], None] | None = None,
        over: Callable[[], None] | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        self.plan, self._launcher = plan, launcher
        self._progress, self._check, self._pause = progress, check, pause
        self._begin, self._over, self._ready = begin, over, ready
        self.nodes = plan.program.hosts
        self.reports = Reports.empty(len(plan.program.messages))
        self._has_workers = any(process.worker >= 0 for process in plan.program.processes)
        self._agents: Agents | None = None
        self._began = 0

    @property
    def began_ns(self) -> int:
        """The common beginning on this process's monotonic clock; 0 before it is set."""
        return self._began

    def run(self) -> Reports:
        """From the start to the end.

        Raises
        ------
        TestbedError
            An agent failed, or nothing moved any more; `self.reports` has what was known.
        KeyboardInterrupt
            Everyone has been stopped; `self.reports` has what was known.
        """
        try:
            self.prepare()
            self.go()
            self.wait()
        except KeyboardInterrupt:
            self.reports.ended_by = "interrupt"
            self._salvage()
            raise
        except TestbedError:
            self.reports.ended_by = "failure"
            self._salvage()
            raise
        else:
            self.collect(self.plan.wait_s)
            if self._progress is not None:
                self._progress(int((self.reports.end_ns >= 0).sum()), len(self.reports.end_ns))
        finally:
            self.close()
        return self.reports

    def _salvage(self) -> None:
        """What there is of a run that has been cut or has failed."""
        with suppress(Exception):
            self._end()
        with suppress(Exception):
            self.collect(SOON_S)

    def prepare(self) -> None:
        """Start the agents and have everything open and connected."""
        self._agents = agents = Agents(self.plan, self._launcher, self.nodes)
        for what, done, doing in (
            ("open", "opened", "open their sockets"),
            ("connect", "connected", "connect to the others"),
        ):
            agents.tell_all(what)
            agents.all_say(done, self.plan.wait_s, doing)
        self._ask_clocks()

    def _ask_clocks(self) -> None:
        """How far every agent's clock is ahead of this one, by the quickest of some questions, and how long it took.
        Forks have this very clock."""
        agents = self._all()
        for node, child in agents.children.items():
            best = (SECOND * 3600, 0)
            for number in range(QUESTIONS):
                asked = time.monotonic_ns()
                agents.heard[node].pop("clock", None)
                agents.tell(node, "clock", number)
                deadline = time.monotonic() + self.plan.wait_s
                while agents.heard[node].get("clock", (-1, 0))[0] != number:
                    if time.monotonic() > deadline:
                        raise TestbedError(
                            f"waited {self.plan.wait_s:g} s for {agents.name(node)} to tell its clock", "agents",
                            usage=False,
                        )  # fmt: skip
                    agents.hear(deadline - time.monotonic())
                answered = time.monotonic_ns()
                its = agents.heard[node]["clock"][1]
                best = min(best, (answered - asked, its - (asked + answered) // 2))
            self.reports.round_trips[node] = best[0]
            self.reports.offsets[node] = 0 if child.told else best[1]

    def go(self) -> int:
        """Begin. Returns the time of this process's monotonic clock at which everyone does, ns."""
        agents = self._all()
        slowest = max(self.reports.round_trips.values(), default=0)
        if self._ready is not None:
            self._ready()
        self._began = time.monotonic_ns() + max(LEAD_NS, 4 * slowest) + LEAD_PER_HOST_NS * len(self.nodes)
        for node in self.nodes:
            agents.tell(node, "go", self._began + self.reports.offsets[node])
        if self._begin is not None:
            self._begin(self._began)
        return self._began

    def wait(self) -> None:
        """Until the run is over."""
        agents, limit = self._all(), self.plan.duration_ps
        patience = self.plan.wait_s + longest_message_s(self.plan)
        end = None if limit is None else self._began + limit // 1000
        messages = len(self.plan.program.messages)
        delivered, moved = 0, time.monotonic()
        moved = max(moved, self._began / SECOND)
        while True:
            said = [agents.heard[node].get("status") for node in self.nodes]
            if all(each is not None and each[2 if self._has_workers else 3] for each in said):
                self.reports.ended_by = "done"
                break
            now = time.monotonic_ns()
            if end is not None and now >= end:
                self.reports.ended_by = "duration"
                break
            known = [each for each in said if each is not None]
            count = sum(each[0] for each in known)
            if count != delivered or any(each[1] for each in known):
                moved = max(moved, now / SECOND)
            if count != delivered and self._progress is not None:
                self._progress(count, messages)
            delivered = count
            if now / SECOND - moved > patience:
                raise TestbedError(self._stuck(patience), "run", usage=False)
            heard = min(agents.when, key=agents.when.__getitem__)
            if time.monotonic() - max(agents.when[heard], self._began / SECOND) > self.plan.wait_s:
                raise TestbedError(
                    f"has said nothing for {self.plan.wait_s:g} s, but is still there",
                    f"agent of {agents.name(heard)}", usage=False,
                )  # fmt: skip
            if self._check is not None and (wrong := list(self._check())):
                raise TestbedError("; ".join(wrong), "network", usage=False)
            wait = PAUSE_S if end is None else min(PAUSE_S, (end - now) / SECOND)
            agents.hear(wait if self._pause is None else min(wait, self._pause()))
        self._end()

    def _end(self) -> None:
        """The run is over, if it has begun."""
        if not self._began or self.reports.over_ns:
            return
        self.reports.over_ns = time.monotonic_ns() - self._began
        if self._over is not None:
            self._over()

    def _stuck(self, patience: float) -> str:
        """What everyone waits for."""
        agents = self._all()
        agents.forget("state")
        agents.tell_all("state")
        with suppress(TestbedError):
            agents.all_say("state", STATE_WAIT_S, "say what they wait for")
        said = [agents.heard[node]["state"] for node in self.nodes if "state" in agents.heard[node]]
        there = {message for each in said for message in each[2]}
        lacking = [message for each in said for message in each[1] if message not in there]
        rows = self.plan.program.messages
        names = [
            f"message {message} from {agents.name(int(rows.src[message]))} to {agents.name(int(rows.dst[message]))}"
            for message in sorted(lacking)
        ]
        lines = [line for each in said for line in each[0]]
        what = names or lines or ["nobody says why"]
        more = f" and {len(what) - NAMED} more" if len(what) > NAMED else ""
        silent = [agents.name(node) for node in self.nodes if "state" not in agents.heard[node]]
        quiet = f"; {', '.join(silent[:NAMED])} do not answer" if silent else ""
        return f"nothing has moved for {patience:.3g} s; waiting for {', '.join(what[:NAMED])}{more}{quiet}"

    def collect(self, wait_s: float) -> None:
        """Ask everyone what they know; what does not come within so many seconds is missing, and said so."""
        agents = self._all()
        agents.forget("report")
        for node in list(agents.children):
            if agents.children[node].status() is None:
                agents.tell(node, "report")
        deadline = time.monotonic() + wait_s
        taken: set[int] = set()
        while len(taken) < len(self.nodes) and time.monotonic() < deadline:
            with suppress(TestbedError):
                agents.hear(min(0.2, deadline - time.monotonic()))
            for node in self.nodes:
                if node in taken:
                    continue
                found = agents.heard[node].get("report")
                if found is not None:
                    report: HostReport = found[0]
                    taken.add(node)
                    try:
                        check_report(report, node, self.plan.program)
                    except NotOurs as error:
                        self.reports.problems.append(f"{agents.name(node)}: no report: {error}")
                    else:
                        self.reports.add(report)
                elif agents.children[node].status() is not None:
                    taken.add(node)
                    self.reports.problems.append(f"{agents.name(node)}: no report, its agent has ended")
        missing = [agents.name(node) for node in self.nodes if node not in taken]
        if missing:
            self.reports.problems.append(f"no report from {', '.join(missing)} within {wait_s:g} s")

    def close(self) -> None:
        """End all agents."""
        if self._agents is not None:
            self._agents.close()
            self._agents = None

    def _all(self) -> Agents:
        if self._agents is None:
            raise RuntimeError("prepare() comes first")
        return self._agents
