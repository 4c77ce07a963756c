"""Asynchronous training: workers push, and pull, each when it is ready, and a server makes an update of every push.

A worker computes its gradients at the parameters that it pulled last, while others' updates go on; how many there were
in between is its staleness. With a bound s on how far workers may get ahead (stale-synchronous parallel, Ho et al.,
NeurIPS '13) a worker that has s more turns behind it than the slowest waits for that one.

The order of everything is that of simulated time: how long a worker computes is given; how long a push takes is what
the network answers, or bytes over a rate, and what is due at the same time comes in the order in which it was planned.
So runs are repeatable, and one worker is synchronous training bit by bit. Or pushes and pulls go packet by packet
through a network that all share (`gradwire.training.simulated_turns`), and take what they take there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import whole_number
from gradwire.traces.trace import TensorInfo
from gradwire.training.copies import Copies, buffers_of, share_out, slice_of
from gradwire.training.data import Images, Text
from gradwire.training.encoded import Encoded
from gradwire.training.gradients import Loss, of_one
from gradwire.training.network import Network, Pushed
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.seam import carried
from gradwire.training.served.pace import Pace
from gradwire.training.simulated_turns import SimulatedTurns
from gradwire.training.strangers import check_decoded, innermost
from gradwire.training.trainer import StepRow, Trainer, losses_of

COMPUTED, ARRIVED = 0, 1
PUSH, PULL = 0, 1


@dataclass(frozen=True)
class Turn:
    """One push that has been merged.

    number, worker : which one it is of all, and whose.
    time_ps : when it was merged.
    stale : updates that others made between this worker's pull and its push.
    lost, by_tensor : share of it that did not arrive, and of each tensor.
    """

    number: int
    worker: int
    time_ps: int
    stale: int
    loss: float
    sent_bytes: int
    pulled_bytes: int
    lost: float
    by_tensor: tuple[float, ...]


class Asynchronous(Trainer):
    """Trains with an asynchronous or stale-synchronous parameter server. A step is as many turns as there are workers.

    Samples are dealt as in synchronous training, and whoever begins a turn takes the next slice. An update has an N-th
    of the learning rate (our choice), so that a step moves the parameters as far as a synchronous one. Running
    statistics move by an N-th with every turn, and cost no bytes, as in synchronous training. What a push takes is
    the network's answer and `pace`; pulls take what `pace` says, and nothing of them is lost.
    """

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, reducer: Reducer | None = None,
        network: Network | SimulatedTurns | None = None, loss: Loss = losses_of, *, staleness: int | None = None,
        pace: Pace | None = None,
    ) -> None:  # fmt: skip
        """
        Parameters
        ----------
        network : what pushes meet, each by itself; or what carries them, and pulls, and then `pace` says but how long
            workers compute.
        staleness : turns by which a worker may be ahead of the slowest; no bound if absent.

        Raises
        ------
        ValueError
            The reducer wants workers to agree on something, `fill` is another than zero, or there is no server.
        ScenarioError
            Workers or packets are not those of the network's job, or `staleness` is no number of turns.
        """
        self.live = network if isinstance(network, SimulatedTurns) else None
        """What carries pushes and pulls, if anything does."""
        if self.live is not None and (recipe.workers, recipe.payload) != (self.live.workers, self.live.payload):
            raise ScenarioError(
                f"{recipe.workers} workers with packets of {recipe.payload} bytes", "Asynchronous(recipe)",
                f"{self.live.workers} and {self.live.payload}, as the scenario's job has",
            )  # fmt: skip
        if staleness is not None:
            whole_number(staleness, "Asynchronous(staleness)", 0, ScenarioError)
        if recipe.collective != "parameter_server":
            raise ValueError(f"collective = {recipe.collective!r} has no server; expected parameter_server")
        if recipe.fill != "zero":
            raise ValueError(f"fill = {recipe.fill!r} is about a mean of workers; expected zero: they come one by one")
        super().__init__(model, data, recipe, reducer, None if isinstance(network, SimulatedTurns) else network, loss)
        if (rounds := self.exchange.reducer.rounds) > 1:
            raise ValueError(
                f"{self.exchange.reducer.kind} has {rounds} rounds in which workers agree; expected one: they come one "
                "by one"
            )
        if getattr(innermost(self.exchange.reducer), "vote", False):
            raise ValueError(f"{self.exchange.reducer.kind}: vote = true is of all workers, and they come one by one")
        self.staleness, self.pace = staleness, pace or Pace()
        count = recipe.workers
        self.copies = Copies(model, count)
        self.messages: Sequence[TensorInfo] = self.infos
        """What is pushed: a message for each tensor, or more."""
        self.kept: Collection[int] = ()
        """Messages of which nothing is lost."""
        self.version = 0
        """Updates that the server has made."""
        self.turns = [0] * count
        """Merged pushes of each worker."""
        self.pulled_at = [0] * count
        self.free = [0, 0]
        """When the server's link can carry the next push, and the next pull."""
        self.batches = list(range(count))
        self.begun = count
        self.flying: list[dict[str, Any]] = [{} for _ in range(count)]
        self.waiting: list[int] = []
        self.events = [(self.pace.computing(worker), worker, worker, COMPUTED) for worker in range(count)]
        heapq.heapify(self.events)
        self.planned = count
        self.log: list[Turn] = []
        """The turns of the last step."""
        self._dealt: dict[int, Any] = {}

    def step(self) -> StepRow:
        """As many turns as there are workers; some of these may have several, and some none. What was lost is said turn
        by turn (`lost`, `senders`)."""
        if self.live is not None and self.live.full:
            self.rest()
        before = self.clock_ps
        rate = self.recipe.rate_at(self.done)
        self.log = [self.turn() for _ in range(self.recipe.workers)]
        self.lost, self.senders = [list(each.by_tensor) for each in self.log], [each.worker for each in self.log]
        number, count = self.done, len(self.log)
        self.done += 1
        return StepRow(
            number, sum(each.loss for each in self.log) / count, sum(each.sent_bytes for each in self.log),
            sum(each.lost for each in self.log) / count, self.clock_ps - before, self.clock_ps, rate,
            pulled_bytes=sum(each.pulled_bytes for each in self.log),
        )  # fmt: skip

    def last_turns(self) -> list[dict[str, Any]]:
        return [
            {
                "turn": each.number, "worker": each.worker, "clock_ps": each.time_ps, "stale": each.stale,
                "loss": each.loss, "sent_bytes": each.sent_bytes, "pulled_bytes": each.pulled_bytes, "lost": each.lost,
            }
            for each in self.log
        ]  # fmt: skip

    def turn(self) -> Turn:
        """Everything until the next push has been merged."""
        while True:
            if self.live is not None:
                came = self.live.next(self.events[0][0] + 1 if self.events else None)
                if came is not None:
                    self.clock_ps = came.time_ps
                    if came.pushed:
                        self._arrived(came.worker, came.masks)
                        return self._merge(came.worker)
                    self._plan(self.clock_ps + self.pace.computing(came.worker), came.worker, COMPUTED)
                    continue
            self.clock_ps, _, worker, what = heapq.heappop(self.events)
            if what == ARRIVED:
                return self._merge(worker)
            self._compute(worker)

    @property
    def rests(self) -> bool:
        return self.live is not None or super().rests

    def rest(self) -> None:
        """Let the network rest: what is under way comes, at its time, and nothing new meets it there."""
        if self.live is None:
            super().rest()
            return
        for came in self.live.rest(self.clock_ps):
            if came.pushed:
                self._arrived(came.worker, came.masks)
            later = 0 if came.pushed else self.pace.computing(came.worker)
            self._plan(came.time_ps + later, came.worker, ARRIVED if came.pushed else COMPUTED)

    # --- what a system may do otherwise ------------------------------------------------------------------------

    def encode(self, worker: int, gradients: list[Tensor]) -> list[Encoded]:
        """What a worker pushes."""
        for state in self.exchange.states[worker]:
            state.step = self.turns[worker]
        return self.exchange.encoded_alone(worker, gradients)

    def received(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> dict[str, Any]:
        """What has arrived of it, of tensors, lists and numbers only, for `update`; called when it is sent."""
        reducer, found = self.exchange.reducer, []
        for mine, info, mask in zip(encoded, self.infos, masks, strict=True):
            there = None if mask is None else mine.arrived(mask, self.recipe.payload)
            gradient = reducer.decode(mine, info, there)
            if self.exchange.looks:
                check_decoded(reducer, "decode", gradient, info)
            found.append(gradient.view(info.shape))
        return {"gradients": found}

    def settle(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> None:
        """What a worker remembers of what it has pushed."""
        reducer = self.exchange.reducer
        for mine, info, state, mask in zip(encoded, self.infos, self.exchange.states[worker], masks, strict=True):
            told = mask is not None and self.recipe.feed_back
            there = mine.arrived(mask, self.recipe.payload) if told and mask is not None else None
            reducer.settle(reducer.decode(mine, info, there), info, state)

    def magnitudes(self, worker: int, encoded: Sequence[Encoded], message: int) -> Tensor:
        """The mean magnitude of what each unit of a message of a worker's stands for, (units,)."""
        return self.exchange.sizes(encoded[message], self.messages[message])

    def shares(self, lost: list[float]) -> list[float]:
        """What was lost of each tensor, given what was lost of each message."""
        return lost

    def update(self, worker: int, received: dict[str, Any], rate: float) -> None:
        """What the server makes of a push."""
        for parameter, gradient in zip(self.model.parameters(), received["gradients"], strict=True):
            parameter.grad = gradient
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def pull(self, worker: int) -> int:
        """Give a worker what it is to know; the bytes."""
        nbytes = 0
        for mine, parameter in zip(self.copies.values[worker], self.model.parameters(), strict=True):
            mine.copy_(parameter.detach())
            nbytes += Encoded((mine.view(-1),)).nbytes(self.recipe.payload)
        return nbytes

    def answer(self, worker: int, nbytes: int) -> list[int]:
        """The bytes of each message of a pull that has been made, of so many in all, where they have to be carried."""
        return [4 * info.numel for info in self.infos]

    # --- the order of things -----------------------------------------------------------------------------------

    def _compute(self, worker: int) -> None:
        self.model.train()
        inputs, targets = self._samples(self.batches[worker])
        before = buffers_of(self.model)
        loss, gradients = of_one(self.copies, worker, self.loss, inputs, targets)
        share_out(self.model, before, [buffers_of(self.model)], self.recipe.workers)
        began = time.thread_time_ns()
        encoded = self.encode(worker, gradients)
        self.encode_ns += time.thread_time_ns() - began
        payload = self.recipe.payload
        pushed = Pushed(
            self.batches[worker], 0, payload, self.messages, [encoded], kept=self.kept,
            sizes=lambda _, message: self.magnitudes(worker, encoded, message),
        )  # fmt: skip
        nbytes = sum(each.nbytes(payload) for each in encoded)
        self.flying[worker] = {"loss": loss, "bytes": nbytes, "encoded": encoded}
        if self.live is not None:
            self.live.push(worker, self.turns[worker], pushed, self.clock_ps)
            return
        answer = carried(self.network, pushed)
        self._arrived(worker, answer.arrived[0])
        self._plan(answer.time_ps + self._moved(nbytes, PUSH), worker, ARRIVED)

    def _arrived(self, worker: int, masks: Sequence[Tensor | None]) -> None:
        """What arrives of a push is known."""
        mine = self.flying[worker]
        encoded = mine.pop("encoded")
        began = time.thread_time_ns()
        mine["got"] = self.received(worker, encoded, masks)
        self.server_ns += time.thread_time_ns() - began
        self.settle(worker, encoded, masks)
        mine["lost"] = self.shares(lost_of(encoded, masks, self.recipe.payload))

    def _merge(self, worker: int) -> Turn:
        mine, self.flying[worker] = self.flying[worker], {}
        number, stale = self.version, self.version - self.pulled_at[worker]
        began = time.thread_time_ns()
        rate = self.recipe.rate_at(number // self.recipe.workers) / self.recipe.workers
        self.update(worker, mine["got"], rate)
        self.server_ns += time.thread_time_ns() - began
        self.version += 1
        self.turns[worker] += 1
        self.waiting.append(worker)
        pulled = self._go_on()
        self.sent_bytes += mine["bytes"]
        self.pulled_bytes += pulled
        numel, shares = sum(info.numel for info in self.infos), tuple(mine["lost"])
        lost = sum(share * info.numel for share, info in zip(shares, self.infos, strict=True)) / numel
        return Turn(number, worker, self.clock_ps, stale, mine["loss"], mine["bytes"], pulled, lost, shares)

    def _go_on(self) -> int:
        """Whoever waits and may go on pulls and begins its next turn; the bytes of all of these."""
        total, still = 0, []
        for worker in self.waiting:
            if self.staleness is not None and self.turns[worker] - min(self.turns) > self.staleness:
                still.append(worker)
                continue
            began = time.thread_time_ns()
            nbytes = self.pull(worker)
            self.server_ns += time.thread_time_ns() - began
            total += nbytes
            self.pulled_at[worker] = self.version
            self.batches[worker], self.begun = self.begun, self.begun + 1
            if self.live is None:
                self._plan(self._moved(nbytes, PULL) + self.pace.computing(worker), worker, COMPUTED)
            else:
                self.live.pull(worker, self.turns[worker], self.messages, self.answer(worker, nbytes), self.clock_ps)
        self.waiting = still
        return total

    def _moved(self, nbytes: int, way: int) -> int:
        when, self.free[way] = self.pace.moved(nbytes, self.clock_ps, self.free[way])
        return when

    def _plan(self, when: int, worker: int, what: int) -> None:
        heapq.heappush(self.events, (when, self.planned, worker, what))
        self.planned += 1

    def _samples(self, batch: int) -> tuple[tuple[Tensor, ...], Tensor]:
        number, part = divmod(batch, self.recipe.workers)
        if number not in self._dealt:
            if len(self._dealt) > 3:
                del self._dealt[min(self._dealt)]
            self._dealt[number] = self.dealer.step(number)
        return slice_of(self._dealt[number], part, self.recipe.workers)

    def state_dict(self) -> dict[str, Any]:
        """The network rests for it."""
        self.rest()
        return {
            **super().state_dict(), "live": None if self.live is None else self.live.state_dict(),
            "copies": self.copies.state_dict(), "flying": deepcopy(self.flying),
            "order": {name: _plain(getattr(self, name)) for name in ORDER},
        }  # fmt: skip

    def take_over(self, saved: dict[str, Any]) -> None:
        super().take_over(saved)
        self.copies.load_state_dict(saved["copies"])
        self.flying = [dict(each) for each in saved["flying"]]
        for name in ORDER:
            setattr(self, name, _plain(saved["order"][name]))
        self.events = [(when, order, worker, what) for when, order, worker, what in self.events]
        if self.live is not None:
            self.live.load_state_dict(saved["live"], self.clock_ps)


ORDER = ("version", "turns", "pulled_at", "free", "batches", "begun", "waiting", "events", "planned")
"""What of the order of things is in a checkpoint."""


def _plain(value: Any) -> Any:
    return [list(each) if isinstance(each, tuple) else each for each in value] if isinstance(value, list) else value


def lost_of(encoded: Sequence[Encoded], masks: Sequence[Tensor | None], payload: int) -> list[float]:
    """Share of each tensor's units that did not arrive."""
    found = []
    for each, mask in zip(encoded, masks, strict=True):
        there = None if mask is None else each.arrived(mask, payload)
        found.append(0.0 if there is None or not len(there) else 1 - int(there.sum()) / len(there))
    return found
