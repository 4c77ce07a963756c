"""`Agents` starts a run's agent processes for the controller, sends them frames, receives theirs, and notices
failures.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress

from gradwire.emu.agent.frame_stream import AGENT_RECORDS, Decoder, Frame, encode, token_of
from gradwire.emu.agent.message_validation import check_frame
from gradwire.emu.control.launchers import Child, Launcher
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.wire.header import ForeignDataError
from gradwire.scenarios.readable import killed_text

NAMED = 3
READ_BYTES = 1 << 20


class Agents:
    """The child processes of a controller and the frames received from them."""

    def __init__(self, plan: TestbedPlan, launcher: Launcher, nodes: Sequence[int]) -> None:
        self.plan = plan
        self.children: dict[int, Child] = {}
        self.heard: dict[int, dict[str, Frame]] = {node: {} for node in nodes}
        self.when: dict[int, float] = dict.fromkeys(nodes, time.monotonic())
        """time of the last frame received from each node"""
        self._token = token_of(plan)
        self._decoders = {node: Decoder(self._token, AGENT_RECORDS) for node in nodes}
        self._waiting: dict[int, bytearray] = {node: bytearray() for node in nodes}
        self._poll = select.epoll()
        self._nodes: dict[int, int] = {}
        try:
            for node in nodes:
                child = launcher.start(plan, node, list(self.children.values()))
                self.children[node] = child
                self._nodes[child.reading] = self._nodes[child.writing] = node
                self._poll.register(child.reading, select.EPOLLIN)
                if not child.has_plan:
                    self.send(node, "plan", plan, node)
        except BaseException:
            self.close()
            raise

    def name(self, node: int) -> str:
        return self.plan.names[node]

    def send(self, node: int, *frame: object) -> None:
        """Send a frame as far as the pipe has room; the rest is sent while `hear` waits."""
        self._waiting[node] += encode(frame, self._token)
        self._drain(node)

    def send_all(self, *frame: object) -> None:
        for node in self.children:
            self.send(node, *frame)

    def _drain(self, node: int) -> None:
        child, data = self.children[node], self._waiting[node]
        try:
            del data[: os.write(child.writing, data)]
        except BlockingIOError:
            pass
        except OSError:
            data.clear()  # `_read` detects the end of the process
        if child.writing == child.reading:
            self._poll.modify(child.reading, select.EPOLLIN | (select.EPOLLOUT if data else 0))
        elif data:
            with suppress(FileExistsError):
                self._poll.register(child.writing, select.EPOLLOUT)
        else:
            with suppress(FileNotFoundError):
                self._poll.unregister(child.writing)

    def receive(self, wait_s: float) -> None:
        """Receive frames for up to `wait_s` seconds; return as soon as one has arrived. Raises TestbedError: an agent
        has failed or died."""
        select.select([self._poll], [], [], max(0.0, wait_s))  # epoll itself waits in milliseconds
        for file, events in self._poll.poll(0):
            node = self._nodes[file]
            if events & select.EPOLLOUT:
                self._drain(node)
            if events & ~select.EPOLLOUT and file == self.children[node].reading:
                self._read(node)

    def _read(self, node: int) -> None:
        child = self.children[node]
        try:
            data = os.read(child.reading, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.when[node] = time.monotonic()
        try:
            for frame in self._decoders[node].feed(data):
                check_frame(frame)
                if frame[0] == "error":
                    _, what, where, expected, usage = frame
                    raise TestbedError(what, where or f"agent of {self.name(node)}", expected, usage=usage)
                self.heard[node][frame[0]] = frame[1:]
        except ForeignDataError as error:
            raise TestbedError(
                f"{error}",
                f"agent of {self.name(node)}",
                "python -m gradwire.emu.agent of this release with no other output on stdout",
                usage=False,
            ) from None
        if not data:
            self._poll.unregister(child.reading)
            raise TestbedError(self._describe_exit(child), f"agent of {self.name(child.node)}", usage=False)

    def _describe_exit(self, child: Child) -> str:
        deadline = time.monotonic() + 1
        while child.status() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        child.read_errors()
        status = child.status()
        if status is None:
            ending = "closed its stream"
        elif status < 0:
            ending = f"was {killed_text(-status)}"
        else:
            ending = f"ended with exit status {status}"
        last_line = f"; last line of its stderr: {child.last_line}" if child.last_line else ""
        return f"{ending}{last_line}"

    def wait_for_all(self, what: str, wait_s: float, doing: str) -> None:
        """Wait for a frame of kind `what` from every agent; raise TestbedError after `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        while True:
            silent = [node for node in self.children if what not in self.heard[node]]
            if not silent:
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                names = ", ".join(self.name(node) for node in silent[:NAMED])
                others = f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
                raise TestbedError(
                    f"no answer within {wait_s:g} s from {names}{others}, asked to {doing}", "agents", usage=False
                )
            self.receive(remaining)

    def forget(self, what: str) -> None:
        """Discard received frames of this kind."""
        for frames in self.heard.values():
            frames.pop(what, None)

    def close(self) -> None:
        for node in self.children:
            with suppress(Exception):
                self.send(node, "end")
        for child in self.children.values():
            with suppress(OSError):
                self._poll.unregister(child.reading)
        for child in self.children.values():
            child.close()
        self.children = {}
        self._poll.close()
