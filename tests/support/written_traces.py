"""Traces that are written: whether two are the same, and changes by hand to one that lies in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.traces.trace import Trace

TABLES = ["layers", "tensors", "iterations", "chunks"]


def same(one: Trace, other: Trace) -> None:
    assert one.manifest == other.manifest
    assert one.layers == other.layers
    assert one.tensors == other.tensors
    for mine, theirs in zip(one.iterations, other.iterations, strict=True):
        assert (mine.rank, mine.index, mine.phase, mine.step, mine.loss) == (
            theirs.rank,
            theirs.index,
            theirs.phase,
            theirs.step,
            theirs.loss,
        )
        assert (mine.backward_end_ps, mine.optimizer_ps, mine.end_ps) == (
            theirs.backward_end_ps,
            theirs.optimizer_ps,
            theirs.end_ps,
        )
        for name in ("forward_start_ps", "forward_end_ps", "ready_ps"):
            assert getattr(theirs, name).dtype == np.int64
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    assert one.sampled == other.sampled
    for iteration in range(len(one.iterations)):
        for tensor in range(len(one.tensors)):
            np.testing.assert_array_equal(one.chunk_rms(iteration, tensor), other.chunk_rms(iteration, tensor))
            np.testing.assert_array_equal(one.chunk_mean(iteration, tensor), other.chunk_mean(iteration, tensor))
            np.testing.assert_array_equal(one.chunk_max(iteration, tensor), other.chunk_max(iteration, tensor))


def edit_manifest(directory: Path, **changes: Any) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.update(changes)
    path.write_text(json.dumps(manifest))
