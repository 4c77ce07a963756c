"""`MipdTrainer` trains with MIPD; its asynchronous server receives significant moves in few bits, and updates half the
parameters per push.

After Zhang and Wang (IEEE TPDS 33(11), 2022), of which only the abstract is public. The parts named there [abstract] -
sparsification by significance, layer by layer; encoding by the gradients' distribution; exponential smoothing for what
was dropped; half of the parameters per step - are implemented as `gradwire.training.systems.mipd.MIPD` says.

Workers train local models with their own momentum. A push is about one half of the parameters, which change with every
turn: the moves of its significant elements since they were last common. The server adds an N-th of them, and the worker
pulls that half. What it could not send it adds back to what it has pulled, so that nothing is dropped for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.training.data import Images, Text
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.parameter_server import mipd_encoding as codec
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous
from gradwire.training.parameter_server.local_models import LocalModels, flattened, views_of
from gradwire.training.parameter_server.selections import message_infos
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import group_units
from gradwire.training.reducers.fields import share_count

if TYPE_CHECKING:
    from gradwire.training.systems.mipd import MIPD


class MipdTrainer(Asynchronous):
    """Trains with MIPD; n parameters, T tensors, N workers. The server keeps all parameters in one vector, and a half
    is a part of it without gaps, since a server spends its time reading and writing memory."""

    state_key: ClassVar[str] = "mipd"
    state_names: ClassVar[tuple[str, ...]] = ("half", "matters", "places", "smoothed", "clock", "pulled_clock", "sent")

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, rules: MIPD, network: Any = None, **timing: Any
    ) -> None:
        """Copy the model to the workers; network, staleness and pace are as of `Asynchronous`."""
        super().__init__(model, data, recipe, None, network, **timing)
        self.rules = rules
        if self.device.type == "cpu":
            codec.compile_loops()
        nesterov = rules.look_ahead and recipe.optimizer == "sgd"
        self.copies: LocalModels = LocalModels(model, replace(recipe, nesterov=nesterov or recipe.nesterov))
        self.sizes = [info.numel for info in self.infos]
        self.vector = flattened([parameter.detach() for parameter in model.parameters()])
        """The server's parameters, (n,), of which the model's are views."""
        for parameter, view in zip(model.parameters(), views_of(self.vector, list(model.parameters())), strict=True):
            parameter.data = view
        self.numel, count = len(self.vector), 1 if rules.update == "all" else 2
        bounds = [self.numel * half // count for half in range(count + 1)]
        self.halves = [slice(*pair) for pair in pairwise(bounds)]
        tensors = list(pairwise([0, *accumulate(self.sizes)]))
        self.parts = [[_overlap(half, begin, end) for begin, end in tensors] for half in self.halves]
        """By half, the part of each tensor that is in it, as a slice of the vector; empty for most."""
        self.half = [0] * recipe.workers
        """The half that each worker's last push was about; neighbours begin with different ones."""
        self.smoothed = torch.zeros_like(self.vector if rules.compensate else self.vector[:0])
        nothing: list[Tensor] = []
        self.matters = [[nothing for _ in self.halves] for _ in range(recipe.workers)]
        """By worker and half, the significance of each element of each tensor's part."""
        self.places = [[nothing for _ in self.halves] for _ in range(recipe.workers)]
        """By worker and half, the elements sent of each tensor's part, as positions in the vector."""
        self.clock, self.pulled_clock = 0.0, [[0.0 for _ in self.halves] for _ in range(recipe.workers)]
        """Sum of the learning rates of all merged pushes, now, and at a worker's last pull of each half."""
        self.where = [[self.vector[:0].long() for _ in self.halves] for _ in range(recipe.workers)]
        """By worker and half, `places` of all tensors."""
        self.pulled: list[Tensor] = [self.vector[:0]] * recipe.workers
        """The half that each worker pulls."""
        self.sent: list[Tensor] = [self.vector[:0]] * recipe.workers
        """Moves that each worker's push stands for, of `places`."""
        self.messages = message_infos(self.infos, ("values", "keys"))
        self.kept = range(1, len(self.messages), 2)

    # --- worker --------------------------------------------------------------------------------------------------

    def encode(self, worker: int, gradients: list[Tensor]) -> list[Encoded]:
        """Make the worker's step, and return codes of the significant moves of one half. Their positions come with them
        whenever these are recomputed."""
        rules = self.rules
        self.half[worker] = half = (self.turns[worker] + worker) % len(self.halves)
        self.copies.local_step(worker, gradients, self.recipe.rate_at(self.version // self.recipe.workers))
        is_refresh = (self.turns[worker] // len(self.halves)) % rules.refresh == 0
        if is_refresh:
            self._choose_places(worker, half)
        moves = self.copies.flat[worker] - self.copies.common[worker]
        encodings, decoded = [], []
        for positions, part in zip(self.places[worker][half], self.parts[half], strict=True):
            values = moves[positions]
            coded = codec.quantise(values, rules.bits) if rules.bits else Encoded((values,))
            decoded.append(codec.dequantise(coded, rules.bits, len(values)) if rules.bits else values)
            keys = positions - part.start if is_refresh else positions[:0]
            encodings += [coded, codec.encode_positions(keys, part.stop - part.start)]
        self.sent[worker] = torch.cat(decoded)
        return encodings

    def _choose_places(self, worker: int, half: int) -> None:
        """Choose the significant elements of a half, and with them the share of each tensor that is sent."""
        rules, rule, local = self.rules, codec.SIGNIFICANCE[self.rules.significance], self.copies
        moves = local.flat[worker] - local.common[worker]
        now = [rule(local.flat[worker][part], moves[part]) for part in self.parts[half]]
        if before := self.matters[worker][half]:
            now = [rules.decay * old + (1 - rules.decay) * new for old, new in zip(before, now, strict=True)]
        self.matters[worker][half] = now
        shares = [1.0] * len(now)
        large = [at for at, significance in enumerate(now) if len(significance) > rules.small]
        if large:
            sums, sizes = [float(now[at].sum()) for at in large], [len(now[at]) for at in large]
            ratios = codec.ratios_of(sums, sizes, rules.ratio, rules.gamma, rules.floor, rules.ceiling)
            for at, share in zip(large, ratios, strict=True):
                shares[at] = share
        self.places[worker][half] = [
            significance.topk(share_count(share, len(significance)) if len(significance) else 0).indices.sort().values
            + part.start
            for significance, share, part in zip(now, shares, self.parts[half], strict=True)
        ]
        self.where[worker][half] = torch.cat(self.places[worker][half])

    # --- server --------------------------------------------------------------------------------------------------

    def received(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> dict[str, Any]:
        """Return positions in the vector and values. Keys always arrive."""
        bits, payload, places = self.rules.bits, self.recipe.payload, self.places[worker][self.half[worker]]
        where, lost = self.where[worker][self.half[worker]], any(mask is not None for mask in masks[::2])
        values_by_tensor, arrived = [], []
        for encoding, mask, positions in zip(encoded[::2], masks[::2], places, strict=True):
            values_by_tensor.append(codec.dequantise(encoding, bits, len(positions)) if bits else encoding.fields[0])
            if lost:
                units = encoding.arrived(mask, payload)
                if units is None:
                    units = torch.ones(encoding.units, dtype=torch.bool, device=self.device)
                arrived.append(units.repeat_interleave(codec.CODES_PER_UNIT if bits else 1)[: len(positions)])
        values = torch.cat(values_by_tensor)
        if lost:
            arrived_values = torch.cat(arrived)
            where, values = where[arrived_values], values[arrived_values]
            if self.recipe.feed_back:
                self.sent[worker] = self.sent[worker] * arrived_values
        return {"places": where, "values": values}

    def settle(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> None:
        """Do nothing: what was not sent stays in the local model."""

    def magnitudes(self, worker: int, encoded: Sequence[Encoded], message: int) -> Tensor:
        """Return the magnitudes of the codes' values; all keys are alike."""
        encoding, bits = encoded[message], self.rules.bits
        if message in self.kept or not encoding.units:
            return torch.ones(encoding.units, device=self.device)
        if not bits:
            return encoding.magnitudes()
        count = len(self.places[worker][self.half[worker]][message // 2])
        sums = group_units(codec.dequantise(encoding, bits, count).abs(), codec.CODES_PER_UNIT).sum(dim=1)
        counts = torch.full_like(sums, float(codec.CODES_PER_UNIT))
        counts[-1] -= -count % codec.CODES_PER_UNIT
        return sums / counts

    def shares(self, lost: list[float]) -> list[float]:
        """Return the losses of the values."""
        return lost[::2]

    def update(self, worker: int, received: dict[str, Any], rate: float) -> None:
        """Add an N-th of the moves that have arrived, and of the smoothed ones of the rest of the half."""
        rules, positions, values = self.rules, received["places"], received["values"]
        weight, share, fade = 1 / self.recipe.workers, rules.smoothing, 1 - rules.smoothing
        self.clock += rate
        half = self.halves[self.half[worker]]
        vector, smoothed, positions = self.vector[half], self.smoothed[half], positions - half.start
        if self.device.type == "cpu":
            arrays = (vector.numpy(), smoothed.numpy(), positions.numpy(), values.numpy())
            if rules.compensate:
                codec.add_smoothed_moves(*arrays, *map(np.float32, (weight, share, fade)))
            else:
                codec.add_moves(arrays[0], *arrays[2:], np.float32(weight))
            return
        if not rules.compensate:
            vector[positions] += weight * values
            return
        vector += weight * smoothed
        smoothed *= fade
        before = smoothed[positions] / fade
        vector[positions] += weight * (values - before)
        smoothed[positions] = before + share * (values - before)

    def pull(self, worker: int) -> int:
        """Send the half that this worker's last push was about."""
        self.pulled[worker] = self.vector[self.halves[self.half[worker]]].clone()
        return Encoded((self.pulled[worker],)).nbytes(self.recipe.payload)

    def adopt(self, worker: int) -> None:
        """Move the worker's half to the values that it has pulled, and add what it has not sent."""
        number, local, pulled = self.half[worker], self.copies, self.pulled[worker]
        half, flat, common = self.halves[number], local.flat[worker], local.common[worker]
        flat[self.where[worker][number]] -= self.sent[worker]
        passed = self.clock - self.pulled_clock[worker][number]
        if self.rules.momentum == "implied" and self.recipe.momentum and passed > 0:
            local.first[worker][half] = (common[half] - pulled) / passed
        self.pulled_clock[worker][number] = self.clock
        flat[half] += pulled - common[half]
        common[half] = pulled

    def answer(self, worker: int, nbytes: int) -> list[int]:
        """Return the bytes of each message: the values of each tensor's part."""
        sizes = [0] * len(self.messages)
        sizes[::2] = [4 * (part.stop - part.start) for part in self.parts[self.half[worker]]]
        return sizes

    # --- state ---------------------------------------------------------------------------------------------------

    def load_state(self, saved: dict[str, Any]) -> None:
        super().load_state(saved)
        self.where = [
            [torch.cat(places) if places else self.vector[:0].long() for places in row] for row in self.places
        ]


def _overlap(half: slice, begin: int, end: int) -> slice:
    """Return the part of a half from `begin` to `end`; an empty one if there is none."""
    first = max(begin, half.start)
    return slice(first, max(first, min(end, half.stop)))
