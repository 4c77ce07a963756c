"""Why workers wait: what stands between a process and the event that it waits for, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.experiment.program import Step
from gradwire.experiment.topology import Network
from gradwire.scenarios.result import KINDS
from gradwire.sim.fabric.counts import Counts
from gradwire.sim.fabric.over import Over
from gradwire.sim.network_like import Track

SHOWN = 3
"""Messages that are named of those that somebody waits for."""


def waiting(tracks: Sequence[Track], network: Network, counts: Counts) -> list[str]:
    """One line per worker that waits. `counts`: of messages that have not been handed over."""
    lines = []
    for track in tracks:
        steps = track.steps
        first = track.handed.steps
        begins = track.handed.events + np.cumsum([0, *(len(step.step) for step in steps)])
        for process, event in track.waiting():
            index = int(np.searchsorted(begins, event, side="right")) - 1
            step = steps[index]
            missing = _missing(step, event - int(begins[index]), counts)
            layers = set(step.step.messages.layer[missing].tolist())
            what = f"layer {layers.pop()}" if len(layers) == 1 and layers != {-1} else "all layers"
            named = "; ".join(_named(step, message, network.names) for message in missing[:SHOWN])
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            worker = int(track.part.workers[process])
            lines.append(
                f"job {track.part.table.name}: {f'worker {worker}' if worker >= 0 else 'the communication thread'} on "
                f"{_host(network, int(track.part.hosts[process]))} waits for {what} of iteration {first + index}: "
                f"{len(missing)} messages: {named}{more}"
            )
    return lines


def _host(network: Network, node: int) -> str:
    """The name of the host that has a NIC."""
    cards = network.cards
    return cards.hosts[int(np.searchsorted(cards.first, node, side="right")) - 1]


def _missing(step: Over, event: int, counts: Counts) -> list[int]:
    """The messages of a step that have not been delivered and that an event needs; those that are under way first."""
    before = _needed_by(step.step)
    found, waiting, known = [], [event], {event}
    n = len(step.step.messages)
    while waiting:
        for each in before.get(waiting.pop(), ()):
            if each in known:
                continue
            known.add(each)
            if each >= n:
                waiting.append(each)
            elif step.numbers[each] < 0 or counts.end_ps[step.numbers[each] - counts.first] < 0:
                found.append(each)
                if step.ready[each] < 0:  # not even sent: because of what it waits for itself
                    waiting.append(each)
    return sorted(found, key=lambda message: (step.ready[message] < 0, message))


def _needed_by(step: Step) -> dict[int, list[int]]:
    """By event, what counts towards it; by message also what posts it."""
    found: dict[int, list[int]] = {}
    for place, members in (step.after, step.posts):
        owners = np.repeat(np.arange(len(step)), np.diff(place))
        for owner, member in zip(owners.tolist(), members.tolist(), strict=True):
            found.setdefault(member, []).append(owner)
    return found


def _named(step: Over, message: int, names: Sequence[str]) -> str:
    rows = step.step.messages
    tensor = int(rows.tensor[message])
    what = f"tensor {tensor} part" if tensor >= 0 else "part"
    state = "under way" if step.ready[message] >= 0 else "not sent yet"
    ends = f"{names[rows.src[message]]} -> {names[rows.dst[message]]}"
    return f"{KINDS[rows.kind[message]]} of {what} {int(rows.part[message])}, {ends} ({state})"
