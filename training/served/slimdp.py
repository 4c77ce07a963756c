"""Slim-DP: workers push and pull a part of the parameters only, a core that matters and some drawn at random.

Every worker trains a copy of its own by SGD with its own momentum. After a step it pushes how far it has moved the
elements of its set T_C, and pulls what the server then has there; elsewhere it goes on with what it has, so that the
workers' copies differ (Sun et al., arXiv 1709.09393). The server adds the mean of what arrives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradwire.traces.trace import TensorInfo
from gradwire.training.copies import Copies, buffers_of, put_back, share_out, slice_of
from gradwire.training.data import Images, Text
from gradwire.training.encoded import Encoded
from gradwire.training.gradients import Loss, of_one
from gradwire.training.network import Network, Pushed
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.state import State
from gradwire.training.seam import carried
from gradwire.training.served.asynchronous import lost_of
from gradwire.training.served.rows import counted
from gradwire.training.served.sgd import descends, moves
from gradwire.training.trainer import StepRow, Trainer, losses_of

CORE, EXPLORER, KEYS = 0, 1, 2
"""What is sent of a tensor, each a message of its own."""


@dataclass(frozen=True)
class Slim:
    """What is pushed and pulled; keys as in `gradwire.training.systems.slimdp.SlimDP`, where they are explained."""

    alpha: float = 0.3
    beta: float = 0.15
    every: int = 20
    gradient_weight: float = 1.0
    keys: bool = True
    unsent: Literal["kept", "dropped"] = "kept"

    def counts(self, numel: int) -> tuple[int, int]:
        """How many elements of a tensor are core and explorer: shares rounded down, of both together at least one."""
        both = max(1, int(self.alpha * numel + 1e-9))
        core = min(both, int(self.beta * numel + 1e-9))
        return core, both - core


class SlimTrainer(Trainer):
    """Trains with Slim-DP. What the server has is what is scored.

    A push that is lost is not added, and forgotten when the worker pulls; keys of a new core are never lost. What comes
    back is as long as what is pushed, but for them.
    """

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, slim: Slim | None = None,
        network: Network | None = None, loss: Loss = losses_of,
    ) -> None:  # fmt: skip
        """
        Raises
        ------
        ValueError
            `fill` is another than zero.
        """
        if recipe.fill != "zero":
            raise ValueError(f"fill = {recipe.fill!r} is about gradients; expected zero: what is pushed are updates")
        descends(recipe)
        super().__init__(model, data, recipe, None, network, loss)
        self.slim = slim or Slim()
        self.server = [each.detach() for each in model.parameters()]
        self.copies = Copies(model, recipe.workers)
        self.common = Copies(model, recipe.workers).values
        """What each worker had in common with the server last, element by element."""
        self.velocity: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.cores: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.messages = [
            TensorInfo(f"{each.name}.{what}", each.shape, each.numel, each.dtype, each.layer)
            for each in self.infos
            for what in ("core", "explorer", "keys")
        ]

    def step(self) -> StepRow:
        """A step of all workers, and one exchange."""
        number, rate, recipe = self.done, self.recipe.rate_at(self.done), self.recipe
        losses, gradients = self._train(number, rate)
        sets, pushed = [], []
        for worker in range(recipe.workers):
            began = time.thread_time_ns()
            if number % self.slim.every == 0:
                self.cores[worker] = self._selected(worker, gradients[worker])
            sets.append(self._chosen(worker, number))
            pushed.append(self._pushed(worker, sets[worker], number))
            self.encode_ns += time.thread_time_ns() - began
        answer = carried(self.network, Pushed(
            number, 0, recipe.payload, self.messages, pushed, back=lambda: self._back(pushed[0]),
            kept=range(KEYS, len(self.messages), 3),
        ))  # fmt: skip
        began = time.thread_time_ns()
        self._merge(sets, pushed, answer.arrived)
        pulled = sum(self._pull(worker, sets[worker]) for worker in range(recipe.workers))
        self.server_ns += time.thread_time_ns() - began
        sent = sum(each.nbytes(recipe.payload) for row in pushed for each in row)
        return counted(self, sum(losses) / len(losses), rate, sent, pulled, answer.time_ps)

    def state_dict(self) -> dict[str, Any]:
        kept = {name: [[each.clone() for each in row] for row in getattr(self, name)] for name in KEPT}
        return {**super().state_dict(), "copies": self.copies.state_dict(), "kept": kept}

    def take_over(self, saved: dict[str, Any]) -> None:
        super().take_over(saved)
        self.copies.load_state_dict(saved["copies"])
        for name in KEPT:
            setattr(self, name, [[each.clone() for each in row] for row in saved["kept"][name]])

    # --- workers -------------------------------------------------------------------------------------------------

    def _train(self, number: int, rate: float) -> tuple[list[float], list[list[Tensor]]]:
        """Each worker's step of SGD on its own copy: (losses, gradients)."""
        self.model.train()
        dealt, count = self.dealer.step(number), self.recipe.workers
        before, after = buffers_of(self.model), []
        losses, gradients = [], []
        for worker in range(count):
            put_back(self.model, before)
            loss, found = of_one(self.copies, worker, self.loss, *slice_of(dealt, worker, count))
            after.append(buffers_of(self.model))
            self._descend(worker, found, rate)
            losses.append(loss)
            gradients.append(found)
        share_out(self.model, before, after, count)
        return losses, gradients

    def _descend(self, worker: int, gradients: Sequence[Tensor], rate: float) -> None:
        mine = self.copies.values[worker]
        found, self.velocity[worker] = moves(self.recipe, mine, gradients, self.velocity[worker])
        for value, move in zip(mine, found, strict=True):
            value -= rate * move

    def _selected(self, worker: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The core of each tensor: the elements of greatest |w| + c |g|, in the order of their places."""
        found = []
        for value, gradient in zip(self.copies.values[worker], gradients, strict=True):
            core, _ = self.slim.counts(value.numel())
            significance = (value.abs() + self.slim.gradient_weight * gradient.abs()).view(-1)
            found.append(significance.topk(core).indices.sort().values)
        return found

    def _chosen(self, worker: int, number: int) -> list[tuple[Tensor, Tensor]]:
        """T_C of each tensor: (core, explorer), places."""
        found = []
        for tensor, (info, core) in enumerate(zip(self.infos, self.cores[worker], strict=True)):
            _, count = self.slim.counts(info.numel)
            rest = torch.ones(info.numel, dtype=torch.bool, device=self.device)
            rest[core] = False
            places = rest.nonzero().view(-1)
            draws = State(self.recipe.seed, worker, tensor, step=number).own(self.device)
            order = torch.randperm(len(places), generator=draws, device=self.device)
            found.append((core, places[order[:count]]))
        return found

    def _pushed(self, worker: int, sets: Sequence[tuple[Tensor, Tensor]], number: int) -> list[Encoded]:
        """How far the worker has moved the elements of T_C since it had them in common with the server."""
        found = []
        both = zip(self.copies.values[worker], self.common[worker], sets, strict=True)
        for value, common, (core, explorer) in both:
            moved = (value - common).view(-1)
            new = core if number % self.slim.every == 0 else core[:0]
            found += [*self._both(moved, core, explorer), Encoded((new.to(torch.int32),))]
        return found

    def _both(self, values: Tensor, core: Tensor, explorer: Tensor) -> tuple[Encoded, Encoded]:
        """Values at a core, whose places both sides have, and at an explorer, with keys unless its seed is shared."""
        drawn, known = (values[explorer],), {"indices": explorer}
        keyed = Encoded((*drawn, explorer.to(torch.int32))) if self.slim.keys else Encoded(drawn, known=known)
        return Encoded((values[core],), known={"indices": core}), keyed

    def _back(self, pushed: Sequence[Encoded]) -> list[int]:
        """Bytes that come back, of every message: no keys of a core, which the worker has chosen."""
        payload = self.recipe.payload
        return [0 if at % 3 == KEYS else each.nbytes(payload) for at, each in enumerate(pushed)]

    def _pull(self, worker: int, sets: Sequence[tuple[Tensor, Tensor]]) -> int:
        """Give a worker what the server has in T_C; the bytes."""
        nbytes = 0
        for at, (server, places) in enumerate(zip(self.server, sets, strict=True)):
            mine, common = self.copies.values[worker][at].view(-1), self.common[worker][at].view(-1)
            if self.slim.unsent == "dropped":
                common.copy_(mine)
            for encoded in self._both(server.reshape(-1), *places):
                values, indices = _opened(encoded)
                mine[indices] = common[indices] = values
                nbytes += encoded.nbytes(self.recipe.payload)
        return nbytes

    # --- server --------------------------------------------------------------------------------------------------

    def _merge(
        self, sets: Sequence[Any], pushed: Sequence[Sequence[Encoded]], arrived: Sequence[Sequence[Tensor | None]]
    ) -> None:
        """Add the mean of what has arrived."""
        self.lost = []
        for row, masks in zip(pushed, arrived, strict=True):
            shares = lost_of(row, masks, self.recipe.payload)
            self.lost.append([
                sum(shares[3 * t + part] * row[3 * t + part].units for part in (CORE, EXPLORER))
                / (row[3 * t].units + row[3 * t + 1].units)
                for t in range(len(self.infos))
            ])  # fmt: skip
            for number, (encoded, mask) in enumerate(zip(row, masks, strict=True)):
                if number % 3 == KEYS or not encoded.units:
                    continue
                values, indices = _opened(encoded)
                if mask is not None:
                    there = encoded.arrived(mask, self.recipe.payload)
                    values, indices = values[there], indices[there]
                self.server[number // 3].view(-1)[indices] += values / self.recipe.workers


KEPT = ("common", "velocity", "cores")
"""What a checkpoint has besides parameters."""


def _opened(encoded: Encoded) -> tuple[Tensor, Tensor]:
    """(values, places) of what is sent, with keys or without."""
    if len(encoded.fields) > 1:
        return encoded.fields[0], encoded.fields[1].long()
    return encoded.fields[0], encoded.known["indices"]
