"""MIPD: an asynchronous server that is sent what matters in few bits, and updates half of the parameters per push.

After Zhang and Wang (IEEE TPDS 33(11), 2022), of whom no more than the abstract is public: what is [abstract] there -
sparsification by significance, layer by layer; encoding by the gradients' distribution; exponential smoothing for what
was dropped; half of the parameters per step - is done here as `gradwire.training.systems.mipd.MIPD` says.

The server keeps everything in one vector, cut into blocks of equal length. Its halves are made of blocks, because to
gather single elements costs a processor more than to update all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.traces.trace import TensorInfo
from gradwire.training.data import Images, Text
from gradwire.training.encoded import Encoded
from gradwire.training.gradients import Loss
from gradwire.training.network import Network
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.fields import kept
from gradwire.training.served.asynchronous import Asynchronous
from gradwire.training.served.pace import Pace
from gradwire.training.served.quantiles import TOGETHER, packed, quantised, restored, unpacked
from gradwire.training.served.sgd import clipped, descends
from gradwire.training.served.significance import SIGNIFICANCE, ratios_of
from gradwire.training.simulated_turns import SimulatedTurns
from gradwire.training.trainer import losses_of


@dataclass(frozen=True)
class Interpretable:
    """What is sent and updated; keys as in `gradwire.training.systems.mipd.MIPD`, where they are explained."""

    ratio: float = 0.3
    significance: str = "taylor"
    decay: float = 0.5
    refresh: int = 20
    gamma: float = 0.5
    floor: float = 0.05
    ceiling: float = 1.0
    small: int = 1024
    warmup: int = 20
    bits: int = 4
    smoothing: float = 0.4
    compensate: bool = True
    update: Literal["half", "all"] = "half"
    rotation: int = 2
    block: int = 256


class Mipd(Asynchronous):
    """Trains with MIPD. A gradient is clipped, if it is, by the worker."""

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, rules: Interpretable | None = None,
        network: Network | SimulatedTurns | None = None, loss: Loss = losses_of, *, staleness: int | None = None,
        pace: Pace | None = None,
    ) -> None:  # fmt: skip
        descends(recipe)
        super().__init__(model, data, recipe, None, network, loss, staleness=staleness, pace=pace)
        self.rules = rules or Interpretable()
        sizes = [info.numel for info in self.infos]
        self.offsets = torch.tensor([0, *sizes]).cumsum(0).tolist()
        self.numel = self.offsets.pop()
        self.block = min(self.rules.block, max(1, -(-self.numel // 2)))  # so that there are two halves
        self.vector = self._in_one(list(model.parameters()))
        self.own = [self._in_one(row) for row in self.copies.values]
        nothing = torch.zeros_like(self.vector)
        self.velocity, self.smoothed, self.pending = nothing.clone(), nothing.clone(), nothing.clone()
        self.there = torch.zeros_like(self.vector, dtype=torch.bool)
        """Which elements have arrived since their half was updated."""
        blocks = torch.arange(len(self.vector), device=self.device)
        self.halves = [blocks[: -(-len(blocks) // 2)], blocks[-(-len(blocks) // 2) :]]
        self.chosen = 0
        """How often the halves have been chosen; what each worker knows of it is in `known`."""
        self.known = [0] * recipe.workers
        self.since = torch.zeros(len(self.vector), 1, device=self.device)
        """Pushes since each block was updated, (blocks, 1)."""
        self.turned = [0] * recipe.workers
        """The half that each worker's last push updated."""
        self.matters: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.places: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        """By worker, of each tensor the places that are sent; `where` has them in the vector."""
        self.where = [torch.empty(0, dtype=torch.long, device=self.device)] * recipe.workers
        self.messages = [
            TensorInfo(f"{each.name}.{what}", each.shape, each.numel, each.dtype, each.layer)
            for each in self.infos
            for what in ("values", "keys")
        ]
        self.kept = range(1, len(self.messages), 2)

    # --- worker --------------------------------------------------------------------------------------------------

    def encode(self, worker: int, gradients: list[Tensor]) -> list[Encoded]:
        """Codes of the elements that matter, and where these are whenever that is worked out anew."""
        rules, turn = self.rules, self.turns[worker]
        anew = turn % rules.refresh == 0 or turn == rules.warmup  # which ends then, whatever the rhythm
        gradients = clipped(gradients, self.recipe.clip)
        if anew:
            self._look(worker, gradients)
        found = []
        for gradient, places, info in zip(gradients, self.places[worker], self.infos, strict=True):
            values = gradient.reshape(-1)[places]
            coded = quantised(values, rules.bits) if rules.bits else Encoded((values,))
            found += [coded, keys_of(places if anew else places[:0], info.numel)]
        return found

    def _look(self, worker: int, gradients: Sequence[Tensor]) -> None:
        """Work out anew what matters, and how much of each tensor is sent."""
        rules, rule = self.rules, SIGNIFICANCE[self.rules.significance]
        now = [rule(v, g).view(-1) for v, g in zip(self.copies.values[worker], gradients, strict=True)]
        if before := self.matters[worker]:
            now = [rules.decay * old + (1 - rules.decay) * new for old, new in zip(before, now, strict=True)]
        self.matters[worker] = now
        shares = [1.0] * len(now)
        large = [at for at, each in enumerate(now) if len(each) > rules.small]
        if large and self.turns[worker] >= rules.warmup:
            sums, sizes = [float(now[at].sum()) for at in large], [len(now[at]) for at in large]
            found = ratios_of(sums, sizes, rules.ratio, rules.gamma, rules.floor, rules.ceiling)
            for at, share in zip(large, found, strict=True):
                shares[at] = share
        self.places[worker] = [
            each.topk(kept(share, len(each))).indices.sort().values for each, share in zip(now, shares, strict=True)
        ]
        self._told(worker)

    def _told(self, worker: int) -> None:
        """The server hears of a worker's places."""
        moved = zip(self.places[worker], self.offsets, strict=False)
        self.where[worker] = torch.cat([places + first for places, first in moved] or [self.where[worker][:0]])

    # --- server --------------------------------------------------------------------------------------------------

    def received(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> dict[str, Any]:
        """Places in the vector and values. Keys always arrive."""
        bits, payload, lost = self.rules.bits, self.recipe.payload, any(mask is not None for mask in masks[::2])
        sent, arrived = [], []
        for mine, mask, places in zip(encoded[::2], masks[::2], self.places[worker], strict=True):
            sent.append(restored(mine, bits, len(places)) if bits else mine.fields[0])
            if lost:
                whole = torch.ones(mine.units, dtype=torch.bool, device=self.device)
                units = whole if mask is None else mine.arrived(mask, payload)
                arrived.append(units.repeat_interleave(TOGETHER if bits else 1)[: len(places)])
        where, values = self.where[worker], torch.cat(sent)
        if lost:
            there = torch.cat(arrived)
            where, values = where[there], values[there]
        return {"places": where, "values": values}

    def settle(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> None:
        """What was not sent is dropped; the server makes up for it."""

    def magnitudes(self, worker: int, encoded: Sequence[Encoded], message: int) -> Tensor:
        """Of codes, what they say; keys are all alike."""
        mine, bits = encoded[message], self.rules.bits
        if message in self.kept or not mine.units:
            return torch.ones(mine.units, device=self.device)
        if not bits:
            return mine.magnitudes()
        count = len(self.places[worker][message // 2])
        values = restored(mine, bits, count).abs()
        short = -count % TOGETHER
        sums = torch.nn.functional.pad(values, (0, short)).view(-1, TOGETHER).sum(dim=1)
        counts = torch.full_like(sums, float(TOGETHER))
        counts[-1] -= short
        return sums / counts

    def shares(self, lost: list[float]) -> list[float]:
        """Of the values."""
        return lost[::2]

    def update(self, worker: int, received: dict[str, Any], rate: float) -> None:
        """Add what has arrived to what waits, and update one half."""
        rules, places, values = self.rules, received["places"], received["values"]
        if self.version % (rules.refresh * self.recipe.workers) == 0 and self.version:
            self._choose()
        self.pending.view(-1).index_add_(0, places, values)
        if rules.compensate or rules.update == "half":
            smoothed = self.smoothed.view(-1)
            smoothed.index_copy_(0, places, torch.lerp(smoothed[places], values, rules.smoothing))
        if rules.compensate:
            self.there.view(-1).index_fill_(0, places, True)
        self.since += 1
        self.turned[worker] = int((self.turns[worker] + worker) % rules.rotation == rules.rotation - 1)
        self._descend(None if rules.update == "all" else self.halves[self.turned[worker]], rate)

    def _descend(self, rows: Tensor | None, rate: float) -> None:
        """SGD on some blocks, or all, of the gradients of all pushes since they were updated; in place where it can be:
        to read and write memory is what a server's time goes into."""
        recipe = self.recipe
        gradient, value, pushes = _read(self.pending, rows), _read(self.vector, rows), _read(self.since, rows)
        if self.rules.compensate:
            smoothed = _read(self.smoothed, rows)
            stood_in = smoothed * ~_read(self.there, rows)
            gradient.addcmul_(stood_in, pushes)
            _write(self.smoothed, rows, smoothed.sub_(stood_in, alpha=self.rules.smoothing))
            _clear(self.there, rows)
        if recipe.weight_decay:
            gradient.addcmul_(value, pushes, value=recipe.weight_decay)
        if recipe.momentum:
            velocity = _read(self.velocity, rows).mul_(recipe.momentum).add_(gradient)
            _write(self.velocity, rows, velocity)
            gradient = gradient.add_(velocity, alpha=recipe.momentum) if recipe.nesterov else velocity
        _write(self.vector, rows, value.sub_(gradient, alpha=rate))
        _clear(self.pending, rows)
        _clear(self.since, rows)

    def _choose(self) -> None:
        """Choose the halves anew: the blocks that matter most, by what the server knows of gradients, and the rest."""
        matters = SIGNIFICANCE[self.rules.significance](self.vector, self.smoothed).sum(dim=1)
        order = matters.argsort(descending=True, stable=True)
        count = -(-len(order) // 2)
        self.halves = [order[:count].sort().values, order[count:].sort().values]
        self.chosen += 1

    def pull(self, worker: int) -> int:
        """The half that this worker's push has updated, and which blocks these are if it does not know."""
        if self.rules.update == "all":
            self.own[worker].copy_(self.vector)
            return Encoded((self.vector.view(-1)[: self.numel],)).nbytes(self.recipe.payload)
        rows = self.halves[self.turned[worker]]
        values = _read(self.vector, rows)
        _write(self.own[worker], rows, values)
        padding = self.vector.numel() - self.numel if len(rows) and int(rows[-1]) == len(self.vector) - 1 else 0
        sent = [Encoded((values.view(-1)[: values.numel() - padding],))]
        if self.known[worker] != self.chosen:
            self.known[worker] = self.chosen
            sent.append(keys_of(self.halves[0], len(self.vector)))
        return sum(each.nbytes(self.recipe.payload) for each in sent)

    def answer(self, worker: int, nbytes: int) -> list[int]:
        """The values of each tensor; which blocks these are, if that is told, goes with the first one's keys."""
        sizes = [0] * len(self.messages)
        if self.rules.update == "all":
            sizes[::2] = [4 * info.numel for info in self.infos]
        else:
            chosen = torch.zeros(len(self.vector) + 1, dtype=torch.long)
            chosen[self.halves[self.turned[worker]].cpu()] = self.block
            block, within = divmod(np.array([*self.offsets, self.numel]), self.block)
            before = np.append(0, chosen.cumsum(0)[:-1])  # elements of chosen blocks before each block
            sizes[::2] = (4 * np.diff(before[block] + np.minimum(chosen.numpy()[block], within))).tolist()
        sizes[1] = nbytes - sum(sizes)
        return sizes

    # --- state ---------------------------------------------------------------------------------------------------

    def _in_one(self, parameters: Sequence[Tensor]) -> Tensor:
        """Parameters moved into one vector of whole blocks, (blocks, block), of which they are parts from now on."""
        vector = torch.zeros(-(-self.numel // self.block) * self.block, device=self.device)
        for parameter, first in zip(parameters, self.offsets, strict=True):
            part = vector[first : first + parameter.numel()].view(parameter.shape)
            part.copy_(parameter.detach())
            parameter.data = part
        return vector.view(-1, self.block)

    def state_dict(self) -> dict[str, Any]:
        kept_ = {name: getattr(self, name) for name in NUMBERS}
        lists = {name: [[each.clone() for each in row] for row in getattr(self, name)] for name in LISTS}
        tensors = {name: getattr(self, name).clone() for name in TENSORS}
        return {**super().state_dict(), "mipd": {
            **{name: list(value) if isinstance(value, list) else value for name, value in kept_.items()},
            **lists, **tensors, "halves": [each.clone() for each in self.halves],
        }}  # fmt: skip

    def take_over(self, saved: dict[str, Any]) -> None:
        super().take_over(saved)
        mine = saved["mipd"]
        for name in NUMBERS:
            setattr(self, name, list(mine[name]) if isinstance(mine[name], list) else mine[name])
        for name in LISTS:
            setattr(self, name, [[each.clone() for each in row] for row in mine[name]])
        for name in TENSORS:
            getattr(self, name).copy_(mine[name])
        self.halves = [each.clone() for each in mine["halves"]]
        for worker in range(self.recipe.workers):
            self._told(worker)


NUMBERS = ("turned", "chosen", "known")
LISTS = ("matters", "places")
TENSORS = ("since", "velocity", "smoothed", "pending", "there")
"""What a checkpoint has of MIPD's own."""


def _read(blocks: Tensor, rows: Tensor | None) -> Tensor:
    """Some of the blocks, copied; or all, themselves."""
    return blocks if rows is None else blocks.index_select(0, rows)


def _write(blocks: Tensor, rows: Tensor | None, values: Tensor) -> None:
    """Put blocks that `_read` gave back to their places."""
    if rows is not None:
        blocks.index_copy_(0, rows, values)


def _clear(blocks: Tensor, rows: Tensor | None) -> None:
    """Zeros instead of some blocks, or all."""
    if rows is None:
        blocks.zero_()
    else:
        blocks.index_fill_(0, rows, 0)


def keys_of(places: Tensor, numel: int) -> Encoded:
    """Places, sorted, as a bit for each element or as 32-bit indices, whichever is shorter; nothing for none."""
    if not len(places) or 4 * len(places) <= -(-numel // 8):
        return Encoded((places.to(torch.int32),))
    bits = torch.zeros(numel, dtype=torch.long, device=places.device)
    bits[places] = 1
    return Encoded((packed(bits, 1),))


def places_of(encoded: Encoded, numel: int) -> Tensor:
    """The places again."""
    (units,) = encoded.fields
    return units.long() if units.dtype == torch.int32 else unpacked(units, 1, numel).nonzero().view(-1)
