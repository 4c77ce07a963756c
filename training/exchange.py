"""One step's exchange: the reduced gradients of all workers, over a network that may lose packets, and back as one
mean.

What a server does, or what an all-reduce comes to: every worker's encodings are cut into packets, some of which do not
arrive; what has arrived is decoded, and averaged as `fill` says. Which packets those are is not decided here, but by
who asks (`Arrivals`): nothing lost, a rule, a simulated fabric, the masks of an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gradwire.training.encoded import PAYLOAD, Encoded
from gradwire.training.network import Ideal, Network, Pushed
from gradwire.training.reducers.base import Reducer, State

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo

Fill = Literal["zero", "rescaled", "stale"]
"""What stands for what was lost: nothing, which makes the mean smaller; nothing, and the mean is over those that have
arrived; or what that worker sent there last."""


@dataclass
class Sent:
    """What a step's exchange came to.

    nbytes : bytes of payload that each worker sent, all rounds.
    lost : share of its packets' content that did not arrive, for each worker and tensor, of the round that lost most.
    time_ps : how long the network took.
    """

    nbytes: list[int]
    lost: list[list[float]]
    time_ps: int = 0


@dataclass
class Exchange:
    """Carries the gradients of N workers and T tensors, step after step.

    reducer : what is sent.
    infos : the tensors, T of them.
    workers : N.
    seed : what random draws hang on.
    fill : what stands for what was lost.
    payload : bytes of payload of a packet.
    feed_back : whether error feedback counts what the network lost as not sent, as a sender can whose receiver tells
        it.
    """

    reducer: Reducer
    infos: Sequence[TensorInfo]
    workers: int
    seed: int = 0
    fill: Fill = "zero"
    payload: int = PAYLOAD
    feed_back: bool = False
    states: list[list[State]] = field(init=False)
    last: list[dict[int, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        if self.fill != "zero" and self.reducer.places != "fixed":
            raise ValueError(
                f"fill = {self.fill!r} wants to know which elements were lost, and {self.reducer.kind} sends "
                "them with their places; expected zero, or a reducer whose elements have fixed places"
            )
        self.states = [
            [State(self.seed, worker, tensor, self.workers) for tensor in range(len(self.infos))]
            for worker in range(self.workers)
        ]
        self.last = [{} for _ in range(self.workers)]

    def step(
        self, gradients: Sequence[Sequence[Tensor]], number: int, network: Network | None = None
    ) -> tuple[list[Tensor], Sent]:
        """The mean of the gradients that everybody has after a step, T tensors in their shapes, and what it took.

        gradients : N lists of T tensors.
        number : of the step, from 0.
        network : what carries it; nothing is lost if absent.
        """
        network = network or Ideal()
        sent = Sent([0] * self.workers, [[0.0] * len(self.infos) for _ in range(self.workers)])
        for states in self.states:
            for state in states:
                state.step = number
        encoded = self._each(lambda w, t: self.reducer.compress(gradients[w][t], self.infos[t], self.states[w][t]))
        for round_ in range(self.reducer.rounds):
            shares, means = self._round(round_, number, encoded, network, sent)
            if round_ + 1 < self.reducer.rounds:
                encoded = self._following(means)
        whole = []
        for tensor, info in enumerate(self.infos):
            results = [self.reducer.restore(means[tensor], info, self.states[w][tensor]) for w in range(self.workers)]
            for worker, result in enumerate(results):
                mine = shares[worker][tensor] if self.reducer.rounds == 1 else result
                self.reducer.settle(mine, info, self.states[worker][tensor])
            whole.append(results[0].view(info.shape))
        return whole, sent

    def state_dict(self) -> dict[str, Any]:
        """What reducers remember, and what was received last, for a checkpoint."""
        return {
            "states": [[state.state_dict() for state in states] for states in self.states],
            "last": [{tensor: value.clone() for tensor, value in each.items()} for each in self.last],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        for states, theirs in zip(self.states, saved["states"], strict=True):
            for state, their in zip(states, theirs, strict=True):
                state.load_state_dict(their)
        self.last = [{tensor: value.clone() for tensor, value in each.items()} for each in saved["last"]]

    def _following(self, means: list[Tensor]) -> list[list[Encoded]]:
        return self._each(lambda w, t: self.reducer.follow(means[t], self.infos[t], self.states[w][t]))

    def _each(self, make: Callable[[int, int], Encoded]) -> list[list[Encoded]]:
        return [[make(worker, tensor) for tensor in range(len(self.infos))] for worker in range(self.workers)]

    def _round(
        self, round_: int, number: int, encoded: list[list[Encoded]], network: Network, sent: Sent
    ) -> tuple[list[list[Tensor]], list[Tensor]]:
        """What each worker counts as sent, by tensor, and the mean of what has arrived."""
        answer = network.carry(Pushed(number, round_, self.payload, self.infos, encoded))
        masks, sent.time_ps = answer.arrived, sent.time_ps + answer.time_ps
        shares: list[list[Tensor]] = [[] for _ in range(self.workers)]
        means = []
        for tensor, info in enumerate(self.infos):
            total, count = None, None
            for worker in range(self.workers):
                mine, mask = encoded[worker][tensor], masks[worker][tensor]
                sent.nbytes[worker] += mine.nbytes(self.payload)
                there = None if mask is None else mine.arrived(mask, self.payload)
                got = self.reducer.decode(mine, info, there)
                if there is not None and len(there):
                    loss = 1 - int(there.sum()) / len(there)
                    sent.lost[worker][tensor] = max(sent.lost[worker][tensor], loss)
                share = got if there is None or self.feed_back else self.reducer.decode(mine, info)
                shares[worker].append(share)
                if there is not None and self.fill != "zero":
                    covered = self.reducer.covered(mine, info, there)
                    if self.fill == "rescaled":
                        if count is None:
                            count = got.new_full(got.shape, float(self.workers))
                        count -= (~covered).float()
                    elif (before := self.last[worker].get(tensor)) is not None and before.shape == got.shape:
                        got = got.where(covered, before)
                if self.fill == "stale":
                    self.last[worker][tensor] = got
                total = got.clone() if total is None else total.add_(got)
            assert total is not None
            means.append(total / (self.workers if count is None else count.clamp(min=1)))
        return shares, means
