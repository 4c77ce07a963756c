"""Runner: inside. It builds the network of a plan, runs the agents in it, and leaves what was seen in a file.

    python -m gradwire.emu.control.runner FOLDER [--machine]

It is process 1 of private namespaces, or with --machine runs in a virtual machine of our own. FOLDER has `plan.pickle`
and gets `raw.pickle`. Progress goes to standard output, a JSON object per line after "gradwire: ", and so does the
error if there is one: no file, for the disk may be full. A file `stop` in FOLDER, or SIGINT, ends the run in order:
what was seen by then is left all the same. Nothing is imported here but numpy and what is needed, because inside a
virtual machine importing takes long.
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
from typing import Protocol

from gradwire.emu.agent.report import Reports
from gradwire.emu.control.controller import Controller
from gradwire.emu.control.launchers import PR_SET_TIMERSLACK, Forked
from gradwire.emu.planning.plan import Plan
from gradwire.emu.planning.round_trips import base_round_trip_ns
from gradwire.emu.programs.player import Player
from gradwire.emu.switches.base import PortCounts, SwitchBackend, TestbedError
from gradwire.emu.system.awake import awake
from gradwire.emu.system.capture import Capture, file_name
from gradwire.emu.system.raw import Raw
from gradwire.emu.system.scratch import FULL, full_disk
from gradwire.emu.system.sockets import LIBC
from gradwire.emu.transports import warm

PREFIX = "gradwire: "
LEFT = "raw.pickle"
"""The file with what it has seen, the last thing that it makes."""
STOP = "stop"
"""The file that ends a run: the only word from outside that gets into a virtual machine whose time stands still."""
STALL_NS = 10_000_000
"""A process that wanted to sleep a millisecond and woke so much too late has seen the machine stand still."""
LATE_TRIPS, MANY = 2, 100
"""One timer in a hundred of a host may be later than so many base round trips, if it had so many timers (our
choice)."""


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    folder = Path(arguments[0])
    machine = "--machine" in arguments[1:]

    def once(plan: Plan) -> None:
        leave(folder / LEFT, run(plan, folder, machine))

    return guarded(folder, once)


def guarded(folder: Path, does: Callable[[Plan], None]) -> int:
    """Do something with the plan in a folder; the exit status, after what went wrong has been said."""
    try:
        with (folder / "plan.pickle").open("rb") as file:
            plan: Plan = pickle.load(file)
        does(plan)
        return 0
    except KeyboardInterrupt:
        return 130
    except TestbedError as error:
        found = error
    except OSError as error:
        traceback.print_exc()
        found = full_disk(folder, error) if error.errno in FULL else _unforeseen(error)
    except Exception as error:
        traceback.print_exc()
        found = _unforeseen(error)
    say(error=found.args)
    return found.exit_code


def _unforeseen(error: Exception) -> TestbedError:
    return TestbedError(f"the runner failed: {type(error).__name__}: {error}", "testbed", usage=False)


def run(plan: Plan, folder: Path, machine: bool) -> Raw:
    """Build, run, count. A request to end (see above) ends the run and leaves what was seen.

    Raises
    ------
    TestbedError
        The network cannot be built, or something failed.
    KeyboardInterrupt
        A request to end came before there was anything to see.
    """
    captures: list[Capturing] = []
    raw = Raw(Reports.empty(len(plan.program.messages)), kernel=platform.release())
    with network_of(plan, machine) as backend:
        try:
            captures = start_captures(plan, backend, folder, raw)
            play(plan, backend, folder, raw)
            _no_more_interrupts()
            stop_captures(captures, raw)
            judge(plan, backend, raw)
        finally:
            _no_more_interrupts()
            stop_captures(captures, raw)
    return raw


@contextmanager
def network_of(plan: Plan, machine: bool) -> Iterator[SwitchBackend]:
    """The network of a plan, built and forwarding. SIGTERM and SIGINT are KeyboardInterrupt as long as it is there."""
    from gradwire.emu.planning.choose import kind_of
    from gradwire.emu.system import namespaces

    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    namespaces.settle(private=not machine)
    LIBC.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # samples are taken when they are due, not up to 50 us later
    with awake() if plan.clock == "wall" else nullcontext():
        backend = kind_of(plan.switch).make(plan, plan.options["kernel"])
        say(state="building", backend=plan.switch)
        try:
            backend.build()
            backend.start()
            warm(plan)
            gc.collect()
            gc.freeze()  # or every fork's collections would copy all that was there before it
            yield backend
        finally:
            _no_more_interrupts()
            if not machine:  # which ends, and all that there is with it
                with suppress(
                    TestbedError, OSError
                ):  # the namespaces go with this process; what failed before is what counts
                    backend.close()


def play(plan: Plan, backend: SwitchBackend, folder: Path, raw: Raw) -> None:
    """Have a plan carried out on a network that is there; what was seen, a request to end or not, goes into `raw`."""
    watch = Watch(plan, backend, raw, folder / STOP)
    watch.controller = player = _player(plan, backend, watch, folder)
    with suppress(KeyboardInterrupt):
        player.run()
    raw.reports = player.reports
    if isinstance(player, Player):
        raw.ends, raw.marked, raw.began_ns = player.ends, player.marked, player.began_ns


def judge(plan: Plan, backend: SwitchBackend, raw: Raw) -> None:
    """What was wrong with a run, and what else to know of it, into `raw`."""
    raw.complaints += backend.check() + raw.reports.problems
    raw.notes += backend.notes()
    if plan.clock == "wall":
        raw.complaints += stalls(plan, raw.reports)


def _player(plan: Plan, backend: SwitchBackend, watch: Watch, folder: Path) -> Controller | Player:
    """Who plays the plan: the controller its program; or, where programs of the user's own run, somebody who has them
    run, and has a controller for what else there is."""
    if plan.programs is not None:
        return Player(plan, plan.programs, backend, watch, folder, say)
    return Controller(
        plan, Forked(backend.namespace), watch.progress, watch.check, watch.pause, backend.begin, watch.over,
        watch.ready,
    )  # fmt: skip


class Watch:
    """Looks at the network while it runs: progress, samples, trouble. It changes cables when faults do, and counts what
    the run is, from its beginning to its end: connections are made before and taken down after it."""

    def __init__(self, plan: Plan, backend: SwitchBackend, raw: Raw, stop: Path) -> None:
        self._plan, self._backend, self._raw, self._stop = plan, backend, raw, stop
        self.controller: Controller | Player | None = None
        self._every_ns = None if plan.sample_ps is None else max(1, plan.sample_ps // 1000)
        self._due_ns: int | None = None
        self._begun = False
        self._losses = [(change.time_ns, each) for change in plan.changes for each in change.loss]
        self._before: list[PortCounts] = []
        raw.counts = [PortCounts(port.name) for port in plan.ports]

    def ready(self) -> None:
        """All is connected, and the run is about to begin."""
        self._before = self._backend.counts()

    def over(self) -> None:
        """The run is over; hosts are asked for their reports, and then end."""
        self._raw.counts = self._counts()
        self._backend.over()
        began = self.controller.began_ns if self.controller is not None else 0
        seen = ((drop, drop.time_ns - began) for drop in self._backend.drops())
        self._raw.drops = [replace(drop, time_ns=time) for drop, time in seen if time >= 0]

    def _counts(self) -> list[PortCounts]:
        """Of the ports, since the beginning."""
        return [now.since(then) for now, then in zip(self._backend.counts(), self._before, strict=True)]

    def progress(self, delivered: int, messages: int) -> None:
        """Pass on how far it is."""
        say(state="running", delivered=delivered, messages=messages)

    def check(self) -> list[str]:
        """Take a sample when one is due; what has gone wrong beyond repair (nothing is mended on the way).

        KeyboardInterrupt if the run is to end.
        """
        if self._stop.exists():
            raise KeyboardInterrupt
        ended = getattr(self._backend, "ended", None)
        if ended is not None and (why := ended()):
            return [why]
        began = self.controller.began_ns if self.controller is not None else 0
        if not self._begun:
            self._begun = True
            self.progress(0, len(self._plan.program.messages))
        while began and self._losses and self._losses[0][0] <= time.monotonic_ns() - began:
            _, (port, loss) = self._losses.pop(0)
            self._backend.set_loss(port, loss)
        every = self._every_ns
        if began and every is not None:
            now = time.monotonic_ns() - began
            if self._due_ns is None:
                self._due_ns = every
            if now >= self._due_ns:
                counts = self._counts()
                self._raw.samples.append((now, [counts[port] for port in self._plan.sample_ports]))
                self._due_ns = now - now % every + every
        return []

    def pause(self) -> float:
        """Seconds until the next sample or change is due; for ever if none is."""
        due = [] if self._due_ns is None else [self._due_ns]
        due += [time_ns for time_ns, _ in self._losses[:1]]
        if not due or self.controller is None or not self.controller.began_ns:
            return math.inf
        return (self.controller.began_ns + min(due) - time.monotonic_ns()) / 1e9


def stalls(plan: Plan, reports: Reports) -> list[str]:
    """Hosts whose timers were so late that the run says more about this machine than about the network."""
    found = []
    trip = base_round_trip_ns(plan)
    for node, seen in sorted(reports.punctuality.items()):
        worst = int(seen.get("max_ns", 0))
        if worst > plan.options.get("stall_ns", STALL_NS):
            found.append(f"{plan.names[node]}: a timer was {worst / 1e6:.1f} ms late")
        elif seen.get("timers", 0) >= MANY and seen["p99_ns"] > LATE_TRIPS * trip:
            found.append(
                f"{plan.names[node]}: one timer in a hundred was more than {seen['p99_ns'] / 1e6:.1f} ms late, and a "
                f"round trip takes {trip / 1e6:.1f} ms: the machine is too slow or too busy"
            )
    return found


class Capturing(Protocol):
    """A capture under way."""

    path: Path

    def stop(self) -> list[str]:
        """End it; what it has missed, in words."""


def start_captures(plan: Plan, backend: SwitchBackend, folder: Path, raw: Raw) -> list[Capturing]:
    """Captures at the nodes that the plan names; their files are in `folder`. They have a `stop`."""
    nodes = [plan.names.index(name) for name in plan.captures]
    paths = {node: folder / file_name(plan, node) for node in nodes}
    inside = {node: path for node, path in paths.items() if node >= plan.host_count}
    started: list[Capturing] = []
    capture = getattr(backend, "capture", None)  # of a backend whose switches have no devices
    if inside and capture is not None:
        started.append(capture(inside))
    for node, path in paths.items():
        if capture is None or node not in inside:
            taken = Capture(plan, node, path)
            started.append(taken)
            taken.start(backend.namespace(node))
    raw.captures = {plan.names[node]: str(path) for node, path in paths.items()}
    return started


def stop_captures(started: list[Capturing], raw: Raw) -> None:
    """End them, and note what they have missed. One that could not be written is given up, and its room with it: the
    run is worth more."""
    while started:
        capture = started.pop()
        try:
            raw.complaints += capture.stop()
        except (TestbedError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else getattr(error, "what", error)
            raw.lost_captures.append(f"{capture.path.name}: cannot be written: {why}")
            raw.captures = {name: path for name, path in raw.captures.items() if path != str(capture.path)}
            with suppress(OSError):
                capture.path.unlink()


def say(**what: object) -> None:
    """One line of progress for whoever started us."""
    print(PREFIX + json.dumps(what), flush=True)


def _interrupt(number: int, frame: object) -> None:
    _no_more_interrupts()
    raise KeyboardInterrupt


def _no_more_interrupts() -> None:
    """From here on we end in order, and in time, anyway."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def leave(path: Path, what: object) -> None:
    """Write a file that appears whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        pickle.dump(what, file, protocol=pickle.HIGHEST_PROTOCOL)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
