"""Reducers in real training on several processes: communication hooks for PyTorch's DistributedDataParallel.

    ddp = DistributedDataParallel(model)
    reduced = register(ddp, ErrorFeedback(reducer=TopK(ratio=0.01)))

From then on DDP's buckets carry what the reducer makes of each gradient. Reducers whose encodings can be added up
(none, fp16, Random-k, PowerSGD) are all-reduced; of all others every process gathers the encodings of all, and decodes
them itself. With the same seed it is what `gradwire.training.exchange` does with all workers in one process.

Tensors are on the processor, as gloo has them. Only what is added up in one round overlaps with the backward pass:
gathering, and PowerSGD's two rounds, are waited for bucket by bucket, in the order that is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import instance_of, whole_number
from gradwire.training.encoded import Encoded
from gradwire.training.parts import reducer_given
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.fp16 import Half
from gradwire.training.reducers.none import Dense
from gradwire.training.reducers.powersgd import PowerSGD
from gradwire.training.reducers.randomk import RandomK
from gradwire.training.reducers.state import State
from gradwire.training.strangers import (
    answering,
    check_decoded,
    check_encoded,
    check_unchanged,
    check_values,
    innermost,
    is_own,
)
from gradwire.training.trainer import tensors_of

SUMMED = (Dense, Half, RandomK, PowerSGD)
"""Reducers that send one run of numbers, of which the mean is what the mean gradient would be sent as."""


WHOLE = 2**31 - 1
"""Bytes of one piece: nothing is cut into packets here."""


class Reduced:
    """A reducer at work in one process of a group: what it remembers, and what it has sent.

    sent_bytes : of this process's encodings so far, without what a collective makes of them.
    """

    def __init__(self, module: nn.Module, reducer: Reducer, seed: int = 0, group: Any = None) -> None:
        """
        Parameters
        ----------
        module : the model, or DDP around it.
        seed : what random draws hang on, the same in all processes.
        group : the process group; the default one if absent.

        Raises
        ------
        ScenarioError
            Something is none of these.
        """
        instance_of(module, nn.Module, "Reduced(module)", "a torch.nn.Module", ScenarioError)
        reducer_given(reducer, "Reduced(reducer)")
        whole_number(seed, "Reduced(seed)", 0, ScenarioError)
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        self.reducer, self.group = reducer, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.infos = tensors_of(inner)
        self.number = {id(each): at for at, each in enumerate(inner.parameters())}
        self.states = [State(seed, self.rank, tensor, self.world) for tensor in range(len(self.infos))]
        self.step, self.sent_bytes = 0, 0
        self.summed = isinstance(innermost(reducer), SUMMED)
        self.strange = not is_own(answering(reducer))

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls for each bucket: the bucket's mean gradient, sooner or later."""
        tensors = [self.number[id(each)] for each in bucket.parameters()]
        gradients = [each.clone() for each in bucket.gradients()]  # what is remembered of them is not DDP's to change
        for tensor in tensors:
            self.states[tensor].step = self.step
        self.step += bucket.is_last()
        encoded = [self._compressed(tensor, each) for tensor, each in zip(tensors, gradients, strict=True)]
        if self.summed and self.reducer.rounds == 1:
            whole, work = self._added(encoded)
            return work.get_future().then(lambda _: self._taken(bucket, tensors, encoded, self._split(encoded, whole)))
        if not self.summed:
            return _now(self._taken(bucket, tensors, encoded, self._gathered(tensors, encoded)))
        for round_ in range(self.reducer.rounds):
            whole, work = self._added(encoded)
            work.wait()
            means = self._split(encoded, whole)
            if round_ + 1 < self.reducer.rounds:
                decoded = self._decoded(tensors, means)
                encoded = [
                    self.reducer.follow(mean, self.infos[tensor], self.states[tensor])
                    for tensor, mean in zip(tensors, decoded, strict=True)
                ]
        return _now(self._taken(bucket, tensors, encoded, means))

    def _compressed(self, tensor: int, gradient: Tensor) -> Encoded:
        """A gradient's encoding, looked at where a reducer is not gradwire's own."""
        info, before = self.infos[tensor], gradient.clone() if self.strange else gradient
        found = self.reducer.compress(gradient, info, self.states[tensor])
        if self.strange:
            check_unchanged(self.reducer, before, gradient, info)
            check_encoded(self.reducer, "compress", found, info, WHOLE)
            if self.summed:
                check_values(self.reducer, found, info)
        return found

    def state_dict(self) -> dict[str, Any]:
        """What this process remembers, for a checkpoint of its own."""
        return {"step": self.step, "states": [each.state_dict() for each in self.states]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.step = int(saved["step"])
        for state, theirs in zip(self.states, saved["states"], strict=True):
            state.load_state_dict(theirs)

    def _added(self, encoded: Sequence[Encoded]) -> tuple[Tensor, Any]:
        """(a tensor that becomes the mean of what all send in one run, the work of it)."""
        whole = torch.cat([each.fields[0].reshape(-1) for each in encoded]) / self.world
        self.sent_bytes += whole.numel() * whole.element_size()
        return whole, dist.all_reduce(whole, group=self.group, async_op=True)

    def _split(self, encoded: Sequence[Encoded], whole: Tensor) -> list[Encoded]:
        parts = whole.split([each.fields[0].numel() for each in encoded])
        return [
            replace(each, fields=(part.view(each.fields[0].shape),)) for each, part in zip(encoded, parts, strict=True)
        ]

    def _gathered(self, tensors: Sequence[int], encoded: Sequence[Encoded]) -> list[Tensor]:
        """The means of what all processes send, decoded one after the other."""
        counts = [torch.empty(len(encoded), dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(counts, torch.tensor([each.units for each in encoded]), group=self.group)
        mine = torch.cat([_whole(each) for each in encoded])
        self.sent_bytes += len(mine)
        layouts = [[_of(each, int(n)) for each, n in zip(encoded, row, strict=True)] for row in counts]
        sizes = [sum(_size(each) for each in row) for row in layouts]
        padded = nn.functional.pad(mine, (0, max(sizes) - len(mine)))
        boxes = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(boxes, padded, group=self.group)
        totals: list[Tensor] = []
        for box, layout in zip(boxes, layouts, strict=True):
            decoded = self._decoded(tensors, _opened(box, layout))
            totals = [total + each for total, each in zip(totals, decoded, strict=True)] if totals else decoded
        return [total / self.world for total in totals]

    def _decoded(self, tensors: Sequence[int], encoded: Sequence[Encoded]) -> list[Tensor]:
        found = []
        for tensor, each in zip(tensors, encoded, strict=True):
            found.append(self.reducer.decode(each, self.infos[tensor]))
            if self.strange and self.reducer.rounds == 1:
                check_decoded(self.reducer, "decode", found[-1], self.infos[tensor])
        return found

    def _taken(
        self, bucket: dist.GradBucket, tensors: Sequence[int], encoded: Sequence[Encoded], means: Sequence[Any]
    ) -> Tensor:
        """The bucket with the means in it, and everything remembered that is for the next step."""
        decoded = [
            self.reducer.decode(mean, self.infos[tensor]) if isinstance(mean, Encoded) else mean
            for tensor, mean in zip(tensors, means, strict=True)
        ]
        for tensor, gradient, mine, mean in zip(tensors, bucket.gradients(), encoded, decoded, strict=True):
            info, state = self.infos[tensor], self.states[tensor]
            result = self.reducer.restore(mean, info, state)
            if self.strange:
                check_decoded(self.reducer, "restore", result, info)
            own = result if self.reducer.rounds > 1 else self.reducer.decode(mine, info)
            if self.strange:
                check_decoded(self.reducer, "decode", own, info)
            self.reducer.settle(own, info, state)
            gradient.copy_(result.view_as(gradient))
        return bucket.buffer()


def register(ddp: nn.parallel.DistributedDataParallel, reducer: Reducer, seed: int = 0, group: Any = None) -> Reduced:
    """Have DDP send what a reducer makes of gradients; before the first step. What comes back counts and remembers.

    Raises
    ------
    ScenarioError
        It is no DistributedDataParallel, or no reducer, such as a reducer's name or class.
    """
    wanted = nn.parallel.DistributedDataParallel
    instance_of(ddp, wanted, "register(ddp)", "a torch.nn.parallel.DistributedDataParallel", ScenarioError)
    reducer_given(reducer, "register(reducer)")
    whole_number(seed, "register(seed)", 0, ScenarioError)
    reduced = Reduced(ddp, reducer, seed, group)
    ddp.register_comm_hook(reduced, lambda state, bucket: state.hook(bucket))  # DDP refuses annotations in strings
    return reduced


def _now(tensor: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def _size(encoded: Encoded) -> int:
    return encoded.head_bytes + encoded.units * encoded.unit_bytes if encoded.units else 0


def _whole(encoded: Encoded) -> Tensor:
    """An encoding in one piece, uint8."""
    pieces = encoded.to_packets(max(_size(encoded), 1))
    return torch.frombuffer(bytearray(pieces[0]), dtype=torch.uint8) if pieces else torch.empty(0, dtype=torch.uint8)


def _of(encoded: Encoded, units: int) -> Encoded:
    """The layout of another process's encoding, which may have another number of units."""
    if units == encoded.units:
        return encoded
    return replace(encoded, fields=tuple(each.new_zeros((units, *each.shape[1:])) for each in encoded.fields))


def _opened(box: Tensor, layout: Sequence[Encoded]) -> list[Encoded]:
    """What a process has sent, given the layout of it."""
    found, at = [], 0
    for each in layout:
        size = _size(each)
        piece = box[at : at + size].numpy().tobytes()
        found.append(each.from_packets([piece], size)[0] if size else each)
        at += size
    return found
