"""Steps that are alike: what two of them have in common, and one as it is some iterations later."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from gradwire.experiment.program import FIRE, WAIT, Importance, Ints, Jump, Messages, Step

ROTATES = ("iteration", "turn")
"""Columns of messages that rise with the number of the iteration."""


def later(step: Step, jump: Jump) -> Step:
    """The step that is like this one, so many steps later."""
    messages = replace(step.messages, **{name: getattr(step.messages, name) + jump.steps for name in ROTATES})
    courses = tuple(
        each._replace(operations=_counted(each.operations, jump.events, each.operations[:, 2] + jump.steps))
        for each in step.courses
    )
    return replace(step, messages=messages, courses=courses)


def alike(one: Step, first: int, other: Step, begin: int) -> bool:
    """Whether two steps differ in nothing but what rises with their numbers. `first`, `begin`: the numbers of their
    first events, counted through the part."""
    if len(one) != len(other) or len(one.messages) != len(other.messages) or len(one.courses) != len(other.courses):
        return False
    if one.begins is not None or other.begins is not None:
        return False
    columns = ("needs", "host", "station", "effort")
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
    for name in ("after", "posts"):
        same &= all(map(np.array_equal, getattr(one, name), getattr(other, name)))
    return bool(
        same
        and _messages_alike(one.messages, other.messages)
        and all(
            mine.process == its.process
            and np.array_equal(
                _counted(mine.operations, -first, None)[:, :2], _counted(its.operations, -begin, None)[:, :2]
            )
            for mine, its in zip(one.courses, other.courses, strict=True)
        )
    )


def _messages_alike(one: Messages, other: Messages) -> bool:
    for field in fields(Messages):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if field.name in ROTATES:
            if len(mine) and not (its - mine == its[0] - mine[0]).all():
                return False
        elif field.name == "important":
            if not _importance_alike(mine, its):
                return False
        elif not np.array_equal(mine, its):
            return False
    return True


def _importance_alike(one: Importance, other: Importance) -> bool:
    if not np.array_equal(one.pattern, other.pattern):
        return False
    used = np.unique(one.pattern[one.pattern >= 0]).tolist()
    return all(np.array_equal(one.patterns[which], other.patterns[which]) for which in used)


def _counted(operations: Ints, events: int, iterations: Ints | None) -> Ints:
    """Operations of a course with other numbers of events, and of iterations."""
    rows = operations.copy()
    rows[np.isin(rows[:, 0], (FIRE, WAIT)), 1] += events
    if iterations is not None:
        rows[:, 2] = np.where(rows[:, 2] >= 0, iterations, rows[:, 2])
    return rows
