"""Equal steps: comparison of two steps, and a step shifted by some iterations."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from gradwire.workload.program import FIRE, WAIT, Ints, Messages, PacketImportance, Step, StepSkip

RISING_COLUMNS = ("iteration", "turn")
"""Message columns that rise with the number of the iteration."""


def shift_step(step: Step, jump: StepSkip) -> Step:
    """Return the equal step `jump.steps` steps later."""
    messages = replace(step.messages, **{name: getattr(step.messages, name) + jump.steps for name in RISING_COLUMNS})
    courses = tuple(
        course._replace(operations=_counted(course.operations, jump.events, course.operations[:, 2] + jump.steps))
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
    columns = ("needs", "host", "station", "effort")
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
    for name in ("after", "posts"):
        same &= all(map(np.array_equal, getattr(one, name), getattr(other, name)))
    for course, other_course in zip(one.courses, other.courses, strict=True):
        rows, other_rows = _counted(course.operations, -first, None), _counted(other_course.operations, -begin, None)
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


def _counted(operations: Ints, events: int, iterations: Ints | None) -> Ints:
    """Return a course's operations with shifted events, and new iterations."""
    rows = operations.copy()
    rows[np.isin(rows[:, 0], (FIRE, WAIT)), 1] += events
    if iterations is not None:
        rows[:, 2] = np.where(rows[:, 2] >= 0, iterations, rows[:, 2])
    return rows
