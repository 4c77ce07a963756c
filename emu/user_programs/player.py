"""`Player` runs a plan's user programs from a common beginning to their end, with faults and samples meanwhile.

It takes the place of the controller (`gradwire.emu.control.controller`) and has the same `run()`, `reports` and
`began_ns`. One thread waits for the next event: output, the end of a rank, a change of the network, or a sample.

A run ends when all ranks have ended. After a failure the other ranks may finish within the plan's grace period; then
they receive SIGTERM, and SIGKILL `LAST_S` later. The scenario's duration, Ctrl-C and a wall-clock limit send SIGTERM
at once.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gradwire.emu.agent.report import Reports
from gradwire.emu.control.controller import RunObserver
from gradwire.emu.planning.plan import Change, TestbedPlan
from gradwire.emu.switches.backend_kind import SwitchBackend, TestbedError
from gradwire.emu.system import namespaces
from gradwire.emu.system.namespaces import inside, run_tool
from gradwire.emu.user_programs import marking_rules, rank_environment
from gradwire.emu.user_programs.background_traffic import BackgroundTraffic
from gradwire.emu.user_programs.programs import Programs, Rank
from gradwire.emu.user_programs.rank import RankEnd, RankProcess, start

PAUSE_S, SOON_S = 0.2, 0.01
LAST_S = 3.0
"""Seconds between SIGTERM and SIGKILL; our choice."""
RANK_FILES = "left"
"""Folder of the ranks' files within that of the run: output/, marks/, trace/."""
OUTPUT = "output"
RESOLVER = "options timeout:1 attempts:1\n"

OutputCallback = Callable[..., None]


class Player:
    """The ranks of one plan; `say` receives their lines of output."""

    def __init__(
        self,
        plan: TestbedPlan,
        programs: Programs,
        backend: SwitchBackend,
        watch: RunObserver,
        folder: Path,
        say: OutputCallback,
    ) -> None:
        self.plan, self.programs = plan, programs
        self._backend, self._watch, self._say = backend, watch, say
        self.left = folder / RANK_FILES
        self.reports = Reports.empty(len(plan.program.messages))
        self.ends: list[RankEnd] = [RankEnd(rank.number, None) for rank in programs.ranks]
        self.marked: dict[int, tuple[int, int]] = {}
        """(packets, bytes) that each rule of `programs.rules` has matched"""
        self.began_ns = 0
        """the common beginning on this process's monotonic clock; 0 before it is set"""
        self._ranks: list[RankProcess] = []
        self._traffic: BackgroundTraffic | None = None
        self._selector = selectors.DefaultSelector()
        self._changes = [change for change in plan.changes if change.stop or change.go]
        self._term_at: float | None = None
        self._kill_at: float | None = None

    def run(self) -> Reports:
        """Prepare, run and end all ranks; return the reports. Raises TestbedError: something cannot be started, or
        the network has failed; KeyboardInterrupt: the run was interrupted; `reports` and `ends` have the partial
        results."""
        try:
            self._prepare()
            self._begin()
            self._check_run()  # samples begin now, even if ranks compute before the clock advances
            self._wait()
        except KeyboardInterrupt:
            self.reports.ended_by = "interrupt"
            self._terminate()
            self._wait()
            raise
        finally:
            self._end()
        return self.reports

    # before

    def _prepare(self) -> None:
        for name in (OUTPUT, rank_environment.MARKS):
            (self.left / name).mkdir(parents=True)
        if self.programs.times:
            (self.left.parent / rank_environment.TIMES).write_text(self.programs.times, encoding="utf-8")
        if os.path.isdir("/dev/shm"):
            namespaces.mount("tmpfs", "/dev/shm")  # files left there disappear with the run
        texts = {"/etc/hosts": rank_environment.hosts_file(self.programs), "/etc/resolv.conf": RESOLVER}
        for path, text in texts.items():
            if os.path.isfile(path):
                replacement = Path("/run") / Path(path).name
                replacement.write_text(text)
                namespaces.bind(str(replacement), path)
        for node in range(self.plan.host_count):
            namespace = self._backend.namespace(node)
            marking_rules.set_rules(self.programs.rules, node, namespace, self.plan.names[node])
            if node in self.programs.congestion:
                set_congestion(namespace, self.programs.congestion[node], self.plan.names[node])

    def _begin(self) -> None:
        if self.programs.traffic:
            self._traffic = BackgroundTraffic(self.plan, self._backend.namespace)
            self._watch.ready()
            self.began_ns = self._traffic.start()
            self._selector.register(self._traffic, selectors.EVENT_READ)
        else:
            self._watch.ready()
            self.began_ns = time.monotonic_ns()
        self._watch.begin(self.began_ns)
        for rank in self.programs.ranks:
            self._start(rank)

    def _start(self, rank: Rank) -> None:
        device = self.plan.ports_of_node(rank.node)[0].device
        variables = rank_environment.environment(self.programs, rank, device, self.left, self.plan.clock)
        process = start(
            rank,
            rank_environment.command_words(self.programs, rank),
            variables,
            self.programs.cwd,
            self._backend.namespace(rank.node),
            self.left / OUTPUT,
            lambda rank, stream, text: self._say(
                state="output", rank=rank.number, host=rank.host, stream=stream, text=text
            ),
            in_turn=self.plan.clock == "virtual",
        )
        self._ranks.append(process)
        self._selector.register(process.pidfd, selectors.EVENT_READ)
        for stream in process.streams:
            self._selector.register(stream, selectors.EVENT_READ, stream)

    # meanwhile

    def _wait(self) -> None:
        while self._running():
            for key, _ in self._selector.select(self._pause()):
                if isinstance(key.fileobj, BackgroundTraffic):
                    self._selector.unregister(key.fileobj)
                    key.fileobj.listen()
                elif key.data is not None and not key.data.read():
                    self._selector.unregister(key.data)
            self._reap()
            while self._changes and self._changes[0].time_ns <= time.monotonic_ns() - self.began_ns:
                self._apply(self._changes.pop(0))
            self._signal_ranks()
            if self._kill_at is None:
                self._check_run()

    def _check_run(self) -> None:
        """Raise TestbedError if the network has failed, and KeyboardInterrupt if the run must end."""
        if problems := self._watch.check():
            raise TestbedError("; ".join(problems), "network", usage=False)

    def _pause(self) -> float:
        """Return the seconds until the next event is due."""
        now = time.monotonic()
        if self._kill_at is not None:
            return min(PAUSE_S, max(self._kill_at - now, SOON_S))
        due = [now + PAUSE_S, now + self._watch.pause()]
        if self._changes:
            due.append((self.began_ns + self._changes[0].time_ns) / 1e9)
        if self._term_at is not None:
            due.append(self._term_at)
        if self.plan.duration_ps is not None:
            due.append((self.began_ns + self.plan.duration_ps // 1000) / 1e9)
        return max(0.0, min(due) - now)

    def _reap(self) -> None:
        now = time.monotonic_ns() - self.began_ns
        for process in self._running():
            if (end := process.reap(now)) is not None:
                self._selector.unregister(process.pidfd)
                self.ends[end.rank] = end
                if end.status and not end.ended and self.reports.ended_by == "done":
                    self.reports.ended_by = "failure"
                    self._term_at = time.monotonic() + self.programs.grace_s

    def _apply(self, change: Change) -> None:
        for process in self._running():
            for nodes, number in ((change.stop, signal.SIGSTOP), (change.go, signal.SIGCONT)):
                if process.rank.node in nodes:
                    process.signal(number)

    def _running(self) -> list[RankProcess]:
        return [process for process in self._ranks if process.end is None]

    def _signal_ranks(self) -> None:
        """Send SIGTERM and SIGKILL to ranks when they are due."""
        now = time.monotonic()
        limit = self.plan.duration_ps
        if limit is not None and self._kill_at is None and time.monotonic_ns() >= self.began_ns + limit // 1000:
            self.reports.ended_by = "duration" if self.reports.ended_by == "done" else self.reports.ended_by
            self._terminate()
        if self._term_at is not None and self._kill_at is None and now >= self._term_at:
            self._terminate()
        if self._kill_at is not None and now >= self._kill_at:
            for process in self._running():
                process.signal(signal.SIGKILL)

    def _terminate(self) -> None:
        """Send SIGTERM to all running ranks, and schedule SIGKILL `LAST_S` later."""
        now = time.monotonic()
        self._term_at = now if self._term_at is None else min(self._term_at, now)
        self._kill_at = now + LAST_S
        self._changes = []
        for process in self._running():
            process.told_to_end = True
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)

    # after

    def _end(self) -> None:
        self.reports.over_ns = time.monotonic_ns() - self.began_ns if self.began_ns else 0
        for process in self._ranks:
            process.close()
        self._selector.close()
        if self.began_ns:
            self._watch.end_run()
            with suppress(TestbedError):
                self._count_marks()
        if self._traffic is not None:
            ended_by, over_ns = self.reports.ended_by, self.reports.over_ns
            reports = self._traffic.end()
            if reports is None:
                self.reports.problems.append("background traffic left no report")
            else:
                reports.ended_by, reports.over_ns = ended_by, over_ns
                self.reports = reports

    def _count_marks(self) -> None:
        for node in range(self.plan.host_count):
            counts = marking_rules.rule_counts(self.programs.rules, node, self._backend.namespace(node))
            for number, (packets, size) in counts.items():
                previous = self.marked.get(number, (0, 0))
                self.marked[number] = previous[0] + packets, previous[1] + size


def set_congestion(namespace: int, name: str, host: str) -> None:
    """Set the congestion control of all TCP connections of a host by its routes.

    A sysctl would not do: a namespace may choose only among a few.
    """
    with inside(namespace):
        for route in run_tool(["ip", "route", "show"]).splitlines():
            run_tool(["ip", "route", "replace", *route.split(), "congctl", name])
        if f"congctl {name}" not in (shown := run_tool(["ip", "route", "show"])):
            raise TestbedError(f"routes differ: the kernel has {shown!r}", f"host {host}", f"one with congctl {name}")
