"""`SimulatedTurns` carries the pushes and pulls of an asynchronous server's workers through the packet simulator, one
by one.

Packets of a push that do not arrive are missing in the server's update, up to the job's bound; pulls arrive whole. The
durations depend on the network and on its other traffic, so the network determines the order in which pushes are
merged, and their staleness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.lazily import Tensor
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.traces.trace import TensorInfo, Trace
from gradwire.training.networks.network_interface import Pushed
from gradwire.training.networks.packet_steps import StepTraceMaker, masks_of_worker, packet_payload
from gradwire.workload.incremental.turn_player import TransferOutcome


class TurnNetwork(Protocol):
    """A network that runs turns of single workers: `gradwire.sim.sessions.async_session.AsyncSession`, which documents
    the methods."""

    scenario: Scenario

    @property
    def full(self) -> bool: ...
    @property
    def built(self) -> int: ...
    def push(
        self, worker: int, turn: int, trace: Trace, begin_ps: int, reliable_tensors: Sequence[int] = ()
    ) -> None: ...
    def pull(self, worker: int, turn: int, trace: Trace, begin_ps: int) -> None: ...
    def skip(self, worker: int, pushed: bool, at_ps: int) -> None: ...
    def next(self, until_ps: int | None = None) -> TransferOutcome | None: ...
    def come_to_rest(self, now_ps: int) -> list[TransferOutcome]: ...
    def resume(self, built: int, now_ps: int) -> None: ...


@dataclass(frozen=True)
class Arrival:
    """A push or pull that has arrived.

    time_ps, worker : when it was complete, and whose it is.
    pushed : True for a push, which the server has; False for a pull, which the worker has.
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
    full : True if it is time to rest.
    """

    def __init__(self, plays: TurnNetwork, times: Trace | None = None, phase: str | None = None) -> None:
        """Take over a job's workers and payload.

        times : trace by which a turn's gradients become ready, turn by turn of each worker; it has the trained model's
            tensors. If absent, all are ready when the worker pushes.
        phase : of `times`; all iterations by default.

        Raises ScenarioError if packets do not hold whole values of one message, or `times` has no such phase.
        """
        job = plays.scenario.job[0]
        self.plays, self.workers, self.payload = plays, int(job.workers), packet_payload(plays.scenario)
        self.as_trace = StepTraceMaker(self.workers, self.payload, float(job.compute_scale), times, phase)
        self._sent: dict[int, tuple[list[int], Ints]] = {}

    @property
    def full(self) -> bool:
        return self.plays.full

    def push(self, worker: int, turn: int, pushed: Pushed, begin_ps: int) -> None:
        """Push all of `pushed`, which a worker made in a turn that begins at `begin_ps`."""
        layout = self.as_trace.layout(pushed.encoded[0])
        sent = np.flatnonzero(layout.sizes)
        self._sent[worker] = [pushed.packets(0, tensor) for tensor in range(len(pushed.infos))], sent
        if not len(sent):
            self.plays.skip(worker, True, begin_ps)
            return
        trace = self.as_trace.trace(replace(pushed, step=turn), layout, sent, alone=worker)
        lossless = [at for at, tensor in enumerate(sent.tolist()) if tensor in pushed.kept]
        self.plays.push(worker, turn, trace, begin_ps, lossless)

    def pull(self, worker: int, turn: int, infos: Sequence[TensorInfo], nbytes: Sequence[int], begin_ps: int) -> None:
        """Send a worker `nbytes` of each tensor from the servers; all of it arrives."""
        sizes = np.asarray(nbytes, dtype=np.int64)
        if not sizes.any():
            self.plays.skip(worker, False, begin_ps)
            return
        self.plays.pull(worker, turn, self.as_trace.answer(infos, sizes, turn), begin_ps)

    def next(self, until_ps: int | None = None) -> Arrival | None:
        """Return the next arrival; None if there is none before `until_ps`."""
        arrival = self.plays.next(until_ps)
        return None if arrival is None else self._arrived(arrival)

    def come_to_rest(self, now_ps: int) -> list[Arrival]:
        """Bring the network to rest and return what arrives meanwhile; nothing sent later meets it. Transports forget
        what they remember of pairs, so that a resumed run equals one that goes on."""
        return [self._arrived(arrival) for arrival in self.plays.come_to_rest(now_ps)]

    def state_dict(self) -> dict[str, object]:
        """Return the position of the network at rest."""
        return {"built": self.plays.built}

    def load_state_dict(self, saved: Mapping[str, object], now_ps: int) -> None:
        """Resume from a position, at a time."""
        self.plays.resume(int(str(saved["built"])), now_ps)

    def _arrived(self, arrival: TransferOutcome) -> Arrival:
        masks: Sequence[Tensor | None] = ()
        if arrival.pushed:
            counts, sent = self._sent[arrival.worker]
            masks = [None] * len(counts)
            if arrival.messages is not None:
                masks = masks_of_worker(counts, self.payload, sent, arrival.messages, arrival.missing)
        return Arrival(arrival.time_ps, arrival.worker, arrival.pushed, masks)
