"""MP2: workers push an eighth of their parameters, and the server predicts the rest.

In a step every worker makes its own SGD step from the common parameters and pushes where some of them have got; the
server averages these, and a network says from them, and from how parameters moved when they were pushed last, how far
the others have moved (Computer Networks 255, 2024, 110883, of which only the abstract is public: what is ours is said
in `gradwire.training.systems.mp2.MP2`). Workers keep their momentum, so that what they have learned about a parameter
that is not pushed is not forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.training.data import Images, Text
from gradwire.training.encoded import Encoded
from gradwire.training.gradients import Loss
from gradwire.training.network import Network, Pushed
from gradwire.training.recipe import Recipe
from gradwire.training.seam import carried
from gradwire.training.served.asynchronous import lost_of
from gradwire.training.served.predictor import BLOCK, PERIOD, features, kinds_of, load_predictor
from gradwire.training.served.rows import counted
from gradwire.training.served.sgd import descends, moves
from gradwire.training.systems.mp2 import UNPREDICTED
from gradwire.training.trainer import StepRow, Trainer, losses_of

WATCHED = 16
"""Of so many blocks one is predicted without half of what was pushed of it, to see how good predictions are."""
FADES = 0.9
"""What an older error counts beside a new one."""


@dataclass(frozen=True)
class Predicted:
    """What is pushed and predicted; keys as in `gradwire.training.systems.mp2.MP2`, where they are explained."""

    predictor: str = "bundled"
    full_every: int = 50
    tolerance: float = 1.0
    pull: Literal["full", "pushed"] = "full"


class Mp2Trainer(Trainer):
    """Trains with MP2. Matrices and convolutions are predicted; everything else is pushed as it is.

    What was lost of a push is averaged over those that have arrived; what nobody has brought is taken to move as it
    did when it was pushed last.
    """

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, rules: Predicted | None = None,
        network: Network | None = None, loss: Loss = losses_of,
    ) -> None:  # fmt: skip
        if recipe.fill != "zero":
            raise ValueError(f"fill = {recipe.fill!r} is about gradients; expected zero: what is pushed are parameters")
        descends(recipe)
        super().__init__(model, data, recipe, None, network, loss)
        self.rules = rules or Predicted()
        self.predictor: nn.Module | None = None
        if self.rules.predictor not in UNPREDICTED:
            self.predictor = load_predictor("mp2", self.rules.predictor)[0].to(self.device)
        kinds = kinds_of(model)
        self.blocked = [at for at, kind in enumerate(kinds) if kind in ("conv", "fc")]
        of_conv = [each for at in self.blocked for each in [kinds[at] == "conv"] * _blocks(self.infos[at].numel)]
        self.conv = torch.tensor(of_conv, dtype=torch.bool, device=self.device)
        self.velocity: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        sizes = [_blocks(self.infos[at].numel) for at in self.blocked]
        self.moved = [torch.zeros(size, BLOCK, device=self.device) for size in sizes]
        """How far each parameter moved when it was pushed last, in blocks."""
        self.age = torch.zeros(BLOCK, dtype=torch.long, device=self.device)
        self.error = 0.0
        """Of predictions: their distance from what was pushed, relative to its size; 0 before there is any."""
        self.full = 0
        """Steps in which everything was pushed."""

    def step(self) -> StepRow:
        """A step of all workers, and one exchange."""
        number, rate, recipe = self.done, self.recipe.rate_at(self.done), self.recipe
        self.model.train()
        losses, gradients = self.gradients(self.loss, *self.dealer.step(number))
        before = [each.detach() for each in self.model.parameters()]
        whole = number % self.rules.full_every == 0 or self.error > self.rules.tolerance
        places = self._places(number, whole)
        pushed = []
        for worker in range(recipe.workers):
            move, self.velocity[worker] = moves(recipe, before, gradients[worker], self.velocity[worker])
            began = time.thread_time_ns()
            pushed.append([
                _part((value - rate * each).reshape(-1), where)
                for value, each, where in zip(before, move, places, strict=True)
            ])  # fmt: skip
            self.encode_ns += time.thread_time_ns() - began
        sent = sum(each.nbytes(recipe.payload) for row in pushed for each in row)
        pulled = 4 * sum(info.numel for info in self.infos) * recipe.workers if self.rules.pull == "full" else sent
        back = (lambda: [4 * info.numel for info in self.infos]) if self.rules.pull == "full" else None
        answer = carried(self.network, Pushed(number, 0, recipe.payload, self.infos, pushed, back=back))
        began = time.thread_time_ns()
        averages = self._averages(before, places, pushed, answer.arrived)
        self._move(before, averages, places, whole, number)
        self.server_ns += time.thread_time_ns() - began
        return counted(self, sum(losses) / len(losses), rate, sent, pulled, answer.time_ps)

    # --- what is pushed ------------------------------------------------------------------------------------------

    def _places(self, number: int, whole: bool) -> list[Tensor | None]:
        """Which elements of each tensor are pushed, None for all: of every block the places of `self.now`."""
        now = torch.ones(BLOCK, dtype=torch.bool) if whole else places_at(number, self.recipe.seed)
        self.now = now.to(self.device)
        found: list[Tensor | None] = [None] * len(self.infos)
        if not whole:
            for at in self.blocked:
                numel = self.infos[at].numel
                found[at] = self.now.repeat(_blocks(numel))[:numel].nonzero().view(-1)
        return found

    def _averages(
        self, before: Sequence[Tensor], places: Sequence[Tensor | None], pushed: Sequence[Sequence[Encoded]],
        arrived: Sequence[Sequence[Tensor | None]],
    ) -> list[Tensor]:  # fmt: skip
        """Where the pushed elements of each tensor have got in the mean, of the workers whose word has arrived."""
        self.lost = [lost_of(row, masks, self.recipe.payload) for row, masks in zip(pushed, arrived, strict=True)]
        found = []
        for at, (value, where) in enumerate(zip(before, places, strict=True)):
            total = torch.zeros_like(pushed[0][at].fields[0])
            count = torch.zeros_like(total)
            for row, masks in zip(pushed, arrived, strict=True):
                mask = masks[at]
                there = None if mask is None else row[at].arrived(mask, self.recipe.payload)
                total += row[at].fields[0] if there is None else row[at].fields[0] * there
                count += 1.0 if there is None else there.float()
            mean = total / count.clamp(min=1)
            if (count == 0).any():
                old = value.reshape(-1) if where is None else value.reshape(-1)[where]
                if at in self.blocked:
                    last = self.moved[self.blocked.index(at)].view(-1)[: value.numel()]
                    old = old + (last if where is None else last[where])
                mean = mean.where(count > 0, old)
            found.append(mean)
        return found

    # --- what is predicted ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _move(
        self, before: Sequence[Tensor], averages: Sequence[Tensor], places: Sequence[Tensor | None], whole: bool,
        number: int,
    ) -> None:  # fmt: skip
        """The parameters of after the step: what was pushed as it is, and the rest as it is predicted."""
        if whole or not self.blocked:
            for spot, at in enumerate(self.blocked):
                self.moved[spot] = _in_blocks(averages[at] - before[at].reshape(-1))
            self.age[:] = 0
            self.error = 0.0
            self.full += 1
            for value, mean in zip(before, averages, strict=True):
                value.copy_(mean.view(value.shape))
            return
        scales, spreads, observed, values = [], [], [], []
        for at in self.blocked:
            where, old = places[at], before[at].reshape(-1)
            assert where is not None
            moved = averages[at] - old[where]
            scales.append(moved.abs().mean().clamp(min=1e-12).expand(_blocks(len(old))))
            spreads.append(old.std(correction=0).clamp(min=1e-12).expand(_blocks(len(old))))
            observed.append(_in_blocks(torch.zeros_like(old).index_copy(0, where, moved)))
            values.append(_in_blocks(old))
        self.age += 1
        told = (torch.cat(values), torch.cat(self.moved), torch.cat(scales), torch.cat(spreads))
        seen = torch.cat(observed)
        self._watch(seen, *told, number)
        self.age[self.now] = 0
        guess = self._guess(seen, self.age, *told, self.conv)
        first = 0
        for spot, at in enumerate(self.blocked):
            count, old = _blocks(self.infos[at].numel), before[at]
            self.moved[spot] = torch.where(self.now, observed[spot], self.moved[spot])
            step = torch.where(self.now, observed[spot], guess[first : first + count])
            old += step.view(-1)[: old.numel()].view(old.shape)
            first += count
        for at, value in enumerate(before):
            if (where := places[at]) is None:
                value.copy_(averages[at].view(value.shape))
            else:  # as it was pushed, without the rounding of a difference
                value.view(-1)[where] = averages[at]

    def _guess(
        self, seen: Tensor, age: Tensor, values: Tensor, last: Tensor, scale: Tensor, spread: Tensor, conv: Tensor
    ) -> Tensor:
        """How far every parameter has moved."""
        if self.predictor is None:
            return last if self.rules.predictor == "hold" else torch.zeros_like(last)
        return self.predictor(features(seen, age, values, last, scale, spread, conv)) * scale[:, None]

    def _watch(
        self, seen: Tensor, values: Tensor, last: Tensor, scale: Tensor, spread: Tensor, number: int
    ) -> None:
        """How good predictions are: of some blocks half of what was pushed is held out, predicted, and compared."""
        chosen = slice(number % min(WATCHED, len(seen)), None, WATCHED)
        pushed = self.now.nonzero().view(-1)
        held, shown = pushed[::2], pushed[1::2]
        part, age = torch.zeros_like(seen[chosen]), self.age.clone()
        part[:, shown], age[shown] = seen[chosen][:, shown], 0
        told = (values[chosen], last[chosen], scale[chosen], spread[chosen], self.conv[chosen])
        guess = self._guess(part, age, *told)[:, held]
        truth = seen[chosen][:, held]
        error = float((guess - truth).abs().sum() / truth.abs().sum().clamp(min=1e-30))
        self.error = FADES * self.error + (1 - FADES) * error if self.error else error

    # --- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mp2": {
            "velocity": [[each.clone() for each in row] for row in self.velocity],
            "moved": [each.clone() for each in self.moved], "age": self.age.clone(), "error": self.error,
            "full": self.full,
        }}  # fmt: skip

    def take_over(self, saved: dict[str, Any]) -> None:
        super().take_over(saved)
        mine = saved["mp2"]
        self.velocity = [[each.clone() for each in row] for row in mine["velocity"]]
        self.moved = [each.clone() for each in mine["moved"]]
        self.age, self.error, self.full = mine["age"].clone(), mine["error"], mine["full"]


def places_at(number: int, seed: int) -> Tensor:
    """The places of a block that are pushed in a step, (BLOCK,) bool: an eighth of them, other ones in every step
    of eight, in an order drawn from a seed that everybody has."""
    cycle, phase = divmod(number, PERIOD)
    order = np.random.default_rng([seed, 2, cycle]).permutation(BLOCK)
    now = torch.zeros(BLOCK, dtype=torch.bool)
    now[torch.from_numpy(order[phase::PERIOD].copy())] = True
    return now


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK)


def _in_blocks(values: Tensor) -> Tensor:
    """Flat values as blocks, (blocks, BLOCK), the last one filled with zeros."""
    return nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)


def _part(values: Tensor, where: Tensor | None) -> Encoded:
    """Values, or those at places that everybody knows."""
    return Encoded((values,)) if where is None else Encoded((values[where],), known={"indices": where})
