"""Starts agents as forks of this process in other network namespaces, or by any command such as ssh.

A launcher's `start(plan, node, others)` returns a `Child`: two ends of a stream and a process, for the `Controller`.
It raises TestbedError if that fails. `others`: agents started before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradwire.emu.agent.base import Parts
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import setns
from gradwire.emu.system.processes import fork, set_timer_slack

ERROR_BYTES = 4096


@dataclass
class Child:
    """An agent's process.

    has_plan : True if it has the plan already.
    """

    node: int
    pid: int
    reading: int
    writing: int
    errors: int
    has_plan: bool
    process: subprocess.Popen[bytes] | None = None
    ended: int | None = None
    last_words: bytes = field(default=b"")

    def status(self) -> int | None:
        """Return the exit status, or minus the signal; None while it is running."""
        if self.ended is None:
            if self.process is not None:
                self.ended = self.process.poll()
            else:
                with contextlib.suppress(ChildProcessError):
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                    if pid:
                        self.ended = os.waitstatus_to_exitcode(status)
        return self.ended

    def read_errors(self) -> None:
        while True:
            try:
                data = os.read(self.errors, 65536)
            except (BlockingIOError, OSError):
                return
            if not data:
                return
            self.last_words = (self.last_words + data)[-ERROR_BYTES:]

    @property
    def last_line(self) -> str:
        lines = self.last_words.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self, wait_s: float = 2.0) -> None:
        """Close the stream, which ends the process; kill it after `wait_s`."""
        for file in {self.reading, self.writing}:
            with contextlib.suppress(OSError):
                os.close(file)
        deadline = time.monotonic() + wait_s
        while self.status() is None:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                deadline = time.monotonic() + 60
            time.sleep(0.002)
        self.read_errors()
        with contextlib.suppress(OSError):
            os.close(self.errors)


class ForkLauncher:
    """Launcher of forks of this process, each in the network namespace of its host."""

    def __init__(self, namespace: Callable[[int], int], parts: Parts | None = None) -> None:
        """Set the namespaces and parts.

        namespace : function from a node to the file descriptor of the host's network namespace.
        parts : see `gradwire.emu.agent.agent.Agent`.
        """
        self._namespace, self._parts = namespace, parts

    def start(self, plan: TestbedPlan, node: int, others: Sequence[Child]) -> Child:
        parent_end, child_end = socket.socketpair()
        reading, writing = os.pipe()

        def run() -> int:
            parent_end.close()
            os.close(reading)
            for child in others:  # otherwise their streams stay open after the controller ends
                for file in {child.reading, child.writing, child.errors}:
                    os.close(file)
            os.dup2(writing, 2)
            os.close(writing)
            return self._run_agent(plan, node, child_end.detach())

        pid = fork(run)
        child_end.close()
        os.close(writing)
        os.set_blocking(reading, False)
        file = parent_end.detach()
        os.set_blocking(file, False)
        return Child(node, pid, file, file, reading, has_plan=True)

    def _run_agent(self, plan: TestbedPlan, node: int, stream: int) -> int:
        from gradwire.emu.agent.agent import Agent

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        set_timer_slack()
        setns(self._namespace(node))
        if plan.clock == "wall" and plan.options.get("realtime", True):
            # otherwise other processes delay every packet; needs a privilege that may be missing
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        agent = Agent(stream, stream, self._parts)
        try:
            agent.use(plan, node)
        except TestbedError as error:
            agent.fail(error)
            return 1
        return agent.run()


class CommandLauncher:
    """Launcher of any command that runs `python -m gradwire.emu.agent`, such as `ssh host ...` or `nsenter ...`."""

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        """Set the command: a function of the node. The agent communicates over its stdin and stdout."""
        self._command = command

    def start(self, plan: TestbedPlan, node: int, others: Sequence[Child]) -> Child:
        words = list(self._command(node))
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise TestbedError(
                f"cannot start the agent of {plan.names[node]}: {error.strerror}", " ".join(words), "a command"
            ) from None
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        files = [os.dup(pipe.fileno()) for pipe in (process.stdout, process.stdin, process.stderr)]
        for pipe in (process.stdout, process.stdin, process.stderr):
            pipe.close()
        for file in files:
            os.set_blocking(file, False)
            os.set_inheritable(file, False)
        return Child(node, process.pid, files[0], files[1], files[2], has_plan=False, process=process)


Launcher = ForkLauncher | CommandLauncher
