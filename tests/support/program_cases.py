"""Programs run by the scripts of all hosts on an ideal network, and the simulator's jobs and traffic on the same one."""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np
from ideal_fabric import PS

from gradwire.emu.agent.host_part import part_of
from gradwire.emu.agent.script import Script
from gradwire.result_store.table_schema import KINDS


class Clock:
    """A loop whose time is what the next timer says; at one time deliveries come
    first, in the order of sending."""

    def __init__(self):
        self.time, self.heap, self.set = 0, [], 0

    def now(self):
        return self.time

    def at(self, time, call, kind=1, order=None):
        self.set += 1
        timer = [max(time, self.time), kind, self.set if order is None else order, call]
        heappush(self.heap, timer)
        return timer

    def run(self):
        while self.heap:
            self.time, _, _, call = heappop(self.heap)
            call()


class Scripts:
    """The scripts of all hosts of a program; `tick` picoseconds are one of the loop's."""

    def __init__(self, program, *, latency, rate=10**11, wire=10**6, tick=1):
        self.program, self.clock, self.rate, self.wire, self.tick = program, Clock(), rate, wire, tick
        self.free, self.line, self.sent = {}, {}, []
        self.entered, self.ends = {}, {}
        self.scripts = {
            node: Script(part_of(program, node), self.clock, self.send, latency, tick) for node in program.hosts
        }

    def send(self, message):
        """Into the line at the uplink of its host; at one time traffic comes first, which is numbered beforehand."""
        rows = self.program.messages
        src = int(rows.src[message])
        is_job = self.program.tables[rows.table[message]].is_job
        self.sent.append(message)
        self.entered[message] = self.clock.now()
        order = (is_job, len(self.sent) if is_job else message)
        heappush(self.line.setdefault(src, []), (order, message))
        self.clock.at(self.clock.now(), lambda: self.transmit(src), 2)

    def transmit(self, src):
        """One message at a time."""
        line = self.line[src]
        while line:
            order, message = heappop(line)
            begin = max(self.clock.now() * self.tick, self.free.get(src, 0))
            self.free[src] = begin + -(-int(self.program.messages.nbytes[message]) * 8 * PS // self.rate)
            end = -(-(self.free[src] + self.wire) // self.tick)
            self.clock.at(end, partial(self.deliver, message), 0, order)

    def deliver(self, message):
        rows = self.program.messages
        self.ends[message] = self.clock.now()
        self.scripts[int(rows.src[message])].message_finished(message)
        self.scripts[int(rows.dst[message])].delivered(message)

    def run(self):
        places: dict[int, int] = {}
        for process in self.program.processes:  # in the order of the program, as the simulator has it
            place = places[process.host] = places.get(process.host, -1) + 1
            self.scripts[process.host].start([place])
        self.clock.run()
        return self

    @property
    def done(self):
        return all(script.done for script in self.scripts.values())

    @property
    def workers_done(self):
        return all(script.workers_done for script in self.scripts.values())

    def iterations(self):
        names = [table.name for table in self.program.tables]
        found = [row for script in self.scripts.values() for row in script.iterations]
        return sorted((names[row.job], *row[1:]) for row in found)

    def messages(self, names, payloads):
        """Key -> everything else of every message that became ready."""
        rows, found = self.program.messages, {}
        starts = {number: time for script in self.scripts.values() for number, time in script.starts.items()}
        for number, start in starts.items():
            table = self.program.tables[rows.table[number]]
            key = (
                table.name, KINDS[rows.kind[number]], rows.iteration[number], rows.tensor[number],
                rows.part[number], names[rows.src[number]], names[rows.dst[number]],
            )  # fmt: skip
            assert key not in found
            packets = -(-int(rows.nbytes[number]) // payloads[table.transport])
            found[key] = (
                rows.layer[number], rows.nbytes[number], packets, rows.priority[number], rows.bound[number],
                bits(rows.important[number]), start, self.ends.get(number, -1),
            )  # fmt: skip
        return found


def bits(important: Any):
    return tuple(important.tolist()) if isinstance(important, np.ndarray) else important


def simulated(result, fabric):
    """The same of a simulation's result."""
    found = {}
    for row in result.messages.to_pylist():
        key = tuple(row[name] for name in ("job", "kind", "iteration", "tensor", "part", "src", "dst"))
        assert key not in found
        shown = tuple(row[name] for name in ("layer", "bytes", "packets", "priority", "bound"))
        important = fabric.sent[row["message"]][6]
        if important is None:  # nobody has tagged it: its packets are what those of its transport are
            kind = result.summary["transports"][row["job"]]["kind"]
            important = kind not in ("tcp_newreno", "cubic", "constant_rate")
        found[key] = (*shown, bits(important), row["start_ps"], row["end_ps"])
    return found
