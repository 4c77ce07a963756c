"""Held: a network that stays, from the outside, and carries one program after the other.

The runner inside (`gradwire.emu.control.stepping`) is started and listened to by a thread of its own for as long as it
lives; steps are handed to it as files, and what it saw of them is taken from files.
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

from gradwire.emu.control.runner import STOP
from gradwire.emu.control.stepping import GIVEN, seen_name, step_name
from gradwire.emu.control.supervise import Heard, Runner, run_private, run_virtual
from gradwire.emu.planning.plan import Plan
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.raw import Raw
from gradwire.emu.system.scratch import scratch
from gradwire.emu.uml.virtual import GRACE_S, OVER_S
from gradwire.emu.uml.watch import Pause
from gradwire.experiment.program import Program

MODULE = "gradwire.emu.control.stepping"
LOOK_S = 0.002
"""Between two looks for what a step has left; our choice."""
END_S = GRACE_S + OVER_S + 10.0
"""Within that the runner has ended, or been ended."""


class Wish:
    """Asks whoever waits for the runner to end it."""

    def __init__(self) -> None:
        self.asked = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if it is to end."""
        if self.asked:
            raise KeyboardInterrupt


class Held:
    """A network of a plan that stays until `close`, or the end of a `with` block."""

    def __init__(self, plan: Plan, heard: Heard | None = None) -> None:
        """`plan` : its network, and how hosts are run; what is sent in it counts for nothing."""
        self._plan, self._heard = plan, heard
        self._wish, self._pause, self._number = Wish(), Pause(), 0
        self._made, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self.folder = Path()
        self._thread = threading.Thread(target=self._live, name="testbed", daemon=True)
        self._thread.start()
        self._made.wait()

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, program: Program, folders: tuple[str, ...], limit_s: float) -> tuple[Plan, Raw]:
        """Have a program carried, and return the plan of that and what was seen.

        folders : of the values that are sent (`gradwire.emu.agent.values`), one for each trace of the program.
        limit_s : seconds on the wall clock after which there is no hope.

        Raises
        ------
        TestbedError
            It failed, or the time is up. There is nothing left that could carry another one.
        """
        plan = replace(self._plan, program=program, trace_folders=folders)
        number, self._number = self._number, self._number + 1
        partial = self.folder / "step.partial"
        with partial.open("wb") as file:
            pickle.dump(plan, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.replace(partial, self.folder / GIVEN / step_name(number))
        self._pause.end()
        seen, end = self.folder / seen_name(number), time.monotonic() + limit_s
        while not seen.exists():
            if self._ended.is_set():
                raise self._error or TestbedError("the runner is gone", "testbed", usage=False)
            if time.monotonic() > end:
                self.close()
                raise TestbedError(f"step {number} is not over after {limit_s:g} s", "testbed", usage=False)
            time.sleep(LOOK_S)
        self._pause.begin()
        with seen.open("rb") as file:
            raw: Raw = pickle.load(file)
        for done in (seen, self.folder / GIVEN / step_name(number)):
            done.unlink()
        return plan, raw

    def close(self) -> None:
        """End it, and wait for that."""
        with suppress(OSError):
            (self.folder / GIVEN / STOP).touch()
        self._pause.end()
        self._ended.wait(GRACE_S)
        self._wish.asked = True
        self._thread.join(END_S)

    def _live(self) -> None:
        try:
            with scratch("gradwire-emu-") as folder:
                (folder / GIVEN).mkdir()
                with (folder / "plan.pickle").open("wb") as file:
                    pickle.dump(self._plan, file, protocol=pickle.HIGHEST_PROTOCOL)
                self.folder = folder
                self._made.set()
                runner = Runner(folder / GIVEN, self._heard)
                if self._plan.clock == "virtual":
                    status = run_virtual(MODULE, self._plan, folder, math.inf, runner, self._wish, self._pause)
                else:
                    status = run_private(MODULE, folder, math.inf, runner, self._wish)
                self._error = runner.failure(status)
        except BaseException as error:  # for whoever waits for a step
            self._error = error
        finally:
            self._ended.set()
            self._made.set()
