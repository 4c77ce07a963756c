"""Slim-DP: workers push and pull a part of the parameters only, a significant core and a random explorer.

Every worker trains a separate copy by SGD with its own momentum. After a step it pushes the movement of the elements of
its set T_C, and pulls the server's values of them; the other elements keep its own values, so that the workers' copies
differ (Sun et al., arXiv 1709.09393). The server adds the mean of what arrives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gradwire.traces.trace import TensorInfo
from gradwire.training.backward.worker_gradients import buffers_of, merge_buffers, restore_buffers
from gradwire.training.data import Images, Text
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.networks.network_interface import Masks, Network, Pushed, checked_carry
from gradwire.training.parameter_server.asynchronous_trainer import lost_shares
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.state import State
from gradwire.training.replicas import Copies, check_sgd, moves, slice_of
from gradwire.training.trainer import StepRow, Trainer

if TYPE_CHECKING:
    from gradwire.training.systems.slimdp import SlimDP

CORE, EXPLORER, KEYS = 0, 1, 2
"""Parts of a tensor that are sent, each a separate message."""


class SlimTrainer(Trainer):
    """Trains with Slim-DP. The server's parameters are scored. A lost push is not added, and forgotten when the worker
    pulls; keys of a new core are never lost. Pulls are as long as pushes, without those keys."""

    state_key: ClassVar[str] = "kept"
    state_names: ClassVar[tuple[str, ...]] = ("common", "velocity", "cores")

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, slim: SlimDP, network: Network | None = None
    ) -> None:
        """Validate the parts and copy the parameters. Raises ValueError if `fill` is not zero."""
        if recipe.fill != "zero":
            raise ValueError(f"fill = {recipe.fill!r} applies to gradients; expected zero: updates are pushed")
        check_sgd(recipe)
        super().__init__(model, data, recipe, None, network)
        self.slim = slim
        self.server = [info.detach() for info in model.parameters()]
        self.copies = Copies(model, recipe.workers)
        self.common = Copies(model, recipe.workers).values
        """Values that each worker last had in common with the server."""
        self.velocity: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.cores: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.messages = [
            TensorInfo(f"{info.name}.{part}", info.shape, info.numel, info.dtype, info.layer)
            for info in self.infos
            for part in ("core", "explorer", "keys")
        ]

    def step(self) -> StepRow:
        """Run one step of all workers, and one exchange."""
        number, rate, recipe = self.done, self.recipe.rate_at(self.done), self.recipe
        losses, gradients = self._train(number, rate)
        sets, pushed = [], []
        for worker in range(recipe.workers):
            began = time.thread_time_ns()
            if number % self.slim.every == 0:
                self.cores[worker] = self._select_core(worker, gradients[worker])
            sets.append(self._choose_sets(worker, number))
            pushed.append(self._encode_push(worker, sets[worker], number))
            self.encode_ns += time.thread_time_ns() - began
        back, keys = lambda: self._pull_sizes(pushed[0]), range(KEYS, len(self.messages), 3)
        push = Pushed(number, 0, recipe.payload, self.messages, pushed, back=back, kept=keys)
        answer = checked_carry(self.network, push)
        began = time.thread_time_ns()
        lost = self._merge(pushed, answer.arrived)
        pulled = sum(self._pull(worker, sets[worker]) for worker in range(recipe.workers))
        self.server_ns += time.thread_time_ns() - began
        sent = sum(encoding.nbytes(recipe.payload) for row in pushed for encoding in row)
        return self.finish_step(sum(losses) / len(losses), sent, pulled, answer.time_ps, lost)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "copies": self.copies.state_dict()}

    def load_state(self, saved: dict[str, Any]) -> None:
        super().load_state(saved)
        self.copies.load_state_dict(saved["copies"])

    # --- workers -------------------------------------------------------------------------------------------------

    def _train(self, number: int, rate: float) -> tuple[list[float], list[list[Tensor]]]:
        """Make each worker's SGD step on its own copy; return (losses, gradients)."""
        self.model.train()
        batch, count = self.dealer.step(number), self.recipe.workers
        before, after = buffers_of(self.model), []
        losses, gradients = [], []
        for worker in range(count):
            restore_buffers(self.model, before)
            loss, worker_gradients = self.copies.gradients(worker, self.loss, *slice_of(batch, worker, count))
            after.append(buffers_of(self.model))
            self._sgd_step(worker, worker_gradients, rate)
            losses.append(loss)
            gradients.append(worker_gradients)
        merge_buffers(self.model, before, after, count)
        return losses, gradients

    def _sgd_step(self, worker: int, gradients: Sequence[Tensor], rate: float) -> None:
        values = self.copies.values[worker]
        worker_moves, self.velocity[worker] = moves(self.recipe, values, gradients, self.velocity[worker])
        for value, move in zip(values, worker_moves, strict=True):
            value -= rate * move

    def _counts(self, numel: int) -> tuple[int, int]:
        """Return the sizes of a tensor's core and explorer: shares rounded down, together at least one element."""
        total = max(1, int(self.slim.alpha * numel + 1e-9))
        core = min(total, int(self.slim.beta * numel + 1e-9))
        return core, total - core

    def _select_core(self, worker: int, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the core of each tensor: the elements of greatest |w| + c |g|, sorted by position."""
        cores = []
        for value, gradient in zip(self.copies.values[worker], gradients, strict=True):
            core, _ = self._counts(value.numel())
            significance = (value.abs() + self.slim.gradient_weight * gradient.abs()).view(-1)
            cores.append(significance.topk(core).indices.sort().values)
        return cores

    def _choose_sets(self, worker: int, number: int) -> list[tuple[Tensor, Tensor]]:
        """Return T_C of each tensor: positions of (core, explorer)."""
        sets = []
        for tensor, (info, core) in enumerate(zip(self.infos, self.cores[worker], strict=True)):
            _, count = self._counts(info.numel)
            rest = torch.ones(info.numel, dtype=torch.bool, device=self.device)
            rest[core] = False
            positions = rest.nonzero().view(-1)
            draws = State(self.recipe.seed, worker, tensor, step=number).generator(self.device)
            order = torch.randperm(len(positions), generator=draws, device=self.device)
            sets.append((core, positions[order[:count]]))
        return sets

    def _encode_push(self, worker: int, sets: Sequence[tuple[Tensor, Tensor]], number: int) -> list[Encoded]:
        """Return the movements of the elements of T_C since the worker last had them in common with the server."""
        encodings = []
        tensors = zip(self.copies.values[worker], self.common[worker], sets, strict=True)
        for value, common, (core, explorer) in tensors:
            moved = (value - common).view(-1)
            new = core if number % self.slim.every == 0 else core[:0]
            encodings += [*self._encode_sets(moved, core, explorer), Encoded((new.to(torch.int32),))]
        return encodings

    def _encode_sets(self, values: Tensor, core: Tensor, explorer: Tensor) -> tuple[Encoded, Encoded]:
        """Encode values at a core, whose positions both sides have, and at an explorer, with keys unless its seed is
        shared."""
        fields, known = (values[explorer],), {"indices": explorer}
        keyed = Encoded((*fields, explorer.to(torch.int32))) if self.slim.keys else Encoded(fields, known=known)
        return Encoded((values[core],), known={"indices": core}), keyed

    def _pull_sizes(self, pushed: Sequence[Encoded]) -> list[int]:
        """Return the bytes that come back, by message: without the keys of a core, which the worker has chosen."""
        payload = self.recipe.payload
        return [0 if at % 3 == KEYS else encoding.nbytes(payload) for at, encoding in enumerate(pushed)]

    def _pull(self, worker: int, sets: Sequence[tuple[Tensor, Tensor]]) -> int:
        """Copy the server's values in T_C to a worker; return the bytes."""
        nbytes = 0
        for at, (server, positions) in enumerate(zip(self.server, sets, strict=True)):
            value, common = self.copies.values[worker][at].view(-1), self.common[worker][at].view(-1)
            if self.slim.unsent == "dropped":
                common.copy_(value)
            for encoded in self._encode_sets(server.reshape(-1), *positions):
                values, indices = _decode_part(encoded)
                value[indices] = common[indices] = values
                nbytes += encoded.nbytes(self.recipe.payload)
        return nbytes

    # --- server --------------------------------------------------------------------------------------------------

    def _merge(self, pushed: Sequence[Sequence[Encoded]], arrived: Masks) -> list[list[float]]:
        """Add the mean of what has arrived; return the share lost by worker and tensor."""
        lost, payload, tensors = [], self.recipe.payload, range(len(self.infos))
        for row, masks in zip(pushed, arrived, strict=True):
            shares, units = lost_shares(row, masks, payload), [encoded.units for encoded in row]
            cores = [3 * tensor + CORE for tensor in tensors]  # followed by its explorer
            lost.append(
                [(shares[c] * units[c] + shares[c + 1] * units[c + 1]) / (units[c] + units[c + 1]) for c in cores]
            )
            for number, (encoded, mask) in enumerate(zip(row, masks, strict=True)):
                if number % 3 == KEYS or not encoded.units:
                    continue
                values, indices = _decode_part(encoded)
                if mask is not None:
                    arrived_units = encoded.arrived(mask, payload)
                    values, indices = values[arrived_units], indices[arrived_units]
                self.server[number // 3].view(-1)[indices] += values / self.recipe.workers
        return lost


def _decode_part(encoded: Encoded) -> tuple[Tensor, Tensor]:
    """Return (values, positions) of an encoding, with keys or without."""
    if len(encoded.fields) > 1:
        return encoded.fields[0], encoded.fields[1].long()
    return encoded.fields[0], encoded.known["indices"]
