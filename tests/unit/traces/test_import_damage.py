"""Damaged profiles: a sound recording of 4 ms forward and gradients at 6, 8, 10 and 12 ms, changed in one place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from formats_cases import SHARED

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats import import_trace
from gradwire.traces.storage import write
from gradwire.traces.trace import Trace

BASE = SHARED / "cases" / "traces" / "base.json"
MS = 10**9
SOUND = (4.0, (6.0, 8.0, 10.0, 12.0), 0.5)
"""Milliseconds of the forward pass, of the gradients and of the update in every step of the file."""
pytestmark = pytest.mark.skipif(not BASE.exists(), reason="no ../shared/data/cases/traces with public cases")

Events = list[dict[str, Any]]


def damaged(folder: Path, damage: Callable[[Events], None]) -> Trace:
    data = json.loads(BASE.read_text())
    damage(data["traceEvents"])
    path = folder / "damaged.json"
    path.write_text(json.dumps(data))
    trace = import_trace(path)
    write(trace, folder / "trace")
    return trace


def times_of(trace: Trace) -> list[tuple[float, tuple[float, ...], float]]:
    return [
        (max(each.forward_end_ps) / MS, tuple(sorted(ready / MS for ready in each.ready_ps)), each.optimizer_ps / MS)
        for each in trace.iterations
    ]


@pytest.mark.parametrize("shape", [[True, 1000], [1000, False], ["1000", 1000], [1000.0, 1000]])
def test_a_shape_of_anything_but_whole_numbers_is_none(tmp_path: Path, shape: list[object]) -> None:
    def damage(events: Events) -> None:
        next(each for each in events if "AccumulateGrad" in each["name"])["args"]["Input Dims"] = [shape]

    trace = damaged(tmp_path, damage)
    assert all(type(n) is int for tensor in trace.tensors for n in tensor.shape)
    assert times_of(trace) == [SOUND] * 2
    assert trace.manifest["source"]["skipped"]["AccumulateGrad without a shape (profile with record_shapes=True)"] == 1


@pytest.mark.parametrize(
    ("events", "kind"),
    [(None, "null"), ("abc", "a string"), (5, "a number"), (1.5, "a number"), ({"a": 1}, "an object"), (True, "a boolean")],
)
def test_a_file_whose_events_are_no_array_is_refused(tmp_path: Path, events: object, kind: str) -> None:
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(TraceError, match=f"has traceEvents that are no array but {kind}; expected an array of events"):
        import_trace(path)
