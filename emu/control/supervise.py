"""A runner from the outside: started in private namespaces or in virtual time, listened to, asked to end.

What it says arrives line by line (`gradwire.emu.control.runner`); what it has seen it leaves in a file.
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
from gradwire.emu.control.runner import LEFT, PREFIX, STOP
from gradwire.emu.planning.plan import Plan
from gradwire.emu.programs.told import COMPUTE
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.namespaces import python_command, python_path, start_private
from gradwire.emu.system.raw import Raw
from gradwire.emu.uml.meter import Meter
from gradwire.emu.uml.virtual import GRACE_S, OVER_S, Asked, Last, run_inside, wait
from gradwire.emu.uml.watch import STILL_S, Pause
from gradwire.scenarios.interrupt import CtrlC
from gradwire.scenarios.json_data import JsonView
from gradwire.scenarios.readable import killed_text

if TYPE_CHECKING:
    from gradwire.emu.programs.described import Programs
    from gradwire.scenarios.result import Result

ROOT = Path(gradwire.__file__).parents[1]
INTERRUPTED = 130
RANK_S = 60.0
"""Time of a processor that a rank may take until the clock goes on, for Python and torch to start; our choice."""
MODULE = "gradwire.emu.control.runner"

Heard = Callable[[JsonView], None]


class EmulationInterrupted(KeyboardInterrupt):
    """Ctrl-C during an emulation; `result` holds what had been seen by then, None if nothing had."""

    def __init__(self, result: Result | None) -> None:
        super().__init__("interrupted")
        self.result = result


class Runner:
    """A runner that has been started, as it is seen from here: what it says, and that it has been asked to end."""

    def __init__(self, folder: Path, heard: Heard | None) -> None:
        self._folder, self._told = folder, heard
        self.errors: list[TestbedError] = []
        self.words: list[str] = []
        self.asked = ""
        self._begun = False

    def heard(self, text: str) -> None:
        """A line of news; called from a thread."""
        try:
            news = json.loads(text)
        except ValueError:  # a line that somebody else has written into
            return
        if "error" in news:
            self.errors.append(TestbedError(*news["error"]))
            return
        self._begun = self._begun or news.get("state") == "running"
        self.tell(news)

    def ask(self, why: str) -> bool:
        """Ask it to end: "interrupt" or "max_wall". Whether it has begun, and so may have something to leave."""
        self.asked = why
        with suppress(OSError):
            (self._folder / STOP).touch()
        return self._begun

    def tell(self, news: JsonView) -> None:
        """Pass on news that are not the runner's own."""
        if self._told is not None:
            self._told(news)

    def outcome(self, status: int) -> Raw:
        """What it has left. Raises what it has said was wrong, or that it has left nothing."""
        if self.errors:
            raise self.errors[0]
        if (self._folder / LEFT).exists():
            with (self._folder / LEFT).open("rb") as file:
                raw: Raw = pickle.load(file)
            if raw.reports.ended_by == "interrupt":
                raw.reports.ended_by = self.asked or "interrupt"
            return raw
        if self.asked:
            raise EmulationInterrupted(None)
        raise self.failure(status)

    def failure(self, status: int) -> TestbedError:
        """Why it has ended, which it should not have."""
        if self.errors:
            return self.errors[0]
        how = f"was {killed_text(-status)}" if status < 0 else f"ended with status {status}"
        words = [line for line in self.words if not line.startswith("unshare: sigprocmask")]  # its child was killed
        last = f"; its last words: {words[-1]}" if words else ""
        return TestbedError(f"the runner {how} and left nothing{last}", "testbed", usage=False)


def run(plan: Plan, folder: Path, limit_s: float, heard: Heard | None, ctrl_c: CtrlC) -> Raw:
    """Have the runner run a plan in a folder.

    Ctrl-C and the limit end it in order, so that it leaves what it saw by then. Raises TestbedError, and
    EmulationInterrupted where it had seen nothing.
    """
    with (folder / "plan.pickle").open("wb") as file:
        pickle.dump(plan, file, protocol=pickle.HIGHEST_PROTOCOL)
    runner = Runner(folder, heard)
    if plan.clock == "virtual":
        measured = plan.programs is not None and plan.programs.compute == "measured"
        with Meter(folder / COMPUTE) if measured else nullcontext():
            return runner.outcome(run_virtual(MODULE, plan, folder, limit_s, runner, ctrl_c))
    return runner.outcome(run_private(MODULE, folder, limit_s, runner, ctrl_c))


def run_virtual(
    module: str, plan: Plan, folder: Path, limit_s: float, runner: Runner, ctrl_c: Asked, pause: Pause | None = None
) -> int:
    """Have a module inside, in virtual time, do what a folder says; its exit status."""

    def ask(why: str) -> bool:
        begun = runner.ask(why)
        if begun and plan.programs is not None:  # which may compute for long, and nothing inside hears of it meanwhile
            runner.tell({"state": "ending"})
        return begun

    try:
        return run_inside(
            [*python_command(module, str(folder)), "--machine"],
            seed=plan.seed,
            limit_s=limit_s,
            environment={"PYTHONPATH": python_path(ROOT)},
            heard=runner.heard,
            ask=ask,
            ctrl_c=ctrl_c,
            words=runner.words,
            pause=pause,
            **({} if plan.programs is None else _machine_of(plan.programs)),
        )
    except KeyboardInterrupt:  # it had no time to end in order, but may have left something
        return INTERRUPTED


def _machine_of(programs: Programs) -> dict[str, Any]:
    """What a machine needs for programs: memory, and patience until all ranks have started."""
    return {"memory_mb": programs.memory_mb, "still_s": STILL_S + RANK_S * len(programs.ranks)}


def run_private(module: str, folder: Path, limit_s: float, runner: Runner, ctrl_c: Asked) -> int:
    """The same in private namespaces, on the wall clock."""
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
        threading.Thread(target=_note, args=(process.stderr, runner), daemon=True),
    ]
    for thread in threads:
        thread.start()

    def ask(why: str) -> bool:
        begun = runner.ask(why)
        _signal_runner(process)  # it may be busy and not look at files
        return begun

    try:
        wait(process, limit_s, GRACE_S, ask, "testbed", ctrl_c, Last(folder / LEFT).is_old)
    except KeyboardInterrupt:
        pass
    finally:
        if process.poll() is None:
            process.kill()  # unshare; the kernel ends the rest
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=OVER_S)
        for thread in threads:
            thread.join(timeout=5)
    return -signal.SIGKILL if process.returncode is None else process.returncode


def _signal_runner(process: subprocess.Popen[bytes]) -> None:
    """SIGINT to the runner, the only child of unshare."""
    with suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGINT)


def _listen(stream: IO[bytes], runner: Runner) -> None:
    """Until the runner closes it, whatever becomes of those who are told: a runner that nobody hears stands still."""
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        with suppress(OSError):  # a terminal or a pipe that is gone
            if line.startswith(PREFIX):
                runner.heard(line[len(PREFIX) :])
            else:
                print(line, file=sys.stderr)


def _note(stream: IO[bytes], runner: Runner) -> None:
    for raw in stream:
        if line := raw.decode(errors="replace").strip():
            runner.words = [*runner.words[-20:], line]
