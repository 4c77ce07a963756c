"""`Asynchronous` trains with an asynchronous or stale-synchronous parameter server, which updates after every worker's
push.

A worker computes its gradients at the parameters of its last pull, while others' updates go on; the number of updates
in between is its staleness. With a bound s on the lead of a worker (stale-synchronous parallel, Ho et al., NeurIPS
'13), a worker that is more than s turns ahead of the slowest one waits for it.

Events are ordered by simulated time: a worker's compute time is given; a push takes what the network answers, or bytes
over a rate; ties are in the order of planning. So runs are repeatable, and one worker is synchronous training bit by
bit. Alternatively pushes and pulls travel packet by packet through a shared simulated network
(`gradwire.training.networks.simulated_async`), which determines their durations.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.validation.argument_checks import require_integer
from gradwire.traces.trace import TensorInfo
from gradwire.training.backward.worker_gradients import buffers_of, merge_buffers
from gradwire.training.data import Images, Text
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.networks.network_interface import Network, Pushed, checked_carry
from gradwire.training.networks.simulated_async import SimulatedTurns
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.replicas import Copies, descend, slice_of
from gradwire.training.trainer import StepRow, Trainer
from gradwire.training.value_checks import check_decoded, innermost

COMPUTED, ARRIVED = 0, 1
PUSH, PULL = 0, 1
SECOND_PS = 10**12


@dataclass(frozen=True)
class LinkTiming:
    """Compute times and link rates where no network is simulated.

    compute_ps : a turn's compute time by worker, repeated cyclically.
    rate : bits per second of each worker's link, in both directions; 0: transfers take no time.
    server_rate : of the server's link, which carries pushes and pulls one after the other, in the order in which they
        begin; 0: no sharing.
    """

    compute_ps: tuple[int, ...] = (0,)
    rate: int = 0
    server_rate: int = 0

    def computing(self, worker: int) -> int:
        """Return the compute time of a worker, in picoseconds."""
        return self.compute_ps[worker % len(self.compute_ps)]

    def transfer_end(self, nbytes: int, now: int, free: int) -> tuple[int, int]:
        """Return (end of the transfer, time when the server's link is free), in picoseconds, rounded up. A transfer
        begins now, or when the server's link is free, and takes the time of the slower link."""
        worker_ps, server_ps = (
            -(-8 * nbytes * SECOND_PS // rate) if rate else 0 for rate in (self.rate, self.server_rate)
        )
        begin = max(now, free) if self.server_rate else now
        return begin + max(worker_ps, server_ps), begin + server_ps


@dataclass(frozen=True)
class Turn:
    """One merged push.

    turn, worker : its number among all pushes, and the worker.
    clock_ps : when it was merged.
    stale : updates by others between this worker's pull and its push.
    lost, by_tensor : share of it that did not arrive, and of each tensor.
    """

    turn: int
    worker: int
    clock_ps: int
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
    statistics move by an N-th with every turn, and cost no bytes, as in synchronous training. A push takes the
    network's time and that of `pace`; pulls take the time of `pace`, without loss.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Images | Text,
        recipe: Recipe,
        reducer: Reducer | None = None,
        network: Network | SimulatedTurns | None = None,
        *,
        staleness: int | None = None,
        pace: LinkTiming | None = None,
    ) -> None:
        """Validate the parts and plan the first turns.

        network : carries each push by itself; or a `SimulatedTurns` that carries pushes and pulls, with `pace` for
            compute times only.
        staleness : turns by which a worker may be ahead of the slowest; no bound if absent.

        Raises ValueError if the reducer needs workers to agree, `fill` is not zero, or there is no server. Raises
        ScenarioError if workers or packets are not those of the network's job, or `staleness` is not a number of turns.
        """
        self.live = network if isinstance(network, SimulatedTurns) else None
        """The network that carries pushes and pulls, if there is one."""
        if self.live is not None and (recipe.workers, recipe.payload) != (self.live.workers, self.live.payload):
            what = f"{recipe.workers} workers with packets of {recipe.payload} bytes"
            expected = f"{self.live.workers} and {self.live.payload}, as the scenario's job has"
            raise ScenarioError(what, "Asynchronous(recipe)", expected)
        if staleness is not None:
            require_integer(staleness, "Asynchronous(staleness)", 0, ScenarioError)
        if recipe.collective != "parameter_server":
            raise ValueError(f"collective = {recipe.collective!r} has no server; expected parameter_server")
        if recipe.fill != "zero":
            what = f"fill = {recipe.fill!r} applies to a mean of workers"
            raise ValueError(f"{what}; expected zero: they push one by one")
        super().__init__(model, data, recipe, reducer, None if isinstance(network, SimulatedTurns) else network)
        if (rounds := self.exchange.reducer.rounds) > 1:
            what = f"{self.exchange.reducer.kind} has {rounds} rounds in which workers agree"
            raise ValueError(f"{what}; expected one: they come one by one")
        for key in ("vote", "both_ways"):
            if getattr(innermost(self.exchange.reducer), key, False):
                what = f"{self.exchange.reducer.kind}: {key} = true needs the mean of all workers"
                raise ValueError(f"{what}, and they push one by one")
        self.staleness, self.pace = staleness, pace or LinkTiming()
        count = recipe.workers
        self.copies = Copies(model, count)
        self.messages: Sequence[TensorInfo] = self.infos
        """Messages of a push: one per tensor, or more."""
        self.kept: Collection[int] = ()
        """Messages that must not lose anything."""
        self.version = 0
        """Updates made by the server."""
        self.turns = [0] * count
        """Merged pushes of each worker."""
        self.pulled_at = [0] * count
        self.free = [0, 0]
        """Time at which the server's link is free for the next push, and the next pull."""
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
        """Run as many turns as there are workers; a worker may have several of them, or none. Losses are reported turn
        by turn (`lost`, `senders`)."""
        if self.live is not None and self.live.full:
            self.come_to_rest()
        before = self.clock_ps
        rate = self.recipe.rate_at(self.done)
        self.log = [self.turn() for _ in range(self.recipe.workers)]
        self.lost, self.senders = [list(turn.by_tensor) for turn in self.log], [turn.worker for turn in self.log]
        total = {name: sum(getattr(turn, name) for turn in self.log) for name in ("loss", "lost", "sent_bytes")}
        number, count, passed_ps = self.done, len(self.log), self.clock_ps - before
        loss, lost, pulled = total["loss"] / count, total["lost"] / count, sum(turn.pulled_bytes for turn in self.log)
        self.done += 1
        return StepRow(number, loss, total["sent_bytes"], lost, passed_ps, self.clock_ps, rate, pulled_bytes=pulled)

    def turn_rows(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in asdict(turn).items() if name != "by_tensor"} for turn in self.log]

    def turn(self) -> Turn:
        """Process events until the next push has been merged."""
        while True:
            if self.live is not None:
                arrival = self.live.next(self.events[0][0] + 1 if self.events else None)
                if arrival is not None:
                    self.clock_ps = arrival.time_ps
                    if arrival.pushed:
                        self._receive(arrival.worker, arrival.masks)
                        return self._merge(arrival.worker)
                    self._schedule(self.clock_ps + self.pace.computing(arrival.worker), arrival.worker, COMPUTED)
                    continue
            self.clock_ps, _, worker, kind = heapq.heappop(self.events)
            if kind == ARRIVED:
                return self._merge(worker)
            self._compute(worker)

    @property
    def has_persistent_state(self) -> bool:
        return self.live is not None or super().has_persistent_state

    def come_to_rest(self) -> None:
        """Bring the network to rest: what is under way arrives at its time, and nothing new meets it."""
        if self.live is None:
            super().come_to_rest()
            return
        for arrival in self.live.come_to_rest(self.clock_ps):
            if arrival.pushed:
                self._receive(arrival.worker, arrival.masks)
                self._schedule(arrival.time_ps, arrival.worker, ARRIVED)
            else:
                self._schedule(arrival.time_ps + self.pace.computing(arrival.worker), arrival.worker, COMPUTED)

    # --- overridden by systems ---------------------------------------------------------------------------------

    def encode(self, worker: int, gradients: list[Tensor]) -> list[Encoded]:
        """Return the encodings that a worker pushes."""
        for state in self.exchange.states[worker]:
            state.step = self.turns[worker]
        return self.exchange.encoded_alone(worker, gradients)

    def received(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> dict[str, Any]:
        """Return what arrived of a push, of tensors, lists and numbers only, for `update`; called when it is sent."""
        reducer, gradients = self.exchange.reducer, []
        for encoding, info, mask in zip(encoded, self.infos, masks, strict=True):
            units = encoding.arrived(mask, self.recipe.payload)
            gradient = reducer.decode(encoding, info, units)
            if self.exchange.looks:
                check_decoded(reducer, "decode", gradient, info)
            gradients.append(gradient.view(info.shape))
        return {"gradients": gradients}

    def settle(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> None:
        """Update a worker's reducer state after a push."""
        reducer = self.exchange.reducer
        for encoding, info, state, mask in zip(encoded, self.infos, self.exchange.states[worker], masks, strict=True):
            units = encoding.arrived(mask if self.recipe.feed_back else None, self.recipe.payload)
            reducer.settle(reducer.decode(encoding, info, units), info, state)

    def magnitudes(self, worker: int, encoded: Sequence[Encoded], message: int) -> Tensor:
        """Return the mean magnitude of each unit of a worker's message, (units,)."""
        return self.exchange.sizes(encoded[message], self.messages[message])

    def shares(self, lost: list[float]) -> list[float]:
        """Return the loss of each tensor, given the loss of each message."""
        return lost

    def update(self, worker: int, received: dict[str, Any], rate: float) -> None:
        """Apply a push at the server."""
        parameters = list(self.model.parameters())
        descend(self.optimizer, parameters, received["gradients"], rate, self.recipe.clip)

    def pull(self, worker: int) -> int:
        """Update a worker's copy from the server; return the bytes."""
        nbytes = 0
        for value, parameter in zip(self.copies.values[worker], self.model.parameters(), strict=True):
            value.copy_(parameter.detach())
            nbytes += Encoded((value.view(-1),)).nbytes(self.recipe.payload)
        return nbytes

    def adopt(self, worker: int) -> None:
        """Finish a pull at the worker, as far as the server has no part in it."""

    def answer(self, worker: int, nbytes: int) -> list[int]:
        """Return the bytes of each message of a pull of `nbytes`, for a network that carries them."""
        return [4 * info.numel for info in self.infos]

    # --- events ------------------------------------------------------------------------------------------------

    def _compute(self, worker: int) -> None:
        self.model.train()
        inputs, targets = self._samples(self.batches[worker])
        before = buffers_of(self.model)
        loss, gradients = self.copies.gradients(worker, self.loss, inputs, targets)
        merge_buffers(self.model, before, [buffers_of(self.model)], self.recipe.workers)
        began = time.thread_time_ns()
        encoded = self.encode(worker, gradients)
        self.encode_ns += time.thread_time_ns() - began
        number, payload = self.batches[worker], self.recipe.payload
        sizes = lambda _, message: self.magnitudes(worker, encoded, message)  # noqa: E731
        pushed = Pushed(number, 0, payload, self.messages, [encoded], kept=self.kept, sizes=sizes)
        nbytes = sum(encoding.nbytes(payload) for encoding in encoded)
        self.flying[worker] = {"loss": loss, "bytes": nbytes, "encoded": encoded}
        if self.live is not None:
            self.live.push(worker, self.turns[worker], pushed, self.clock_ps)
            return
        answer = checked_carry(self.network, pushed)
        self._receive(worker, answer.arrived[0])
        self._schedule(answer.time_ps + self._transfer_end(nbytes, PUSH), worker, ARRIVED)

    def _receive(self, worker: int, masks: Sequence[Tensor | None]) -> None:
        push = self.flying[worker]
        encoded = push.pop("encoded")
        began = time.thread_time_ns()
        push["got"] = self.received(worker, encoded, masks)
        self.server_ns += time.thread_time_ns() - began
        self.settle(worker, encoded, masks)
        push["lost"] = self.shares(lost_shares(encoded, masks, self.recipe.payload))

    def _merge(self, worker: int) -> Turn:
        push, self.flying[worker] = self.flying[worker], {}
        number, stale = self.version, self.version - self.pulled_at[worker]
        began = time.thread_time_ns()
        rate = self.recipe.rate_at(number // self.recipe.workers) / self.recipe.workers
        self.update(worker, push["got"], rate)
        self.server_ns += time.thread_time_ns() - began
        self.version += 1
        self.turns[worker] += 1
        self.waiting.append(worker)
        pulled = self._release_waiting()
        self.sent_bytes += push["bytes"]
        self.pulled_bytes += pulled
        numel, shares = sum(info.numel for info in self.infos), tuple(push["lost"])
        lost = sum(share * info.numel for share, info in zip(shares, self.infos, strict=True)) / numel
        return Turn(number, worker, self.clock_ps, stale, push["loss"], push["bytes"], pulled, lost, shares)

    def _release_waiting(self) -> int:
        """Let the workers that may continue pull and begin their next turn; return the bytes of all."""
        total, still = 0, []
        for worker in self.waiting:
            if self.staleness is not None and self.turns[worker] - min(self.turns) > self.staleness:
                still.append(worker)
                continue
            began = time.thread_time_ns()
            nbytes = self.pull(worker)
            self.server_ns += time.thread_time_ns() - began
            self.adopt(worker)
            total += nbytes
            self.pulled_at[worker] = self.version
            self.batches[worker], self.begun = self.begun, self.begun + 1
            if self.live is None:
                self._schedule(self._transfer_end(nbytes, PULL) + self.pace.computing(worker), worker, COMPUTED)
            else:
                self.live.pull(worker, self.turns[worker], self.messages, self.answer(worker, nbytes), self.clock_ps)
        self.waiting = still
        return total

    def _transfer_end(self, nbytes: int, way: int) -> int:
        when, self.free[way] = self.pace.transfer_end(nbytes, self.clock_ps, self.free[way])
        return when

    def _schedule(self, when: int, worker: int, what: int) -> None:
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
        """Bring the network to rest and return the state."""
        self.come_to_rest()
        live, order = self.live and self.live.state_dict(), {name: _plain(getattr(self, name)) for name in ORDER}
        copies, flying = self.copies.state_dict(), deepcopy(self.flying)
        return {**super().state_dict(), "live": live, "copies": copies, "flying": flying, "order": order}

    def load_state(self, saved: dict[str, Any]) -> None:
        super().load_state(saved)
        self.copies.load_state_dict(saved["copies"])
        self.flying = saved["flying"]
        for name in ORDER:
            setattr(self, name, _plain(saved["order"][name]))
        self.events = [(when, order, worker, what) for when, order, worker, what in self.events]
        if self.live is not None:
            self.live.load_state_dict(saved["live"], self.clock_ps)


ORDER = ("version", "turns", "pulled_at", "free", "batches", "begun", "waiting", "events", "planned")
"""State of the event order in a checkpoint."""


def _plain(value: Any) -> Any:
    return [list(item) if isinstance(item, tuple) else item for item in value] if isinstance(value, list) else value


def lost_shares(encoded: Sequence[Encoded], masks: Sequence[Tensor | None], payload: int) -> list[float]:
    """Return the share of each tensor's units that did not arrive."""
    shares = []
    for encoding, mask in zip(encoded, masks, strict=True):
        units = encoding.arrived(mask, payload)
        shares.append(0.0 if units is None or not len(units) else 1 - int(units.sum()) / len(units))
    return shares
