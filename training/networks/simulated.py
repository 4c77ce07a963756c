"""`Simulated` carries a training run's gradients through the packet simulator or the testbed, and returns their losses
and times.

Every step becomes a trace of one iteration (`gradwire.training.networks.packet_steps`), which runs on a long-lived
network (`IterationNetwork`). Packets are the reducer's own: a message is cut where the encoding is, and over the
testbed it holds its very bytes. A server there adds up float32 values as they are; of other encodings it adds up
meaningless words and sends back as many bytes as the trainer's servers do, whose results are computed here. The
workers' messages to the servers may lose packets up to their bound, and so may what the servers send back, if it is
whole float32 tensors, and all messages of a ring: then workers have separate parameters (`gradwire.training.replicas`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import Trace
from gradwire.training.networks.network_interface import Answer, Pushed
from gradwire.training.networks.packet_steps import StepTraceMaker, UnitLayout, hops_of, masks_of, packet_payload

ReturnedBytes = float | Sequence[int]
"""Bytes that come back from servers: per pushed byte, or of every tensor to each worker."""


class IterationNetwork(Protocol):
    """A network that runs one iteration at a time: `gradwire.sim.sessions.session.Session`,
    `gradwire.emu.session.Session`.

    takes_contents : True if it needs the contents of messages, not only their sizes.
    """

    scenario: Scenario
    takes_contents: bool

    def step(self, trace: Trace, back: ReturnedBytes, *contents: Any, **reliable_tensors: Any) -> Any:
        """Run an iteration in which `back` bytes come back. If it takes contents, these follow: what workers send, by
        worker and tensor, in whole words of 4 bytes; and whether these are float32 values. `reliable_tensors` may name
        tensors that must not lose anything."""
        ...

    def come_to_rest(self) -> tuple[int, int, int]:
        """Bring the network to rest, and return its position."""
        ...

    def resume(self, built: int, steps: int, now_ps: int = 0) -> None:
        """Resume from a position."""
        ...


class Simulated:
    """A network that runs steps in the simulator or on the testbed."""

    def __init__(self, plays: IterationNetwork, times: Trace | None = None, phase: str | None = None) -> None:
        """Take over a job's workers and payload; `times` and `phase` are those of `StepTraceMaker`. Raises
        ScenarioError if the job's exchange is neither parameter_server nor ring, or packets do not hold whole values of
        one message; or
        `times` has no such phase."""
        job = plays.scenario.job[0]
        self.payload = packet_payload(plays.scenario)
        self.lossy_back = job.exchange.kind == "parameter_server" and bool(job.pull_bound)
        self.plays, self.workers = plays, int(job.workers)
        self.scale = float(job.compute_scale)
        self.as_trace = StepTraceMaker(self.workers, self.payload, self.scale, times, phase)

    def carry(self, pushed: Pushed) -> Answer:
        """Run one round of a step. Raises ScenarioError if workers or packets are not those of the scenario's job, or
        something other than whole tensors may be lost on the way back."""
        if len(pushed.encoded) != self.workers or pushed.payload != self.payload:
            what = f"{len(pushed.encoded)} workers with packets of {pushed.payload} bytes"
            raise ScenarioError(what, "Simulated", f"{self.workers} and {self.payload}, as the scenario's job has")
        is_dense = all(
            encoding.nbytes(self.payload) == 4 * info.numel
            for row in pushed.encoded
            for encoding, info in zip(row, pushed.infos, strict=True)
        )
        if self.lossy_back and not is_dense:
            bound = self.plays.scenario.job[0].pull_bound
            what = f"is {bound:g}; with a reducer the servers' answers are not defined"
            raise ScenarioError(what, "job.pull_bound", "0, or no reducer")
        longest = [max(column, key=lambda each: each.units) for column in zip(*pushed.encoded, strict=True)]
        layout = self.as_trace.layout(longest)
        if not layout.sizes.any():
            return Answer(pushed.all_arrived())
        sent = np.flatnonzero(layout.sizes)
        contents = (_contents(pushed, layout, sent), _all_float32(pushed)) if self.plays.takes_contents else ()
        back: float | list[int] = 1.0
        if pushed.back is not None:
            answers = 4 * -(-np.array(pushed.back(), dtype=np.int64)[sent] // 4)
            back = back if (answers == layout.sizes[sent]).all() else answers.tolist()
        lossless = [at for at, tensor in enumerate(sent.tolist()) if tensor in pushed.kept]
        kwargs = {"reliable_tensors": lossless} if lossless else {}
        played = self.plays.step(self.as_trace.trace(pushed, layout, sent), back, *contents, **kwargs)
        if pushed.layout is not None:
            hops = hops_of(pushed.layout, sent, played)
            return Answer(pushed.all_arrived(), int(played.time_ps), hops=hops, retransmitted=played.retransmitted)
        pushes, pulls = masks_of(pushed, sent, played)
        pulled = pulls if self.lossy_back else ()
        with_encoding = bool(pushed.encode_ps and self.scale)
        return Answer(pushes, int(played.time_ps), pulled, None, with_encoding, played.retransmitted)

    def state_dict(self) -> dict[str, object]:
        """Bring the network to rest and return its position. Transports forget what they remember of pairs, so that a
        resumed run equals one that goes on."""
        built, steps, now_ps = self.plays.come_to_rest()
        return {"built": built, "steps": steps, "now_ps": now_ps}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Resume from a position."""
        self.plays.resume(*(int(str(saved.get(name, 0))) for name in ("built", "steps", "now_ps")))


def _contents(pushed: Pushed, layout: UnitLayout, sent: Ints) -> list[list[bytes]]:
    """Return what workers send, by worker and tensor sent: packets in sequence, with zeros up to the end of the
    message."""
    contents = []
    for row in pushed.encoded:
        packed = []
        for tensor in sent.tolist():
            *full, last = row[tensor].to_packets(pushed.payload) or [b""]
            content = b"".join(packet.ljust(pushed.payload, b"\0") for packet in full) + last
            packed.append(content.ljust(int(layout.sizes[tensor]), b"\0"))
        contents.append(packed)
    return contents


def _all_float32(pushed: Pushed) -> bool:
    return all(
        not encoded.head and [str(field.dtype) for field in encoded.fields] == ["torch.float32"]
        for row in pushed.encoded
        for encoded in row
    )
