"""The packet simulator, or the testbed, as the network of a training: what it loses is lost in the update, and its time
is the clock.

Every step becomes a trace of one iteration (`gradwire.training.as_trace`), which is played on a network that stays
(`Plays`). Packets are the reducer's own: a message is cut where the encoding is, and over the testbed it holds the very
bytes of it. A server there adds up float32 values as they are; of other encodings it adds up words, and sends back as
many as servers of the training do, which mean nothing: what servers make of encodings is worked out here. The workers'
messages to the servers may lose packets up to their bound, and so may what the servers send back, where it is whole
float32 tensors, and all messages of a ring: then workers have parameters of their own (`gradwire.training.replicas`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gradwire.scenarios.errors import ScenarioError
from gradwire.traces.trace import Trace
from gradwire.training.as_trace import AsTrace, Ints, Layout
from gradwire.training.asked import packets_of
from gradwire.training.network import Answer, Pushed
from gradwire.training.played import hops_of, masks_of

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.scenarios.schema.scenario import Scenario

Back = float | Sequence[int]
"""Bytes that come back from servers: for each that is pushed, or of every tensor to each worker."""


class Plays(Protocol):
    """What plays one iteration at a time: `gradwire.sim.session.Session`, `gradwire.emu.session.Session`.

    takes_contents : whether it wants to know what is sent, and not only how much.
    """

    scenario: Scenario
    takes_contents: bool

    def step(self, trace: Trace, back: Back, *contents: Any, **kept: Any) -> Any:
        """Play an iteration in which so many bytes come back, of each tensor, or for each byte. If it wants to know:
        what workers send, by worker and tensor, whole words of 4 bytes; and whether these are float32 values. And,
        where there are any, as `kept` the tensors of which nothing may be lost."""
        ...

    def rest(self) -> tuple[int, int, int]:
        """Let the network rest, and say where it is."""
        ...

    def resume(self, built: int, steps: int, now_ps: int = 0) -> None:
        """Go on from there."""
        ...


class Simulated:
    """A network that plays steps: the simulator's, or the testbed's."""

    def __init__(self, plays: Plays, times: Trace | None = None, phase: str | None = None) -> None:
        """
        Parameters
        ----------
        times : whose computing the workers do, each the iterations that it replays in a simulated job; it has the
            trained model's tensors. Computing takes no time if absent. The scenario's job scales it.
        phase : of `times`, if not all of its iterations.

        Raises
        ------
        ScenarioError
            The job's exchange is neither with servers nor a ring, or packets do not hold whole values of one message;
            or `times` has no such phase.
        """
        job = plays.scenario.job[0]
        self.payload = packets_of(plays.scenario)
        self.lossy_back = job.exchange.kind == "parameter_server" and bool(job.pull_bound)
        self.plays, self.workers = plays, int(job.workers)
        self.scale = float(job.compute_scale)
        self.as_trace = AsTrace(self.workers, self.payload, self.scale, times, phase)

    def carry(self, pushed: Pushed) -> Answer:
        """Play one round of a step.

        Raises
        ------
        ScenarioError
            Workers or packets are not those of the scenario's job, or something may be lost on the way back that is
            not whole tensors.
        """
        if len(pushed.encoded) != self.workers or pushed.payload != self.payload:
            raise ScenarioError(
                f"{len(pushed.encoded)} workers with packets of {pushed.payload} bytes", "Simulated",
                f"{self.workers} and {self.payload}, as the scenario's job has",
            )  # fmt: skip
        whole = all(each.nbytes(self.payload) == 4 * info.numel for row in pushed.encoded
                    for each, info in zip(row, pushed.infos, strict=True))  # fmt: skip
        if self.lossy_back and not whole:
            bound = self.plays.scenario.job[0].pull_bound
            what = f"is {bound:g}; with a reducer it is not said what comes back from servers"
            raise ScenarioError(what, "job.pull_bound", "0, or no reducer")
        longest = [max(column, key=lambda each: each.units) for column in zip(*pushed.encoded, strict=True)]
        layout = self.as_trace.layout(longest)
        if not layout.sizes.any():
            return Answer([[None] * len(pushed.infos)] * self.workers)
        sent = np.flatnonzero(layout.sizes)
        contents = (_contents(pushed, layout, sent), _numbers(pushed)) if self.plays.takes_contents else ()
        back: float | list[int] = 1.0
        if pushed.back is not None:
            answers = 4 * -(-np.array(pushed.back(), dtype=np.int64)[sent] // 4)
            back = back if (answers == layout.sizes[sent]).all() else answers.tolist()
        kept = [at for at, tensor in enumerate(sent.tolist()) if tensor in pushed.kept]
        told = {"kept": kept} if kept else {}
        played = self.plays.step(self.as_trace.trace(pushed, layout, sent), back, *contents, **told)
        if pushed.layout is not None:
            nothing: list[list[Tensor | None]] = [[None] * len(pushed.infos)] * self.workers
            return Answer(nothing, int(played.time_ps), hops=hops_of(pushed.layout, sent, played))
        pushes, pulls = masks_of(pushed, sent, played)
        pulled = pulls if self.lossy_back else ()
        return Answer(pushes, int(played.time_ps), pulled, with_encoding=bool(pushed.encode_ps and self.scale))

    def state_dict(self) -> dict[str, object]:
        """Where it is. The network rests for it, and forgets what transports remember of pairs: so whoever goes on from
        here, now or later, goes on alike."""
        built, steps, now_ps = self.plays.rest()
        return {"built": built, "steps": steps, "now_ps": now_ps}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Go on from there."""
        self.plays.resume(*(int(str(saved.get(name, 0))) for name in ("built", "steps", "now_ps")))


def _contents(pushed: Pushed, layout: Layout, sent: Ints) -> list[list[bytes]]:
    """What workers send, by worker and tensor that is sent: packets one after the other, each at its place, and zeros
    to the end of the message."""
    found = []
    for row in pushed.encoded:
        packed = []
        for tensor in sent.tolist():
            *full, last = row[tensor].to_packets(pushed.payload) or [b""]
            whole = b"".join(each.ljust(pushed.payload, b"\0") for each in full) + last
            packed.append(whole.ljust(int(layout.sizes[tensor]), b"\0"))
        found.append(packed)
    return found


def _numbers(pushed: Pushed) -> bool:
    """Whether all that is sent are float32 values and nothing else, which servers can add up."""
    import torch

    every = [each for row in pushed.encoded for each in row]
    return all(not each.head and [field.dtype for field in each.fields] == [torch.float32] for each in every)


