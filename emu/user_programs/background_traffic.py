"""`BackgroundTraffic` sends a plan's traffic beside user programs, by a controller and agents in a separate process.

Programs and the controller must not wait for each other. So the controller is forked. It announces its beginning, and
sends its reports when its messages have been delivered or when it receives SIGINT.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gradwire.emu.agent.report import Reports
from gradwire.emu.control.controller import SALVAGE_S, Controller, RunObserver
from gradwire.emu.control.launchers import ForkLauncher
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.processes import fork

_LENGTH = struct.Struct("<Q")
END_S = 3 * SALVAGE_S
"""Time limit for ending in order; our choice."""


class BackgroundTraffic:
    """The traffic of a plan, sent by agents at its hosts."""

    def __init__(self, plan: TestbedPlan, namespace: Callable[[int], int]) -> None:
        self._plan, self._namespace = plan, namespace
        self._pid = 0
        self._socket: socket.socket | None = None
        self.reports: Reports | None = None
        """The reports of its agents; None until received."""

    def start(self) -> int:
        """Connect all flows and begin; return the beginning on the monotonic clock in ns. Raises TestbedError if it
        fails."""
        parent_end, child_end = socket.socketpair()
        self._pid = fork(partial(self._run_process, child_end, parent_end))
        child_end.close()
        self._socket = parent_end
        kind, value = self._receive(self._plan.wait_s * 3)
        if kind != "began":
            raise TestbedError("background traffic ended before it began", "traffic", usage=False)
        return int(value)

    def fileno(self) -> int:
        """Return the file descriptor for a selector, which is readable at the end."""
        assert self._socket is not None
        return self._socket.fileno()

    def listen(self) -> None:
        """Receive pending reports; raise TestbedError if the traffic has failed."""
        kind, value = self._receive(SALVAGE_S)
        if kind == "reports":
            self.reports = value

    def end(self) -> Reports | None:
        """End the traffic if it is running; return its reports or None."""
        if self._pid and self.reports is None and self._socket is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)
            with suppress(TestbedError, OSError):
                self.listen()
        self.close()
        return self.reports

    def close(self) -> None:
        """Kill the process and release its resources."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0

    def _receive(self, wait_s: float) -> tuple[str, Any]:
        assert self._socket is not None
        end = time.monotonic() + wait_s
        data = bytearray()
        length = _LENGTH.size
        while len(data) < length:
            if not select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TestbedError(f"background traffic: no answer within {wait_s:g} s", "traffic", usage=False)
            part = self._socket.recv(1 << 20)
            if not part:
                raise TestbedError("background traffic ended without a message", "traffic", usage=False)
            data += part
            if len(data) >= _LENGTH.size:
                length = _LENGTH.size + _LENGTH.unpack(data[: _LENGTH.size])[0]
        kind, value = pickle.loads(data[_LENGTH.size : length])
        if kind == "error":
            raise TestbedError(*value)
        return kind, value

    def _run_process(self, channel: socket.socket, parent_end: socket.socket) -> int:
        """Run the controller in the forked process; return its exit status."""
        parent_end.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

        class TrafficObserver(RunObserver):
            def begin(self, time_ns: int) -> None:
                _send(channel, ("began", time_ns))

        controller = Controller(self._plan, ForkLauncher(self._namespace), TrafficObserver())
        try:
            with suppress(KeyboardInterrupt):
                controller.run()
            _send(channel, ("reports", controller.reports))
            return 0
        except TestbedError as error:
            _send(channel, ("error", error.args))
            return 1
        except BaseException as error:
            with suppress(OSError):
                _send(channel, ("error", (f"background traffic failed: {error}", "traffic", "", False)))
            raise


def _send(channel: socket.socket, frame: object) -> None:
    data = pickle.dumps(frame, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(_LENGTH.pack(len(data)) + data)
