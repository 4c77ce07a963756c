"""MIPD: an asynchronous server receives significant gradients in few bits, and updates half of the parameters per push.

After Zhang and Wang (IEEE TPDS 33(11), 2022), of which only the abstract is public. The parts named there [abstract] -
sparsification by significance, layer by layer; encoding by the gradients' distribution; exponential smoothing for what
was dropped; half of the parameters per step - are implemented as `gradwire.training.systems.mipd.MIPD` says.

The server keeps all parameters in one vector, cut into blocks of equal length. Its halves are made of blocks, because
gathering single elements costs a processor more than updating all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.traces.trace import TensorInfo
from gradwire.training.data import Images, Text
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.parameter_server import mipd_encoding as codec
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import group_units
from gradwire.training.reducers.fields import share_count
from gradwire.training.replicas import check_sgd, clipped

if TYPE_CHECKING:
    from gradwire.training.systems.mipd import MIPD


class MipdTrainer(Asynchronous):
    """Trains with MIPD. Gradient clipping, if any, is done by the worker."""

    state_key: ClassVar[str] = "mipd"
    state_names: ClassVar[tuple[str, ...]] = (
        "turned",
        "chosen",
        "known",
        "matters",
        "places",
        "since",
        "velocity",
        "smoothed",
        "pending",
        "there",
        "halves",
    )

    def __init__(
        self, model: nn.Module, data: Images | Text, recipe: Recipe, rules: MIPD, network: Any = None, **timing: Any
    ) -> None:
        """Validate the parts; network, staleness and pace are as of `Asynchronous`."""
        check_sgd(recipe)
        super().__init__(model, data, recipe, None, network, **timing)
        self.rules = rules
        sizes = [info.numel for info in self.infos]
        self.offsets = torch.tensor([0, *sizes]).cumsum(0).tolist()
        self.numel = self.offsets.pop()
        self.block = min(self.rules.block, max(1, -(-self.numel // 2)))  # so that there are two halves
        self.vector = self._into_vector(list(model.parameters()))
        self.own = [self._into_vector(row) for row in self.copies.values]
        nothing = torch.zeros_like(self.vector)
        self.velocity, self.smoothed, self.pending = nothing.clone(), nothing.clone(), nothing.clone()
        self.there = torch.zeros_like(self.vector, dtype=torch.bool)
        """Elements that have arrived since their half was updated."""
        blocks = torch.arange(len(self.vector), device=self.device)
        self.halves = [blocks[: -(-len(blocks) // 2)], blocks[-(-len(blocks) // 2) :]]
        self.chosen = 0
        """Number of times the halves have been chosen; `known` has the number that each worker knows."""
        self.known = [0] * recipe.workers
        self.since = torch.zeros(len(self.vector), 1, device=self.device)
        """Pushes since each block was updated, (blocks, 1)."""
        self.turned = [0] * recipe.workers
        """The half that each worker's last push updated."""
        self.matters: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        self.places: list[list[Tensor]] = [[] for _ in range(recipe.workers)]
        """By worker, the positions sent of each tensor; `where` has them in the vector."""
        self.where = [torch.empty(0, dtype=torch.long, device=self.device)] * recipe.workers
        self.messages = [
            TensorInfo(f"{info.name}.{part}", info.shape, info.numel, info.dtype, info.layer)
            for info in self.infos
            for part in ("values", "keys")
        ]
        self.kept = range(1, len(self.messages), 2)

    # --- worker --------------------------------------------------------------------------------------------------

    def encode(self, worker: int, gradients: list[Tensor]) -> list[Encoded]:
        """Return codes of the significant elements, and their positions whenever these are recomputed."""
        rules, turn = self.rules, self.turns[worker]
        is_refresh = turn % rules.refresh == 0 or turn == rules.warmup  # the warm-up ends between refreshes
        gradients = clipped(gradients, self.recipe.clip)
        if is_refresh:
            self._update_significance(worker, gradients)
        encodings = []
        for gradient, positions, info in zip(gradients, self.places[worker], self.infos, strict=True):
            values = gradient.reshape(-1)[positions]
            coded = codec.quantise(values, rules.bits) if rules.bits else Encoded((values,))
            encodings += [coded, codec.encode_positions(positions if is_refresh else positions[:0], info.numel)]
        return encodings

    def _update_significance(self, worker: int, gradients: Sequence[Tensor]) -> None:
        """Recompute which elements are significant, and the share of each tensor that is sent."""
        rules, rule = self.rules, codec.SIGNIFICANCE[self.rules.significance]
        now = [rule(v, g).view(-1) for v, g in zip(self.copies.values[worker], gradients, strict=True)]
        if before := self.matters[worker]:
            now = [rules.decay * old + (1 - rules.decay) * new for old, new in zip(before, now, strict=True)]
        self.matters[worker] = now
        shares = [1.0] * len(now)
        large = [at for at, significance in enumerate(now) if len(significance) > rules.small]
        if large and self.turns[worker] >= rules.warmup:
            sums, sizes = [float(now[at].sum()) for at in large], [len(now[at]) for at in large]
            ratios = codec.ratios_of(sums, sizes, rules.ratio, rules.gamma, rules.floor, rules.ceiling)
            for at, share in zip(large, ratios, strict=True):
                shares[at] = share
        self.places[worker] = [
            significance.topk(share_count(share, len(significance))).indices.sort().values
            for significance, share in zip(now, shares, strict=True)
        ]
        self._record_positions(worker)

    def _record_positions(self, worker: int) -> None:
        moved = zip(self.places[worker], self.offsets, strict=False)
        self.where[worker] = torch.cat([positions + first for positions, first in moved] or [self.where[worker][:0]])

    # --- server --------------------------------------------------------------------------------------------------

    def received(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> dict[str, Any]:
        """Return positions in the vector and values. Keys always arrive."""
        bits, payload, lost = self.rules.bits, self.recipe.payload, any(mask is not None for mask in masks[::2])
        values_by_tensor, arrived = [], []
        for encoding, mask, positions in zip(encoded[::2], masks[::2], self.places[worker], strict=True):
            values_by_tensor.append(codec.dequantise(encoding, bits, len(positions)) if bits else encoding.fields[0])
            if lost:
                all_units = torch.ones(encoding.units, dtype=torch.bool, device=self.device)
                units = all_units if mask is None else encoding.arrived(mask, payload)
                arrived.append(units.repeat_interleave(codec.CODES_PER_UNIT if bits else 1)[: len(positions)])
        where, values = self.where[worker], torch.cat(values_by_tensor)
        if lost:
            arrived_values = torch.cat(arrived)
            where, values = where[arrived_values], values[arrived_values]
        return {"places": where, "values": values}

    def settle(self, worker: int, encoded: Sequence[Encoded], masks: Sequence[Tensor | None]) -> None:
        """Do nothing: what was not sent is dropped, and the server compensates for it."""

    def magnitudes(self, worker: int, encoded: Sequence[Encoded], message: int) -> Tensor:
        """Return the magnitudes of the codes' values; all keys are alike."""
        encoding, bits = encoded[message], self.rules.bits
        if message in self.kept or not encoding.units:
            return torch.ones(encoding.units, device=self.device)
        if not bits:
            return encoding.magnitudes()
        count = len(self.places[worker][message // 2])
        sums = group_units(codec.dequantise(encoding, bits, count).abs(), codec.CODES_PER_UNIT).sum(dim=1)
        counts = torch.full_like(sums, float(codec.CODES_PER_UNIT))
        counts[-1] -= -count % codec.CODES_PER_UNIT
        return sums / counts

    def shares(self, lost: list[float]) -> list[float]:
        """Return the losses of the values."""
        return lost[::2]

    def update(self, worker: int, received: dict[str, Any], rate: float) -> None:
        """Add what has arrived to the pending gradients, and update one half."""
        rules, positions, values = self.rules, received["places"], received["values"]
        if self.version % (rules.refresh * self.recipe.workers) == 0 and self.version:
            self._choose_halves()
        self.pending.view(-1).index_add_(0, positions, values)
        if rules.compensate or rules.update == "half":
            smoothed = self.smoothed.view(-1)
            smoothed.index_copy_(0, positions, torch.lerp(smoothed[positions], values, rules.smoothing))
        if rules.compensate:
            self.there.view(-1).index_fill_(0, positions, True)
        self.since += 1
        self.turned[worker] = int((self.turns[worker] + worker) % rules.rotation == rules.rotation - 1)
        self._sgd_step(None if rules.update == "all" else self.halves[self.turned[worker]], rate)

    def _sgd_step(self, rows: Tensor | None, rate: float) -> None:
        """Make an SGD step on some blocks, or all, by the gradients of all pushes since their last update. Works in
        place where possible, since a server spends its time reading and writing memory."""
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

    def _choose_halves(self) -> None:
        """Choose the halves anew: the blocks of greatest significance, by the server's smoothed gradients, and the
        rest."""
        matters = codec.SIGNIFICANCE[self.rules.significance](self.vector, self.smoothed).sum(dim=1)
        order = matters.argsort(descending=True, stable=True)
        count = -(-len(order) // 2)
        self.halves = [order[:count].sort().values, order[count:].sort().values]
        self.chosen += 1

    def pull(self, worker: int) -> int:
        """Send the half that this worker's push has updated, and its block numbers if they have changed."""
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
            sent.append(codec.encode_positions(self.halves[0], len(self.vector)))
        return sum(encoding.nbytes(self.recipe.payload) for encoding in sent)

    def answer(self, worker: int, nbytes: int) -> list[int]:
        """Return the bytes of each message: the values of each tensor, and the block numbers, if sent, with the first
        tensor's keys."""
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

    def _into_vector(self, parameters: Sequence[Tensor]) -> Tensor:
        """Move parameters into one vector of whole blocks, (blocks, block), and make them views of it."""
        vector = torch.zeros(-(-self.numel // self.block) * self.block, device=self.device)
        for parameter, first in zip(parameters, self.offsets, strict=True):
            part = vector[first : first + parameter.numel()].view(parameter.shape)
            part.copy_(parameter.detach())
            parameter.data = part
        return vector.view(-1, self.block)

    def load_state(self, saved: dict[str, Any]) -> None:
        super().load_state(saved)
        for worker in range(self.recipe.workers):
            self._record_positions(worker)


def _read(blocks: Tensor, rows: Tensor | None) -> Tensor:
    """Return some of the blocks, copied; or all, not copied."""
    return blocks if rows is None else blocks.index_select(0, rows)


def _write(blocks: Tensor, rows: Tensor | None, values: Tensor) -> None:
    """Write back blocks that `_read` returned."""
    if rows is not None:
        blocks.index_copy_(0, rows, values)


def _clear(blocks: Tensor, rows: Tensor | None) -> None:
    """Set some blocks, or all, to zero."""
    if rows is None:
        blocks.zero_()
    else:
        blocks.index_fill_(0, rows, 0)
