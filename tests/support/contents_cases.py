"""Scripts and contents of all hosts on an ideal network that loses packets."""

from __future__ import annotations

import numpy as np
from program_cases import Scripts

from gradwire.emu.agent.base import Arrival
from gradwire.emu.agent.payload.contents import CheckSums, Contents
from gradwire.emu.agent.payload.magnitudes import Magnitudes, prepare
from gradwire.emu.results.verify import Evidence
from gradwire.scenarios.loss import allowed_loss
from gradwire.workload.incremental.iteration_player import IterationJobs
from gradwire.workload.program_export import export_program
from gradwire.workload.resolve import resolve, tag_untagged


class Network(Scripts):
    """`lose` : share of the packets that are lost where a message's bound has room for them. `values` : what workers send,
    if that is not drawn to the trace. `back` : bytes that come back from servers, as a session has it, of one iteration.
    `carried` : of every message that was sent, its bytes."""

    def __init__(self, case, trace, folder, *, lose=0.5, seed=1, values=None, back=None):
        self.case = case
        self.resolved = resolve(case, trace)
        if back is not None:
            job = IterationJobs(case).job(trace, self.resolved.places[0], self.resolved.network.cards, back)
            self.resolved = self.resolved._replace(program=tag_untagged(export_program([job.part]), case))
        super().__init__(self.resolved.program, latency=2_000_000)
        self.folders = prepare(self.resolved.traces, folder)
        self.payloads = [transport.payload for transport in case.transports]
        self.magnitudes = values or [Magnitudes(each) for each in self.folders]
        self.contents = {
            node: Contents(script.part, self.magnitudes, self.payloads, case.seed)
            for node, script in self.scripts.items()
        }
        self.arrivals, self.content, self.carried = {}, {}, {}
        self.rng, self.lose = np.random.default_rng(seed), lose
        self.most_held = 0

    def send(self, message):
        """What is sent is what it was at the time of sending."""
        rows = self.program.messages
        self.content[message] = self.carried[message] = bytes(self.contents[int(rows.src[message])].outgoing(message))
        super().send(message)

    def deliver(self, message):
        rows = self.program.messages
        src, dst = int(rows.src[message]), int(rows.dst[message])
        content, row = self.content.pop(message), self.scripts[src].part.rows[message]
        assert len(content) == row.nbytes
        payload = self.payloads[row.transport]
        have = np.ones(-(-row.nbytes // payload), dtype=bool)
        room = allowed_loss(row.nbytes, row.bound)
        for packet in range(len(have)):
            size = min(payload, row.nbytes - packet * payload)
            droppable = row.important is False or (row.important is not True and not row.important[packet])
            if droppable and size <= room and self.rng.random() < self.lose:
                have[packet] = False
                room -= size
        buffer, lost = self.contents[dst].incoming(message), 0
        for packet in range(len(have)):
            piece = content[packet * payload : (packet + 1) * payload]
            if have[packet]:
                buffer[packet * payload : packet * payload + len(piece)] = piece
            else:
                lost += len(piece)
        arrival = Arrival(message, self.clock.now(), row.nbytes - lost, lost, None if have.all() else have)
        self.arrivals[message] = arrival
        self.contents[dst].arrived(arrival)
        self.contents[src].message_finished(message)
        self.most_held = max(self.most_held, sum(each.buffer_bytes() for each in self.contents.values()))
        super().deliver(message)

    def evidence(self, **changes):
        sums = CheckSums()
        for contents in self.contents.values():
            sums.update(contents.sums)
        given = {
            "program": self.program, "traces": self.resolved.traces, "magnitudes": self.magnitudes,
            "payloads": self.payloads, "seed": self.case.seed, "arrivals": self.arrivals, "sums": sums,
            "important_arrive": [True] * len(self.payloads),
        }  # fmt: skip
        return Evidence(**{**given, **changes})
