"""Measuring: one point of a sweep, run where the work is done - a process of this machine, or a task of a cluster.

Whatever goes wrong is what has become of the point: nothing is raised but what ends the process.
"""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.scenarios.errors import GradwireError

if TYPE_CHECKING:
    from gradwire.analysis.sweeps.store import Record
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario


def measure_into(scenario: Scenario, key: str, place: Path, keep: bool) -> tuple[Record, None]:
    """Run a point and keep what was measured, at once."""
    from gradwire.analysis.sweeps.store import Store

    store = Store(place)
    store.begin(key)
    record, result = _measured(scenario)
    if keep and result is not None:
        store.keep_result(key, result)
    store.write(key, record)
    return record, None


def measured(scenario: Scenario, keep: bool) -> tuple[Record, bytes | None]:
    """Run a point on some machine, with what of the user's own has been sent there; with its Result, packed, if it is
    to be kept."""
    from gradwire.analysis.sweeps.store import packed
    from gradwire.shipped import Shipped

    shipped = Shipped.read(Path.cwd())
    if shipped is None:
        record, result = _measured(scenario)
        return record, (packed(result) if keep and result is not None else None)
    record, result = _measured(shipped.scenario(scenario))
    record = replace(record, why=shipped.text(record.why), detail=shipped.text(record.detail))
    return record, (packed(shipped.result(result, scenario)) if keep and result is not None else None)


def _measured(scenario: Scenario) -> tuple[Record, Result | None]:
    """Simulate and measure. Whatever goes wrong is what has become of the point."""
    from gradwire.analysis.sweeps.measures import seen
    from gradwire.analysis.sweeps.store import Record
    from gradwire.scenarios.content import content_digest
    from gradwire.scenarios.errors import ScenarioNote
    from gradwire.sim.simulate import simulate

    warnings.simplefilter("ignore", ScenarioNote)
    begin = time.perf_counter()
    try:
        result = simulate(scenario)
        simulated = time.perf_counter()
        found = seen(result)
    except GradwireError as error:
        return Record("failed", why=str(error), wall_s=time.perf_counter() - begin), None
    except (Exception, MemoryError) as error:
        why = f"{type(error).__name__}: {error}"
        return Record("failed", why=why, detail=traceback.format_exc(), wall_s=time.perf_counter() - begin), None
    ended = str(result.summary["totals"]["ended_by"])
    compiled = float(result.timing.get("compile_s", 0.0))
    return Record(
        "done", found, ended_by=ended, wall_s=time.perf_counter() - begin - compiled,
        simulated_s=simulated - begin - compiled, digest=content_digest(result),
    ), result  # fmt: skip
