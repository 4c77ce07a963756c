"""Selections choose the elements of a model that workers and a server exchange at a time.

The elements of a tensor are exchanged in one message or in several parts, each with its own positions. Positions count
from the start of their tensor and are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.traces.trace import TensorInfo
from gradwire.training.reducers.state import State, cloned

SMALL = 64
"""Tensors of at most this many elements are exchanged whole [notes]: they cost next to nothing."""
CORE, EXPLORER, KEYS = 0, 1, 2
"""Parts of a tensor, each a separate message: the core's values, the explorer's, and the positions of a new core."""


class Selection:
    """Base of selections; T tensors."""

    shared: ClassVar[bool] = True
    """True if all workers exchange the same elements, so that they need not send positions."""
    parts: tuple[str, ...] = ("",)
    """Names of a tensor's messages."""
    state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, infos: Sequence[TensorInfo], seed: int, device: torch.device) -> None:
        self.infos, self.seed, self.device = infos, seed, device
        self.sizes = [info.numel for info in infos]

    def choose(self, number: int, worker: int = 0) -> list[Tensor]:
        """Return the positions of each message in exchange `number`, T times the parts. Called once per exchange, for
        each worker unless `shared`."""
        raise NotImplementedError

    def is_keyed(self, part: int) -> bool:
        """Return True if the positions of a part are sent with its values."""
        return False

    def select_core(self, number: int, values: Tensor, gradients: Tensor, worker: int = 0) -> None:
        """Choose a new core from flat parameters and gradients if it is time for one; called before `choose`."""

    def new_core(self, number: int, worker: int = 0) -> list[Tensor]:
        """Return the positions of a core chosen in exchange `number`, by tensor; empty if none was chosen."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {name: cloned(getattr(self, name)) for name in self.state_names}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        for name in self.state_names:
            setattr(self, name, saved[name])

    def _shuffled(self, tensor: int, number: int, worker: int = 0) -> Tensor:
        draws = State(self.seed, worker, tensor, step=number).generator(self.device)
        return torch.randperm(self.sizes[tensor], generator=draws, device=self.device)


class Rotation(Selection):
    """A share of each tensor in turn, in an order from a shared seed, and a core that is always exchanged, if any.

    share : of each tensor that is exchanged at a time, rounded down to at least one element; tensors of at most SMALL
        elements are exchanged whole.
    core : share of each tensor that is core: the server's greatest |w| + `weight` |g|.
    every : exchanges for which a core stays. Then the elements that have waited longest come first.
    """

    state_names = ("cores", "orders", "begin", "last")

    def __init__(
        self,
        infos: Sequence[TensorInfo],
        seed: int,
        device: torch.device,
        share: float,
        core: float = 0.0,
        every: int = 1,
        weight: float = 1.0,
    ) -> None:
        super().__init__(infos, seed, device)
        self.every, self.weight = every, weight
        self.parts = ("core", "explorer", "keys") if core else ("",)
        self.counts = [_counts(numel, share, core) for numel in self.sizes]
        self.cores = [torch.empty(0, dtype=torch.long, device=device) for _ in infos]
        self.orders = [self._shuffled(tensor, 0) for tensor in range(len(infos))]
        """The elements outside the core of each tensor, in the order of their turns."""
        self.begin = [0] * len(infos)
        """Place in `orders` of the next element."""
        self.last = [torch.full((numel,), -1, device=device) for numel in self.sizes] if core else []
        """The last exchange of each element, -1 for none."""

    def select_core(self, number: int, values: Tensor, gradients: Tensor, worker: int = 0) -> None:
        if len(self.parts) == 1 or number % self.every:
            return
        pairs = zip(values.split(self.sizes), gradients.split(self.sizes), strict=True)
        for tensor, (value, gradient) in enumerate(pairs):
            core = largest(value, gradient, self.weight, self.counts[tensor][0])
            order = self._shuffled(tensor, number)
            order = order[~torch.isin(order, core)]
            self.cores[tensor] = core
            self.orders[tensor] = order[self.last[tensor][order].argsort(stable=True)]
            self.begin[tensor] = 0

    def choose(self, number: int, worker: int = 0) -> list[Tensor]:
        messages: list[Tensor] = []
        for tensor, (order, core) in enumerate(zip(self.orders, self.cores, strict=True)):
            begin, count = self.begin[tensor], self.counts[tensor][1]
            turns = torch.arange(begin, begin + count, device=self.device) % max(len(order), 1)
            explorer = order[turns].sort().values
            self.begin[tensor] = (begin + count) % max(len(order), 1)
            if len(self.parts) == 1:
                messages.append(explorer)
                continue
            messages += [core, explorer, core[:0]]
            self.last[tensor][explorer] = self.last[tensor][core] = number
        return messages

    def new_core(self, number: int, worker: int = 0) -> list[Tensor]:
        return self.cores if len(self.parts) > 1 and number % self.every == 0 else []


class Fragments(Selection):
    """Whole tensors in turn, in fragments of about equal size, as in streaming DiLoCo (Douillard et al., arXiv
    2501.18512), where fragments are made of layers.

    share : of the parameters that is exchanged at a time; there are 1 / share fragments, rounded down.
    """

    def __init__(self, infos: Sequence[TensorInfo], seed: int, device: torch.device, share: float) -> None:
        super().__init__(infos, seed, device)
        count = min(len(infos), max(1, int(1 / share + 1e-9)))
        loads, self.fragment_of = [0] * count, [0] * len(infos)
        for tensor in sorted(range(len(infos)), key=lambda tensor: (-self.sizes[tensor], tensor)):
            fragment = loads.index(min(loads))
            loads[fragment] += self.sizes[tensor]
            self.fragment_of[tensor] = fragment
        self.count = count

    def choose(self, number: int, worker: int = 0) -> list[Tensor]:
        now = number % self.count
        return [
            torch.arange(numel if fragment == now else 0, device=self.device)
            for numel, fragment in zip(self.sizes, self.fragment_of, strict=True)
        ]


class OwnSets(Selection):
    """Another core and another explorer for each worker, which sends their positions.

    Arguments as of `Rotation`; the explorer is drawn anew in every exchange, and small tensors are not exempt.

    keys : send the explorer's positions; without them it is drawn from a seed that the server has, too.
    """

    shared = False
    parts = ("core", "explorer", "keys")
    state_names = ("cores",)

    def __init__(
        self,
        infos: Sequence[TensorInfo],
        seed: int,
        device: torch.device,
        share: float,
        core: float,
        every: int,
        weight: float,
        keys: bool,
        workers: int,
    ) -> None:
        super().__init__(infos, seed, device)
        self.every, self.weight, self.keys = every, weight, keys
        self.counts = [_counts(numel, share, core, small=0) for numel in self.sizes]
        nothing = torch.empty(0, dtype=torch.long, device=device)
        self.cores = [[nothing for _ in infos] for _ in range(workers)]

    def is_keyed(self, part: int) -> bool:
        return self.keys and part == EXPLORER

    def select_core(self, number: int, values: Tensor, gradients: Tensor, worker: int = 0) -> None:
        if number % self.every == 0:
            self.cores[worker] = [
                largest(value, gradient, self.weight, count)
                for value, gradient, (count, _) in zip(
                    values.split(self.sizes), gradients.split(self.sizes), self.counts, strict=True
                )
            ]

    def choose(self, number: int, worker: int = 0) -> list[Tensor]:
        messages: list[Tensor] = []
        for tensor, core in enumerate(self.cores[worker]):
            order = self._shuffled(tensor, number, worker)
            order = order[~torch.isin(order, core)]
            messages += [core, order[: self.counts[tensor][1]].sort().values, core[:0]]
        return messages

    def new_core(self, number: int, worker: int = 0) -> list[Tensor]:
        return self.cores[worker] if number % self.every == 0 else []


def largest(values: Tensor, gradients: Tensor, weight: float, count: int) -> Tensor:
    """Return the positions of the `count` elements of greatest |w| + weight |g|, sorted."""
    return (values.abs() + weight * gradients.abs()).topk(count).indices.sort().values


def _counts(numel: int, share: float, core: float, small: int = SMALL) -> tuple[int, int]:
    """Return the sizes of a tensor's core and explorer: shares rounded down, together at least one element."""
    total = numel if numel <= small else max(1, int(share * numel + 1e-9))
    in_core = min(total, int(core * numel + 1e-9))
    return in_core, total - in_core


def message_infos(infos: Sequence[TensorInfo], parts: Sequence[str]) -> list[TensorInfo]:
    """Return the messages of all tensors, named by tensor and part."""
    return [replace(info, name=f"{info.name}.{part}" if part else info.name) for info in infos for part in parts]


def flat_positions(positions: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the positions of all messages in the concatenation of T tensors; each tensor has equally many messages."""
    parts = len(positions) // len(sizes)
    begins = [sum(sizes[:tensor]) for tensor in range(len(sizes))]
    return torch.cat([part + begins[message // parts] for message, part in enumerate(positions)])
