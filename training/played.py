"""From an iteration that was played to masks: which packets of each worker's tensors arrived, or of a ring's hops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.result import KINDS
from gradwire.training.ring import VALUE, Hops, RingLayout

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.experiment.program import Messages
    from gradwire.experiment.stepwise import Played
    from gradwire.training.seam import Pushed


def masks_of(
    pushed: Pushed, sent: Ints, played: Played
) -> tuple[list[list[Tensor | None]], list[list[Tensor | None]]]:
    """Which packets arrived of what went to the servers, and of what came back, by worker and tensor; None for all.

    sent : numbers of the tensors that messages are of.
    """
    import torch

    ways: list[list[list[Tensor | None]]] = [[[None] * len(pushed.infos) for _ in pushed.encoded] for _ in range(2)]
    rows = played.messages
    for index, missing in played.missing.items():
        sender, receiver = played.workers[index].tolist()
        back = sender < 0
        masks, worker, tensor = ways[back], max(sender, receiver), int(sent[rows.tensor[index]])
        mask = masks[worker][tensor]
        if mask is None:
            count = pushed.pull_packets(tensor) if back else pushed.packets(worker, tensor)
            mask = masks[worker][tensor] = torch.ones(count, dtype=torch.bool)
        _lose(mask, int(rows.first[index]) * VALUE // pushed.payload, missing)
    return ways[0], ways[1]


def masks_alone(
    counts: Sequence[int], payload: int, sent: Ints, messages: Messages, missing: Mapping[int, Flags]
) -> list[Tensor | None]:
    """Which packets arrived of what one worker has pushed alone, by tensor; None for all.

    counts : how many packets, of so many bytes of `payload`, each tensor takes. `sent`: numbers of the tensors that
        messages are of.
    """
    import torch

    row: list[Tensor | None] = [None] * len(counts)
    for index, lost in missing.items():
        tensor = int(sent[messages.tensor[index]])
        mask = row[tensor]
        if mask is None:
            mask = row[tensor] = torch.ones(counts[tensor], dtype=torch.bool)
        _lose(mask, int(messages.first[index]) * VALUE // payload, lost)
    return row


def _lose(mask: Tensor, begin: int, missing: Flags) -> None:
    """Note what is missing of a message whose first packet is that one of its tensor's."""
    import torch

    there = torch.from_numpy(~missing)[: max(len(mask) - begin, 0)]
    mask[begin : begin + len(there)] = there


def hops_of(layout: RingLayout, sent: Ints, played: Played) -> Hops:
    """Which packets of a ring arrived: who sends a segment in which half of the hops says in which hop."""
    import torch

    count = layout.workers
    if played.segments != count:
        raise ScenarioError(
            f"has rings side by side, {played.segments // count} of them", "topology", "hosts with one network card"
        )
    buckets = tuple(tuple(sent[list(each)].tolist()) for each in played.buckets)
    layout = replace(layout, buckets=buckets)
    masks: list[Tensor | None] = [None] * len(buckets)
    rows = played.messages
    for index, missing in played.missing.items():
        bucket, segment = divmod(int(rows.part[index]), count)
        sender = int(played.workers[index, 0])
        gathering = KINDS[int(rows.kind[index])] == "all_gather"
        hop = count - 1 + (sender + 1 - segment) % count if gathering else (sender - segment) % count
        mask = masks[bucket]
        if mask is None:
            mask = masks[bucket] = torch.ones(2 * count - 2, count, layout.packets(bucket), dtype=torch.bool)
        mask[hop, sender] = torch.from_numpy(~missing)
    return Hops(buckets, masks)
