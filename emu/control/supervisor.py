"""Starts the runner of a plan in private namespaces or a virtual machine, passes on its progress, and ends it.

Messages arrive line by line (`gradwire.emu.control.runner`); results are left in a file.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import gradwire
from gradwire.emu.control.runner import PLAN_FILE, PREFIX, RAW_FILE, STOP, write_atomically
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import python_command, python_path, start_private
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.user_programs.rank_environment import COMPUTE
from gradwire.emu.virtual_time.cpu_meter import CpuMeter
from gradwire.emu.virtual_time.machine_clock import STILL_S, MachinePause
from gradwire.emu.virtual_time.virtual_machine import EXIT_S, GRACE_S, FinalFile, run_inside, wait
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.readable import killed_text

if TYPE_CHECKING:
    from gradwire.result_store.result import Result

ROOT = Path(gradwire.__file__).parents[1]
INTERRUPTED = 130
RANK_S = 60.0
"""Processor time per rank before the clock must advance, to start Python and torch; our choice."""
MODULE = "gradwire.emu.control.runner"

ProgressCallback = Callable[[JsonView], None]


class EmulationInterrupted(KeyboardInterrupt):
    """Ctrl-C during an emulation; `result` has the partial results, or is None."""

    def __init__(self, result: Result | None) -> None:
        super().__init__("interrupted")
        self.result = result


class Runner:
    """A started runner: its messages, and the request to end it."""

    def __init__(self, folder: Path, on_progress: ProgressCallback | None) -> None:
        self._folder, self._told = folder, on_progress
        self.errors: list[TestbedError] = []
        self.words: list[str] = []
        self.asked = ""
        self._begun = False

    def report_progress(self, text: str) -> None:
        """Handle a line of progress; called from a thread."""
        try:
            news = json.loads(text)
        except ValueError:  # a line corrupted by another writer
            return
        if "error" in news:
            self.errors.append(TestbedError(*news["error"]))
            return
        self._begun = self._begun or news.get("state") == "running"
        self.report(news)

    def request_end(self, why: str) -> bool:
        """Ask the runner to end ("interrupt" or "max_wall"); return True if it has begun and may leave results."""
        self.asked = why
        with suppress(OSError):
            (self._folder / STOP).touch()
        return self._begun

    def report(self, news: JsonView) -> None:
        """Pass on progress that is not the runner's."""
        if self._told is not None:
            self._told(news)

    def outcome(self, status: int) -> RawResults:
        """Return the raw results; raise the runner's error, or an error if it left none."""
        if self.errors:
            raise self.errors[0]
        if (self._folder / RAW_FILE).exists():
            with (self._folder / RAW_FILE).open("rb") as file:
                raw: RawResults = pickle.load(file)
            if raw.reports.ended_by == "interrupt":
                raw.reports.ended_by = self.asked or "interrupt"
            return raw
        if self.asked:
            raise EmulationInterrupted(None)
        raise self.failure(status)

    def failure(self, status: int) -> TestbedError:
        if self.errors:
            return self.errors[0]
        ending = f"was {killed_text(-status)}" if status < 0 else f"ended with status {status}"
        words = [line for line in self.words if not line.startswith("unshare: sigprocmask")]  # its child was killed
        last_line = f"; last line of its output: {words[-1]}" if words else ""
        return TestbedError(f"the runner {ending} and left no results{last_line}", "testbed", usage=False)


def run(
    plan: TestbedPlan, folder: Path, limit_s: float, on_progress: ProgressCallback | None, ctrl_c: DeferredInterrupt
) -> RawResults:
    """Run a plan in a folder by a runner; Ctrl-C and the limit end it in order with partial results. Raises
    TestbedError, and EmulationInterrupted if there are no results."""
    write_atomically(folder / PLAN_FILE, plan)
    runner = Runner(folder, on_progress)
    if plan.clock == "virtual":
        measured = plan.programs is not None and plan.programs.compute == "measured"
        with CpuMeter(folder / COMPUTE) if measured else nullcontext():
            return runner.outcome(run_virtual(MODULE, plan, folder, limit_s, runner, ctrl_c))
    return runner.outcome(run_private(MODULE, folder, limit_s, runner, ctrl_c))


def run_virtual(
    module: str,
    plan: TestbedPlan,
    folder: Path,
    limit_s: float,
    runner: Runner,
    ctrl_c: DeferredInterrupt,
    pause: MachinePause | None = None,
) -> int:
    """Run a module on a folder in virtual time; return its exit status."""

    def ask(why: str) -> bool:
        begun = runner.request_end(why)
        if begun and plan.programs is not None:  # programs may compute for long before the inside reacts
            runner.report({"state": "ending"})
        return begun

    options: dict[str, Any] = {}
    if plan.programs is not None:  # memory, and time for all ranks to start
        options = {"memory_mb": plan.programs.memory_mb, "still_s": STILL_S + RANK_S * len(plan.programs.ranks)}
    try:
        return run_inside(
            [*python_command(module, str(folder)), "--machine"],
            seed=plan.seed,
            limit_s=limit_s,
            environment={"PYTHONPATH": python_path(ROOT)},
            on_line=runner.report_progress,
            ask=ask,
            ctrl_c=ctrl_c,
            words=runner.words,
            pause=pause,
            **options,
        )
    except KeyboardInterrupt:  # it did not end in order, but may have left results
        return INTERRUPTED


def run_private(module: str, folder: Path, limit_s: float, runner: Runner, ctrl_c: DeferredInterrupt) -> int:
    """Run a module on a folder in private namespaces on the wall clock; return its exit status."""
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = start_private(
        python_command(module, str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    threads = [
        threading.Thread(target=_listen, args=(process.stdout, runner), daemon=True),
        threading.Thread(target=_store_errors, args=(process.stderr, runner), daemon=True),
    ]
    for thread in threads:
        thread.start()

    def ask(why: str) -> bool:
        begun = runner.request_end(why)
        _signal_runner(process)  # it may be too busy to poll for files
        return begun

    try:
        wait(process, limit_s, GRACE_S, ask, "testbed", ctrl_c, FinalFile(folder / RAW_FILE).is_settled)
    except KeyboardInterrupt:
        pass
    finally:
        if process.poll() is None:
            process.kill()  # unshare; the kernel ends the rest
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=EXIT_S)
        for thread in threads:
            thread.join(timeout=5)
    return -signal.SIGKILL if process.returncode is None else process.returncode


def _signal_runner(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the runner, the only child of unshare."""
    with suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGINT)


def _listen(stream: IO[bytes], runner: Runner) -> None:
    """Read the runner's output until its end; a runner whose pipe is full would stand still."""
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        with suppress(OSError):  # a closed terminal or pipe
            if line.startswith(PREFIX):
                runner.report_progress(line[len(PREFIX) :])
            else:
                print(line, file=sys.stderr)


def _store_errors(stream: IO[bytes], runner: Runner) -> None:
    for raw in stream:
        if line := raw.decode(errors="replace").strip():
            runner.words = [*runner.words[-20:], line]
