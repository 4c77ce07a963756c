"""Two steps of a program as one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from gradwire.experiment.collectives.base import lists
from gradwire.experiment.program import Importance, Ints, Lists, Messages, Step
from gradwire.scenarios.arrays import Flags


def merged(one: Step, other: Step) -> tuple[Step, tuple[Ints, Ints]]:
    """Both steps, which have no courses and no station; and the numbers that the events of each have in the whole:
    deliveries of the one, of the other, then the other events of each."""
    n, m = len(one.messages), len(other.messages)
    count = len(one) + len(other)
    ours, theirs = np.arange(len(one)), np.arange(len(other))
    numbers = np.where(ours < n, ours, ours + m), np.where(theirs < m, n + theirs, len(one) + theirs)
    columns: dict[str, Any] = {}
    for name in ("needs", "host", "station", "effort"):
        column = columns[name] = np.empty(count, dtype=np.int64)
        for step, mine in zip((one, other), numbers, strict=True):
            column[mine] = getattr(step, name)
    both: dict[str, Any] = {
        name: lists(
            [
                (mine[np.repeat(np.arange(len(step)), np.diff(getattr(step, name)[0]))], mine[getattr(step, name)[1]])
                for step, mine in zip((one, other), numbers, strict=True)
            ],
            count,
        )
        for name in ("after", "posts")
    }
    made = Step(
        messages=_joined(one.messages, other.messages), **columns, **both, contents=lambda: _contents(one, other)
    )
    return made, numbers


def grown(step: Step, host: Ints, needs: Ints, after: tuple[Ints, Ints] | None = None) -> Step:
    """A step with more events, that let nothing go: at which nodes, and how many firings each needs. `after`: events,
    and those of the new ones that each counts towards, numbered behind all others."""
    count, more = len(step), len(host)
    nothing = np.zeros(more, dtype=np.int64)
    owner = np.repeat(np.arange(count), np.diff(step.after[0]))
    pairs = [(owner, step.after[1])] + ([] if after is None else [after])
    first, posted = step.posts
    return replace(
        step, needs=np.append(step.needs, needs), host=np.append(step.host, host),
        station=np.append(step.station, nothing - 1), effort=np.append(step.effort, nothing),
        after=lists(pairs, count + more), posts=(np.append(first, nothing + first[-1]), posted),
    )  # fmt: skip


def _joined(one: Messages, other: Messages) -> Messages:
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(one, field.name), getattr(other, field.name)])
        for field in fields(Messages)
        if field.name != "important"
    }
    first, second = one.important, other.important
    assert isinstance(first, Importance)
    assert isinstance(second, Importance)
    moved = np.where(second.pattern >= 0, second.pattern + len(first.patterns), second.pattern)
    patterns = [*first.patterns, *second.patterns]
    return Messages(important=Importance(patterns, np.concatenate([first.pattern, moved])), **columns)


def _contents(one: Step, other: Step) -> tuple[Lists, Flags]:
    assert one.contents is not None
    assert other.contents is not None
    (first, members), own = one.contents()
    (begins, more), mine = other.contents()
    return (
        (np.concatenate([first, first[-1] + begins[1:]]), np.concatenate([members, len(one.messages) + more])),
        np.concatenate([own, mine]),
    )
