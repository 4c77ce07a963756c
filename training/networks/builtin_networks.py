"""Networks without a simulator lose nothing, random or replayed packets; wrappers redistribute another's losses over
all packets, or record them.

Trainers use all networks through `gradwire.training.networks.network_interface`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.lazily import Tensor, torch
from gradwire.scenarios.validation.argument_checks import (
    require_in_range,
    require_instance,
    require_integer,
    require_one_of,
)
from gradwire.training.exchange.ring_allreduce import VALUE, HopMasks, RingLayout
from gradwire.training.networks.network_interface import (
    Answer,
    Masks,
    Memoryless,
    Network,
    NetworkWrapper,
    Pushed,
    checked_carry,
)

__all__ = ["Answer", "EvenLoss", "Ideal", "Memoryless", "Network", "Pushed", "Random", "RecordingNetwork", "Replay"]


class Ideal(Memoryless):
    """A network without loss that takes no time."""

    def carry(self, pushed: Pushed) -> Answer:
        """Deliver everything."""
        return Answer(pushed.all_arrived())


@dataclass
class Random(Memoryless):
    """Random packet loss, independent from step to step.

    loss : probability of a packet's loss.
    seed : of the draws, which depend on seed, step, worker and tensor alone: two training runs lose the same packets.
    layers : only those of the "front" or "back" half of the layers, or of "all".
    magnitudes : of each tensor only the "small" or "large" half of its packets by mean magnitude, or "all".
    burst : mean length of a run of lost packets, of a two-state chain (Gilbert, 1960); 1 for independent losses.
    quota : lose exactly that share of each tensor, rounded at random, instead of a random number around it.
    last : lose the last packets of each tensor rather than any, as when an in-order sender is stopped early.
    way : what goes to the servers (in a ring: reduce-scatter), what comes back (all-gather), or both.
    worker : only of what this worker sends, or receives from the servers; None for all.

    Raises ScenarioError if an argument is out of range.
    """

    loss: float
    seed: int = 0
    layers: Literal["all", "front", "back"] = "all"
    magnitudes: Literal["all", "small", "large"] = "all"
    burst: float = 1.0
    quota: bool = False
    last: bool = False
    way: Literal["push", "pull", "both"] = "push"
    worker: int | None = None

    def __post_init__(self) -> None:
        require_in_range(self.loss, "Random(loss)", 0, 1, ScenarioError)
        require_in_range(self.burst, "Random(burst)", 1, 1e4, ScenarioError)
        require_integer(self.seed, "Random(seed)", 0, ScenarioError)
        for name in ("quota", "last"):
            require_instance(getattr(self, name), (bool, np.bool_), f"Random({name})", "True or False", ScenarioError)
        if self.worker is not None:
            require_integer(self.worker, "Random(worker)", 0, ScenarioError)
        for name, choices in (
            ("layers", ("all", "front", "back")),
            ("magnitudes", ("all", "small", "large")),
            ("way", ("push", "pull", "both")),
        ):
            require_one_of(getattr(self, name), f"Random({name})", choices, ScenarioError)
        if self.burst > 1 and self.loss >= self.burst / (self.burst + 1):
            what = f"is {self.loss:g}, too high for bursts of mean length {self.burst:g}"
            raise ScenarioError(what, "Random(loss)", f"less than {self.burst / (self.burst + 1):.3g}")

    def carry(self, pushed: Pushed) -> Answer:
        """Drop packets at random. Raises ScenarioError if `worker` is not one of those that push."""
        if self.worker is not None and self.worker >= (count := len(pushed.encoded)):
            what = f"is {self.worker}, but only {count} workers push"
            raise ScenarioError(what, "Random(worker)", f"below {count}, or None for all")
        if pushed.layout is not None:
            return Answer(pushed.all_arrived(), hops=None if pushed.kept else self._hop_masks(pushed, pushed.layout))
        depth, tensors = max(info.layer for info in pushed.infos) + 1, range(len(pushed.infos))
        pushes, pulls = pushed.all_arrived(), pushed.all_arrived()
        for worker in range(len(pushed.encoded)) if self.worker is None else (self.worker,):
            if self.way != "pull":
                pushes[worker] = [self._push_mask(pushed, worker, tensor, depth) for tensor in tensors]
            if self.way != "push":
                pulls[worker] = [self._pull_mask(pushed, worker, tensor, depth) for tensor in tensors]
        return Answer(pushes, pulled=pulls if self.way != "push" else ())

    def _pull_mask(self, pushed: Pushed, worker: int, tensor: int, depth: int) -> Tensor | None:
        """Return the packets that come back to a worker; these have no magnitudes."""
        if self._is_exempt(pushed, tensor, depth):
            return None
        draws = np.random.default_rng([self.seed, pushed.step, pushed.round, worker, tensor, 1])
        return self._draw_mask(np.ones(pushed.pull_packets(tensor), bool), draws)

    def _hop_masks(self, pushed: Pushed, layout: RingLayout) -> HopMasks:
        if self.layers != "all" or self.magnitudes != "all":
            raise ValueError("a ring's packets mix layers and workers' magnitudes; expected all")
        count = layout.workers
        ways = {"push": range(count - 1), "pull": range(count - 1, 2 * count - 2), "both": range(2 * count - 2)}
        masks: list[Tensor | None] = []
        for bucket in range(len(layout.buckets)):
            mask = torch.ones(layout.mask_shape(bucket), dtype=torch.bool)
            for hop in ways[self.way]:
                for worker in range(count) if self.worker is None else (self.worker,):
                    later = [pushed.round] if pushed.round else []
                    draws = np.random.default_rng([self.seed, pushed.step, bucket, hop, worker, 2, *later])
                    arrived = self._draw_mask(np.ones(layout.packets(bucket), bool), draws)
                    if arrived is not None:
                        mask[hop, worker] = arrived
            masks.append(None if bool(mask.all()) else mask)
        return HopMasks(layout.buckets, masks)

    def _is_exempt(self, pushed: Pushed, tensor: int, depth: int) -> bool:
        if tensor in pushed.kept:
            return True
        front = pushed.infos[tensor].layer < depth / 2
        return (self.layers == "front" and not front) or (self.layers == "back" and front)

    def _push_mask(self, pushed: Pushed, worker: int, tensor: int, depth: int) -> Tensor | None:
        packets = pushed.packets(worker, tensor)
        if not packets or self._is_exempt(pushed, tensor, depth):
            return None
        draws = np.random.default_rng([self.seed, pushed.step, pushed.round, worker, tensor])
        eligible = np.ones(packets, bool)
        if self.magnitudes != "all":
            sizes = pushed.magnitudes(worker, tensor).cpu().numpy()
            ranks = np.argsort(np.argsort(sizes, kind="stable"), kind="stable")
            eligible = ranks < packets // 2 if self.magnitudes == "small" else ranks >= packets - packets // 2
        return self._draw_mask(eligible, draws)

    def _draw_mask(self, eligible: np.ndarray, draws: np.random.Generator) -> Tensor | None:
        """Return which packets of a message arrive, if only the eligible ones may be lost; None for all."""
        packets = len(eligible)
        if self.quota or self.last:
            expected = self.loss * eligible.sum()
            count = int(expected) + int(draws.random() < expected - int(expected))
            positions = np.flatnonzero(eligible)
            lost = np.zeros(packets, bool)
            lost[positions[-count:] if self.last else draws.permutation(positions)[:count]] = count > 0
        else:
            lost = eligible & _burst_losses(packets, self.loss, self.burst, draws)
        return torch.from_numpy(~lost) if lost.any() else None


@dataclass
class EvenLoss(NetworkWrapper):
    """The same bytes lost in each round as on another network, but from any packets: the control for uneven loss. Time
    is the other network's.

    network : the other one. seed : of the draws.
    """

    network: Network
    seed: int = 0

    def carry(self, pushed: Pushed) -> Answer:
        """Drop as many bytes as the other network did."""
        answer = checked_carry(self.network, pushed)
        draws = np.random.default_rng([self.seed, pushed.step, pushed.round, 3])
        payload = pushed.payload
        if answer.hops is not None and pushed.layout is not None:
            layout = replace(pushed.layout, buckets=answer.hops.buckets)
            hops = [
                np.broadcast_to(_packet_sizes(layout.segment(bucket) * VALUE, payload), layout.mask_shape(bucket))
                for bucket in range(len(layout.buckets))
            ]
            masks = _spread_losses(answer.hops.masks, hops, draws)
            return replace(answer, hops=HopMasks(layout.buckets, masks))
        sizes = [
            [0 if tensor in pushed.kept else encoded.nbytes(payload) for tensor, encoded in enumerate(row)]
            for row in pushed.encoded
        ]
        back = [[info.numel * VALUE for info in pushed.infos]] * len(answer.pulled)
        return replace(
            answer,
            arrived=_spread_rows(answer.arrived, sizes, payload, draws),
            pulled=_spread_rows(answer.pulled, back, payload, draws),
        )


def _spread_rows(
    masks: Masks, nbytes: Sequence[Sequence[int]], payload: int, draws: np.random.Generator
) -> list[list[Tensor | None]]:
    """Apply `_spread_losses` to rows of masks, of messages of `nbytes`."""
    sizes = [_packet_sizes(message, payload) for row in nbytes for message in row]
    spread = iter(_spread_losses([mask for row in masks for mask in row], sizes, draws))
    return [list(islice(spread, len(row))) for row in masks]


def _spread_losses(
    masks: Sequence[Tensor | None], sizes: Sequence[np.ndarray], draws: np.random.Generator
) -> list[Tensor | None]:
    """Return masks for packets of these sizes, with as many bytes missing as in `masks`, anywhere in them. The bytes
    match up to less than a packet. None stands for messages that arrive completely."""
    if not sizes:
        return []
    missing = sum(int(size[~mask.numpy()].sum()) for mask, size in zip(masks, sizes, strict=True) if mask is not None)
    flat_sizes = np.concatenate([size.reshape(-1) for size in sizes])
    order = draws.permutation(len(flat_sizes))
    count = int(np.searchsorted(np.cumsum(flat_sizes[order]), missing, side="right")) if missing else 0
    arrived = np.ones(len(flat_sizes), bool)
    arrived[order[:count]] = False
    parts = np.split(arrived, np.cumsum([size.size for size in sizes[:-1]]))
    return [
        None if part.all() else torch.from_numpy(part.reshape(size.shape))
        for part, size in zip(parts, sizes, strict=True)
    ]


def _packet_sizes(nbytes: int, payload: int) -> np.ndarray:
    """Return the bytes of each packet of a message, all full but the last."""
    count = -(-nbytes // payload)
    sizes = np.full(count, payload, np.int64)
    if count:
        sizes[-1] = nbytes - (count - 1) * payload
    return sizes


def _burst_losses(packets: int, loss: float, burst: float, draws: np.random.Generator) -> np.ndarray:
    """Return which packets are lost, in runs of geometric length with the mean `burst`."""
    if burst == 1:
        return draws.random(packets) < loss
    end, begin = 1 / burst, loss / (burst * (1 - loss)) if loss < 1 else 1.0
    chances, lost = draws.random(packets + 1), np.empty(packets, bool)
    bad = chances[-1] < loss
    for number in range(packets):
        lost[number] = bad
        bad = chances[number] >= end if bad else chances[number] < begin
    return lost


class Replay(Memoryless):
    """Replays the masks and times of an earlier run, step by step, starting over at the end.

    answers : by step, by round.
    """

    def __init__(self, answers: Sequence[Sequence[Answer]]) -> None:
        if not answers:
            raise ValueError("no steps to replay")
        self.answers = answers

    def carry(self, pushed: Pushed) -> Answer:
        """Return the recorded answer of that round. Raises ValueError if other tensors, workers or sizes were sent
        then."""
        step, rounds = pushed.step, self.answers[pushed.step % len(self.answers)]
        if pushed.round >= len(rounds):
            raise ValueError(f"step {step} has {len(rounds)} recorded rounds; expected another one")
        answer = rounds[pushed.round]
        if len(answer.arrived) != len(pushed.encoded):
            raise ValueError(f"{len(answer.arrived)} workers are recorded; expected {len(pushed.encoded)}")
        for worker, masks in enumerate(answer.arrived):
            for tensor, mask in enumerate(masks):
                if mask is not None and len(mask) != (count := pushed.packets(worker, tensor)):
                    what = f"step {step}, worker {worker}, tensor {pushed.infos[tensor].name}"
                    raise ValueError(f"{what}: {len(mask)} packets are recorded; expected {count}")
        if (answer.hops is not None) and pushed.layout is None:
            raise ValueError("the recorded exchange was a ring; expected one with servers")
        return answer


class RecordingNetwork(NetworkWrapper):
    """Another network whose answers are recorded for replay."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.answers: list[list[Answer]] = []

    def carry(self, pushed: Pushed) -> Answer:
        """Answer as the other network, and record the answer."""
        answer = checked_carry(self.network, pushed)
        while len(self.answers) <= pushed.step:
            self.answers.append([])
        self.answers[pushed.step].append(answer)
        return answer
