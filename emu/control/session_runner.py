"""Keeps an emulated network alive inside the namespaces or virtual machine, and runs one plan after another in it.

    python -m gradwire.emu.control.session_runner FOLDER [--machine]

FOLDER has `plan.pickle`, whose network is built, and a folder `given`, in which plans `step-N` appear for N from 0 on;
they differ from the first plan only in their messages. The results are left as `seen-N`. A file `stop` in `given` ends
it. Agents are started anew for every step: a network is expensive to make, a process is not, and no state of a step
reaches the next one except the kernel's (routes, random numbers).

In virtual time the runner polls for the next step without sleeping, so that no virtual time passes however long it
takes outside, and results do not depend on it. (The machine is stopped meanwhile, so polling costs nothing; see
`gradwire.emu.virtual_time.machine_clock.MachinePause`.) It polls by reading a folder, because a failing system call
takes a nanosecond there.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from gradwire.emu.agent.report import Reports
from gradwire.emu.control import runner
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import SwitchBackend
from gradwire.emu.system.raw_outcome import RawResults

STEPS_DIR = "given"
"""The folder in which plans appear; it has no other files, so that reading it is fast."""
STEP_NAME, RESULTS_NAME = "step-{}", "seen-{}"
"""File names of the plan and of the results of a step."""
POLL_S = 0.001
"""Polling interval on the wall clock; our choice."""
QUIET_S = 0.02
"""Minimum time between steps, in which packets in flight arrive; our choice."""
EMPTY_S = 5.0
"""Time limit for queues to become empty; our choice."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    folder, machine = Path(arguments[0]), "--machine" in arguments[1:]

    def steps(plan: TestbedPlan) -> None:
        with runner.network_of(plan, machine) as backend:
            for number in count():
                name = STEP_NAME.format(number)
                if not wait_for(folder / STEPS_DIR, name, plan.clock == "virtual"):
                    return
                with (folder / STEPS_DIR / name).open("rb") as file:
                    step: TestbedPlan = pickle.load(file)
                results = run_step(step, backend, folder / STEPS_DIR)
                runner.write_atomically(folder / RESULTS_NAME.format(number), results)
                runner.report_progress(state="carried", step=number)

    return runner.run_guarded(folder, steps)


def wait_for(folder: Path, name: str, virtual: bool) -> bool:
    """Wait until a file is in a folder; return False if the session must end instead."""
    while True:
        names = os.listdir(folder)
        if runner.STOP in names:
            return False
        if name in names:
            return True
        if not virtual:
            time.sleep(POLL_S)


def run_step(plan: TestbedPlan, backend: SwitchBackend, folder: Path) -> RawResults:
    settle(plan, backend)
    raw = RawResults(Reports.empty(len(plan.program.messages)), kernel=platform.release())
    runner.play(plan, backend, folder, raw)
    runner.add_problems(plan, backend, raw)
    return raw


def settle(plan: TestbedPlan, backend: SwitchBackend) -> None:
    """Let packets that remain from the previous step arrive."""
    end = time.monotonic() + EMPTY_S
    while time.monotonic() < end:
        time.sleep(max(QUIET_S, 8e-12 * max(port.latency_ps for port in plan.ports)))
        if not any(port.queue_bytes for port in backend.counts()):
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
