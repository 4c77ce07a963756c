"""`register` installs a reducer as communication hook of PyTorch's DistributedDataParallel, for training on several
processes.

    ddp = DistributedDataParallel(model)
    reduced = register(ddp, ErrorFeedback(reducer=TopK(ratio=0.01)))

From then on DDP's buckets carry the reducer's encodings. Encodings that can be added up (none, fp16, Random-k,
PowerSGD) are all-reduced; with all other reducers every process gathers all encodings and decodes them itself. With the
same seed the result equals that of `gradwire.training.exchange.exchange` with all workers in one process.

Tensors are on the processor, for gloo. Only encodings added up in one round overlap with the backward pass: gathering,
and PowerSGD's two rounds, block bucket by bucket, in the same order everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.validation.argument_checks import require_instance, require_integer
from gradwire.training import value_checks as checks
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.reducers.base import Reducer
from gradwire.training.reducers.fp16 import Half
from gradwire.training.reducers.none import Dense
from gradwire.training.reducers.powersgd import PowerSGD
from gradwire.training.reducers.randomk import RandomK
from gradwire.training.reducers.state import State
from gradwire.training.trainer import tensors_of

SUMMABLE = (Dense, Half, RandomK, PowerSGD)
"""Reducers that send one run of numbers whose mean is the encoding of the mean gradient."""


UNLIMITED_BYTES = 2**31 - 1
"""Bytes of one piece: nothing is cut into packets here."""


class ReducerHook:
    """A reducer in one process of a group, with its state and byte count.

    sent_bytes : of this process's encodings so far, not counting the collectives' own traffic.
    """

    def __init__(self, module: nn.Module, reducer: Reducer, seed: int = 0, group: Any = None) -> None:
        """Validate the arguments and prepare the state.

        module : the model, or DDP around it.
        seed : of random draws, the same in all processes.
        group : the process group; the default one if absent.

        Raises ScenarioError if an argument has the wrong type.
        """
        require_instance(module, nn.Module, "Reduced(module)", "a torch.nn.Module", ScenarioError)
        checks.check_reducer(reducer, "Reduced(reducer)")
        require_integer(seed, "Reduced(seed)", 0, ScenarioError)
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        self.reducer, self.group = reducer, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.infos = tensors_of(inner)
        self.number = {id(parameter): at for at, parameter in enumerate(inner.parameters())}
        self.states = [State(seed, self.rank, tensor, self.world) for tensor in range(len(self.infos))]
        self.step, self.sent_bytes = 0, 0
        self.summed = isinstance(checks.innermost(reducer), SUMMABLE)
        self.strange = checks.is_user_defined(reducer)

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Return a future of a bucket's mean gradient; DDP calls it for each bucket."""
        tensors = [self.number[id(parameter)] for parameter in bucket.parameters()]
        gradients = [gradient.clone() for gradient in bucket.gradients()]  # DDP may change its own
        for tensor in tensors:
            self.states[tensor].step = self.step
        self.step += bucket.is_last()
        encoded = [self._compress(tensor, gradient) for tensor, gradient in zip(tensors, gradients, strict=True)]
        if self.summed and self.reducer.rounds == 1:
            summed, work = self._start_all_reduce(encoded)
            return work.get_future().then(
                lambda _: self._finish(bucket, tensors, encoded, self._split(encoded, summed))
            )
        if not self.summed:
            return _completed(self._finish(bucket, tensors, encoded, self._gather(tensors, encoded)))
        for round_ in range(self.reducer.rounds):
            summed, work = self._start_all_reduce(encoded)
            work.wait()
            means = self._split(encoded, summed)
            if round_ + 1 < self.reducer.rounds:
                decoded = self._decode(tensors, means)
                encoded = [
                    self.reducer.follow(mean, self.infos[tensor], self.states[tensor])
                    for tensor, mean in zip(tensors, decoded, strict=True)
                ]
        return _completed(self._finish(bucket, tensors, encoded, means))

    def _compress(self, tensor: int, gradient: Tensor) -> Encoded:
        """Encode a gradient, and check the encoding of a user-defined reducer."""
        info, before = self.infos[tensor], gradient.clone() if self.strange else gradient
        encoding = self.reducer.compress(gradient, info, self.states[tensor])
        if self.strange:
            checks.check_unchanged(self.reducer, before, gradient, info)
            checks.check_encoded(self.reducer, "compress", encoding, info, UNLIMITED_BYTES)
            if self.summed:
                checks.check_values(self.reducer, encoding, info)
        return encoding

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process, for its checkpoint."""
        return {"step": self.step, "states": [state.state_dict() for state in self.states]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.step = int(saved["step"])
        for state, saved_state in zip(self.states, saved["states"], strict=True):
            state.load_state_dict(saved_state)

    def _start_all_reduce(self, encoded: Sequence[Encoded]) -> tuple[Tensor, Any]:
        """Start an all-reduce of the encodings in one tensor; return (the tensor, the work)."""
        flat = torch.cat([encoding.fields[0].reshape(-1) for encoding in encoded]) / self.world
        self.sent_bytes += flat.numel() * flat.element_size()
        return flat, dist.all_reduce(flat, group=self.group, async_op=True)

    def _split(self, encoded: Sequence[Encoded], flat: Tensor) -> list[Encoded]:
        parts = flat.split([encoding.fields[0].numel() for encoding in encoded])
        return [
            replace(encoding, fields=(part.view(encoding.fields[0].shape),))
            for encoding, part in zip(encoded, parts, strict=True)
        ]

    def _gather(self, tensors: Sequence[int], encoded: Sequence[Encoded]) -> list[Tensor]:
        """Return the means of all processes' encodings, decoded one after the other."""
        counts = [torch.empty(len(encoded), dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(counts, torch.tensor([encoding.units for encoding in encoded]), group=self.group)
        own_bytes = torch.cat([_in_one_piece(encoding) for encoding in encoded])
        self.sent_bytes += len(own_bytes)
        layouts = [[_layout_of(encoding, int(n)) for encoding, n in zip(encoded, row, strict=True)] for row in counts]
        sizes = [sum(_size(encoding) for encoding in row) for row in layouts]
        padded = nn.functional.pad(own_bytes, (0, max(sizes) - len(own_bytes)))
        buffers = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(buffers, padded, group=self.group)
        totals: list[Tensor] = []
        for buffer, layout in zip(buffers, layouts, strict=True):
            decoded = self._decode(tensors, _unpack(buffer, layout))
            totals = [total + encoding for total, encoding in zip(totals, decoded, strict=True)] if totals else decoded
        return [total / self.world for total in totals]

    def _decode(self, tensors: Sequence[int], encoded: Sequence[Encoded]) -> list[Tensor]:
        gradients = []
        for tensor, encoding in zip(tensors, encoded, strict=True):
            gradients.append(self.reducer.decode(encoding, self.infos[tensor]))
            if self.strange and self.reducer.rounds == 1:
                checks.check_decoded(self.reducer, "decode", gradients[-1], self.infos[tensor])
        return gradients

    def _finish(
        self, bucket: dist.GradBucket, tensors: Sequence[int], encoded: Sequence[Encoded], means: Sequence[Any]
    ) -> Tensor:
        """Write the means into the bucket, and update the state for the next step."""
        decoded = [
            self.reducer.decode(mean, self.infos[tensor]) if isinstance(mean, Encoded) else mean
            for tensor, mean in zip(tensors, means, strict=True)
        ]
        for tensor, gradient, encoding, mean in zip(tensors, bucket.gradients(), encoded, decoded, strict=True):
            info, state = self.infos[tensor], self.states[tensor]
            result = self.reducer.restore(mean, info, state)
            if self.strange:
                checks.check_decoded(self.reducer, "restore", result, info)
            own_share = result if self.reducer.rounds > 1 else self.reducer.decode(encoding, info)
            if self.strange:
                checks.check_decoded(self.reducer, "decode", own_share, info)
            self.reducer.settle(own_share, info, state)
            gradient.copy_(result.view_as(gradient))
        return bucket.buffer()


def register(
    ddp: nn.parallel.DistributedDataParallel, reducer: Reducer, seed: int = 0, group: Any = None
) -> ReducerHook:
    """Make DDP send a reducer's encodings, from the first step; return the reducer with its state and byte count.
    Raises ScenarioError if `ddp` is not a DistributedDataParallel, or `reducer` not a reducer, such as its name or
    class."""
    ddp_class = nn.parallel.DistributedDataParallel
    require_instance(ddp, ddp_class, "register(ddp)", "a torch.nn.parallel.DistributedDataParallel", ScenarioError)
    checks.check_reducer(reducer, "register(reducer)")
    require_integer(seed, "register(seed)", 0, ScenarioError)
    reduced = ReducerHook(ddp, reducer, seed, group)
    ddp.register_comm_hook(reduced, lambda state, bucket: state.hook(bucket))  # DDP refuses annotations in strings
    return reduced


def _completed(tensor: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def _size(encoded: Encoded) -> int:
    return encoded.head_bytes + encoded.units * encoded.unit_bytes if encoded.units else 0


def _in_one_piece(encoded: Encoded) -> Tensor:
    """Return an encoding in one piece, uint8."""
    pieces = encoded.to_packets(max(_size(encoded), 1))
    return torch.frombuffer(bytearray(pieces[0]), dtype=torch.uint8) if pieces else torch.empty(0, dtype=torch.uint8)


def _layout_of(encoded: Encoded, units: int) -> Encoded:
    """Return the layout of another process's encoding, which may have another number of units."""
    if units == encoded.units:
        return encoded
    return replace(encoded, fields=tuple(field.new_zeros((units, *field.shape[1:])) for field in encoded.fields))


def _unpack(buffer: Tensor, layout: Sequence[Encoded]) -> list[Encoded]:
    encodings, at = [], 0
    for encoding in layout:
        size = _size(encoding)
        piece = buffer[at : at + size].numpy().tobytes()
        encodings.append(encoding.from_packets([piece], size)[0] if size else encoding)
        at += size
    return encodings
