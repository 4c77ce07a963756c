"""`Agent`, one process per host, serves the controller's requests and carries out the host's computing and messages on
real sockets.

The controller sends it frames over a stream. The agent ends when that stream closes, so no process is left behind.
Its requests and replies:

    ("plan", plan, node, parts)   over a command's stdin; a forked agent has it already
    ("open",)       -> ("opened",)        sockets are bound and listen
    ("connect",)    -> ("connected",)     all connections are established
    ("clock", n)    -> ("clock", n, ns)   its clock
    ("go", ns)      -> ("status", ...)    begin at that time of its clock; then report progress repeatedly
    ("state",)      -> ("state", lines)   what each process waits for
    ("report",)     -> ("report", HostReport)
    ("end",)                              exit
                    -> ("error", what, where, expected, usage)   and exit
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.emu.agent.base import Arrival, Carrier, MessageRow, Parts
from gradwire.emu.agent.frame_stream import PLAN_RECORDS, TOKEN_BYTES, Decoder, encode, token_of
from gradwire.emu.agent.host_part import part_of
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.payload.contents import Contents
from gradwire.emu.agent.payload.values import values_of
from gradwire.emu.agent.report import HostReport, Received, SentCounts
from gradwire.emu.agent.script import Script
from gradwire.emu.planning.base_rtt import RoundTrips
from gradwire.emu.planning.plan import TestbedPlan, host_address, pauses_of, slowness_of
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.transports import make_carriers
from gradwire.scenarios.inner_units import Ps, PsPerByte

SECOND = 1_000_000_000
STATUS_NS = SECOND // 5
READ_BYTES = 1 << 20
AHEAD_BYTES = 64 << 20
"""Bytes of contents made in advance on the wall clock; our choice."""
EXIT_ERROR = 3
REQUESTS = ("plan", "open", "connect", "clock", "go", "state", "report", "end")
"""Names of the controller's frames; see above."""


def with_files(plan: TestbedPlan) -> TestbedPlan:
    """Return the plan with its attached files (`gradwire.emu.control.machines`) unpacked to a temporary folder."""
    files = plan.options.get("files")
    if not files:
        return plan
    root = tempfile.mkdtemp(prefix="gradwire-agent-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    folders = []
    for number, contents in enumerate(files.values()):
        folder = Path(root) / str(number)
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        folders.append(str(folder))
    return replace(plan, trace_folders=tuple(folders))


def make_parts(plan: TestbedPlan, node: int, loop: EpollLoop, send: Callable[[int], None]) -> tuple[Script, Contents]:
    part = part_of(plan.program, node, [transport.important for transport in plan.transports])
    # on the wall clock the software's latency passes by itself
    latency = plan.software_latency_ps if plan.clock == "virtual" else 0
    values = [values_of(folder) for folder in plan.options.get("contents", plan.trace_folders)]
    payloads = [transport.payload for transport in plan.transports]
    script = Script(part, loop, send, latency, slowness=slowness_of(plan.changes, node))
    return script, Contents(part, values, payloads, plan.seed)


class Agent:
    """A host; implements `gradwire.emu.agent.base.CarrierHost` for its carriers. `parts(plan, node, loop, send)` makes
    (script, contents): a script with `start`, `delivered`, `settled`, `done`, `workers_done`, `waiting`, `starts`,
    `iterations` and `part.rows` (see `gradwire.emu.agent.script`); contents with `outgoing`, `incoming`, `arrived`,
    `settled`, `make_ahead`, and `sums` for the report (see `gradwire.emu.agent.payload.contents`)."""

    def __init__(self, incoming: int, outgoing: int, parts: Parts | None = None) -> None:
        self.loop = EpollLoop()
        self._stream, self._out = incoming, outgoing
        self._parts: Parts = parts or make_parts
        self._decoder = Decoder(None, PLAN_RECORDS)
        self.token = b""
        self._waiting = bytearray()
        self._carriers: dict[int, Carrier] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._settled: set[int] = set()
        self._pauses: list[tuple[int, int]] = []
        self._connecting = False
        self._last_status: Any = None
        self._ahead: Callable[[], bool] | None = None
        os.set_blocking(incoming, False)
        os.set_blocking(outgoing, False)
        self.loop.reader(incoming, self._read_frames)

    # --- interface for carriers

    def address(self, node: int) -> str:
        return self._addresses.get(node) or host_address(node)

    def row(self, message: int) -> MessageRow:
        return self._script.part.rows[message]

    def outgoing(self, message: int) -> memoryview:
        data = self._contents.outgoing(message)
        self.loop.idle = self._ahead  # there may be room for more contents now
        return data

    def incoming(self, message: int) -> memoryview:
        return self._contents.incoming(message)

    def arrived(self, arrival: Arrival) -> None:
        self._arrivals[arrival.message] = arrival
        self._contents.arrived(arrival)
        self._script.delivered(arrival.message)
        self._send_changed_status()

    def base_rtt_ps(self, row: MessageRow) -> Ps:
        return self._trips.time_ps(row.src, row.dst, self.plan.transports[row.transport])

    def slowest(self, row: MessageRow) -> PsPerByte:
        return self._trips.slowest(row.src, row.dst)

    def message_finished(self, message: int) -> None:
        self._settled.add(message)
        self._contents.message_finished(message)
        self._script.message_finished(message)
        self._send_changed_status()

    # --- the controller

    def use(self, plan: TestbedPlan, node: int) -> None:
        """Store the plan and make everything that needs no socket."""
        self.plan, self.node, self.clock, self.seed = plan, node, plan.clock, plan.seed
        if self.clock == "virtual":
            self.loop.agent.reading_ns, self.loop.agent.stands_still = time.monotonic_ns(), 1
        self.token = self._decoder.token = token_of(plan)
        # real machines only
        self._addresses: Mapping[int, str] = plan.options.get("addresses", {})
        self._pauses = pauses_of(plan.changes, node)
        self.rate = min(port.rate for port in plan.ports_of_node(node))
        self._trips = RoundTrips(plan)
        self._script, self._contents = self._parts(plan, node, self.loop, self._send)
        self._carriers = make_carriers(plan, self, self._script.part.rows.values())

    def run(self) -> int:
        """Serve the controller until the end; return an exit status."""
        try:
            self.loop.run()
        except TestbedError as error:
            self.fail(error)
            return EXIT_ERROR
        except Exception as error:  # the controller reports any error with its place
            traceback.print_exc()
            self.fail(TestbedError(f"{type(error).__name__}: {error}", usage=False))
            return EXIT_ERROR
        return 0

    def fail(self, error: TestbedError) -> None:
        os.set_blocking(self._out, True)
        frame = encode(("error", error.what, error.where, error.expected, error.usage), self._token())
        with contextlib.suppress(OSError):
            os.write(self._out, bytes(self._waiting) + frame)

    def _token(self) -> bytes:
        return self._decoder.token or bytes(TOKEN_BYTES)

    def _reply(self, *frame: object) -> None:
        waiting = bool(self._waiting)
        self._waiting += encode(frame, self._token())
        if not waiting:
            self._drain()

    def _drain(self) -> None:
        try:
            done = os.write(self._out, self._waiting)
        except BlockingIOError:
            done = 0
        except OSError:
            self.loop.stop()
            return
        del self._waiting[:done]
        self.loop.writer(self._out, self._drain if self._waiting else None)

    def _read_frames(self) -> None:
        try:
            data = os.read(self._stream, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.loop.stop()
            return
        for frame in self._decoder.feed(data):
            if frame[0] not in REQUESTS:
                raise TestbedError(f"unknown frame from the controller: {frame[0][:20]!r}", "agent", usage=False)
            getattr(self, f"_do_{frame[0]}")(*frame[1:])

    def _do_plan(self, plan: TestbedPlan, node: int) -> None:
        self.use(with_files(plan), node)

    def _do_open(self) -> None:
        for carrier in self._carriers.values():
            carrier.open()
        if self.clock == "wall":
            # work done now does not delay packets later
            for number, carrier in self._carriers.items():
                carrier.prepare(row for row in self._script.part.rows.values() if row.transport == number)
            self._ahead = partial(self._contents.prepare_next, AHEAD_BYTES)
            while self._ahead():
                pass
        self._reply("opened")

    def _do_connect(self) -> None:
        for number, carrier in self._carriers.items():
            rows = self._script.part.rows.values()
            peers = {row.dst for row in rows if row.src == self.node and row.transport == number}
            carrier.connect(sorted(peers))
        self._connecting = True
        self._check_connected()

    def _check_connected(self) -> None:
        if all(carrier.connected() for carrier in self._carriers.values()):
            # A collection takes ten milliseconds, too long between "go" and the beginning if all hosts of a machine
            # collect; later objects have no cycles that matter.
            gc.collect()
            gc.freeze()
            gc.disable()
            self._reply("connected")
        else:
            self.loop.at(self.loop.now() + 1_000_000, self._check_connected)

    def _do_clock(self, number: int) -> None:
        self._reply("clock", number, time.monotonic_ns())

    def _do_go(self, beginning: int) -> None:
        self.loop.begin(beginning)
        for begin, end in self._pauses:
            self.loop.at(begin, partial(self.loop.pause_until, end), counts=False)
        for carrier in self._carriers.values():
            carrier.begin()
        self._script.start()
        self.loop.at(STATUS_NS, self._status_later, counts=False)
        self.loop.at(0, self._send_changed_status)

    def _do_state(self) -> None:
        lines = list(self._script.waiting())
        rows, starts = self._script.part.rows, self._script.starts
        under_way = [n for n, row in rows.items() if row.src == self.node and n in starts and n not in self._settled]
        self._reply("state", lines, under_way, sorted(self._arrivals))

    def _do_report(self) -> None:
        self._reply("report", self.report())

    def _do_end(self) -> None:
        for carrier in self._carriers.values():
            carrier.close()
        self.loop.stop()

    # --- the run

    def _send(self, message: int) -> None:
        self._carriers[self.row(message).transport].send(message)

    def _send_changed_status(self) -> None:
        """Send a status at once if an event has occurred that the controller waits for."""
        now = self._script.workers_done, self._script.done
        if now != self._last_status:
            self._last_status = now
            self._status()

    def _status(self) -> None:
        script = self._script
        # timers of future traffic do not tell whether messages in flight are stuck
        computing = self.loop.pending() if len(script.starts) <= len(self._settled) else 0
        self._reply("status", len(self._arrivals), computing, script.workers_done, script.done)

    def _status_later(self) -> None:
        self._last_status = self._script.workers_done, self._script.done
        self._status()
        # not counted as late: it may go off while all agents make their reports
        self.loop.at(self.loop.now() + STATUS_NS, self._status_later, counts=False)

    def report(self) -> HostReport:
        rows = self._script.part.rows
        carriers = self._carriers.values()
        counts, marks, marks_sent, received_bytes = (
            dict(item for carrier in carriers for item in getattr(carrier, name)().items())
            for name in ("counts", "marks", "marked_sent", "received")
        )
        notes = [note for carrier in carriers for note in carrier.notes()]
        starts = self._script.starts
        sent_numbers = [n for n, row in rows.items() if row.src == self.node]
        received_numbers = [n for n, row in rows.items() if row.dst == self.node]
        arrivals = [self._arrivals.get(n) for n in received_numbers]
        sent = SentCounts(
            np.array(sent_numbers, dtype=np.int64),
            _column(starts.get(n, -1) for n in sent_numbers),
            _column(counts.get(n, (0, 0))[0] for n in sent_numbers),
            _column(counts.get(n, (0, 0))[1] for n in sent_numbers),
            _column(marks_sent.get(n, -1) for n in sent_numbers),
        )
        received = Received(
            np.array(received_numbers, dtype=np.int64),
            _column(a.time_ns if a else -1 for a in arrivals),
            _column(
                a.received if a else received_bytes.get(n, 0) for n, a in zip(received_numbers, arrivals, strict=True)
            ),
            _column(a.lost if a else 0 for a in arrivals),
            _column(marks.get(n, a.marked if a else 0) for n, a in zip(received_numbers, arrivals, strict=True)),
            {a.message: a.have for a in arrivals if a is not None and a.have is not None},
        )
        endpoint = next((c.endpoint for c in carriers if hasattr(c, "endpoint")), None)
        strays = sum(carrier.invalid_count() for carrier in carriers) + (
            endpoint.total_invalid_count() if endpoint else 0
        )
        if strays and self._addresses:  # other processes can reach a real machine, which does not invalidate the run
            notes.append(f"{self.plan.names[self.node]}: {strays} packets or connections of other programs rejected")
            strays = 0
        return HostReport(
            self.node,
            sent,
            received,
            list(self._script.iterations),
            self._contents.sums,
            self.loop.punctuality(),
            endpoint.overflow_count() if endpoint else 0,
            strays,
            notes,
        )


def _column(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


def main(parts: Parts | None = None) -> None:
    """Run an agent over stdin and stdout (`python -m gradwire.emu.agent`)."""
    outgoing = os.dup(1)
    os.dup2(2, 1)  # printed text must not mix with the frames
    sys.exit(Agent(0, outgoing, parts).run())
