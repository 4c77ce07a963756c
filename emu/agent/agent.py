"""Agent: one process per host, which plays the host's part of the program with real sockets.

It hears from the controller over a stream of frames, and ends when that stream closes, so that nothing is ever left
behind. What it is told, and what it answers:

    ("plan", plan, node, parts)   over a command's stdin; a forked agent has it already
    ("open",)       -> ("opened",)        sockets are bound and listen
    ("connect",)    -> ("connected",)     every connection is there
    ("clock", n)    -> ("clock", n, ns)   its clock
    ("go", ns)      -> ("status", ...)    begin at that time of its clock; then now and then what has been delivered
    ("state",)      -> ("state", lines)   who waits for what
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
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.emu.agent.base import Arrival, Carrier, MessageRow, Parts, Timer
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.agent.report import HostReport, Received, Sent
from gradwire.emu.agent.stream import PLANNED, TOKEN_BYTES, Decoder, encode, token_of
from gradwire.emu.planning.changes import pauses_of
from gradwire.emu.planning.plan import Plan, host_address
from gradwire.emu.planning.round_trips import RoundTrips
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.transports import make_carriers
from gradwire.scenarios.inner_units import Ps, PsPerByte

SECOND = 1_000_000_000
STATUS_NS = SECOND // 5
PARTS = "gradwire.emu.agent.parts:make_parts"
"""Makes (script, contents) of a host: see `Agent`."""
READ_BYTES = 1 << 20
AHEAD_BYTES = 64 << 20
"""Contents that are made before anybody asks for them, on the wall clock; our choice."""
EXIT_ERROR = 3
TOLD = ("plan", "open", "connect", "clock", "go", "state", "report", "end")
"""What a controller says; see above."""


def with_files(plan: Plan) -> Plan:
    """The plan with the files that it brings along (`gradwire.emu.control.machines`) in a temporary folder of this
    machine."""
    files = plan.options.get("files")
    if not files:
        return plan
    here = tempfile.mkdtemp(prefix="gradwire-agent-")
    atexit.register(shutil.rmtree, here, ignore_errors=True)
    folders = []
    for number, contents in enumerate(files.values()):
        folder = Path(here) / str(number)
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        folders.append(str(folder))
    return replace(plan, trace_folders=tuple(folders))


class WatchedLoop:
    """The loop as the script sees it: how many of its timers are still to come tells whether it computes or waits."""

    def __init__(self, loop: EpollLoop) -> None:
        self._loop = loop
        self.pending = 0
        self.now = loop.now
        self.reader, self.writer = loop.reader, loop.writer

    def at(self, time_ns: int, call: Callable[[], None]) -> Timer:
        """As the loop's."""

        def counted() -> None:
            self.pending -= 1
            call()

        self.pending += 1
        return self._loop.at(time_ns, counted)

    def cancel(self, timer: Timer | None) -> None:
        """As the loop's."""
        if timer is not None and timer.call is not None:
            self.pending -= 1
        self._loop.cancel(timer)


class Agent:
    """A host. It is the `gradwire.emu.agent.base.Host` of its carriers.

    `parts(plan, node, loop, send)` makes (script, contents): a script with `start`, `delivered`, `settled`, `done`,
    `workers_done`, `waiting`, `starts`, `iterations` and `part.rows` (see `gradwire.emu.agent.script`); contents with
    `outgoing`, `incoming`, `arrived`, `settled`, `make_ahead`, and `sums` for the report (see
    `gradwire.emu.agent.contents`).
    """

    def __init__(self, incoming: int, outgoing: int, parts: Parts | None = None) -> None:
        self.loop = EpollLoop()
        self._stream, self._out = incoming, outgoing
        self._parts = parts
        self._decoder = Decoder(None, PLANNED)
        self.token = b""
        self._waiting = bytearray()
        self._carriers: dict[int, Carrier] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._settled: dict[int, tuple[int, int]] = {}
        self._pauses: list[tuple[int, int]] = []
        self._connecting = False
        self._told: Any = None
        self._ahead: Callable[[], bool] | None = None
        os.set_blocking(incoming, False)
        os.set_blocking(outgoing, False)
        self.loop.reader(incoming, self._heard)

    # --- what carriers ask

    def address(self, node: int) -> str:
        return self._addresses.get(node) or host_address(node)

    def row(self, message: int) -> MessageRow:
        row: MessageRow = self._script.part.rows[message]
        return row

    def outgoing(self, message: int) -> memoryview:
        made: memoryview = self._contents.outgoing(message)
        self.loop.idle = self._ahead  # now there may be room to make more
        return made

    def incoming(self, message: int) -> memoryview:
        made: memoryview = self._contents.incoming(message)
        return made

    def arrived(self, arrival: Arrival) -> None:
        self._arrivals[arrival.message] = arrival
        self._contents.arrived(arrival)
        self._script.delivered(arrival.message)
        self._news()

    def base_rtt_ps(self, row: MessageRow) -> Ps:
        return self._trips.time_ps(row.src, row.dst, self.plan.transports[row.transport])

    def slowest(self, row: MessageRow) -> PsPerByte:
        return self._trips.slowest(row.src, row.dst)

    def settled(self, message: int, sent_packets: int, retransmitted: int) -> None:
        self._settled[message] = sent_packets, retransmitted
        self._contents.settled(message)
        self._script.settled(message)
        self._news()

    # --- the controller

    def use(self, plan: Plan, node: int) -> None:
        """Take the plan and make everything that needs no socket."""
        self.plan, self.node, self.clock, self.seed = plan, node, plan.clock, plan.seed
        if self.clock == "virtual":
            self.loop.stand_still()
        self.token = self._decoder.token = token_of(plan)
        # of real machines, where there are any
        self._addresses: Mapping[int, str] = plan.options.get("addresses", {})
        self._pauses = pauses_of(plan.changes, node)
        self.rate = min(port.rate for port in plan.of_node(node))
        self._trips = RoundTrips(plan)
        self._watched = WatchedLoop(self.loop)
        make = self._parts
        if make is None:
            module, name = PARTS.split(":")
            make = getattr(import_module(module), name)
        self._script, self._contents = make(plan, node, self._watched, self._send)
        self._carriers = make_carriers(plan, self, self._script.part.rows.values())

    def run(self) -> int:
        """Serve the controller until it is done. Returns an exit status."""
        try:
            self.loop.run()
        except TestbedError as error:
            self.fail(error)
            return EXIT_ERROR
        except Exception as error:  # whatever it is, the controller says where it happened
            traceback.print_exc()
            self.fail(TestbedError(f"{type(error).__name__}: {error}", usage=False))
            return EXIT_ERROR
        return 0

    def fail(self, error: TestbedError) -> None:
        """Tell the controller what went wrong."""
        os.set_blocking(self._out, True)
        frame = encode(("error", error.what, error.where, error.expected, error.usage), self._token())
        with contextlib.suppress(OSError):
            os.write(self._out, bytes(self._waiting) + frame)

    def _token(self) -> bytes:
        return self._decoder.token or bytes(TOKEN_BYTES)

    def _say(self, *frame: object) -> None:
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

    def _heard(self) -> None:
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
            if frame[0] not in TOLD:
                raise TestbedError(f"the controller said {frame[0][:20]!r}", "agent", usage=False)
            getattr(self, f"_do_{frame[0]}")(*frame[1:])

    def _do_plan(self, plan: Plan, node: int) -> None:
        self.use(with_files(plan), node)

    def _do_open(self) -> None:
        for carrier in self._carriers.values():
            carrier.open()
        if self.clock == "wall":
            # what can be made before it is asked for does not delay packets then
            for number, carrier in self._carriers.items():
                carrier.prepare(row for row in self._script.part.rows.values() if row.transport == number)
            while self._make_ahead():
                pass
            self._ahead = self._make_ahead
        self._say("opened")

    def _make_ahead(self) -> bool:
        return bool(self._contents.make_ahead(AHEAD_BYTES))

    def _do_connect(self) -> None:
        for number, carrier in self._carriers.items():
            rows = self._script.part.rows.values()
            peers = {row.dst for row in rows if row.src == self.node and row.transport == number}
            carrier.connect(sorted(peers))
        self._connecting = True
        self._check_connected()

    def _check_connected(self) -> None:
        if all(carrier.connected() for carrier in self._carriers.values()):
            # A collection takes ten milliseconds, which all hosts of a machine do not have between hearing of the
            # beginning and the beginning itself; what is made from now on has no cycles that matter.
            gc.collect()
            gc.freeze()
            gc.disable()
            self._say("connected")
        else:
            self.loop.at(self.loop.now() + 1_000_000, self._check_connected)

    def _do_clock(self, number: int) -> None:
        self._say("clock", number, time.monotonic_ns())

    def _do_go(self, beginning: int) -> None:
        self.loop.begin(beginning)
        for begin, end in self._pauses:
            self.loop.at(begin, partial(self.loop.stand, end), counts=False)
        for carrier in self._carriers.values():
            carrier.begin()
        self._script.start()
        self.loop.at(STATUS_NS, self._status_later, counts=False)
        self.loop.at(0, self._news)

    def _do_state(self) -> None:
        lines = list(self._script.waiting())
        under_way = []
        for number, row in self._script.part.rows.items():
            if row.src == self.node and number in self._script.starts and number not in self._settled:
                under_way.append(number)
        self._say("state", lines, under_way, sorted(self._arrivals))

    def _do_report(self) -> None:
        self._say("report", self.report())

    def _do_end(self) -> None:
        for carrier in self._carriers.values():
            carrier.close()
        self.loop.stop()

    # --- the run

    def _send(self, message: int) -> None:
        self._carriers[self.row(message).transport].send(message)

    def _news(self) -> None:
        """Tell the controller at once when something it waits for has come about."""
        now = self._script.workers_done, self._script.done
        if now != self._told:
            self._told = now
            self._status()

    def _status(self) -> None:
        script = self._script
        # traffic that is still to come says nothing about what is under way and may be stuck
        computing = self._watched.pending if len(script.starts) <= len(self._settled) else 0
        self._say("status", len(self._arrivals), computing, script.workers_done, script.done)

    def _status_later(self) -> None:
        self._news_or_status()
        # how late this is says nothing about the network; it may go off while everyone makes his report
        self.loop.at(self.loop.now() + STATUS_NS, self._status_later, counts=False)

    def _news_or_status(self) -> None:
        self._told = self._script.workers_done, self._script.done
        self._status()

    def report(self) -> HostReport:
        """Everything that this host knows now."""
        rows = self._script.part.rows
        counts: dict[int, tuple[int, int]] = {}
        marks: dict[int, int] = {}
        marks_sent: dict[int, int] = {}
        got: dict[int, int] = {}
        notes: list[str] = []
        for carrier in self._carriers.values():
            counts |= carrier.counts()
            marks |= getattr(carrier, "marks", dict)()
            marks_sent |= getattr(carrier, "marked_sent", dict)()
            got |= getattr(carrier, "received", dict)()
            notes += getattr(carrier, "notes", list)()
        starts = self._script.starts
        out = [n for n, row in rows.items() if row.src == self.node]
        into = [n for n, row in rows.items() if row.dst == self.node]
        arrivals = [self._arrivals.get(n) for n in into]
        sent = Sent(
            np.array(out, dtype=np.int64),
            _column(starts.get(n, -1) for n in out),
            _column(counts.get(n, (0, 0))[0] for n in out),
            _column(counts.get(n, (0, 0))[1] for n in out),
            _column(n in self._settled for n in out),
            _column(marks_sent.get(n, -1) for n in out),
        )
        received = Received(
            np.array(into, dtype=np.int64),
            _column(a.time_ns if a else -1 for a in arrivals),
            _column(a.received if a else got.get(n, 0) for n, a in zip(into, arrivals, strict=True)),
            _column(a.lost if a else 0 for a in arrivals),
            _column(marks.get(n, a.marked if a else 0) for n, a in zip(into, arrivals, strict=True)),
            {a.message: a.have for a in arrivals if a is not None and a.have is not None},
        )
        endpoint = next((c.endpoint for c in self._carriers.values() if hasattr(c, "endpoint")), None)
        strays = sum(getattr(c, "strays", int)() for c in self._carriers.values())
        strays += endpoint.unasked() if endpoint else 0
        if strays and self._addresses:  # others can reach a real machine, which says nothing against the run
            notes.append(f"{self.plan.names[self.node]}: {strays} packets or connections of others were turned away")
            strays = 0
        return HostReport(
            self.node, sent, received, list(self._script.iterations), self._contents.sums,
            self.loop.punctuality(), endpoint.overflows() if endpoint else 0, strays, notes,
        )  # fmt: skip


def _column(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)


def serve(incoming: int, outgoing: int, parts: Parts | None = None) -> int:
    """Be an agent that is told everything over a stream of bytes. Returns an exit status."""
    return Agent(incoming, outgoing, parts).run()


def main(parts: Parts | None = None) -> None:
    """`python -m gradwire.emu.agent`: over stdin and stdout."""
    outgoing = os.dup(1)
    os.dup2(2, 1)  # whatever is printed must not end up among the frames
    sys.exit(serve(0, outgoing, parts))
