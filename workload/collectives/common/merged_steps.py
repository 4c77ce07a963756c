"""Two steps of a program merged into one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.workload.csr import CsrLists, csr_lists, owners_of
from gradwire.workload.program import Ints, Messages, PacketImportance, Step


def merge_steps(one: Step, other: Step) -> tuple[Step, tuple[Ints, Ints]]:
    """Merge two steps that have no courses and no stations.

    Also return the new numbers of the events of each: deliveries of `one`, of `other`, then the other events of each.
    """
    n, m = len(one.messages), len(other.messages)
    count = len(one) + len(other)
    first_events, second_events = np.arange(len(one)), np.arange(len(other))
    numbers = (
        np.where(first_events < n, first_events, first_events + m),
        np.where(second_events < m, n + second_events, len(one) + second_events),
    )
    columns: dict[str, Any] = {}
    for name in ("needs", "host", "station", "effort"):
        column = columns[name] = np.empty(count, dtype=np.int64)
        for step, number in zip((one, other), numbers, strict=True):
            column[number] = getattr(step, name)
    for name in ("after", "posts"):
        lists = [(number, getattr(step, name)) for step, number in zip((one, other), numbers, strict=True)]
        columns[name] = csr_lists([(number[owners_of(pairs)], number[pairs[1]]) for number, pairs in lists], count)
    messages = _joined(one.messages, other.messages)
    return Step(messages=messages, **columns, contents=lambda: _contents(one, other)), numbers


def add_events(step: Step, host: Ints, needs: Ints, after: tuple[Ints, Ints] | None = None) -> Step:
    """Return a step with more events, which release nothing: their nodes, and the firings that each needs.

    after : pairs of an event and the new event, numbered after all others, that counts its firing.
    """
    count, more = len(step), len(host)
    nothing = np.zeros(more, dtype=np.int64)
    pairs = [(owners_of(step.after), step.after[1])] + ([] if after is None else [after])
    first, posted = step.posts
    return replace(
        step,
        needs=np.append(step.needs, needs),
        host=np.append(step.host, host),
        station=np.append(step.station, nothing - 1),
        effort=np.append(step.effort, nothing),
        after=csr_lists(pairs, count + more),
        posts=(np.append(first, nothing + first[-1]), posted),
    )


def _joined(one: Messages, other: Messages) -> Messages:
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(one, field.name), getattr(other, field.name)])
        for field in fields(Messages)
        if field.name != "important"
    }
    first, second = one.important, other.important
    assert isinstance(first, PacketImportance)
    assert isinstance(second, PacketImportance)
    shifted = np.where(second.pattern >= 0, second.pattern + len(first.patterns), second.pattern)
    patterns = [*first.patterns, *second.patterns]
    return Messages(important=PacketImportance(patterns, np.concatenate([first.pattern, shifted])), **columns)


def _contents(one: Step, other: Step) -> tuple[CsrLists, Flags]:
    assert one.contents is not None
    assert other.contents is not None
    (first, members), whole = one.contents()
    (begins, more), more_whole = other.contents()
    return (
        (np.concatenate([first, first[-1] + begins[1:]]), np.concatenate([members, len(one.messages) + more])),
        np.concatenate([whole, more_whole]),
    )
