"""`LongLivedNetwork` starts the process that keeps an emulated network (`session_runner`), passes it programs, and
returns their raw results.

A thread starts the runner inside (`gradwire.emu.control.session_runner`) and reads its messages. Steps are passed to it
as files, and so are their results.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from gradwire.emu.control.runner import PLAN_FILE, STOP, write_atomically
from gradwire.emu.control.session_runner import RESULTS_NAME, STEP_NAME, STEPS_DIR
from gradwire.emu.control.supervisor import ProgressCallback, Runner, run_private, run_virtual
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.raw_outcome import RawResults
from gradwire.emu.system.temporary_folders import temporary_folder
from gradwire.emu.virtual_time.machine_clock import MachinePause
from gradwire.emu.virtual_time.virtual_machine import EXIT_S, GRACE_S
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.workload.program import Program

MODULE = "gradwire.emu.control.session_runner"
POLL_S = 0.002
"""Polling interval for the results of a step; our choice."""
END_S = GRACE_S + EXIT_S + 10.0
"""Time limit for ending the runner."""


class LongLivedNetwork:
    """A long-lived network of a plan, up to `close` or the end of a `with` block."""

    def __init__(self, plan: TestbedPlan, on_progress: ProgressCallback | None = None) -> None:
        """Build the network of `plan`; the plan's program is ignored."""
        self._plan, self._heard = plan, on_progress
        self._wish, self._pause, self._number = DeferredInterrupt(), MachinePause(), 0
        self._is_set_up, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self.folder = Path()
        self._thread = threading.Thread(target=self._run_thread, name="testbed", daemon=True)
        self._thread.start()
        self._is_set_up.wait()

    def __enter__(self) -> LongLivedNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, program: Program, folders: tuple[str, ...], limit_s: float) -> tuple[TestbedPlan, RawResults]:
        """Run a program; return its plan and raw results.

        folders : of the gradient values (`gradwire.emu.agent.payload.values`), one per trace of the program.
        limit_s : time limit in seconds on the wall clock.

        Raises TestbedError: the step failed or exceeded the limit. The network cannot run another one.
        """
        plan = replace(self._plan, program=program, trace_folders=folders)
        number, self._number = self._number, self._number + 1
        name = STEP_NAME.format(number)
        write_atomically(self.folder / name, plan)  # the folder of steps has no other files
        os.replace(self.folder / name, self.folder / STEPS_DIR / name)
        self._pause.end()
        results, end = self.folder / RESULTS_NAME.format(number), time.monotonic() + limit_s
        while not results.exists():
            if self._ended.is_set():
                raise self._error or TestbedError("the runner has ended", "testbed", usage=False)
            if time.monotonic() > end:
                self.close()
                raise TestbedError(f"step {number} took longer than {limit_s:g} s", "testbed", usage=False)
            time.sleep(POLL_S)
        self._pause.begin()
        with results.open("rb") as file:
            raw: RawResults = pickle.load(file)
        for path in (results, self.folder / STEPS_DIR / name):
            path.unlink()
        return plan, raw

    def close(self) -> None:
        """End the runner and wait for its end."""
        with suppress(OSError):
            (self.folder / STEPS_DIR / STOP).touch()
        self._pause.end()
        self._ended.wait(GRACE_S)
        self._wish.is_requested = True  # polled by the thread
        self._thread.join(END_S)

    def _run_thread(self) -> None:
        try:
            with temporary_folder("gradwire-emu-") as folder:
                (folder / STEPS_DIR).mkdir()
                write_atomically(folder / PLAN_FILE, self._plan)
                self.folder = folder
                self._is_set_up.set()
                runner = Runner(folder / STEPS_DIR, self._heard)
                if self._plan.clock == "virtual":
                    status = run_virtual(MODULE, self._plan, folder, math.inf, runner, self._wish, self._pause)
                else:
                    status = run_private(MODULE, folder, math.inf, runner, self._wish)
                self._error = runner.failure(status)
        except BaseException as error:  # raised by `step`
            self._error = error
        finally:
            self._ended.set()
            self._is_set_up.set()
