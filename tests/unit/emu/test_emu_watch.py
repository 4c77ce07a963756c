"""A virtual machine that stands still is noticed, and what it was doing is told; one that only takes long is left alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from emu_cases import needs

from gradwire.emu.virtual_time import virtual_machine
from gradwire.emu.virtual_time.machine_clock import (
    TICKS,
    ClockStoppedError,
    EndingMachine,
    MachinePause,
    MachineProcess,
    MachineWatch,
    symbol_address,
)
from gradwire.emu.virtual_time.virtual_machine import PREFIX, kernel_or_error, run_inside

START_S = 20
"""The longest that a machine takes to begin here."""


def start(command, heard, **more):
    """Run a command in a machine, in a thread; gives the list that its error or exit status will be in."""
    outcome = []

    def run():
        try:
            outcome.append(run_inside(command, seed=1, limit_s=120, on_line=heard.append, **more))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def until(what, limit_s=START_S):
    end = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


def machine():
    """What this process has started."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    for child in (number for file in found for number in file.read_text().split()):
        with suppress(OSError):
            if "time-travel" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    return None


def test_symbol_address_returns_none_for_unknown_symbols(tmp_path):
    """The interpreter lacks the symbol, and a text file has no symbols."""
    file = tmp_path / "text"
    file.write_text("no program")
    assert symbol_address(file, "anything") is None
    assert symbol_address(Path(sys.executable).resolve(), "no_such_variable") is None


@needs("uml")
def test_stopped_virtual_clock_is_read_and_reported():
    heard = []
    command = ["/bin/sh", "-c", f"sleep 5000; echo '{PREFIX}slept'; while [ ! -e /tmp/none ]; do :; done"]
    thread, outcome = start(command, heard, still_s=4.0)
    until(lambda: heard)
    watch = MachineWatch(kernel_or_error(), until(machine))
    seen = watch.clock_ns()
    assert 5000 * 10**9 <= seen < 5001 * 10**9
    thread.join(60)
    assert isinstance(outcome[0], ClockStoppedError)
    assert "the clock stood still at 500" in str(outcome[0]) and "while something computed for" in str(outcome[0])


@needs("uml")
def test_virtual_machine_that_never_wakes_is_reported():
    heard = []
    command = ["/bin/sh", "-c", f"echo '{PREFIX}here'; while [ ! -e /tmp/none ]; do :; done"]
    thread, outcome = start(command, heard, asleep_s=5.0)
    until(lambda: heard)
    for each in MachineWatch(kernel_or_error(), until(machine)).processes():
        os.kill(each.number, signal.SIGSTOP)
    thread.join(60)
    assert isinstance(outcome[0], ClockStoppedError), outcome
    assert "nothing computed" in str(outcome[0]) and "kernel's process is T" in str(outcome[0])
    assert outcome[0].usage is False
    until(lambda: machine() is None)


@needs("uml")
def test_long_computation_with_short_sleeps_is_not_a_stall():
    """The program computes for longer than the limit, with short sleeps in between."""
    heard = []
    loop = (
        "i=0; while [ $i -lt 60 ]; do i=$((i+1)); sleep 0.001; j=0; while [ $j -lt 40000 ]; do j=$((j+1)); done; done"
    )
    thread, outcome = start(["/bin/sh", "-c", loop], heard, still_s=6.0, asleep_s=6.0)
    thread.join(100)
    assert outcome == [0]


def test_stall_limit_counts_cpu_time_not_wall_time(monkeypatch):
    """The limit applies to the CPU time of all processes, including ended and new ones."""
    watch = MachineWatch(Path(sys.executable), os.getpid(), still_s=6.0, asleep_s=4.0)
    ticks, now = {1: 0, 2: 0}, [0.0]
    monkeypatch.setattr(
        watch, "processes", lambda: [MachineProcess(number, 0, "R", each) for number, each in ticks.items()]
    )
    monkeypatch.setattr(watch, "_clock_of", lambda processes: 7 * 10**9)
    monkeypatch.setattr("gradwire.emu.virtual_time.machine_clock.time.monotonic", lambda: now[0])
    watch._looked = watch._moved = watch._worked = 0.0

    def take(number: int, seconds: float) -> None:
        now[0] += 1.5
        ticks[number] = ticks.get(number, 0) + round(seconds * TICKS)
        watch.check()

    take(1, 1.0)  # its clock is seen for the first time
    for _ in range(100):
        take(1, 0.02)
    assert now[0] > 100
    del ticks[2]
    for number in (3, 4):
        take(number, 1.5)
    with pytest.raises(ClockStoppedError, match="while something computed for 6 s"):
        take(1, 1.0)


@needs("uml")
def test_program_may_finish_computing_after_an_end_request(monkeypatch, tmp_path):
    """The request is a file, which the program checks when its clock advances."""
    stop, heard = tmp_path / "stop", []
    monkeypatch.setattr(virtual_machine, "GRACE_S", 0.1)
    computes = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done"
    command = ["/bin/sh", "-c", f"echo '{PREFIX}here'; {computes}; [ -e {stop} ] && exit 7; sleep 100"]

    class CtrlC:
        def check(self):
            if heard:
                raise KeyboardInterrupt

    def ask(why):
        stop.touch()
        return why == "interrupt"

    thread, outcome = start(command, heard, ask=ask, ctrl_c=CtrlC())
    thread.join(100)
    assert outcome == [7]


def test_cpu_budget_after_an_end_request_starts_at_the_request(monkeypatch):
    """Earlier CPU time and wall time without CPU time do not count. A sleeping machine no longer ends by itself."""
    watch = MachineWatch(Path(sys.executable), os.getpid())
    ticks, now = {1: 500 * TICKS, 2: 0}, [0.0]
    monkeypatch.setattr(
        watch, "processes", lambda: [MachineProcess(number, 0, "R", each) for number, each in ticks.items()]
    )
    monkeypatch.setattr("gradwire.emu.virtual_time.machine_clock.time.monotonic", lambda: now[0])
    ending = EndingMachine(watch, most_s=6.0, asleep_s=30.0)
    assert ending.is_alive()
    for _ in range(5):
        ticks[2] += TICKS
        now[0] += 29.0
        assert ending.is_alive()
    now[0] += 29.0
    assert ending.is_alive()
    now[0] += 1.0
    assert not ending.is_alive()
    ticks[2] += TICKS // 2
    assert ending.is_alive()
    ticks[2] += TICKS // 2
    assert not ending.is_alive()


def test_vanished_virtual_machine_is_reported(monkeypatch):
    """Its process exists and computes nothing, but its memory is gone."""
    watch = MachineWatch(Path(sys.executable), os.getpid(), asleep_s=0.2)
    monkeypatch.setattr(watch, "processes", lambda: [])
    clock = iter([7 * 10**9])
    monkeypatch.setattr(watch, "_clock_of", lambda processes: next(clock, None))
    with pytest.raises(ClockStoppedError, match=r"stood still at 7\.0+ s.*it has ended"):
        until(watch.check, 3)


@needs("uml")
def test_paused_virtual_machine_keeps_its_clock_and_resumes(tmp_path):
    """A paused machine computes nothing and does not count as stalled; afterwards, it resumes and ends."""
    heard: list[str] = []
    enough = tmp_path / "enough"
    code = f"import os, time\nprint({PREFIX!r} + 'here', flush=True)\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.001)"
    pause = MachinePause()
    thread, outcome = start([sys.executable, "-c", code], heard, pause=pause, asleep_s=2.0)
    try:
        until(lambda: heard or outcome)
        pause.begin()
        watch = MachineWatch(kernel_or_error(), until(machine))
        stopped = watch.clock_ns()
        kernel = next(each for each in watch.processes() if each.number == watch.machine())
        time.sleep(3.0)
        assert stopped is not None and watch.clock_ns() == stopped and kernel.state == "T" and not outcome
    finally:
        enough.touch()
        pause.end()
        thread.join(timeout=60)
    assert outcome == [0]
