"""Networks that need no simulator, and the seam that all networks are asked through (`gradwire.training.seam`).

Who answers a trainer is exchangeable: nobody loses anything (`Ideal`), a rule does (`Random`), or a run did (`Replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.given import instance_of, number_within, one_of, whole_number
from gradwire.training.ring import VALUE, Hops
from gradwire.training.seam import Answer, Memoryless, Network, Pushed, carried

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Answer", "Ideal", "Memoryless", "Network", "Pushed", "Random", "Recorded", "Replay", "Spread"]


class Ideal(Memoryless):
    """Nothing is lost, and it takes no time."""

    def carry(self, pushed: Pushed) -> Answer:
        """Everything arrives."""
        return Answer([[None] * len(each) for each in pushed.encoded])


@dataclass
class Random(Memoryless):
    """Packets are lost at random by a rule, independently of what the step before lost.

    loss : odds of a packet.
    seed : of the draws, which depend on seed, step, worker and tensor alone: two trainings lose the same packets.
    layers : only those of the "front" or "back" half of the layers, or of "all".
    magnitudes : of each tensor only the "small" or "large" half of its packets by mean magnitude, or "all".
    burst : mean length of a run of lost packets, of a two-state chain (Gilbert, 1960), 1 for independent losses.
    quota : lose exactly that share of each tensor, rounded at random, and not a random number around it.
    last : lose the last packets of each tensor rather than any, as a sender in order does that is stopped early.
    way : what goes to the servers (in a ring: reduce-scatter), what comes back (all-gather), or both.
    worker : only of what this worker sends, or gets back from the servers, if not of all of them.

    Raises
    ------
    ScenarioError
        An argument is none of these.
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
        number_within(self.loss, "Random(loss)", 0, 1, ScenarioError)
        number_within(self.burst, "Random(burst)", 1, 1e4, ScenarioError)
        whole_number(self.seed, "Random(seed)", 0, ScenarioError)
        for name in ("quota", "last"):
            instance_of(getattr(self, name), (bool, np.bool_), f"Random({name})", "True or False", ScenarioError)
        if self.worker is not None:
            whole_number(self.worker, "Random(worker)", 0, ScenarioError)
        for name, words in (
            ("layers", ("all", "front", "back")),
            ("magnitudes", ("all", "small", "large")),
            ("way", ("push", "pull", "both")),
        ):
            one_of(getattr(self, name), f"Random({name})", words, ScenarioError)
        if self.burst > 1 and self.loss >= self.burst / (self.burst + 1):
            raise ScenarioError(
                f"is {self.loss:g}, which leaves no room between runs of {self.burst:g}", "Random(loss)",
                f"less than {self.burst / (self.burst + 1):.3g}",
            )  # fmt: skip

    def carry(self, pushed: Pushed) -> Answer:
        """Some of it arrives.

        Raises
        ------
        ScenarioError
            `worker` is none of those that push.
        """
        if self.worker is not None and self.worker >= (count := len(pushed.encoded)):
            what = f"is {self.worker}, of which nothing is lost where {count} push together"
            raise ScenarioError(what, "Random(worker)", f"below {count}, or None for all")
        nothing: list[list[Tensor | None]] = [[None] * len(pushed.infos) for _ in pushed.encoded]
        if pushed.layout is not None:
            return Answer(nothing, hops=None if pushed.kept else self._hops(pushed))
        depth, tensors = max(info.layer for info in pushed.infos) + 1, range(len(pushed.infos))
        pushes, pulls = nothing, [list(row) for row in nothing]
        for worker in range(len(pushed.encoded)):
            if self.worker is not None and worker != self.worker:
                continue
            if self.way != "pull":
                pushes[worker] = [self._of(pushed, worker, tensor, depth) for tensor in tensors]
            if self.way != "push":
                pulls[worker] = [self._back(pushed, worker, tensor, depth) for tensor in tensors]
        return Answer(pushes, pulled=pulls if self.way != "push" else ())

    def _back(self, pushed: Pushed, worker: int, tensor: int, depth: int) -> Tensor | None:
        """Of what comes back, in which all packets are alike."""
        if self._spared(pushed, tensor, depth):
            return None
        draws = np.random.default_rng([self.seed, pushed.step, pushed.round, worker, tensor, 1])
        return self._drawn(np.ones(pushed.pull_packets(tensor), bool), draws)

    def _hops(self, pushed: Pushed) -> Hops:
        import torch

        layout = pushed.layout
        assert layout is not None
        if self.layers != "all" or self.magnitudes != "all":
            raise ValueError("a ring's packets are of no one layer, nor of one worker's magnitudes; expected all")
        count = layout.workers
        ways = {"push": range(count - 1), "pull": range(count - 1, 2 * count - 2), "both": range(2 * count - 2)}
        masks: list[Tensor | None] = []
        for bucket in range(len(layout.buckets)):
            mask = torch.ones(2 * count - 2, count, layout.packets(bucket), dtype=torch.bool)
            for hop in ways[self.way]:
                for worker in range(count) if self.worker is None else (self.worker,):
                    later = [pushed.round] if pushed.round else []
                    draws = np.random.default_rng([self.seed, pushed.step, bucket, hop, worker, 2, *later])
                    found = self._drawn(np.ones(layout.packets(bucket), bool), draws)
                    if found is not None:
                        mask[hop, worker] = found
            masks.append(None if bool(mask.all()) else mask)
        return Hops(layout.buckets, masks)

    def _spared(self, pushed: Pushed, tensor: int, depth: int) -> bool:
        if tensor in pushed.kept:
            return True
        front = pushed.infos[tensor].layer < depth / 2
        return (self.layers == "front" and not front) or (self.layers == "back" and front)

    def _of(self, pushed: Pushed, worker: int, tensor: int, depth: int) -> Tensor | None:
        packets = pushed.packets(worker, tensor)
        if not packets or self._spared(pushed, tensor, depth):
            return None
        draws = np.random.default_rng([self.seed, pushed.step, pushed.round, worker, tensor])
        eligible = np.ones(packets, bool)
        if self.magnitudes != "all":
            sizes = pushed.magnitudes(worker, tensor).cpu().numpy()
            ranks = np.argsort(np.argsort(sizes, kind="stable"), kind="stable")
            eligible = ranks < packets // 2 if self.magnitudes == "small" else ranks >= packets - packets // 2
        return self._drawn(eligible, draws)

    def _drawn(self, eligible: np.ndarray, draws: np.random.Generator) -> Tensor | None:
        """Which packets of a message arrive, of which only some may be lost; None if all do."""
        import torch

        packets = len(eligible)
        if self.quota or self.last:
            wanted = self.loss * eligible.sum()
            count = int(wanted) + int(draws.random() < wanted - int(wanted))
            places = np.flatnonzero(eligible)
            lost = np.zeros(packets, bool)
            lost[places[-count:] if self.last else draws.permutation(places)[:count]] = count > 0
        else:
            lost = eligible & _bursts(packets, self.loss, self.burst, draws)
        return torch.from_numpy(~lost) if lost.any() else None


@dataclass
class Spread:
    """As many bytes are lost in each round as another network loses, but of any packets: the control for what a fabric
    loses unevenly. Time is the other network's.

    network : the other one. seed : of the draws.
    """

    network: Network
    seed: int = 0

    def carry(self, pushed: Pushed) -> Answer:
        """As many arrive."""
        answer = carried(self.network, pushed)
        draws = np.random.default_rng([self.seed, pushed.step, pushed.round, 3])
        if answer.hops is not None and pushed.layout is not None:
            count = pushed.layout.workers
            layout = replace(pushed.layout, buckets=answer.hops.buckets)
            buckets = range(len(layout.buckets))
            messages = [_packet_sizes(layout.segment(each) * VALUE, layout.payload) for each in buckets]
            hops = [np.broadcast_to(each, (2 * count - 2, count, len(each))) for each in messages]
            masks = _anywhere(answer.hops.masks, hops, draws)
            return replace(answer, hops=Hops(answer.hops.buckets, masks))
        sizes = [
            [_packet_sizes(0 if tensor in pushed.kept else mine.nbytes(pushed.payload), pushed.payload)
             for tensor, mine in enumerate(row)]
            for row in pushed.encoded
        ]  # fmt: skip
        whole = [_packet_sizes(info.numel * VALUE, pushed.payload) for info in pushed.infos]
        back = [whole] * len(answer.pulled)
        return replace(answer, arrived=_rows(answer.arrived, sizes, draws), pulled=_rows(answer.pulled, back, draws))

    def state_dict(self) -> dict[str, object]:
        """Where the other network is."""
        return self.network.state_dict()

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Go on from there."""
        self.network.load_state_dict(saved)


def _rows(
    masks: Sequence[Sequence[Tensor | None]], sizes: Sequence[Sequence[np.ndarray]], draws: np.random.Generator
) -> list[list[Tensor | None]]:
    """`_anywhere` for rows of masks."""
    flat = _anywhere([mask for row in masks for mask in row], [each for row in sizes for each in row], draws)
    ends = np.cumsum([0, *(len(row) for row in masks)])
    return [flat[begin:end] for begin, end in pairwise(ends)]


def _anywhere(
    masks: Sequence[Tensor | None], sizes: Sequence[np.ndarray], draws: np.random.Generator
) -> list[Tensor | None]:
    """Masks for packets of these sizes, None for all there, with as many bytes missing as in those given, but for what
    is less than a packet, anywhere in them."""
    import torch

    missing = sum(int(size[~mask.numpy()].sum()) for mask, size in zip(masks, sizes, strict=True) if mask is not None)
    ends = np.cumsum([0, *(each.size for each in sizes)])
    whole = np.concatenate([each.reshape(-1) for each in sizes]) if sizes else np.zeros(0, np.int64)
    order = draws.permutation(len(whole))
    count = int(np.searchsorted(np.cumsum(whole[order]), missing, side="right")) if missing else 0
    there = np.ones(len(whole), bool)
    there[order[:count]] = False
    parts = [there[begin:end] for begin, end in pairwise(ends)]
    return [
        None if part.all() else torch.from_numpy(part.reshape(size.shape))
        for part, size in zip(parts, sizes, strict=True)
    ]


def _packet_sizes(nbytes: int, payload: int) -> np.ndarray:
    """Bytes of each packet of a message, all full but the last."""
    count = -(-nbytes // payload)
    sizes = np.full(count, payload, np.int64)
    if count:
        sizes[-1] = nbytes - (count - 1) * payload
    return sizes


def _bursts(packets: int, loss: float, burst: float, draws: np.random.Generator) -> np.ndarray:
    """Which packets are lost, with runs that are geometric with the mean `burst`."""
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
    """The masks and times of an earlier run, step by step, from the first again when they are used up.

    answers : by step, by round.
    """

    def __init__(self, answers: Sequence[Sequence[Answer]]) -> None:
        if not answers:
            raise ValueError("no steps to replay")
        self.answers = answers

    def carry(self, pushed: Pushed) -> Answer:
        """What became of that round then.

        Raises
        ------
        ValueError
            Other tensors, workers or sizes were sent then.
        """
        then = self.answers[pushed.step % len(self.answers)]
        if pushed.round >= len(then):
            raise ValueError(
                f"step {pushed.step} has {len(then)} rounds in what is replayed, and another one is asked for"
            )
        answer = then[pushed.round]
        if len(answer.arrived) != len(pushed.encoded):
            raise ValueError(f"{len(answer.arrived)} workers are replayed, and there are {len(pushed.encoded)}")
        for worker, masks in enumerate(answer.arrived):
            for tensor, mask in enumerate(masks):
                if mask is not None and len(mask) != (count := pushed.packets(worker, tensor)):
                    raise ValueError(
                        f"step {pushed.step}, worker {worker}, tensor {pushed.infos[tensor].name}: {len(mask)} packets "
                        f"are replayed, and {count} are sent"
                    )
        if (answer.hops is not None) and pushed.layout is None:
            raise ValueError("what is replayed was a ring, and this is none")
        return answer


class Recorded:
    """Another network, whose answers are kept so that they can be replayed."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.answers: list[list[Answer]] = []

    def carry(self, pushed: Pushed) -> Answer:
        """As the other one does."""
        answer = carried(self.network, pushed)
        while len(self.answers) <= pushed.step:
            self.answers.append([])
        self.answers[pushed.step].append(answer)
        return answer

    def state_dict(self) -> dict[str, object]:
        """The other one's."""
        return self.network.state_dict()

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """The other one's."""
        self.network.load_state_dict(saved)

