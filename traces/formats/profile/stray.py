"""Removes a profile's CPU records whose time lies far outside of the recording."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from gradwire.scenarios.arrays import Flags
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.profile.records import Records

FAR_FACTOR = 2
"""A record is stray if it lies this many lengths of (most of) the recording outside of it. Our choice."""
MIN_RECORDS = 10
"""Minimum number of records to determine the length of a recording."""

T = TypeVar("T")


def drop_stray_records(records: Records, draft: Draft) -> None:
    """Remove the CPU's records far before or after all others, and count them by kind. A damaged time puts a record
    into another step, or before all of them. Steps that then lack a function, a gradient or an optimizer are left out
    later."""
    functions = records.functions
    times = {
        "autograd functions": functions.begin,
        "AccumulateGrad": [call.at for call in records.accumulated],
        "collectives": [call.at for call in [*records.calls, *records.operators]],
        "forward operators": records.forward,
        "ProfilerStep annotations": [step.begin for step in records.steps],
        "Optimizer.step annotations": [span.begin for span in records.optimizers],
    }
    all_times = np.concatenate([np.array(values, dtype=np.float64) for values in times.values()])
    if len(all_times) < MIN_RECORDS:
        return
    early, late = np.quantile(all_times, (0.1, 0.9))
    least, most = early - FAR_FACTOR * (late - early), late + FAR_FACTOR * (late - early)
    stray = {kind: _outside(values, least, most) for kind, values in times.items()}
    if not any(mask.any() for mask in stray.values()):
        return
    for kind, mask in stray.items():
        draft.doubtful[f"{kind} at a time far outside of the recording, left out"] += int(mask.sum())
    is_valid = ~stray["autograd functions"]
    functions.begin, functions.end = (
        array("d", np.array(column)[is_valid]) for column in (functions.begin, functions.end)
    )
    functions.row = array("l", np.array(functions.row)[is_valid].tolist())
    functions.accumulates = array("b", np.array(functions.accumulates)[is_valid].tolist())
    records.lost["function"] += int((~is_valid).sum())
    records.lost["optimizer"] += int(stray["Optimizer.step annotations"].sum())
    records.accumulated = _without(records.accumulated, stray["AccumulateGrad"])
    n_calls = len(records.calls)
    records.calls, records.operators = (
        _without(records.calls, stray["collectives"][:n_calls]),
        _without(records.operators, stray["collectives"][n_calls:]),
    )
    is_forward = ~stray["forward operators"]
    records.forward = array("d", np.array(records.forward)[is_forward])
    records.forward_rows = array("l", np.array(records.forward_rows)[is_forward].tolist())
    records.steps = _without(records.steps, stray["ProfilerStep annotations"])
    records.optimizers = _without(records.optimizers, stray["Optimizer.step annotations"])


def _outside(times: Sequence[float] | array[float], least: float, most: float) -> Flags:
    values = np.array(times, dtype=np.float64)
    is_outside: Flags = (values < least) | (values > most)
    return is_outside


def _without(values: list[T], stray: Flags) -> list[T]:
    return [value for value, is_stray in zip(values, stray.tolist(), strict=True) if not is_stray]
