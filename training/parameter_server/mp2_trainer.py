"""Trains with MP2, where workers push an eighth of their parameters and the server predicts the rest.

In a step every worker makes its own SGD step from the common parameters and pushes the new values of some of them. The
server averages these, and a network predicts from them, and from how parameters moved when they were last pushed, how
far the others have moved (Computer Networks 255, 2024, 110883, of which only the abstract is public;
`gradwire.training.systems.mp2.MP2` says which choices are ours). Workers keep their momentum, so that gradients of
parameters that are not pushed are not forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.training.data import Images, Text
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.networks.network_interface import Masks, Network, Pushed, checked_carry
from gradwire.training.parameter_server.asynchronous_trainer import lost_shares
from gradwire.training.parameter_server.predictor import BLOCK, PERIOD, features, kinds_of, load_predictor
from gradwire.training.parameter_server.predictor_file import UNPREDICTED
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import group_units
from gradwire.training.replicas import check_sgd, moves
from gradwire.training.trainer import StepRow, Trainer

if TYPE_CHECKING:
    from gradwire.training.systems.mp2 import MP2

Positions = Sequence[Tensor | None]
"""The elements of each tensor that are pushed; None for all."""
CHECKED_BLOCKS = 16
"""One of this many blocks is predicted without half of its pushed values, to measure the prediction error."""
ERROR_DECAY = 0.9
"""Weight of an older error relative to a new one."""


class Mp2Trainer(Trainer):
    """Trains with MP2. Matrices and convolutions are predicted; everything else is pushed as it is. A partly lost push
    is averaged over the workers that arrived; an element that arrived from none is taken to move as when it was last
    pushed."""

    state_key: ClassVar[str] = "mp2"
    state_names: ClassVar[tuple[str, ...]] = ("velocity", "moved", "age", "error", "full")

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, rules: MP2, network: Network | None = None
    ) -> None:
        if recipe.fill != "zero":
            raise ValueError(f"fill = {recipe.fill!r} applies to gradients; expected zero: parameters are pushed")
        check_sgd(recipe)
        super().__init__(model, data, recipe, None, network)
        self.rules = rules
        self.predictor: nn.Module | None = None
        if self.rules.predictor not in UNPREDICTED:
            self.predictor = load_predictor("mp2", self.rules.predictor)[0].to(self.device)
        kinds = kinds_of(model)
        self.blocked = [at for at, kind in enumerate(kinds) if kind in ("conv", "fc")]
        sizes = [_blocks(self.infos[at].numel) for at in self.blocked]
        of_conv = [kinds[at] == "conv" for at, size in zip(self.blocked, sizes, strict=True) for _ in range(size)]
        self.conv = torch.tensor(of_conv, dtype=torch.bool, device=self.device)
        self.velocity: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.moved = [torch.zeros(size, BLOCK, device=self.device) for size in sizes]
        """Last pushed movement of each parameter, in blocks."""
        self.age = torch.zeros(BLOCK, dtype=torch.long, device=self.device)
        self.error = 0.0
        """Prediction error: distance from what was pushed, relative to its size; 0 before the first measurement."""
        self.full = 0
        """Steps in which everything was pushed."""

    def step(self) -> StepRow:
        """Run one step of all workers, and one exchange."""
        number, rate, recipe = self.done, self.recipe.rate_at(self.done), self.recipe
        self.model.train()
        losses, gradients = self.gradients(self.loss, *self.dealer.step(number))
        before = [move.detach() for move in self.model.parameters()]
        is_full = number % self.rules.full_every == 0 or self.error > self.rules.tolerance
        positions = self._pushed_positions(number, is_full)
        pushed = []
        for worker in range(recipe.workers):
            worker_moves, self.velocity[worker] = moves(recipe, before, gradients[worker], self.velocity[worker])
            began = time.thread_time_ns()
            parts = zip(before, worker_moves, positions, strict=True)
            pushed.append([_encode_part((value - rate * move).reshape(-1), where) for value, move, where in parts])
            self.encode_ns += time.thread_time_ns() - began
        sent = sum(move.nbytes(recipe.payload) for row in pushed for move in row)
        pulled = 4 * sum(info.numel for info in self.infos) * recipe.workers if self.rules.pull == "full" else sent
        back = (lambda: [4 * info.numel for info in self.infos]) if self.rules.pull == "full" else None
        answer = checked_carry(self.network, Pushed(number, 0, recipe.payload, self.infos, pushed, back=back))
        began = time.thread_time_ns()
        lost = [lost_shares(*row, recipe.payload) for row in zip(pushed, answer.arrived, strict=True)]
        averages = self._averages(before, positions, pushed, answer.arrived)
        self._update_parameters(before, averages, positions, is_full, number)
        self.server_ns += time.thread_time_ns() - began
        return self.finish_step(sum(losses) / len(losses), sent, pulled, answer.time_ps, lost)

    # --- what is pushed ------------------------------------------------------------------------------------------

    def _pushed_positions(self, number: int, is_full: bool) -> list[Tensor | None]:
        """Return the elements of each tensor to push, None for all: `self.now` in every block."""
        now = torch.ones(BLOCK, dtype=torch.bool) if is_full else positions_at(number, self.recipe.seed)
        self.now = now.to(self.device)
        positions: list[Tensor | None] = [None] * len(self.infos)
        if not is_full:
            for at in self.blocked:
                numel = self.infos[at].numel
                positions[at] = self.now.repeat(_blocks(numel))[:numel].nonzero().view(-1)
        return positions

    def _averages(
        self, before: Sequence[Tensor], positions: Positions, pushed: Sequence[Sequence[Encoded]], arrived: Masks
    ) -> list[Tensor]:
        """Return the mean of the pushed elements of each tensor, over the workers whose packets arrived."""
        averages = []
        for at, (value, where) in enumerate(zip(before, positions, strict=True)):
            total = torch.zeros_like(pushed[0][at].fields[0])
            count = torch.zeros_like(total)
            for row, masks in zip(pushed, arrived, strict=True):
                units = row[at].arrived(masks[at], self.recipe.payload)
                total += row[at].fields[0] if units is None else row[at].fields[0] * units
                count += 1.0 if units is None else units.float()
            mean = total / count.clamp(min=1)
            if (count == 0).any():
                old = value.reshape(-1) if where is None else value.reshape(-1)[where]
                if at in self.blocked:
                    last = self.moved[self.blocked.index(at)].view(-1)[: value.numel()]
                    old = old + (last if where is None else last[where])
                mean = mean.where(count > 0, old)
            averages.append(mean)
        return averages

    # --- what is predicted ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _update_parameters(
        self, before: Sequence[Tensor], averages: Sequence[Tensor], positions: Positions, is_full: bool, number: int
    ) -> None:
        """Update the parameters: pushed ones to their averages, the rest to their predictions."""
        if is_full or not self.blocked:
            for spot, at in enumerate(self.blocked):
                self.moved[spot] = group_units(averages[at] - before[at].reshape(-1), BLOCK)
            self.age[:] = 0
            self.error = 0.0
            self.full += 1
            for value, mean in zip(before, averages, strict=True):
                value.copy_(mean.view(value.shape))
            return
        scales, spreads, observed, values = [], [], [], []
        for at in self.blocked:
            where, old = positions[at], before[at].reshape(-1)
            assert where is not None
            moved = averages[at] - old[where]
            scales.append(moved.abs().mean().clamp(min=1e-12).expand(_blocks(len(old))))
            spreads.append(old.std(correction=0).clamp(min=1e-12).expand(_blocks(len(old))))
            observed.append(group_units(torch.zeros_like(old).index_copy(0, where, moved), BLOCK))
            values.append(group_units(old, BLOCK))
        self.age += 1
        inputs = (torch.cat(values), torch.cat(self.moved), torch.cat(scales), torch.cat(spreads))
        seen = torch.cat(observed)
        self._measure_error(seen, *inputs, number)
        self.age[self.now] = 0
        guess = self._predict(seen, self.age, *inputs, self.conv)
        first = 0
        for spot, at in enumerate(self.blocked):
            count, old = _blocks(self.infos[at].numel), before[at]
            self.moved[spot] = torch.where(self.now, observed[spot], self.moved[spot])
            step = torch.where(self.now, observed[spot], guess[first : first + count])
            old += step.view(-1)[: old.numel()].view(old.shape)
            first += count
        for at, value in enumerate(before):
            if (where := positions[at]) is None:
                value.copy_(averages[at].view(value.shape))
            else:  # the pushed value itself, without the rounding of a difference
                value.view(-1)[where] = averages[at]

    def _predict(
        self, seen: Tensor, age: Tensor, values: Tensor, last: Tensor, scale: Tensor, spread: Tensor, conv: Tensor
    ) -> Tensor:
        if self.predictor is None:
            return last if self.rules.predictor == "hold" else torch.zeros_like(last)
        return self.predictor(features(seen, age, values, last, scale, spread, conv)) * scale[:, None]

    def _measure_error(
        self, seen: Tensor, values: Tensor, last: Tensor, scale: Tensor, spread: Tensor, number: int
    ) -> None:
        """Measure the prediction error: half of what was pushed of some blocks is held out, predicted and compared."""
        chosen = slice(number % min(CHECKED_BLOCKS, len(seen)), None, CHECKED_BLOCKS)
        pushed = self.now.nonzero().view(-1)
        held_out, visible = pushed[::2], pushed[1::2]
        part, age = torch.zeros_like(seen[chosen]), self.age.clone()
        part[:, visible], age[visible] = seen[chosen][:, visible], 0
        inputs = (values[chosen], last[chosen], scale[chosen], spread[chosen], self.conv[chosen])
        guess = self._predict(part, age, *inputs)[:, held_out]
        truth = seen[chosen][:, held_out]
        error = float((guess - truth).abs().sum() / truth.abs().sum().clamp(min=1e-30))
        self.error = ERROR_DECAY * self.error + (1 - ERROR_DECAY) * error if self.error else error


def positions_at(number: int, seed: int) -> Tensor:
    """Return the positions of a block to push in a step, (BLOCK,) bool. They are an eighth of the block, different ones
    in each of eight steps, in an order drawn from a shared seed."""
    cycle, phase = divmod(number, PERIOD)
    order = np.random.default_rng([seed, 2, cycle]).permutation(BLOCK)
    now = torch.zeros(BLOCK, dtype=torch.bool)
    now[torch.from_numpy(order[phase::PERIOD].copy())] = True
    return now


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK)


def _encode_part(values: Tensor, where: Tensor | None) -> Encoded:
    """Encode values, or those at positions that all know."""
    return Encoded((values,)) if where is None else Encoded((values[where],), known={"indices": where})
