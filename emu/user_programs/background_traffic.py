"""`BackgroundTraffic` sends a plan's traffic beside user programs, by a controller and agents in a separate process.

Programs and the controller must not wait for each other. So the controller is forked. It announces its beginning, and
sends its reports when its messages have been delivered or when it receives SIGINT.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any

from gradwire.emu.agent.report import Reports
from gradwire.emu.control.controller import SALVAGE_S, Controller, RunObserver
from gradwire.emu.control.launchers import ForkLauncher
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.processes import fork

END_S = 3 * SALVAGE_S
"""Time limit for ending in order; our choice."""


class BackgroundTraffic:
    """The traffic of a plan, sent by agents at its hosts."""

    def __init__(self, plan: TestbedPlan, namespace: Callable[[int], int]) -> None:
        self._plan, self._namespace = plan, namespace
        self._pid = 0
        self._connection: Connection | None = None
        self.reports: Reports | None = None
        """The reports of its agents; None until received."""

    def start(self) -> int:
        """Connect all flows and begin; return the beginning on the monotonic clock in ns. Raises TestbedError if it
        fails."""
        self._connection, child_end = Pipe()
        self._pid = fork(partial(self._run_process, child_end, self._connection))
        child_end.close()
        kind, value = self._receive(self._plan.wait_s * 3)
        if kind != "began":
            raise TestbedError("background traffic ended before it began", "traffic", usage=False)
        return int(value)

    def fileno(self) -> int:
        """Return the file descriptor for a selector, which is readable at the end."""
        assert self._connection is not None
        return self._connection.fileno()

    def listen(self) -> None:
        """Receive pending reports; raise TestbedError if the traffic has failed."""
        kind, value = self._receive(SALVAGE_S)
        if kind == "reports":
            self.reports = value

    def end(self) -> Reports | None:
        """End the traffic if it is running; return its reports or None."""
        if self._pid and self.reports is None and self._connection is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)
            with suppress(TestbedError, OSError):
                self.listen()
        self.close()
        return self.reports

    def close(self) -> None:
        """Kill the process and release its resources."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0

    def _receive(self, wait_s: float) -> tuple[str, Any]:
        assert self._connection is not None
        try:
            if not self._connection.poll(wait_s):
                raise TestbedError(f"background traffic: no answer within {wait_s:g} s", "traffic", usage=False)
            kind, value = self._connection.recv()
        except (OSError, EOFError):
            raise TestbedError("background traffic ended without a message", "traffic", usage=False) from None
        if kind == "error":
            raise TestbedError(*value)
        return kind, value

    def _run_process(self, channel: Connection, parent_end: Connection) -> int:
        """Run the controller in the forked process; return its exit status."""
        parent_end.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

        class TrafficObserver(RunObserver):
            def begin(self, time_ns: int) -> None:
                channel.send(("began", time_ns))

        controller = Controller(self._plan, ForkLauncher(self._namespace), TrafficObserver())
        try:
            with suppress(KeyboardInterrupt):
                controller.run()
            channel.send(("reports", controller.reports))
            return 0
        except TestbedError as error:
            channel.send(("error", error.args))
            return 1
        except BaseException as error:
            with suppress(OSError):
                channel.send(("error", (f"background traffic failed: {error}", "traffic", "", False)))
            raise
