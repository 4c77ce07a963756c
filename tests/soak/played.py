"""One scenario through everything: what `check` says of it, the engine on several threads and with its programs played by
SimPy instead, the oracle packet by packet.

Engine and oracle are compared by `gradwire.testing.scenario_comparison`; whether messages started when they should is what the other
player says.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.result_store.table_schema import TABLES
from gradwire.scenarios.errors import ScenarioError, StallError, TraceError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.preparation import check_variants
from gradwire.sim.simulate import simulate
from gradwire.testing.scenario_comparison import Difference, PacketRecorder
from tests.soak.coverage import Coverage

MOST_PACKETS = 3_000
"""Of a scenario that the oracle runs: it takes about 0.1 ms for each link that a packet crosses."""


def checked(tables: dict[str, Any], folder: Path) -> list[Scenario]:
    """The variants of a scenario, after everything that `gradwire check` looks at.

    Raises
    ------
    ScenarioError, TraceError
        As `check` would say it.
    """
    scenario = build_scenario(tables).at(folder)
    variants = scenario.variants()
    check_variants(variants)
    return variants


def play(
    tables: dict[str, Any], folder: Path, *, seconds: float = 3.0, against_oracle: bool = True,
    coverage: Coverage | None = None, compiled: bool = True,
) -> str:  # fmt: skip
    """Check a scenario and run it; return one of `tests.soak.ANSWERS`. `coverage` counts those in which engine and oracle
    were compared packet by packet. `compiled` False: the engine runs as plain Python, once, and is compared to the oracle
    alone.

    Raises
    ------
    Difference
        Engine and oracle, or 1, 2 and 3 threads, do not agree.
    AssertionError
        `check` accepted what `run` refused.
    """
    try:
        variants = checked(tables, folder)
    except (ScenarioError, TraceError) as error:
        assert error.exit_code == 2 and str(error), repr(error)
        return "refused"
    answer, compared = "ok", True
    for scenario in variants:
        try:
            run = _run if compiled else _run_uncompiled
            answer, is_compared = run(scenario, seconds, against_oracle)
            compared &= is_compared
        except StallError:
            answer, compared = "stalled", False
        except (ScenarioError, TraceError) as error:
            raise AssertionError(f"check accepted what run refused: {error}") from error
    if coverage is not None and compared:
        coverage.note(tables)
    return answer


def _run(scenario: Scenario, seconds: float, against_oracle: bool) -> tuple[str, bool]:
    """Run one variant. Returns the answer, and whether engine and oracle were compared."""
    recorder = PacketRecorder()
    result = simulate(scenario, fabric=recorder, max_wall_s=seconds)
    ended = result.summary["totals"]["ended_by"]
    if ended == "max_wall":
        return "cut", False
    for threads, reuse in ((1, True), (2 + len(scenario.traffic) % 2, False)):
        again = simulate(
            scenario, threads=threads, fabric=PacketRecorder(threads, log=bool(scenario.output.packet_log), reuse=reuse)
        )
        _same(result, again, "1 thread", f"{threads} threads{', records used again at once' if reuse else ''}")
    other = simulate(scenario, fabric=PacketRecorder(log=bool(scenario.output.packet_log), by_processes=True))
    _same(result, other, "the engine's player", "SimPy's")
    return "ok", against_oracle and _compare(recorder)


def _run_uncompiled(scenario: Scenario, seconds: float, against_oracle: bool) -> tuple[str, bool]:
    """Run one variant by the engine as plain Python; what it had done when its time was up is compared as well."""
    recorder = PacketRecorder(compiled=False, reuse=len(scenario.traffic) % 2 == 1)
    simulate(scenario, fabric=recorder, max_wall_s=seconds)
    return "ok", against_oracle and _compare(recorder)


def _compare(recorder: PacketRecorder) -> bool:
    """Return True if a recorded run is small enough for the oracle; raise Difference if the oracle's differs."""
    if int(np.sum(recorder.made.finish().sent_packets)) > MOST_PACKETS:
        return False
    difference = recorder.difference()
    if difference:
        raise Difference(difference)
    return True


def _same(one: Any, other: Any, this: str, that: str) -> None:
    """Two Results are the same."""
    for name in TABLES:
        if not getattr(one, name).equals(getattr(other, name)):
            raise Difference(f"table {name} differs between {this} and {that}")
    if one.summary != other.summary:
        raise Difference(f"the summary differs between {this} and {that}: {one.summary} {other.summary}")


def scratch() -> Path:
    """A folder for the files that scenarios name; it goes with the process."""
    kept = tempfile.TemporaryDirectory(prefix="gradwire-soak-")
    _kept.append(kept)
    return Path(kept.name)


_kept: list[Any] = []
