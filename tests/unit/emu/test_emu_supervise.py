"""Waiting for a program that runs: the limit, and a Ctrl-C that nobody has heard but the one who notes them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import types

import pytest
from emu_cases import needs

from gradwire.cli.commands import execute
from gradwire.emu.control import supervisor
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.virtual_time import virtual_machine
from gradwire.emu.virtual_time.machine_clock import STILL_S
from gradwire.emu.virtual_time.virtual_machine import PREFIX, FinalFile, run_inside, wait
from gradwire.scenarios.interrupt import REPEAT_S, DeferredInterrupt, defer_interrupt


@pytest.fixture
def sleeper():
    made = subprocess.Popen(["sleep", "60"])
    yield made
    made.kill()
    made.wait()


def test_deferred_interrupt_ends_the_program(sleeper):
    asked: list[str] = []
    ctrl_c = DeferredInterrupt()

    def ask(why: str) -> bool:
        asked.append(why)
        sleeper.terminate()
        return True

    threading.Timer(0.3, lambda: setattr(ctrl_c, "is_requested", True)).start()
    began = time.monotonic()
    wait(sleeper, 50, 20, ask, "here", ctrl_c)
    assert asked == ["interrupt"] and sleeper.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 20


def test_deferred_interrupt_raises_if_the_program_cannot_be_asked_to_end(sleeper):
    ctrl_c = DeferredInterrupt()
    ctrl_c.is_requested = True
    with pytest.raises(KeyboardInterrupt):
        wait(sleeper, 50, 20, None, "here", ctrl_c)


def test_sigint_is_deferred_and_raised_while_waiting(sleeper):
    """The first SIGINT does not raise immediately, because a callback during a fork would lose it."""
    with DeferredInterrupt() as ctrl_c:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        with pytest.raises(KeyboardInterrupt):
            wait(sleeper, 50, 20, lambda why: False, "here", ctrl_c)


def test_wait_raises_at_the_time_limit(sleeper):
    asked: list[str] = []
    with pytest.raises(TestbedError, match=r"limit of 0.8 s exceeded"):
        wait(sleeper, 0.8, 1, lambda why: bool(asked.append(why)), "here", DeferredInterrupt())
    assert asked == ["max_wall"]


def test_wait_returns_when_the_program_ends(sleeper):
    sleeper.terminate()
    wait(sleeper, 50, 20, None, "here", DeferredInterrupt())
    assert sleeper.returncode == -signal.SIGTERM


@pytest.mark.parametrize("why", ["interrupt", "max_wall"])
def test_program_that_ignores_an_end_request_is_a_failure(sleeper, why):
    ctrl_c = DeferredInterrupt()
    ctrl_c.is_requested = why == "interrupt"
    with pytest.raises(KeyboardInterrupt if ctrl_c.is_requested else TestbedError):
        wait(sleeper, 0.1, 0.2, lambda reason: reason == why, "here", ctrl_c)
    assert sleeper.poll() is None


def test_wait_fails_at_once_if_the_end_request_is_declined(sleeper):
    began = time.monotonic()
    with pytest.raises(TestbedError, match="exceeded"):
        wait(sleeper, 0.1, 50, lambda why: False, "here", DeferredInterrupt())
    assert time.monotonic() - began < 25


def test_second_ctrl_c_raises_immediately():
    with DeferredInterrupt() as ctrl_c:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        assert ctrl_c.is_requested
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(REPEAT_S + 0.05)  # until here it counts as the same request
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.check()


def test_unchecked_interrupt_is_raised_when_the_outermost_context_exits():
    done = []
    time.sleep(REPEAT_S)  # after what another test has sent
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        with defer_interrupt():  # inside another one it raises nothing
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_concurrent_virtual_machines_use_separate_processors(monkeypatch):
    """Processors are shared if there are too few, and released after an exception."""
    mine = {10 * os.getpid(), 10 * os.getpid() + 1}  # that nobody else asks for
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    with virtual_machine._processor() as one, virtual_machine._processor() as other:
        assert {one, other} == mine
        with virtual_machine._processor() as third:
            assert third == one
    with pytest.raises(OSError, match="in use"), virtual_machine._processor() as again:
        assert again == one
        raise OSError("in use")
    with virtual_machine._processor() as again:
        assert again == one


@needs("uml")
def test_last_output_lines_of_a_virtual_machine_are_recorded():
    words: list[str] = []
    heard: list[str] = []
    command = ["/bin/sh", "-c", f"echo '{PREFIX}news'; echo trouble; exit 3"]
    assert run_inside(command, seed=1, limit_s=60, on_line=heard.append, words=words) == 3
    assert heard == ["news"] and words[-1] == "trouble"


INSIDE = """
say() { echo "PREFIX$*"; }
say $(ip -brief link show lo | grep -c UP) $(cat /proc/sys/net/core/rmem_max) $(ulimit -n) "$PWD" "$GIVEN" $(id -u)
say $(grep SigIgn /proc/self/status) $(readlink /proc/self/fd/0) $(env | wc -l)
(sleep 0.2; exit 5) &
kill -9 $$
"""


@needs("uml")
def test_virtual_machine_provides_a_clean_environment(tmp_path, monkeypatch):
    """The program has a loopback device, large limits, its folder, only the given environment and no ignored signals.
    A signal yields the exit status of shells."""
    monkeypatch.chdir(tmp_path)
    heard: list[str] = []
    command = ["/bin/sh", "-c", INSIDE.replace("PREFIX", PREFIX)]
    given = {"GIVEN": "a 'b' {c}"}
    assert run_inside(command, seed=1, limit_s=60, environment=given, on_line=heard.append) == 128 + 9
    assert heard[0] == f"1 67108864 65536 {tmp_path} a 'b' {{c}} 0"
    assert heard[1].split()[:3] == ["SigIgn:", "0000000000000000", "/dev/null"]


@needs("uml")
@pytest.mark.parametrize("command", [["no-such-program"], ["/etc/hostname"]])
def test_program_that_cannot_start_exits_with_127_and_its_name(command):
    words: list[str] = []
    assert run_inside(command, seed=1, limit_s=60, words=words) == 127
    assert words[-1].startswith(f"{command[0]}: ")


@needs("uml")
def test_virtual_machine_is_killed_at_the_output_limit(monkeypatch):
    monkeypatch.setattr(virtual_machine, "MAX_OUTPUT", 1 << 20)
    with pytest.raises(TestbedError, match=r"ended early: .*killed after 1 MB of output"):
        run_inside(["/bin/sh", "-c", "while echo nonsense; do :; done"], seed=1, limit_s=60)


def test_wait_returns_once_the_final_file_is_settled(tmp_path):
    """The process still runs, but its results are complete."""
    left = tmp_path / "left"
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            last = FinalFile(left, old_s=0.3)
            assert not last.is_settled()
            left.touch()
            began = time.monotonic()
            wait(process, 30, 1, None, "here", over=last.is_settled)
            assert 0.3 <= time.monotonic() - began < 5 and process.poll() is None
        finally:
            process.kill()


def test_stall_limit_grows_by_one_minute_per_rank(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(supervisor, "run_inside", lambda command, **options: given.update(options) or 0)
    programs = types.SimpleNamespace(memory_mb=77, ranks=[0] * 20)
    for told in (None, programs):
        plan, runner = (
            types.SimpleNamespace(seed=1, programs=told),
            types.SimpleNamespace(report_progress=None, request_end=None, words=[]),
        )
        assert supervisor.run_virtual("module", plan, tmp_path, 1.0, runner, None) == 0
        assert ("still_s" in given, "memory_mb" in given) == (told is not None, told is not None)
    assert (given["still_s"], given["memory_mb"]) == (STILL_S + 20 * 60, 77)


def test_repeated_run_is_announced_on_stderr_unless_quiet(capsys):
    news = {"state": "again", "why": "the clock stood still"}
    execute._print_news(quiet=False)(news)
    assert capsys.readouterr().err == "repeating: the clock stood still\n"
    execute._print_news(quiet=True)(news)
    assert capsys.readouterr().err == ""
