"""Declares the interface between a trainer and a network (`Pushed`, `Answer`, `Network`), and checks user-defined
networks' answers.

In every step a trainer hands over what all workers send, and learns which packets arrived and how long it took.
Networks are exchangeable (`gradwire.training.networks.builtin_networks`) and may be user-defined; the answers of those
are checked before use (`checked_carry`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Protocol

from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.loading.user_code_errors import asked
from gradwire.traces.parts import TensorInfo
from gradwire.training.exchange.encoded_tensors import Encoded
from gradwire.training.exchange.ring_allreduce import VALUE, HopMasks, RingLayout
from gradwire.training.recipe import Recipe
from gradwire.training.reducers.base import Reducer
from gradwire.training.value_checks import describe_value, invalid_value_error, is_builtin

Masks = Sequence[Sequence["Tensor | None"]]
"""By worker and tensor, the packets that arrived, (packets,) bool on the CPU; None if all did."""
WHERE = "Trainer(network)"
TIME_LIMIT_PS = 2**63
"""Picoseconds beyond the range of a table."""


@dataclass(frozen=True)
class Pushed:
    """One round of a step as pushed by all workers; N workers, T tensors.

    step, round : numbers, from 0.
    payload : bytes of payload of a packet.
    infos : the tensors, T of them.
    encoded : what is sent, N x T.
    layout : of a ring; None for servers. A network that has better knowledge of it puts that in its answer.
    encode_ps : encoding time by worker and tensor; a worker encodes one tensor after the other. No time if empty.
    back : returns the bytes with which servers answer each worker, of every tensor, int[T], if they differ from what
        was pushed. Only networks whose time depends on it call it, since it may take some.
    kept : numbers of tensors that must not lose anything, such as indices of another tensor's elements; in a ring all
        or none.
    sizes : returns the mean magnitude of the elements of each unit of a worker's tensor, (units,); by default that of
        the first field.
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

    def all_arrived(self) -> list[list[Tensor | None]]:
        """Return masks of a round without loss."""
        return [[None] * len(self.infos) for _ in self.encoded]

    def pull_packets(self, tensor: int) -> int:
        """Return the packets of a tensor on the way back from the servers, where all of it is float32."""
        return -(-self.infos[tensor].numel * VALUE // self.payload)

    def packets(self, worker: int, tensor: int) -> int:
        """Return the packets of a tensor."""
        return self.encoded[worker][tensor].packets(self.payload)

    def magnitudes(self, worker: int, tensor: int) -> Tensor:
        """Return the mean magnitude of each packet's elements, (packets,), on their device, as a sender computes it for
        its tags."""
        encoded = self.encoded[worker][tensor]
        values = self.unit_magnitudes(worker, tensor)
        step = encoded.units_per_packet(self.payload)
        short = -len(values) % step
        rows = torch.nn.functional.pad(values, (0, short)).view(-1, step)
        counts = values.new_full((len(rows),), float(step))
        if short:
            counts[-1] -= short
        return rows.sum(dim=1) / counts

    def unit_magnitudes(self, worker: int, tensor: int) -> Tensor:
        """Return the mean magnitude of the elements of each unit, (units,)."""
        return self.encoded[worker][tensor].magnitudes() if self.sizes is None else self.sizes(worker, tensor)


@dataclass(frozen=True)
class Answer:
    """The outcome of a round.

    arrived : what arrived of the workers' pushes.
    time_ps : time from the first ready gradient until all workers have the mean.
    pulled : the same for what came back from the servers; empty if all of it arrived.
    hops : of a ring, instead of both; None if nothing was lost.
    with_encoding : True if `time_ps` includes the time of encoding, so that computing and sending may overlap with it;
        otherwise it is added.
    retransmitted : retransmissions of data packets; None if unknown.
    """

    arrived: Masks
    time_ps: int = 0
    pulled: Masks = ()
    hops: HopMasks | None = None
    with_encoding: bool = False
    retransmitted: int | None = None


class Network(Protocol):
    """The contract of a network. Rounds come in order; a network serves one training run only."""

    def carry(self, pushed: Pushed) -> Answer:
        """Carry one round of a step."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Return the state to save in a checkpoint."""
        ...

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Resume from a checkpoint."""
        ...


class Memoryless:
    """Base of stateless networks."""

    def state_dict(self) -> dict[str, object]:
        """Return no state."""
        return {}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Restore nothing."""


class ReplayNetwork(Memoryless):
    """Base of networks that repeat the losses of an earlier run."""

    def compare(self, recipe: Recipe, infos: Sequence[TensorInfo], reducer: Reducer) -> None:
        """Raise ScenarioError, listing all differences, if a training run of this recipe, of these tensors and with
        this reducer cannot repeat the losses. Raises ResultError if the earlier run's files are damaged."""
        raise NotImplementedError


def is_stateful(network: Network) -> bool:
    """Return True if a network carries state, so that it must rest for a checkpoint; of a wrapper, if the inner one
    does."""
    while (inner := getattr(network, "network", None)) is not None:
        network = inner
    return not isinstance(network, Memoryless)


class NetworkWrapper:
    """Base of networks around another one, which has the state."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def state_dict(self) -> dict[str, object]:
        return self.network.state_dict()

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        self.network.load_state_dict(saved)


class InvalidValue(Exception):
    """A return value is invalid: (what, expected)."""


def checked_carry(network: Network, pushed: Pushed) -> Answer:
    """Return the answer of a network, built-in or user-defined. Raises ScenarioError if a user-defined network raised
    an error, or returned something invalid."""
    if is_builtin(network):
        return network.carry(pushed)
    with asked(network, "carry", WHERE):
        answer = network.carry(pushed)
    try:
        _check(answer, pushed)
    except InvalidValue as error:
        raise invalid_value_error(network, "carry", WHERE, *error.args) from None
    return answer


def _check(answer: Any, pushed: Pushed) -> None:
    """Raise InvalidValue unless `answer` is a valid answer to `pushed`."""
    if not isinstance(answer, Answer):
        raise InvalidValue(f"returns {describe_value(answer)}", "a gradwire.training.networks.builtin_networks.Answer")
    time_ps = answer.time_ps
    if isinstance(time_ps, bool) or not isinstance(time_ps, Integral) or not 0 <= time_ps < TIME_LIMIT_PS:
        raise InvalidValue(f"returns time_ps = {describe_value(time_ps)}", "picoseconds, a whole number from 0")
    if pushed.layout is not None:
        _check_hops(answer.hops, pushed.layout)
        return
    if answer.hops is not None:
        raise InvalidValue("returns hops of a ring in an exchange with servers", "hops = None")
    _check_masks("arrived", answer.arrived, pushed, pushed.packets)
    if not isinstance(answer.pulled, Sequence) or len(answer.pulled):
        _check_masks("pulled", answer.pulled, pushed, lambda worker, tensor: pushed.pull_packets(tensor))


def _check_masks(name: str, masks: Any, pushed: Pushed, packets: Callable[[int, int], int]) -> None:
    count, tensors = len(pushed.encoded), len(pushed.infos)
    _check_rows(name, masks, count, f"a row of masks for each of {count} workers")
    for worker, row in enumerate(masks):
        _check_rows(f"{name}[{worker}]", row, tensors, f"a mask, or None, for each of {tensors} tensors")
        for tensor, mask in enumerate(row):
            if mask is not None:
                _check_mask(f"{name}[{worker}][{tensor}]", mask, (packets(worker, tensor),))


def _check_hops(hops: Any, layout: RingLayout) -> None:
    if hops is None:
        return
    if not isinstance(hops, HopMasks):
        expected = "gradwire.training.exchange.ring_allreduce.HopMasks, or None where all arrived"
        raise InvalidValue(f"returns hops = {describe_value(hops)}", expected)
    try:
        tensors = sorted(tensor for bucket in hops.buckets for tensor in bucket)
    except TypeError:
        tensors = []
    if tensors != list(range(len(layout.numels))):
        what = f"returns hops.buckets = {describe_value(hops.buckets)}"
        raise InvalidValue(what, f"each of {len(layout.numels)} tensors once")
    count = len(hops.buckets)
    _check_rows("hops.masks", hops.masks, count, f"a mask, or None, for each of {count} buckets")
    layout = replace(layout, buckets=hops.buckets)
    for bucket, mask in enumerate(hops.masks):
        if mask is not None:
            _check_mask(f"hops.masks[{bucket}]", mask, layout.mask_shape(bucket))


def _check_rows(name: str, rows: Any, count: int, expected: str) -> None:
    if not isinstance(rows, list | tuple) or len(rows) != count:
        raise InvalidValue(f"returns {name} = {describe_value(rows)}", expected)


def _check_mask(name: str, mask: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != shape:
        what = f"returns {name} = {describe_value(mask)}"
        raise InvalidValue(what, f"None, or a tensor of bool, {shape}: which packets arrived")
