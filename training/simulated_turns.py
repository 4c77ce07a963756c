"""The packet simulator as the network of an asynchronous server: workers push and pull one by one, while what others
send is under way.

What packets of a push do not arrive is missing in the server's update, up to the job's bound; pulls arrive whole. How
long either is under way is up to the network and to what else there is in it, and so it is the network that says in
which order pushes are merged, and how stale they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gradwire.training.as_trace import AsTrace, Ints
from gradwire.training.asked import packets_of
from gradwire.training.played import masks_alone

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.experiment.turnwise import Came
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import TensorInfo, Trace
    from gradwire.training.seam import Pushed


class PlaysTurns(Protocol):
    """What plays turns of single workers: `gradwire.sim.turns.Turns`, which says more of each."""

    scenario: Scenario

    @property
    def full(self) -> bool: ...

    @property
    def built(self) -> int: ...

    def push(self, worker: int, turn: int, trace: Trace, begin_ps: int, kept: Sequence[int] = ()) -> None: ...

    def pull(self, worker: int, turn: int, trace: Trace, begin_ps: int) -> None: ...

    def skip(self, worker: int, pushed: bool, at_ps: int) -> None: ...

    def next(self, until_ps: int | None = None) -> Came | None: ...

    def rest(self, now_ps: int) -> list[Came]: ...

    def resume(self, built: int, now_ps: int) -> None: ...


@dataclass(frozen=True)
class Arrived:
    """What has come.

    time_ps, worker : when all of it had, and whose it is.
    pushed : whether the server has it; else the worker does.
    masks : of a push, by message which packets arrived; None for all.
    """

    time_ps: int
    worker: int
    pushed: bool
    masks: Sequence[Tensor | None] = ()


class SimulatedTurns:
    """A network for pushes and pulls of single workers.

    Attributes
    ----------
    full : whether it is time to rest.
    """

    def __init__(self, plays: PlaysTurns, times: Trace | None = None, phase: str | None = None) -> None:
        """
        Parameters
        ----------
        times : by which a turn's gradients become ready, turn by turn of each worker; it has the trained model's
            tensors. All at once, when the worker is told to push, if absent.
        phase : of `times`, if not all of its iterations.

        Raises
        ------
        ScenarioError
            Packets do not hold whole values of one message, or `times` has no such phase.
        """
        job = plays.scenario.job[0]
        self.plays, self.workers, self.payload = plays, int(job.workers), packets_of(plays.scenario)
        self.as_trace = AsTrace(self.workers, self.payload, float(job.compute_scale), times, phase)
        self._sent: dict[int, tuple[list[int], Ints]] = {}

    @property
    def full(self) -> bool:
        return self.plays.full

    def push(self, worker: int, turn: int, pushed: Pushed, begin_ps: int) -> None:
        """Have a worker push what it has made in a turn that begins then, which is all of `pushed`."""
        layout = self.as_trace.layout(pushed.encoded[0])
        sent = np.flatnonzero(layout.sizes)
        self._sent[worker] = [pushed.packets(0, tensor) for tensor in range(len(pushed.infos))], sent
        if not len(sent):
            self.plays.skip(worker, True, begin_ps)
            return
        trace = self.as_trace.trace(replace(pushed, step=turn), layout, sent, alone=worker)
        kept = [at for at, tensor in enumerate(sent.tolist()) if tensor in pushed.kept]
        self.plays.push(worker, turn, trace, begin_ps, kept)

    def pull(
        self, worker: int, turn: int, infos: Sequence[TensorInfo], nbytes: Sequence[int], begin_ps: int
    ) -> None:
        """Have servers send a worker so many bytes of each tensor; all of it arrives."""
        sizes = np.asarray(nbytes, dtype=np.int64)
        if not sizes.any():
            self.plays.skip(worker, False, begin_ps)
            return
        self.plays.pull(worker, turn, self.as_trace.answer(infos, sizes, turn), begin_ps)

    def next(self, until_ps: int | None = None) -> Arrived | None:
        """What comes next; None if nothing does before a time."""
        came = self.plays.next(until_ps)
        return None if came is None else self._arrived(came)

    def rest(self, now_ps: int) -> list[Arrived]:
        """Let the network rest, now, and forget what transports remember of pairs. What comes of what is under way,
        which nothing meets that is sent later: so whoever goes on from here, now or later, goes on alike."""
        return [self._arrived(came) for came in self.plays.rest(now_ps)]

    def state_dict(self) -> dict[str, object]:
        """Where it is, once it rests."""
        return {"built": self.plays.built}

    def load_state_dict(self, saved: Mapping[str, object], now_ps: int) -> None:
        """Go on from there, at a time."""
        self.plays.resume(int(str(saved["built"])), now_ps)

    def _arrived(self, came: Came) -> Arrived:
        if not came.pushed:
            return Arrived(came.time_ps, came.worker, False)
        counts, sent = self._sent[came.worker]
        if came.messages is None:
            return Arrived(came.time_ps, came.worker, True, [None] * len(counts))
        masks = masks_alone(counts, self.payload, sent, came.messages, came.missing)
        return Arrived(came.time_ps, came.worker, True, masks)
