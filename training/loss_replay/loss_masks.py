"""Masks of the packets that arrived, by worker and tensor or by ring hop, from a simulated iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.result_store.result import KINDS
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.training.exchange.ring_allreduce import VALUE, HopMasks, RingLayout

if TYPE_CHECKING:
    from torch import Tensor

    from gradwire.training.networks.network_interface import Pushed
    from gradwire.workload.incremental.iteration_player import PlayedIteration
    from gradwire.workload.program import Messages


def masks_of(
    pushed: Pushed, sent: Ints, played: PlayedIteration
) -> tuple[list[list[Tensor | None]], list[list[Tensor | None]]]:
    """Return the packets that arrived at the servers, and back at the workers, by worker and tensor; None for all.

    sent : tensor numbers of the messages' tensors.
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


def masks_of_worker(
    counts: Sequence[int], payload: int, sent: Ints, messages: Messages, missing: Mapping[int, Flags]
) -> list[Tensor | None]:
    """Return the packets that arrived of one worker's push, by tensor; None for all.

    counts : packets of each tensor, of `payload` bytes. `sent`: tensor numbers of the messages' tensors.
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
    """Mark the missing packets of a message that begins at packet `begin` of its tensor."""
    import torch

    arrived = torch.from_numpy(~missing)[: max(len(mask) - begin, 0)]
    mask[begin : begin + len(arrived)] = arrived


def hops_of(layout: RingLayout, sent: Ints, played: PlayedIteration) -> HopMasks:
    """Return the packets of a ring that arrived; sender, segment and phase determine the hop."""
    import torch

    count = layout.workers
    if played.segments != count:
        raise ScenarioError(f"has {played.segments // count} parallel rings", "topology", "hosts with one network card")
    buckets = tuple(tuple(sent[list(part)].tolist()) for part in played.buckets)
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
    return HopMasks(buckets, masks)
