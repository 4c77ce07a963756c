"""Builds the network of a plan, runs its agents or user programs, and writes the raw results to a file.

    python -m gradwire.emu.control.runner FOLDER [--machine]

The runner is process 1 of private namespaces, or with --machine runs in gradwire's virtual machine. FOLDER has
`plan.pickle` and receives `raw.pickle`. Progress and errors go to standard output, a JSON object per line after
"gradwire: " (the disk may be full). A file `stop` in FOLDER, or SIGINT, ends the run in order with partial results. It
imports little beyond numpy because imports are slow in a virtual machine.
"""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from gradwire.emu.agent.report import Reports
from gradwire.emu.control.controller import Controller, RunObserver
from gradwire.emu.control.launchers import ForkLauncher
from gradwire.emu.planning.base_rtt import base_round_trip_ns
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import ActiveCapture, PortCounts, SwitchBackend, TestbedError
from gradwire.emu.system.capture import Capture, file_name
from gradwire.emu.system.cpu_idle import awake
from gradwire.emu.system.processes import set_timer_slack
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.system.temporary_folders import FULL, full_disk
from gradwire.emu.transports import warm
from gradwire.emu.user_programs.player import Player

PREFIX = "gradwire: "
PLAN_FILE, RAW_FILE = "plan.pickle", "raw.pickle"
"""The plan, and the raw results, which are written last."""
STOP = "stop"
"""The file that ends a run: the only signal that reaches a virtual machine whose time stands still."""
STALL_NS = 10_000_000
"""Lateness of a timer above which the machine counts as stalled."""
LATE_TRIPS, MANY = 2, 100
"""The 99 % lateness of a host's timers may be `LATE_TRIPS` base round trips, if there are `MANY` (our choice)."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    folder = Path(arguments[0])
    machine = "--machine" in arguments[1:]

    def once(plan: TestbedPlan) -> None:
        write_atomically(folder / RAW_FILE, run(plan, folder, machine))

    return run_guarded(folder, once)


def run_guarded(folder: Path, does: Callable[[TestbedPlan], None]) -> int:
    """Call `does` with the plan in a folder; report errors and return the exit status."""
    try:
        with (folder / PLAN_FILE).open("rb") as file:
            plan: TestbedPlan = pickle.load(file)
        does(plan)
        return 0
    except KeyboardInterrupt:
        return 130
    except TestbedError as error:
        failure = error
    except OSError as error:
        traceback.print_exc()
        failure = full_disk(folder, error) if error.errno in FULL else _unforeseen(error)
    except Exception as error:
        traceback.print_exc()
        failure = _unforeseen(error)
    report_progress(error=failure.args)
    return failure.exit_code


def _unforeseen(error: Exception) -> TestbedError:
    return TestbedError(f"the runner failed: {type(error).__name__}: {error}", "testbed", usage=False)


def run(plan: TestbedPlan, folder: Path, machine: bool) -> RawResults:
    """Build the network, run the plan, and return the raw results, which are partial after a stop request. Raises
    TestbedError: the network cannot be built, or something failed; KeyboardInterrupt: a stop request came before the
    run began."""
    captures: list[ActiveCapture] = []
    raw = RawResults(Reports.empty(len(plan.program.messages)), kernel=platform.release())
    with network_of(plan, machine) as backend:
        try:
            captures = start_captures(plan, backend, folder, raw)
            play(plan, backend, folder, raw)
            _ignore_interrupts()
            stop_captures(captures, raw)
            add_problems(plan, backend, raw)
        finally:
            _ignore_interrupts()
            stop_captures(captures, raw)
    return raw


@contextmanager
def network_of(plan: TestbedPlan, machine: bool) -> Iterator[SwitchBackend]:
    """Yield the network of a plan, built and forwarding; SIGTERM and SIGINT raise KeyboardInterrupt meanwhile."""
    from gradwire.emu.planning.backend_choice import backend_kind_of
    from gradwire.emu.system import namespaces

    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    namespaces.set_up_private(private=not machine)
    set_timer_slack()  # samples would be up to 50 us late
    with awake() if plan.clock == "wall" else nullcontext():
        backend = backend_kind_of(plan.switch).make(plan, plan.options["kernel"])
        report_progress(state="building", backend=plan.switch)
        try:
            backend.build()
            backend.start()
            warm(plan)
            gc.collect()
            gc.freeze()  # otherwise garbage collection in forks copies the shared pages
            yield backend
        finally:
            _ignore_interrupts()
            if not machine:  # a machine ends with its network
                # the namespaces end with this process; an earlier error matters more
                with suppress(TestbedError, OSError):
                    backend.close()


def play(plan: TestbedPlan, backend: SwitchBackend, folder: Path, raw: RawResults) -> None:
    """Carry out a plan on a running network; store the results, partial or not, in `raw`."""
    watch = NetworkWatch(plan, backend, raw, folder / STOP)
    player: Controller | Player = Controller(plan, ForkLauncher(backend.namespace), watch)
    if plan.programs is not None:
        player = Player(plan, plan.programs, backend, watch, folder, report_progress)
    with suppress(KeyboardInterrupt):
        player.run()
    raw.reports = player.reports
    if isinstance(player, Player):
        raw.ends, raw.marked, raw.began_ns = player.ends, player.marked, player.began_ns


def add_problems(plan: TestbedPlan, backend: SwitchBackend, raw: RawResults) -> None:
    raw.complaints += backend.check() + raw.reports.problems
    raw.notes += backend.notes()
    if plan.clock == "wall":
        raw.complaints += stalls(plan, raw.reports)


class NetworkWatch(RunObserver):
    """Observer of the network during a run: progress, samples, failures, and loss changes of faults.

    It counts from the beginning of the run to its end: connections are made before and closed after it.
    """

    def __init__(self, plan: TestbedPlan, backend: SwitchBackend, raw: RawResults, stop: Path) -> None:
        self._plan, self._backend, self._raw, self._stop = plan, backend, raw, stop
        self._began = 0
        self._every_ns = None if plan.sample_ps is None else max(1, plan.sample_ps // 1000)
        self._due_ns: int | None = None
        self._begun = False
        self._losses = [(change.time_ns, each) for change in plan.changes for each in change.loss]
        self._before: list[PortCounts] = []
        raw.counts = [PortCounts(port.name) for port in plan.ports]

    def ready(self) -> None:
        self._before = self._backend.counts()

    def begin(self, time_ns: int) -> None:
        self._began = time_ns
        self._backend.begin(time_ns)

    def end_run(self) -> None:
        self._raw.counts = self._counts()
        self._backend.end_run()
        drops = ((drop, drop.time_ns - self._began) for drop in self._backend.drops())
        self._raw.drops = [replace(drop, time_ns=time) for drop, time in drops if time >= 0]

    def _counts(self) -> list[PortCounts]:
        return [now.difference(then) for now, then in zip(self._backend.counts(), self._before, strict=True)]

    def progress(self, delivered: int, messages: int) -> None:
        report_progress(state="running", delivered=delivered, messages=messages)

    def check(self) -> Sequence[str]:
        if self._stop.exists():
            raise KeyboardInterrupt
        if reason := self._backend.exit_reason():
            return [reason]
        began = self._began
        if not self._begun:
            self._begun = True
            self.progress(0, len(self._plan.program.messages))
        while began and self._losses and self._losses[0][0] <= time.monotonic_ns() - began:
            _, (port, loss) = self._losses.pop(0)
            self._backend.set_loss(port, loss)
        interval_ns = self._every_ns
        if began and interval_ns is not None:
            now = time.monotonic_ns() - began
            if self._due_ns is None:
                self._due_ns = interval_ns
            if now >= self._due_ns:
                counts = self._counts()
                self._raw.samples.append((now, [counts[port] for port in self._plan.sample_ports]))
                self._due_ns = now - now % interval_ns + interval_ns
        return []

    def pause(self) -> float:
        due = [] if self._due_ns is None else [self._due_ns]
        due += [time_ns for time_ns, _ in self._losses[:1]]
        if not due or not self._began:
            return math.inf
        return (self._began + min(due) - time.monotonic_ns()) / 1e9


def stalls(plan: TestbedPlan, reports: Reports) -> list[str]:
    """Return messages about hosts whose late timers make the run unreliable."""
    messages = []
    base_rtt_ns = base_round_trip_ns(plan)
    for node, lateness in sorted(reports.punctuality.items()):
        worst = int(lateness.get("max_ns", 0))
        if worst > plan.options.get("stall_ns", STALL_NS):
            messages.append(f"{plan.names[node]}: max timer lateness {worst / 1e6:.1f} ms")
        elif lateness.get("timers", 0) >= MANY and lateness["p99_ns"] > LATE_TRIPS * base_rtt_ns:
            messages.append(
                f"{plan.names[node]}: 99 % timer lateness {lateness['p99_ns'] / 1e6:.1f} ms, base round-trip time "
                f"{base_rtt_ns / 1e6:.1f} ms: the machine is too slow or too busy"
            )
    return messages


def start_captures(plan: TestbedPlan, backend: SwitchBackend, folder: Path, raw: RawResults) -> list[ActiveCapture]:
    """Start captures at the nodes named by the plan; their files are in `folder`."""
    nodes = [plan.names.index(name) for name in plan.captures]
    paths = {node: folder / file_name(plan, node) for node in nodes}
    switch_paths = {node: path for node, path in paths.items() if node >= plan.host_count}
    by_backend = backend.capture(switch_paths) if switch_paths else None
    started: list[ActiveCapture] = [] if by_backend is None else [by_backend]
    for node, path in paths.items():
        if by_backend is None or node not in switch_paths:
            capture = Capture(plan, node, path)
            started.append(capture)
            capture.start(backend.namespace(node))
    raw.captures = {plan.names[node]: str(path) for node, path in paths.items()}
    return started


def stop_captures(started: list[ActiveCapture], raw: RawResults) -> None:
    """End captures and record missed packets.

    A capture that cannot be written is deleted, which frees its disk space: the run is worth more.
    """
    while started:
        capture = started.pop()
        try:
            raw.complaints += capture.stop()
        except (TestbedError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else getattr(error, "what", error)
            raw.lost_captures.append(f"{capture.path.name}: cannot be written: {reason}")
            raw.captures = {name: path for name, path in raw.captures.items() if path != str(capture.path)}
            with suppress(OSError):
                capture.path.unlink()


def report_progress(**what: object) -> None:
    print(PREFIX + json.dumps(what), flush=True)


def _interrupt(number: int, frame: object) -> None:
    _ignore_interrupts()
    raise KeyboardInterrupt


def _ignore_interrupts() -> None:
    """Ignore further signals: the run already ends in order and in time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def write_atomically(path: Path, what: object) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        pickle.dump(what, file, protocol=pickle.HIGHEST_PROTOCOL)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
