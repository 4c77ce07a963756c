"""Simulates and measures one sweep point, in a process or cluster task, and records errors as its outcome.

Only what ends the process is raised.
"""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

from gradwire.result_store.digest import content_digest
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import GradwireError, ScenarioNote
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.studies.parallel.code_bundle import CodeBundle
from gradwire.studies.sweep.measures import figures_by_job
from gradwire.studies.sweep.point_store import PointStore, Record, packed


def measure_and_store(scenario: Scenario, key: str, path: Path, keep: bool) -> tuple[Record, None]:
    """Run a point and store its measurements at once."""
    store = PointStore(path)
    store.begin(key)
    record, result = _measure(scenario)
    if keep and result is not None:
        store.keep_result(key, result)
    store.write(key, record)
    return record, None


def measure(scenario: Scenario, keep: bool) -> tuple[Record, bytes | None]:
    """Run a point on any machine, with the user-defined files sent there; return its packed Result too, if `keep`."""
    shipped = CodeBundle.read(Path.cwd())
    if shipped is None:
        record, result = _measure(scenario)
        return record, (packed(result) if keep and result is not None else None)
    record, result = _measure(shipped.scenario(scenario))
    record = replace(record, why=shipped.text(record.why), detail=shipped.text(record.detail))
    return record, (packed(shipped.result(result, scenario)) if keep and result is not None else None)


def _measure(scenario: Scenario) -> tuple[Record, Result | None]:
    """Simulate and measure. Errors become the point's outcome."""
    from gradwire.sim.simulate import simulate

    warnings.simplefilter("ignore", ScenarioNote)
    begin = time.perf_counter()
    try:
        result = simulate(scenario)
        simulated = time.perf_counter()
        values = figures_by_job(result)
    except GradwireError as error:
        return Record("failed", why=str(error), wall_s=time.perf_counter() - begin), None
    except (Exception, MemoryError) as error:
        why = f"{type(error).__name__}: {error}"
        return Record("failed", why=why, detail=traceback.format_exc(), wall_s=time.perf_counter() - begin), None
    ended = str(result.summary["totals"]["ended_by"])
    compiled = float(result.timing.get("compile_s", 0.0))
    return Record(
        "done",
        values,
        ended_by=ended,
        wall_s=time.perf_counter() - begin - compiled,
        simulated_s=simulated - begin - compiled,
        digest=content_digest(result),
    ), result
