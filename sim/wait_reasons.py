"""Describes the undelivered messages that each waiting worker needs, as lines of a stall report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire.result_store.table_schema import KINDS
from gradwire.sim.engine.message_counts import MessageCounts
from gradwire.sim.engine.program.completed_step import CompletedStep
from gradwire.sim.processes.network_interface import Track
from gradwire.topology import Network
from gradwire.workload.program import Step

MAX_LISTED_MESSAGES = 3
"""Missing messages that a line names."""


def describe_waiting_workers(tracks: Sequence[Track], network: Network, counts: MessageCounts) -> list[str]:
    """Return one line per waiting worker; `counts` are those of messages that have not been handed over."""
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
            subject = f"layer {layers.pop()}" if len(layers) == 1 and layers != {-1} else "all layers"
            named = "; ".join(_named(step, message, network.names) for message in missing[:MAX_LISTED_MESSAGES])
            more = f" and {len(missing) - MAX_LISTED_MESSAGES} more" if len(missing) > MAX_LISTED_MESSAGES else ""
            worker = int(track.part.workers[process])
            lines.append(
                f"job {track.part.table.name}: {f'worker {worker}' if worker >= 0 else 'the communication thread'} on "
                f"{_host(network, int(track.part.hosts[process]))} waits for {subject} of iteration {first + index}: "
                f"{len(missing)} messages: {named}{more}"
            )
    return lines


def _host(network: Network, node: int) -> str:
    """Return the name of the host that a NIC belongs to."""
    cards = network.cards
    return cards.hosts[int(np.searchsorted(cards.first, node, side="right")) - 1]


def _missing(step: CompletedStep, event: int, counts: MessageCounts) -> list[int]:
    """Return the undelivered messages of a step that an event needs, those under way first."""
    needs = _needed_by(step.step)
    missing, describe_waiting_workers, visited = [], [event], {event}
    n = len(step.step.messages)
    while describe_waiting_workers:
        for member in needs.get(describe_waiting_workers.pop(), ()):
            if member in visited:
                continue
            visited.add(member)
            if member >= n:
                describe_waiting_workers.append(member)
            elif step.numbers[member] < 0 or counts.end_ps[step.numbers[member] - counts.first] < 0:
                missing.append(member)
                if step.ready[member] < 0:  # not sent yet: report what it waits for, too
                    describe_waiting_workers.append(member)
    return sorted(missing, key=lambda message: (step.ready[message] < 0, message))


def _needed_by(step: Step) -> dict[int, list[int]]:
    """Return, by event or message, the events and messages that it needs."""
    needs: dict[int, list[int]] = {}
    for starts, members in (step.after, step.posts):
        owners = np.repeat(np.arange(len(step)), np.diff(starts))
        for owner, member in zip(owners.tolist(), members.tolist(), strict=True):
            needs.setdefault(member, []).append(owner)
    return needs


def _named(step: CompletedStep, message: int, names: Sequence[str]) -> str:
    rows = step.step.messages
    tensor = int(rows.tensor[message])
    name = f"tensor {tensor} part" if tensor >= 0 else "part"
    state = "under way" if step.ready[message] >= 0 else "not sent yet"
    ends = f"{names[rows.src[message]]} -> {names[rows.dst[message]]}"
    return f"{KINDS[rows.kind[message]]} of {name} {int(rows.part[message])}, {ends} ({state})"
