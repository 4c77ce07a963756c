"""Background traffic beside programs: the controller and its agents in a process of their own.

Programs are not to wait for the controller's steps, nor it for theirs. So it is forked, tells when it begins, and
leaves its reports when its messages have been delivered or when it is asked to end (SIGINT).
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gradwire.emu.agent.report import Reports
from gradwire.emu.control.controller import SOON_S, Controller
from gradwire.emu.control.launchers import PR_SET_PDEATHSIG, Forked
from gradwire.emu.planning.plan import Plan
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.sockets import LIBC

_LENGTH = struct.Struct("<Q")
END_S = 3 * SOON_S
"""Longest that it may take to end in order; our choice."""


class Traffic:
    """The traffic of a plan, played by agents at its hosts."""

    def __init__(self, plan: Plan, namespace: Callable[[int], int]) -> None:
        self._plan, self._namespace = plan, namespace
        self._pid = 0
        self._socket: socket.socket | None = None
        self.reports: Reports | None = None
        """What its agents know; None before they have told."""

    def start(self) -> int:
        """Have everything connected and begin; when that is, on the monotonic clock in ns. TestbedError if it fails."""
        mine, its = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            mine.close()
            self._live(its, parent)
        its.close()
        self._socket = mine
        what, value = self._hear(self._plan.wait_s * 3)
        if what != "began":
            raise TestbedError("background traffic ended before it began", "traffic", usage=False)
        return int(value)

    def fileno(self) -> int:
        """For a selector: readable when it is over."""
        assert self._socket is not None
        return self._socket.fileno()

    def listen(self) -> None:
        """Take what it says, when there is something. TestbedError if it has failed."""
        what, value = self._hear(SOON_S)
        if what == "reports":
            self.reports = value

    def end(self) -> Reports | None:
        """Have it end, if it has not; what it knows, or None."""
        if self._pid and self.reports is None and self._socket is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)
            with suppress(TestbedError, OSError):
                self.listen()
        self.close()
        return self.reports

    def close(self) -> None:
        """Nothing of it is left."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0

    def _hear(self, wait_s: float) -> tuple[str, Any]:
        assert self._socket is not None
        end = time.monotonic() + wait_s
        data = bytearray()
        length = _LENGTH.size
        while len(data) < length:
            if not select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TestbedError(f"background traffic has not answered within {wait_s:g} s", "traffic", usage=False)
            part = self._socket.recv(1 << 20)
            if not part:
                raise TestbedError("background traffic has ended without a word", "traffic", usage=False)
            data += part
            if len(data) >= _LENGTH.size:
                length = _LENGTH.size + _LENGTH.unpack(data[: _LENGTH.size])[0]
        what, value = pickle.loads(data[_LENGTH.size : length])
        if what == "error":
            raise TestbedError(*value)
        return what, value

    def _live(self, told: socket.socket, parent: int) -> None:
        """What the forked process does; does not return."""
        status = 1
        try:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            controller = Controller(
                self._plan, Forked(self._namespace), begin=lambda time_ns: _tell(told, ("began", time_ns))
            )
            try:
                controller.run()
            except KeyboardInterrupt:
                pass
            except TestbedError as error:
                _tell(told, ("error", error.args))
                os._exit(1)
            _tell(told, ("reports", controller.reports))
            status = 0
        except BaseException as error:
            traceback.print_exc()
            with suppress(OSError):
                _tell(told, ("error", (f"background traffic failed: {error}", "traffic", "", False)))
        finally:
            os._exit(status)


def _tell(told: socket.socket, what: object) -> None:
    data = pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)
    told.sendall(_LENGTH.pack(len(data)) + data)
