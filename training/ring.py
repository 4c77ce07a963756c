"""Ring all-reduce of gradients whose packets may be lost, hop by hop as a job's ring sends.

Tensors lie one after the other in buckets; a bucket of N workers is cut into N segments of equal length. In hop s of
2(N - 1) worker w sends segment (w - s) mod N to worker w + 1: in the first N - 1 hops the sum so far (reduce-scatter),
in the others the finished mean (all-gather). A packet that is lost takes along whatever it carried:

* in reduce-scatter the sum of all workers before. `zero`: they are missing from the mean, which is over N all the same;
  `rescaled`: every packet says how many workers are in it, and the mean is over those that are; `stale`: what came by
  that hop in the last step stands for it.
* in all-gather the mean. The receiver keeps the mean that it had there in the last step (`stale`), or none (`zero`),
  and hands on what it has: those behind it have no better one. So workers do not have the same mean, and drift apart.

Each of S/N bytes, with odds q of losing a packet in each hop of reduce-scatter, (1 / N) sum_{d < N} (1 - q)^d of the
gradients are in a `zero` mean [derived]. Where nothing is lost the sum is made in the order of the workers: a ring's
order of rounding, which begins with another worker in each segment, is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

VALUE = 4
"""Bytes of a value: rings add float32, and that is what servers send back."""


@dataclass(frozen=True)
class Hops:
    """What became of the messages of a ring.

    buckets : tensors of each bucket, as they lie there.
    masks : by bucket which packets have arrived, (2(N - 1), N, packets) bool: hop, sender; None where all have.
    """

    buckets: tuple[tuple[int, ...], ...]
    masks: Sequence[Tensor | None]


@dataclass(frozen=True)
class RingLayout:
    """Where elements lie in the messages of a ring.

    numels : of the tensors.
    buckets : tensors of each bucket, in the order in which they lie there.
    workers : N.
    payload : bytes of payload of a packet.
    """

    numels: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]
    workers: int
    payload: int

    def segment(self, bucket: int) -> int:
        """Elements of a segment; the last one is filled up."""
        return -(-sum(self.numels[tensor] for tensor in self.buckets[bucket]) // self.workers)

    def packets(self, bucket: int) -> int:
        """Packets of a message."""
        return -(-self.segment(bucket) * VALUE // self.payload)

    @property
    def nbytes(self) -> int:
        """Bytes that each worker sends in a step."""
        return 2 * (self.workers - 1) * VALUE * sum(self.segment(number) for number in range(len(self.buckets)))

    def gathered(self, tensors: Sequence[Tensor], bucket: int) -> Tensor:
        """Tensors as they lie in a bucket, (N, segment), flat ones one after the other and filled up with zeros."""
        import torch

        whole = torch.cat([tensors[tensor].reshape(-1) for tensor in self.buckets[bucket]])
        size = self.segment(bucket) * self.workers
        return torch.nn.functional.pad(whole, (0, size - len(whole))).view(self.workers, -1)

    def dealt(self, bucket: int, content: Tensor, into: list[Any]) -> None:
        """The opposite: the content of a bucket, (N, segment), as flat tensors at their numbers."""
        first = 0
        flat = content.reshape(-1)
        for tensor in self.buckets[bucket]:
            into[tensor] = flat[first : first + self.numels[tensor]]
            first += self.numels[tensor]

    def lost(self, masks: Sequence[Tensor | None]) -> list[list[float]]:
        """Share of what a worker sent of a tensor, on all hops, that did not arrive, by worker and tensor."""
        import torch

        count = self.workers
        shares = [[0.0] * len(self.numels) for _ in range(count)]
        hops, workers = 2 * count - 2, torch.arange(count)
        for number, mask in enumerate(masks):
            if mask is None:
                continue
            gone = torch.zeros(count, count, self.segment(number))
            sent = torch.zeros(count, count, 1)
            missing = (~self.elements(number, mask)).float()
            for hop in range(hops):
                segment = (workers - hop) % count
                gone[workers, segment] += missing[hop]
                sent[workers, segment] += 1
            sent = sent.expand_as(gone).contiguous()
            for worker in range(count):
                parts: list[list[Any]] = [[None] * len(self.numels) for _ in range(2)]
                self.dealt(number, gone[worker], parts[0])
                self.dealt(number, sent[worker], parts[1])
                for tensor in self.buckets[number]:
                    # of a small tensor a worker may send nothing at all
                    whole = float(parts[1][tensor].sum())
                    shares[worker][tensor] = float(parts[0][tensor].sum()) / whole if whole else 0.0
        return shares

    def elements(self, bucket: int, packets: Tensor) -> Tensor:
        """Masks of packets, (..., packets), as masks of elements, (..., segment)."""
        return packets.repeat_interleave(self.payload // VALUE, dim=-1)[..., : self.segment(bucket)]

    def check(self, hops: Hops) -> None:
        """Whether masks are of this ring. Raises `ValueError` if not."""
        for number, mask in enumerate(hops.masks):
            wanted = (2 * (self.workers - 1), self.workers, self.packets(number))
            if mask is not None and tuple(mask.shape) != wanted:
                raise ValueError(
                    f"bucket {number}: a mask of {tuple(mask.shape)} for hops, senders and packets {wanted}"
                )


def buckets_of(numels: Sequence[int], most: int) -> tuple[tuple[int, ...], ...]:
    """Tensors in buckets from the last to the first, as gradients become ready; one is closed by the tensor that
    brings it to `most` bytes."""
    groups: list[list[int]] = [[]]
    filled = 0
    for tensor in range(len(numels) - 1, -1, -1):
        if filled >= most:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += numels[tensor] * VALUE
    return tuple(tuple(group) for group in groups)


@dataclass
class Ring:
    """The walk round the ring, and what it remembers: what came by every hop, and what everybody had, in the last step.

    fill : "zero", "rescaled" or "stale", in reduce-scatter.
    pull_fill : "stale" or "zero", in all-gather.
    came : by bucket, (N - 1, N, segment): hop, sender; where `fill` is "stale".
    had : by bucket, (N, N, segment): worker, segment; or (1, N, segment) where all had the same.
    buckets : of the last step. Where others follow, as where gradients become ready in another order, there is no last
        step to go by.
    """

    fill: Literal["zero", "rescaled", "stale"] = "zero"
    pull_fill: Literal["stale", "zero"] = "stale"
    came: dict[int, Tensor] = field(default_factory=dict)
    had: dict[int, Tensor] = field(default_factory=dict)
    buckets: tuple[tuple[int, ...], ...] = ()

    def reduce(
        self, layout: RingLayout, gradients: Sequence[Sequence[Tensor]], masks: Sequence[Tensor | None]
    ) -> list[list[Tensor]]:
        """The means that the workers have after a step, N lists of flat tensors; one list where all have the same.

        gradients : N lists of tensors.
        masks : by bucket, of its packets, on any device; see `reduce_bucket`.
        """
        import torch

        if layout.buckets != self.buckets:
            self.came, self.had, self.buckets = {}, {}, layout.buckets
        found = []
        for number, mask in enumerate(masks):
            every = torch.stack([layout.gathered(mine, number) for mine in gradients])
            found.append(self.reduce_bucket(layout, number, every, None if mask is None else mask.to(every.device)))
        means: list[list[Any]] = []
        for worker in range(max(map(len, found))):
            means.append([None] * len(layout.numels))
            for number, each in enumerate(found):
                layout.dealt(number, each[worker if len(each) > 1 else 0], means[-1])
        return means

    def reduce_bucket(self, layout: RingLayout, number: int, gradients: Tensor, mask: Tensor | None) -> Tensor:
        """The means that the workers have after a step, (N, N, segment): worker, segment; or (1, N, segment) if these
        are the same.

        gradients : of a bucket, (N, N, segment): worker, segment.
        mask : of its packets, (2(N - 1), N, packets): hop, sender; None if nothing was lost.
        """
        count = layout.workers
        reducing, gathering = None, None
        if mask is not None:
            arrived = layout.elements(number, mask)
            reducing = arrived[: count - 1] if not bool(mask[: count - 1].all()) else None
            gathering = arrived[count - 1 :] if not bool(mask[count - 1 :].all()) else None
        if reducing is None and self.fill != "stale":
            mean = _sum(gradients) / count
        else:
            mean = self._scattered(number, gradients, reducing)
        had = self.had.get(number)
        found = mean[None] if gathering is None else self._gathered(mean, gathering, had)
        self.had[number] = found
        return found

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, for a checkpoint."""
        found = {name: {key: value.clone() for key, value in getattr(self, name).items()} for name in ("came", "had")}
        return {**found, "buckets": self.buckets}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        for name in ("came", "had"):
            setattr(self, name, {key: value.clone() for key, value in saved[name].items()})
        self.buckets = tuple(tuple(each) for each in saved["buckets"])

    def _scattered(self, number: int, gradients: Tensor, arrived: Tensor | None) -> Tensor:
        """The finished mean of every segment, (N, segment), at the worker that has it first."""
        import torch

        count = len(gradients)
        worker = torch.arange(count, device=gradients.device)
        sums, members = gradients.clone(), torch.ones_like(gradients)
        before = self.came.get(number)
        came = []
        for hop in range(count - 1):
            segment, receiver = (worker - hop) % count, (worker + 1) % count
            value, within = sums[worker, segment], members[worker, segment]
            if arrived is not None:
                there = arrived[hop]
                instead = 0.0 if self.fill != "stale" or before is None else before[hop]
                value = torch.where(there, value, instead)
                within = within * there
            if self.fill == "stale":
                came.append(value)
            sums[receiver, segment] += value
            members[receiver, segment] += within
        if self.fill == "stale":
            self.came[number] = torch.stack(came)
            if arrived is None:
                return _sum(gradients) / count
        first = (worker + count - 1) % count  # who has segment 0, 1, ...
        over = members[first, worker] if self.fill == "rescaled" else count
        return sums[first, worker] / over

    def _gathered(self, mean: Tensor, arrived: Tensor, had: Tensor | None) -> Tensor:
        """What everybody has, (N, N, segment)."""
        import torch

        count = len(mean)
        worker = torch.arange(count, device=mean.device)
        instead = torch.zeros_like(mean)[None] if had is None or self.pull_fill == "zero" else had
        found = instead.expand(count, *mean.shape).clone()
        found[(worker + count - 1) % count, worker] = mean
        for hop in range(count - 1):
            segment, receiver = (worker + 1 - hop) % count, (worker + 1) % count
            found[receiver, segment] = torch.where(
                arrived[hop], found[worker, segment], found[receiver, segment]
            )
        return found


def _sum(gradients: Tensor) -> Tensor:
    """In the order of the workers, as `Exchange` does."""
    total = gradients[0].clone()
    for each in gradients[1:]:
        total.add_(each)
    return total
