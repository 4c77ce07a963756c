"""`Ring` computes the workers' means after a ring all-reduce of gradients, hop by hop, given the lost packets.

Tensors are concatenated in buckets; a bucket of N workers is cut into N segments of equal length. In hop s of 2(N - 1)
worker w sends segment (w - s) mod N to worker w + 1: in the first N - 1 hops the partial sum (reduce-scatter), in the
others the finished mean (all-gather). A lost packet loses its contents:

* in reduce-scatter the sum of all workers before. `zero`: they are missing from the mean, which is still over N;
`rescaled`: every packet carries its number of workers, and the mean is over those included; `stale`: the values of that
hop in the last step replace it.
* in all-gather the mean. The receiver keeps its mean of the last step (`stale`), or none (`zero`), and passes on what
it has: later workers have no better one. So workers have different means, and drift apart.

With segments of S/N bytes and a loss probability q per hop of reduce-scatter, a `zero` mean contains (1 / N) sum_{d <
N} (1 - q)^d of the gradients [derived]. Without loss the sum is made in the order of the workers: the rounding order of
a ring, which begins with another worker in each segment, is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.training.reducers.state import cloned

VALUE = 4
"""Bytes of a value: rings add float32, and servers send it back."""


@dataclass(frozen=True)
class HopMasks:
    """The outcome of a ring's messages.

    buckets : tensors of each bucket, in order.
    masks : by bucket the packets that arrived, (2(N - 1), N, packets) bool: hop, sender; None if all did.
    """

    buckets: tuple[tuple[int, ...], ...]
    masks: Sequence[Tensor | None]


@dataclass(frozen=True)
class RingLayout:
    """Positions of elements in the messages of a ring.

    numels : of the tensors.
    buckets : tensors of each bucket, in order.
    workers : N.
    payload : bytes of payload of a packet.
    """

    numels: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]
    workers: int
    payload: int

    def segment(self, bucket: int) -> int:
        """Return the elements of a segment; the last one is padded."""
        return -(-sum(self.numels[tensor] for tensor in self.buckets[bucket]) // self.workers)

    def packets(self, bucket: int) -> int:
        """Return the packets of a message."""
        return -(-self.segment(bucket) * VALUE // self.payload)

    def mask_shape(self, bucket: int) -> tuple[int, int, int]:
        """Return the shape of a bucket's mask: hops, senders, packets."""
        return 2 * (self.workers - 1), self.workers, self.packets(bucket)

    @property
    def nbytes(self) -> int:
        """Bytes that each worker sends in a step."""
        return 2 * (self.workers - 1) * VALUE * sum(self.segment(number) for number in range(len(self.buckets)))

    def gathered(self, tensors: Sequence[Tensor], bucket: int) -> Tensor:
        """Return a bucket's tensors concatenated and zero-padded, (N, segment)."""
        flat = torch.cat([tensors[tensor].reshape(-1) for tensor in self.buckets[bucket]])
        size = self.segment(bucket) * self.workers
        return torch.nn.functional.pad(flat, (0, size - len(flat))).view(self.workers, -1)

    def scattered(self, bucket: int, content: Tensor, into: list[Any]) -> None:
        """Split the content of a bucket, (N, segment), into flat tensors: the inverse of `gathered`."""
        first = 0
        flat = content.reshape(-1)
        for tensor in self.buckets[bucket]:
            into[tensor] = flat[first : first + self.numels[tensor]]
            first += self.numels[tensor]

    def lost(self, masks: Sequence[Tensor | None]) -> list[list[float]]:
        """Return the share of each tensor that a worker sent, on all hops, and that did not arrive, by worker and
        tensor."""
        count = self.workers
        shares, workers = [[0.0] * len(self.numels) for _ in range(count)], torch.arange(count)
        for bucket, mask in enumerate(masks):
            if mask is None:
                continue
            gone = torch.zeros(count, count, self.segment(bucket))
            sent = torch.zeros_like(gone)
            for hop, missing in enumerate((~self.elements(bucket, mask)).float()):
                segment = (workers - hop) % count
                gone[workers, segment] += missing
                sent[workers, segment] += 1
            first = 0
            for tensor in self.buckets[bucket]:
                part = slice(first, first + self.numels[tensor])
                gone_elements, sent_elements = (
                    counts.flatten(1)[:, part].double().sum(dim=1) for counts in (gone, sent)
                )
                # a worker may send nothing of a small tensor
                for worker, share in enumerate((gone_elements / sent_elements.clamp(min=1)).tolist()):
                    shares[worker][tensor] = share
                first = part.stop
        return shares

    def elements(self, bucket: int, packets: Tensor) -> Tensor:
        """Return masks of packets, (..., packets), as masks of elements, (..., segment)."""
        return packets.repeat_interleave(self.payload // VALUE, dim=-1)[..., : self.segment(bucket)]

    def check(self, hops: HopMasks) -> None:
        """Raise ValueError if the masks do not fit this ring."""
        for number, mask in enumerate(hops.masks):
            if mask is not None and tuple(mask.shape) != (shape := self.mask_shape(number)):
                what = f"bucket {number}: a mask of {tuple(mask.shape)}"
                raise ValueError(f"{what} for hops, senders and packets {shape}")


def buckets_of(numels: Sequence[int], most: int) -> tuple[tuple[int, ...], ...]:
    """Return tensors in buckets from the last to the first, as gradients become ready. A bucket is closed by the tensor
    that brings it to `most` bytes."""
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
    """The reduction around a ring, with the values of the last step's hops and means.

    fill : "zero", "rescaled" or "stale", in reduce-scatter.
    pull_fill : "stale" or "zero", in all-gather.
    came : by bucket, (N - 1, N, segment): hop, sender; if `fill` is "stale".
    had : by bucket, (N, N, segment): worker, segment; or (1, N, segment) if all had the same.
    buckets : of the last step. If the buckets change, as when gradients become ready in another order, the last step's
        values are not used.
    """

    fill: Literal["zero", "rescaled", "stale"] = "zero"
    pull_fill: Literal["stale", "zero"] = "stale"
    came: dict[int, Tensor] = field(default_factory=dict)
    had: dict[int, Tensor] = field(default_factory=dict)
    buckets: tuple[tuple[int, ...], ...] = ()

    def reduce(
        self, layout: RingLayout, gradients: Sequence[Sequence[Tensor]], masks: Sequence[Tensor | None]
    ) -> list[list[Tensor]]:
        """Return the workers' means after a step, N lists of flat tensors; one list if all have the same.

        gradients : N lists of tensors.
        masks : by bucket, of its packets, on any device; see `reduce_bucket`.
        """
        if layout.buckets != self.buckets:
            self.came, self.had, self.buckets = {}, {}, layout.buckets
        by_bucket = []
        for number, mask in enumerate(masks):
            stacked = torch.stack([layout.gathered(worker_gradients, number) for worker_gradients in gradients])
            mask = None if mask is None else mask.to(stacked.device)
            by_bucket.append(self.reduce_bucket(layout, number, stacked, mask))
        means: list[list[Any]] = []
        for worker in range(max(map(len, by_bucket))):
            means.append([None] * len(layout.numels))
            for number, bucket_means in enumerate(by_bucket):
                layout.scattered(number, bucket_means[worker if len(bucket_means) > 1 else 0], means[-1])
        return means

    def reduce_bucket(self, layout: RingLayout, number: int, gradients: Tensor, mask: Tensor | None) -> Tensor:
        """Return the workers' means of a bucket, (N, N, segment): worker, segment; or (1, N, segment) if all have the
        same.

        gradients : (N, N, segment): worker, segment.
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
            mean = self._reduce_scatter(number, gradients, reducing)
        last_means = self.had.get(number)
        means = mean[None] if gathering is None else self._all_gather(mean, gathering, last_means)
        self.had[number] = means
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the last step, for a checkpoint."""
        return {"came": cloned(self.came), "had": cloned(self.had), "buckets": self.buckets}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.came, self.had = cloned(saved["came"]), cloned(saved["had"])
        self.buckets = tuple(tuple(bucket) for bucket in saved["buckets"])

    def _reduce_scatter(self, number: int, gradients: Tensor, arrived: Tensor | None) -> Tensor:
        """Return the finished mean of every segment, (N, segment), at the worker that has it first."""
        count = len(gradients)
        worker = torch.arange(count, device=gradients.device)
        sums, members = gradients.clone(), torch.ones_like(gradients)
        last = self.came.get(number)
        received = []
        for hop in range(count - 1):
            segment, receiver = (worker - hop) % count, (worker + 1) % count
            value, within = sums[worker, segment], members[worker, segment]
            if arrived is not None:
                mask = arrived[hop]
                instead = 0.0 if self.fill != "stale" or last is None else last[hop]
                value = torch.where(mask, value, instead)
                within = within * mask
            if self.fill == "stale":
                received.append(value)
            sums[receiver, segment] += value
            members[receiver, segment] += within
        if self.fill == "stale":
            self.came[number] = torch.stack(received)
            if arrived is None:
                return _sum(gradients) / count
        first = (worker + count - 1) % count  # the worker that has segment 0, 1, ...
        over = members[first, worker] if self.fill == "rescaled" else count
        return sums[first, worker] / over

    def _all_gather(self, mean: Tensor, arrived: Tensor, last_means: Tensor | None) -> Tensor:
        """Return the means of all workers, (N, N, segment)."""
        count = len(mean)
        worker = torch.arange(count, device=mean.device)
        instead = torch.zeros_like(mean)[None] if last_means is None or self.pull_fill == "zero" else last_means
        means = instead.expand(count, *mean.shape).clone()
        means[(worker + count - 1) % count, worker] = mean
        for hop in range(count - 1):
            segment, receiver = (worker + 1 - hop) % count, (worker + 1) % count
            means[receiver, segment] = torch.where(arrived[hop], means[worker, segment], means[receiver, segment])
        return means


def _sum(gradients: Tensor) -> Tensor:
    """Add up in the order of the workers, as `Exchange` does."""
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total.add_(gradient)
    return total
