"""Which steps of a job are alike: what jobs say of that holds for every exchange and scheduler, and an iterator that
leaves some out goes on as if it had not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from forward_cases import long_jobs

from gradwire.scenarios.errors import ScenarioError, TraceError
from gradwire.scenarios.loading.registry import components
from gradwire.workload.jobs import Job
from gradwire.workload.prerequisites import find_prerequisites, make_jobs
from gradwire.workload.program import Step, StepSkip
from gradwire.workload.steps import are_equal_steps, shift_step
from tests.soak.drawn import COMMON, Scenarios


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: Any) -> list[Job]:
    folder = tmp_path_factory.mktemp("drawn")
    made, found = Scenarios(folder, COMMON), list[Job]()
    for seed in range(320):
        try:
            case = long_jobs(made, seed, folder)
            found += [] if case is None else make_jobs(case, find_prerequisites(case))
        except (ScenarioError, TraceError):
            continue
    return [job for job in found if job.part.repeats.period]


def begins(steps: list[Step]) -> list[int]:
    return [0, *np.cumsum([len(step) for step in steps]).tolist()]


def test_steps_one_period_apart_are_equal_for_every_exchange(jobs):
    seen = set()
    for job in jobs:
        repeats, steps = job.part.repeats, list(job.part.steps())
        if repeats.varies:  # alike on average only
            continue
        first = begins(steps)
        for one in range(repeats.first, repeats.last - repeats.period + 1):
            other = one + repeats.period
            assert are_equal_steps(steps[one], first[one], steps[other], first[other]), (job.table, one)
            seen.add(job.table.exchange.kind)
    assert seen == set(components("exchange"))


def test_first_last_and_within_period_steps_differ(jobs):
    """In many jobs, the first and last steps are not periodic, and steps within a period differ."""
    compared = unlike = halves = 0
    for job in jobs:
        repeats, steps = job.part.repeats, list(job.part.steps())
        first = begins(steps)
        for one, other in ((0, repeats.period), (len(steps) - 1 - repeats.period, len(steps) - 1)):
            compared += 1
            unlike += not are_equal_steps(steps[one], first[one], steps[other], first[other])
        if repeats.period > 1 and repeats.first + 1 < repeats.last:
            one, other = repeats.first, repeats.first + 1
            halves += not are_equal_steps(steps[one], first[one], steps[other], first[other])
    assert unlike > compared / 3
    assert halves > 0


def test_step_iterator_continues_correctly_after_a_jump(jobs):
    for job in jobs[:60]:
        repeats, steps = job.part.repeats, list(job.part.steps())
        first = begins(steps)
        begin = repeats.first + 1
        times = (repeats.last - begin) // repeats.period
        if times < 1:
            continue
        jump = StepSkip(times * repeats.period, first[begin + times * repeats.period] - first[begin])
        walking = job.part.steps()
        known = list(islice(walking, begin + 1))[-1]
        walking.jump(jump)  # type: ignore[attr-defined]  # it is Jumping
        same(shift_step(known, jump), steps[begin + jump.steps])
        for one, other in zip(walking, steps[begin + jump.steps + 1 :], strict=True):
            same(one, other)


def same(one: Step, other: Step) -> None:
    assert are_equal_steps(one, 0, other, 0)
    assert (one.messages.iteration == other.messages.iteration).all()
    assert (one.messages.turn == other.messages.turn).all()
    for mine, its in zip(one.courses, other.courses, strict=True):
        assert (mine.operations == its.operations).all()


def test_step_comparison_detects_a_difference_in_any_column(jobs):
    job = next(
        job for job in jobs if job.table.exchange.kind == "ring" and len(next(iter(job.part.steps())).messages) > 1
    )
    step = next(iter(job.part.steps()))
    assert are_equal_steps(step, 0, step, 0)
    rows = step.messages
    for name in ("src", "nbytes", "priority", "bound", "rank", "captured", "pool", "share"):
        column = getattr(rows, name).copy()
        column[-1] += 1
        assert not are_equal_steps(step, 0, replace(step, messages=replace(rows, **{name: column})), 0), name
    turned = rows.turn.copy()
    turned[-1] += 1
    assert not are_equal_steps(step, 0, replace(step, messages=replace(rows, turn=turned)), 0)
    for name in ("needs", "effort", "station"):
        column = getattr(step, name).copy()
        column[-1] += 1
        assert not are_equal_steps(step, 0, replace(step, **{name: column}), 0), name
    course = step.courses[0]
    operations = course.operations.copy()
    operations[0, 1] += 1
    others = (course._replace(operations=operations), *step.courses[1:])
    assert not are_equal_steps(step, 0, replace(step, courses=others), 0)
    assert not are_equal_steps(step, 0, step, 1)
