"""Stepping: inside. A runner whose network stays, and carries one program after the other as they are handed over.

    python -m gradwire.emu.control.stepping FOLDER [--machine]

FOLDER has `plan.pickle`, whose network is built, and a folder `given`, in which `step-N` appears, a plan that differs
from that one in what is sent, for N from 0 on. What was seen of it is left as `seen-N`. A file `stop` in `given` ends
it. Agents are started anew for every step: a network is dear to make, a process is not, and nothing of a step can get
into the next one. What the kernel remembers - routes, its random numbers - stays.

In virtual time it waits for the next step by looking again and again, and never by sleeping: then no time goes by in
there, however long it takes outside, and what is seen of a step does not depend on that. (Somebody stops the whole
machine meanwhile, so that this costs nothing; see `gradwire.emu.uml.watch.Pause`.) Looking is reading a folder, for a
system call that fails takes a nanosecond there.
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
from gradwire.emu.control.runner import STOP, guarded, judge, leave, network_of, play, say
from gradwire.emu.planning.plan import Plan
from gradwire.emu.switches.base import SwitchBackend
from gradwire.emu.system.raw import Raw

GIVEN = "given"
"""The folder in which plans appear; nothing else is in there, so that looking into it is quick."""
LOOK_S = 0.001
"""Between two looks on the wall clock; our choice."""
QUIET_S = 0.02
"""From the end of a step until the next one begins, at least: what is still on its way arrives; our choice."""
EMPTY_S = 5.0
"""So long is waited for queues to be empty; our choice."""


def step_name(number: int) -> str:
    """The file with the plan of a step."""
    return f"step-{number}"


def seen_name(number: int) -> str:
    """The file with what was seen of it."""
    return f"seen-{number}"


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    folder, machine = Path(arguments[0]), "--machine" in arguments[1:]

    def steps(plan: Plan) -> None:
        with network_of(plan, machine) as backend:
            for number in count():
                if not wait_for(folder / GIVEN, step_name(number), plan.clock == "virtual"):
                    return
                with (folder / GIVEN / step_name(number)).open("rb") as file:
                    step: Plan = pickle.load(file)
                leave(folder / seen_name(number), carry(step, backend, folder / GIVEN))
                say(state="carried", step=number)

    return guarded(folder, steps)


def wait_for(folder: Path, name: str, virtual: bool) -> bool:
    """Until a file is in a folder; False if that is to end instead."""
    while True:
        names = os.listdir(folder)
        if STOP in names:
            return False
        if name in names:
            return True
        if not virtual:
            time.sleep(LOOK_S)


def carry(plan: Plan, backend: SwitchBackend, folder: Path) -> Raw:
    """Have a step carried out, once all is quiet."""
    settle(plan, backend)
    raw = Raw(Reports.empty(len(plan.program.messages)), kernel=platform.release())
    play(plan, backend, folder, raw)
    judge(plan, backend, raw)
    return raw


def settle(plan: Plan, backend: SwitchBackend) -> None:
    """Let what the step before has left on its way arrive at hosts that do not ask for it any more."""
    end = time.monotonic() + EMPTY_S
    while time.monotonic() < end:
        time.sleep(max(QUIET_S, 8e-12 * max(port.latency_ps for port in plan.ports)))
        if not any(port.queue_bytes for port in backend.counts()):
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
