"""Merges program steps (a job's iterations, batches of flows), extends them by events, shifts them, and compares
them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.workload.csr import CsrLists, csr_lists, owners_of
from gradwire.workload.program import FIRE, WAIT, Ints, Messages, PacketImportance, Step, StepSkip

RISING_COLUMNS = ("iteration", "turn")
"""Message columns that rise with the number of the iteration."""
EVENT_COLUMNS, EVENT_LISTS = ("needs", "host", "station", "effort"), ("after", "posts")


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
    for name in EVENT_COLUMNS:
        column = columns[name] = np.empty(count, dtype=np.int64)
        for step, number in zip((one, other), numbers, strict=True):
            column[number] = getattr(step, name)
    for name in EVENT_LISTS:
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


def shift_step(step: Step, jump: StepSkip) -> Step:
    """Return the equal step `jump.steps` steps later."""
    messages = replace(step.messages, **{name: getattr(step.messages, name) + jump.steps for name in RISING_COLUMNS})
    courses = tuple(
        course._replace(operations=shift_events(course.operations, jump.events, course.operations[:, 2] + jump.steps))
        for course in step.courses
    )
    return replace(step, messages=messages, courses=courses)


def are_equal_steps(one: Step, first: int, other: Step, begin: int) -> bool:
    """Return True if two steps differ only in what rises with their numbers. `first`, `begin`: their first events,
    counted through the part."""
    if len(one) != len(other) or len(one.messages) != len(other.messages) or len(one.courses) != len(other.courses):
        return False
    if one.begins is not None or other.begins is not None:
        return False
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in EVENT_COLUMNS)
    for name in EVENT_LISTS:
        same &= all(map(np.array_equal, getattr(one, name), getattr(other, name)))
    for course, other_course in zip(one.courses, other.courses, strict=True):
        rows, other_rows = shift_events(course.operations, -first), shift_events(other_course.operations, -begin)
        same &= course.process == other_course.process and np.array_equal(rows[:, :2], other_rows[:, :2])
    return bool(same and _messages_alike(one.messages, other.messages))


def _messages_alike(one: Messages, other: Messages) -> bool:
    for field in fields(Messages):
        column, other_column = getattr(one, field.name), getattr(other, field.name)
        if field.name in RISING_COLUMNS:
            if len(column) and not (other_column - column == other_column[0] - column[0]).all():
                return False
        elif field.name == "important":
            if not _importance_alike(column, other_column):
                return False
        elif not np.array_equal(column, other_column):
            return False
    return True


def _importance_alike(one: PacketImportance, other: PacketImportance) -> bool:
    if not np.array_equal(one.pattern, other.pattern):
        return False
    used = np.unique(one.pattern[one.pattern >= 0]).tolist()
    return all(np.array_equal(one.patterns[which], other.patterns[which]) for which in used)


def shift_events(operations: Ints, events: int, iterations: Ints | None = None) -> Ints:
    """Return a course's operations with shifted events, and new iterations if given."""
    rows = operations.copy()
    rows[np.isin(rows[:, 0], (FIRE, WAIT)), 1] += events
    if iterations is not None:
        rows[:, 2] = np.where(rows[:, 2] >= 0, iterations, rows[:, 2])
    return rows
