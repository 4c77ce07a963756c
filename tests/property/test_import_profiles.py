"""Profiles made from a known step, in random layouts and damaged: the true times come out, or an omission is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profile_cases import DAMAGES, DATA_GROUPS, LAYOUTS, MODEL_GROUPS, VENDORS, Job, Recorded, Times

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import ReadOptions
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.kinds.kineto import Kineto

US = 10**6
lasting = st.integers(min_value=100, max_value=3000)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    layers = draw(st.integers(min_value=1, max_value=4))
    is_closure = draw(st.booleans())
    micro_batches = draw(st.integers(min_value=1, max_value=3))
    layouts = [name for name in LAYOUTS if not (is_closure and name == "before_update")]
    return Job(
        iterations=draw(st.integers(min_value=3, max_value=5)),
        forward=tuple(draw(st.lists(lasting, min_size=layers, max_size=layers))),
        backward=tuple(draw(st.lists(lasting, min_size=layers, max_size=layers))),
        updates=tuple(draw(st.lists(lasting, min_size=1, max_size=3))),
        micro_batches=micro_batches,
        layout=draw(st.sampled_from(layouts)),
        is_closure=is_closure,
        vendor=draw(st.sampled_from(sorted(VENDORS))),
        has_shapes=draw(st.booleans()),
        data_group=draw(st.sampled_from(DATA_GROUPS)),
        model_group=draw(st.sampled_from(["", *MODEL_GROUPS])),
        has_batch_norm=draw(st.booleans()),
        has_metric=draw(st.booleans()),
        older_kernels=draw(st.integers(min_value=0, max_value=2)),
        pause=draw(st.sampled_from([100, 20_000])),
    )


def draft_of(events: list[dict[str, Any]], path: Path) -> Draft:
    path.write_text(json.dumps({"traceEvents": events}))
    return Kineto.read(path, ReadOptions())


def times_of(draft: Draft) -> list[Times]:
    return [
        Times(
            max(timing.forward_end) // US,
            tuple(moment // US for moment in reversed(timing.ready)),
            timing.optimizer // US,
        )
        for timing in draft.iterations
    ]


def whole_iterations(recorded: Recorded) -> list[Times]:
    """Return the times of the iterations that lie in a step of the profiler, as far as there are any."""
    return recorded.times[1:] if recorded.job.layout == "before_update" else recorded.times


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(job=jobs())
def test_profile_import_recovers_known_times_from_every_layout(job: Job, tmp_path: Path) -> None:
    recorded = Recorded(job)
    draft = draft_of(recorded.events, tmp_path / "profile.json")
    assert times_of(draft) == whole_iterations(recorded)
    assert not draft.doubtful
    sizes = [300 * (layer + 2) if job.has_shapes else 10_000 * (layer + 2) for layer in range(len(job.forward))]
    assert [gradient.numel for gradient in reversed(draft.gradients)] == sizes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(job=jobs(), which=st.integers(min_value=0, max_value=10**6), damage=st.sampled_from(sorted(DAMAGES)))
def test_damaged_profile_gives_true_times_or_counted_omissions(
    job: Job, which: int, damage: str, tmp_path: Path
) -> None:
    recorded = Recorded(job)
    before = draft_of(recorded.events, tmp_path / "profile.json")
    try:
        after = draft_of(DAMAGES[damage](recorded.events, which), tmp_path / "damaged.json")
    except TraceError as error:
        assert "several ranks" in str(error) or "no work of the accelerator" in str(error)
        return
    assert damage != "two ranks in one file"
    true = whole_iterations(recorded)
    times = times_of(after)
    assert all(each in true for each in times), f"{times} of {true}"
    if len(times) < len(true):
        assert after.doubtful or after.skipped != before.skipped


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_each_kind_of_profile_damage_is_counted(damage: str, tmp_path: Path) -> None:
    recorded = Recorded(Job(iterations=4))
    events = DAMAGES[damage](recorded.events, 5)
    if damage == "two ranks in one file":
        with pytest.raises(TraceError, match="several ranks"):
            draft_of(events, tmp_path / "profile.json")
        return
    draft = draft_of(events, tmp_path / "profile.json")
    counted = sum(draft.doubtful.values()) + draft.skipped["events without name, ts or dur"]
    assert counted > 0
    assert len(draft.iterations) >= 2
