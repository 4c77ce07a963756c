"""The network seam: what a trainer asks of a network, and what it is answered.

In every step a trainer hands over what all workers send, and hears which packets arrived and how long it took. Who
answers is exchangeable (`gradwire.training.network`), and may be anybody's: what is not gradwire's own is looked at
before anything is made of it (`carried`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

from gradwire.scenarios.asked import asked
from gradwire.training.ring import VALUE, Hops, RingLayout
from gradwire.training.strangers import Unfit, answers, is_own, shown

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.traces.trace import TensorInfo
    from gradwire.training.encoded import Encoded

ASKED = "Trainer(network)"
LONGEST = 2**63
"""Picoseconds that no table has room for."""


@dataclass(frozen=True)
class Pushed:
    """What the workers send in one round of a step; N workers, T tensors.

    step, round : numbers, from 0.
    payload : bytes of payload of a packet.
    infos : the tensors, T of them.
    encoded : what is sent, N x T.
    layout : of a ring, if it is one; a network that knows better says so in its answer.
    encode_ps : how long encoding takes, by worker and tensor, of which a worker does one after the other; no time if
        absent.
    back : tells the bytes with which servers answer each worker, of every tensor, int[T], where these send something
        else than as much as they got. Asked by networks whose time depends on it: it may take some.
    kept : numbers of tensors of which nothing may be lost, such as where other tensors' elements belong; of a ring all
        or none.
    sizes : tells the mean magnitude of the elements that each unit of a worker's tensor stands for, (units,); those of
        the first field, if absent.
    """

    step: int
    round: int
    payload: int
    infos: Sequence[TensorInfo]
    encoded: Sequence[Sequence[Encoded]]
    layout: RingLayout | None = None
    encode_ps: Sequence[Sequence[int]] = ()
    back: Callable[[], Sequence[int]] | None = None
    kept: Collection[int] = ()
    sizes: Callable[[int, int], Tensor] | None = None

    def pull_packets(self, tensor: int) -> int:
        """How many packets a tensor takes on the way back from the servers, where all of it is float32."""
        return -(-self.infos[tensor].numel * VALUE // self.payload)

    def packets(self, worker: int, tensor: int) -> int:
        """How many packets a tensor takes."""
        return self.encoded[worker][tensor].packets(self.payload)

    def magnitudes(self, worker: int, tensor: int) -> Tensor:
        """The mean magnitude of each packet's elements, (packets,), as a sender can work it out for its tags; where
        they are."""
        import torch

        mine = self.encoded[worker][tensor]
        values = self.unit_magnitudes(worker, tensor)
        step = mine.units_per_packet(self.payload)
        short = -len(values) % step
        rows = torch.nn.functional.pad(values, (0, short)).view(-1, step)
        counts = values.new_full((len(rows),), float(step))
        if short:
            counts[-1] -= short
        return rows.sum(dim=1) / counts

    def unit_magnitudes(self, worker: int, tensor: int) -> Tensor:
        """The mean magnitude of what each unit stands for, (units,)."""
        if self.sizes is not None:
            return self.sizes(worker, tensor)
        return self.encoded[worker][tensor].magnitudes()


@dataclass(frozen=True)
class Answer:
    """What became of a round.

    arrived : for each worker and tensor which packets have arrived, (packets,) bool on the CPU, wherever the training
        is; None where all have.
    time_ps : how long it took, from the first gradient's readiness until everybody has the mean.
    pulled : the same for what came back from the servers; nothing where all of it has.
    hops : of a ring, instead of both; None where nothing was lost.
    with_encoding : whether `time_ps` holds the time of encoding, so that computing and sending may overlap with it;
        else it is added.
    """

    arrived: Sequence[Sequence[Tensor | None]]
    time_ps: int = 0
    pulled: Sequence[Sequence[Tensor | None]] = ()
    hops: Hops | None = None
    with_encoding: bool = False


class Network(Protocol):
    """What a trainer asks. Rounds come in order; the same network serves one training only."""

    def carry(self, pushed: Pushed) -> Answer:
        """Carry one round of a step."""
        ...

    def state_dict(self) -> dict[str, object]:
        """What it has to remember for a checkpoint."""
        ...

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Go on from a checkpoint."""
        ...


class Memoryless:
    """Base of networks that remember nothing."""

    def state_dict(self) -> dict[str, object]:
        """Nothing."""
        return {}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Nothing."""


def carried(network: Network, pushed: Pushed) -> Answer:
    """What a network, anybody's, answers to what is pushed.

    Raises
    ------
    ScenarioError
        One that is not gradwire's was stopped by an error of its own, or answers with something that does not fit.
    """
    if is_own(network):
        return network.carry(pushed)
    with asked(network, "carry", ASKED):
        answer = network.carry(pushed)
    with answers(network, "carry", ASKED):
        _check(answer, pushed)
    return answer


def _check(answer: Any, pushed: Pushed) -> None:
    """Raise Unfit unless it is an answer to that."""
    if not isinstance(answer, Answer):
        raise Unfit(f"answers {shown(answer)}", "a gradwire.training.network.Answer")
    time_ps = answer.time_ps
    if isinstance(time_ps, bool) or not isinstance(time_ps, Integral) or not 0 <= time_ps < LONGEST:
        raise Unfit(f"answers with time_ps = {shown(time_ps)}", "picoseconds, a whole number from 0")
    if pushed.layout is not None:
        _check_hops(answer.hops, pushed.layout)
        return
    if answer.hops is not None:
        raise Unfit("answers with hops of a ring, and this is none", "hops = None")
    _check_masks("arrived", answer.arrived, pushed, pushed.packets)
    if not isinstance(answer.pulled, Sequence) or len(answer.pulled):
        _check_masks("pulled", answer.pulled, pushed, lambda worker, tensor: pushed.pull_packets(tensor))


def _check_masks(name: str, masks: Any, pushed: Pushed, packets: Callable[[int, int], int]) -> None:
    count, tensors = len(pushed.encoded), len(pushed.infos)
    if not isinstance(masks, list | tuple) or len(masks) != count:
        raise Unfit(f"answers with {name} = {shown(masks)}", f"a row of masks for each of {count} workers")
    for worker, row in enumerate(masks):
        if not isinstance(row, list | tuple) or len(row) != tensors:
            what = f"answers with {name}[{worker}] = {shown(row)}"
            raise Unfit(what, f"a mask, or None, for each of {tensors} tensors")
        for tensor, mask in enumerate(row):
            if mask is not None:
                _check_mask(f"{name}[{worker}][{tensor}]", mask, (packets(worker, tensor),))


def _check_hops(hops: Any, layout: RingLayout) -> None:
    if hops is None:
        return
    if not isinstance(hops, Hops):
        raise Unfit(f"answers with hops = {shown(hops)}", "gradwire.training.ring.Hops, or None where all arrived")
    try:
        tensors = sorted(tensor for bucket in hops.buckets for tensor in bucket)
    except TypeError:
        tensors = []
    if tensors != list(range(len(layout.numels))):
        raise Unfit(f"answers with hops.buckets = {shown(hops.buckets)}", f"each of {len(layout.numels)} tensors once")
    if not isinstance(hops.masks, list | tuple) or len(hops.masks) != len(hops.buckets):
        what = f"answers with hops.masks = {shown(hops.masks)}"
        raise Unfit(what, f"a mask, or None, for each of {len(hops.buckets)} buckets")
    theirs = replace(layout, buckets=hops.buckets)
    for bucket, mask in enumerate(hops.masks):
        if mask is not None:
            shape = (2 * (layout.workers - 1), layout.workers, theirs.packets(bucket))
            _check_mask(f"hops.masks[{bucket}]", mask, shape)


def _check_mask(name: str, mask: Any, shape: tuple[int, ...]) -> None:
    import torch

    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != shape:
        what = f"answers with {name} = {shown(mask)}"
        raise Unfit(what, f"None, or a tensor of bool, {shape}: which packets arrived")
