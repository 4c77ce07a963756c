"""`PartialAveraging` trains a local model on every worker, and lets servers average a part of the parameters at a time.

Each worker makes its own optimiser steps on its own samples. In an exchange it pushes the moves of some elements since
it last had them in common with the server, and pulls the server's new values of them; the other elements go on as they
are. So nothing that is not pushed is forgotten: it waits for its turn. Which elements are exchanged is up to a
`gradwire.training.parameter_server.selections.Selection`.

All parameters at a time are local SGD (Stich, ICLR '19); layers in turn are partial averaging (Lee et al., arXiv
2201.03789) and, with an outer optimiser, streaming DiLoCo (Douillard et al., arXiv 2501.18512). MP2 and Slim-DP are
others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gradwire.training.backward.worker_gradients import buffers_of, merge_buffers, restore_buffers
from gradwire.training.data import Images, Text
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.networks.network_interface import Masks, Network, Pushed, checked_carry
from gradwire.training.parameter_server.asynchronous_trainer import lost_shares
from gradwire.training.parameter_server.local_models import LocalModels, flattened, views_of
from gradwire.training.parameter_server.move_history import MoveHistory
from gradwire.training.parameter_server.selections import Selection, flat_positions, message_infos
from gradwire.training.recipe import Recipe
from gradwire.training.replicas import slice_of
from gradwire.training.trainer import StepRow, Trainer

if TYPE_CHECKING:
    from gradwire.training.systems.base import Momentum

STATEFUL = ("history", "local", "selection")
"""Attributes of the trainer with separate states."""


class PartialAveraging(Trainer):
    """Trains local models that are averaged in part. The server's parameters are evaluated.

    A lost push is left out of the mean and forgotten when the worker pulls, or kept with `feed_back`.
    """

    state_key: ClassVar[str] = "averaging"
    state_names: ClassVar[tuple[str, ...]] = ("outer", "exchanges")

    def __init__(
        self,
        model: nn.Module,
        data: Images | Text,
        recipe: Recipe,
        network: Network | None = None,
        *,
        selection: Selection,
        momentum: Momentum = "implied",
        every: int = 1,
        outer_rate: float = 1.0,
        outer_momentum: float = 0.0,
        mixing: float = 0.0,
    ) -> None:
        """Copy the model to the workers.

        every : steps from one exchange to the next.
        outer_rate, outer_momentum : of the server's SGD with Nesterov momentum, whose gradient is the mean move.
        momentum : see `Momentum`.
        mixing : share of a worker's distance from the server's values that it keeps when it pulls them.

        Raises ValueError if `fill` is not zero, or the momentum cannot be worked out.
        """
        if recipe.fill != "zero":
            raise ValueError(f"fill = {recipe.fill!r} applies to gradients; expected zero: parameters are pushed")
        if momentum == "implied" and recipe.optimizer != "sgd":
            raise ValueError(f"momentum = 'implied' cannot be worked out for {recipe.optimizer}; expected averaged")
        if momentum == "implied" and not selection.shared:
            what = "momentum = 'implied' needs elements that all workers exchange at the same time"
            raise ValueError(f"{what}; expected local")
        super().__init__(model, data, recipe, None, network)
        self.selection, self.momentum, self.every = selection, momentum, every
        self.outer_rate, self.outer_momentum, self.mixing = outer_rate, outer_momentum, mixing
        self.history = MoveHistory(flattened([p.detach() for p in model.parameters()]), selection.sizes)
        """The server's parameters, and how they have moved."""
        self.local = LocalModels(model, recipe)
        self.states = [self.local.first, self.local.second][: 2 if recipe.optimizer == "adamw" else 1]
        """What `momentum` applies to, (N, n) each."""
        self.outer = torch.zeros_like(self.history.values) if outer_momentum else self.history.values.new_empty(0)
        self.exchanges = 0
        parts = len(selection.parts)
        self.messages = message_infos(self.infos, selection.parts)
        self.key_messages = range(parts - 1, len(self.messages), parts) if parts > 1 else range(0)

    def step(self) -> StepRow:
        """Run one local step of all workers, and an exchange if it is time for one."""
        number, rate = self.done, self.recipe.rate_at(self.done)
        is_due = (number + 1) % self.every == 0
        loss = self._train(number, rate, is_due)
        self.history.rates += rate
        if not is_due:
            return self.finish_step(loss, 0, 0, 0, [[0.0] * len(self.infos)] * self.recipe.workers)
        sent, pulled, time_ps, lost = self._exchange(number)
        return self.finish_step(loss, sent, pulled, time_ps, lost)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **{name: getattr(self, name).state_dict() for name in STATEFUL}}

    def load_state(self, saved: dict[str, Any]) -> None:
        super().load_state(saved)
        for name in STATEFUL:
            getattr(self, name).load_state_dict(saved[name])

    # --- workers -------------------------------------------------------------------------------------------------

    def _train(self, number: int, rate: float, is_due: bool) -> float:
        """Make each worker's step on its local model; return the mean loss. `is_due`: an exchange follows."""
        self.model.train()
        batch, count = self.dealer.step(number), self.recipe.workers
        before, after, losses = buffers_of(self.model), [], []
        for worker in range(count):
            restore_buffers(self.model, before)
            loss, gradients = self.local.gradients(worker, self.loss, *slice_of(batch, worker, count))
            after.append(buffers_of(self.model))
            losses.append(loss)
            if is_due and not self.selection.shared:
                began = time.thread_time_ns()
                self.selection.select_core(self.exchanges, self.local.flat[worker], flattened(gradients), worker)
                self.encode_ns += time.thread_time_ns() - began
            self.local.local_step(worker, gradients, rate)
        merge_buffers(self.model, before, after, count)
        return sum(losses) / count

    def _choose(self) -> list[list[Tensor]]:
        """Return the positions of each worker's messages."""
        number, workers = self.exchanges, self.recipe.workers
        if not self.selection.shared:
            return [self.selection.choose(number, worker) for worker in range(workers)]
        gradients = self.history.velocity * (1 - self.recipe.momentum)  # steady momentum is 1 / (1 - m) gradients
        self.selection.select_core(number, self.history.values, gradients)
        return [self.selection.choose(number)] * workers

    def _encode(self, worker: int, positions: Sequence[Tensor], flat: Tensor) -> list[Encoded]:
        """Return what a worker pushes, by message."""
        fields = [self.local.moves(worker, flat)]
        if self.momentum == "averaged":
            fields += [state[worker][flat] for state in self.states]
        return self._split(fields, positions, self.selection.new_core(self.exchanges, worker))

    def _split(self, fields: Sequence[Tensor], positions: Sequence[Tensor], core: Sequence[Tensor]) -> list[Encoded]:
        """Return values of flat positions as messages; a new core's positions are further ones."""
        selection, lengths = self.selection, [len(part) for part in positions]
        columns = zip(*(field.split(lengths) for field in fields), strict=True)
        messages = []
        for message, (values, part) in enumerate(zip(columns, positions, strict=True)):
            if message in self.key_messages:
                new = core[message // len(selection.parts)] if core and not selection.shared else part[:0]
                messages.append(Encoded((new.to(torch.int32),)))
            elif selection.is_keyed(message % len(selection.parts)):
                messages.append(Encoded((*values, part.to(torch.int32))))
            else:
                messages.append(Encoded(tuple(values), known={"indices": part}))
        return messages

    # --- exchange ------------------------------------------------------------------------------------------------

    def _exchange(self, number: int) -> tuple[int, int, int, list[list[float]]]:
        """Run one exchange; return (bytes pushed, bytes pulled, duration in ps, share lost by worker and tensor)."""
        payload, workers = self.recipe.payload, self.recipe.workers
        chosen = self._choose()
        rows = chosen[:1] if self.selection.shared else chosen
        flat = [flat_positions(row, self.selection.sizes) for row in rows] * (workers // len(rows))
        began = time.thread_time_ns()
        pushed = [self._encode(worker, chosen[worker], flat[worker]) for worker in range(workers)]
        self.encode_ns += time.thread_time_ns() - began
        back = [self._pull_bytes(row) for row in pushed]
        push = Pushed(number, 0, payload, self.messages, pushed, back=lambda: back[0], kept=self.key_messages)
        answer = checked_carry(self.network, push)
        began = time.thread_time_ns()
        self._merge(flat, pushed, answer.arrived)
        self.exchanges += 1
        self.server_ns += time.thread_time_ns() - began
        sent = sum(encoding.nbytes(payload) for row in pushed for encoding in row)
        lost = [self._lost(row, masks) for row, masks in zip(pushed, answer.arrived, strict=True)]
        return sent, sum(map(sum, back)), answer.time_ps, lost

    def _pull_bytes(self, pushed: Sequence[Encoded]) -> list[int]:
        """Return the bytes that come back to a worker, by message.

        They are as many as it pushed, and the positions of a new core if the server has chosen it.
        """
        nbytes = [encoding.nbytes(self.recipe.payload) for encoding in pushed]
        core = self.selection.new_core(self.exchanges) if self.selection.shared else []
        for tensor, message in enumerate(self.key_messages):
            nbytes[message] = 4 * len(core[tensor]) if core else 0
        return nbytes

    def _merge(self, flat: Sequence[Tensor], pushed: Sequence[Sequence[Encoded]], arrived: Masks) -> None:
        """Update the server by what has arrived, and the workers by the server."""
        masks = [self._arrived(row, row_masks) for row, row_masks in zip(pushed, arrived, strict=True)]
        keys = set(self.key_messages)
        rows = [[encoding for at, encoding in enumerate(row) if at not in keys] for row in pushed]
        columns = [
            [torch.cat([encoding.fields[field] for encoding in row]) for row in rows]
            for field in range(1 + len(self.states) * (self.momentum == "averaged"))
        ]
        moves, *states = [self._mean(flat, column, masks) for column in columns]
        touched = self._touched(flat, masks)
        move = moves[touched]
        if self.outer_momentum:
            self.outer[touched] = outer = self.outer_momentum * self.outer[touched] + move
            move = move + self.outer_momentum * outer
        self.history.record(touched, self.history.values[touched] + self.outer_rate * move)
        server = self.history.values
        for worker, (positions, mask) in enumerate(zip(flat, masks, strict=True)):
            kept = None
            if self.mixing:
                kept = self.mixing * (self.local.flat[worker][positions] - server[positions])
            elif mask is not None and self.recipe.feed_back:
                kept = columns[0][worker] * ~mask
            self.local.pull(worker, positions, server[positions], kept)
        self._set_momentum(touched, states)
        self._show(server)

    def _mean(self, flat: Sequence[Tensor], column: Sequence[Tensor], masks: Sequence[Tensor | None]) -> Tensor:
        """Return the mean of what workers pushed, (n,): over those whose push was not lost; who pushed nothing of an
        element counts as zero."""
        total, count = torch.zeros_like(self.history.values), float(self.recipe.workers)
        missing = torch.zeros_like(self.history.values) if any(mask is not None for mask in masks) else None
        for positions, values, mask in zip(flat, column, masks, strict=True):
            total.index_add_(0, positions, values if mask is None else values * mask)
            if mask is not None and missing is not None:
                missing.index_add_(0, positions, (~mask).to(missing.dtype))
        return total / (count if missing is None else (count - missing).clamp(min=1))

    def _touched(self, flat: Sequence[Tensor], masks: Sequence[Tensor | None]) -> Tensor:
        """Return the elements that have arrived from any worker, sorted."""
        if self.selection.shared and masks[0] is None:
            return flat[0]
        touched = torch.zeros(len(self.history.values), dtype=torch.bool, device=self.device)
        for positions, mask in zip(flat, masks, strict=True):
            touched[positions if mask is None else positions[mask]] = True
        return touched.nonzero().view(-1)

    def _set_momentum(self, touched: Tensor, states: Sequence[Tensor]) -> None:
        """Change the workers' momentum of exchanged elements as `momentum` says."""
        if self.momentum == "implied" and self.recipe.momentum:
            self.local.first[:, touched] = self.history.velocity[touched]
        elif self.momentum == "averaged":
            for state, mean in zip(self.states, states, strict=True):
                state[:, touched] = mean[touched]
        elif self.momentum == "zero":
            for state in self.states:
                state[:, touched] = 0

    def _show(self, flat: Tensor) -> None:
        """Set the parameters of the model that is evaluated."""
        for parameter, value in zip(
            self.model.parameters(), views_of(flat, list(self.model.parameters())), strict=True
        ):
            parameter.data.copy_(value)

    def _arrived(self, row: Sequence[Encoded], masks: Sequence[Tensor | None]) -> Tensor | None:
        """Return the elements of a worker's push that arrived, or None for all of them."""
        if all(mask is None for mask in masks):
            return None
        units = []
        for message, (encoding, mask) in enumerate(zip(row, masks, strict=True)):
            if message not in self.key_messages:
                arrived = encoding.arrived(mask, self.recipe.payload)
                everything = torch.ones(encoding.units, dtype=torch.bool, device=self.device)
                units.append(everything if arrived is None else arrived)
        return torch.cat(units)

    def _lost(self, row: Sequence[Encoded], masks: Sequence[Tensor | None]) -> list[float]:
        """Return the share lost of what a worker pushed of each tensor, without keys."""
        parts, shares = len(self.selection.parts), lost_shares(row, masks, self.recipe.payload)
        counts = [0 if at in self.key_messages else encoding.units for at, encoding in enumerate(row)]
        lost = []
        for first in range(0, len(row), parts):
            here = range(first, first + parts)
            lost.append(sum(shares[at] * counts[at] for at in here) / max(sum(counts[at] for at in here), 1))
        return lost
