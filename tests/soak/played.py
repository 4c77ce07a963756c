"""One scenario through everything: what `check` says of it, the engine on several threads and with its programs played by
SimPy instead, the oracle packet by packet.

The engine is given to `simulate` by a maker that keeps it. The messages of its programs, each with the time at which it
started, are then sent through the oracle, and what both saw is compared; whether they started when they should is what
the other player says.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradwire.scenarios.errors import ScenarioError, StallError, TraceError
from gradwire.scenarios.load import build_scenario
from gradwire.scenarios.result import TABLES
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.fabric.fabric import Fabric
from gradwire.sim.faults import Faults
from gradwire.sim.precheck import check_variants
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, Change, Letter, run_oracle
from gradwire.testing.oracle.cases import missing_packets, seen
from gradwire.testing.oracle.packets import Arrival

MOST_PACKETS = 3_000
"""Of a scenario that the oracle runs: it takes about 0.1 ms for each link that a packet crosses."""

NEVER = 1 << 62


class Difference(AssertionError):
    """Engine and oracle, or two numbers of threads, do not agree."""


@dataclass
class Recorder:
    """Makes the packet engine for `simulate`, and keeps it with all that is handed to it."""

    threads: int = 1
    log: bool = True
    by_processes: bool = False
    """programs are played by SimPy"""
    made: Any = None

    def __call__(self, scenario: Scenario, network: Any, routing: Any, threads: int) -> Any:
        fabric = self.made = Fabric(
            network, routing, switch=scenario.switch, transports=scenario.transports,
            balancing=scenario.load_balancing, seed=scenario.seed, host_latency_ps=scenario.host.software_latency,
            threads=self.threads, packet_log=self.log, faults=any(table.engine for table in scenario.fault),
            delays=scenario.output.delays, missing=True, folder=scenario.folder,
        )  # fmt: skip
        fabric._alone = self.threads == 1
        self.network = network
        begin = fabric.play
        if self.log:
            fabric.play = lambda part, logged=True: begin(part)  # type: ignore[method-assign]
        return Plain(fabric) if self.by_processes else fabric

    def letters(self) -> list[Letter]:
        """Every message with the time at which it started."""
        found: dict[int, Letter] = {}
        for track in self.made._programs.tracks:
            for step in track.steps:
                rows = step.step.messages
                started = np.where(step.started >= 0, step.started, NEVER)
                columns = (step.numbers, started, rows.src, rows.dst, rows.nbytes, rows.priority, rows.bound)
                for place, (number, time, src, dst, nbytes, priority, bound) in enumerate(
                    zip(*(column.tolist() for column in columns), strict=True)
                ):
                    important: Any = rows.important[place]
                    if isinstance(important, np.ndarray):
                        important = important.tolist()
                    found[number] = Letter(
                        time, src, dst, nbytes, track.part.table.transport, priority, bound, important
                    )
        assert sorted(found) == list(range(len(found)))
        return [found[number] for number in range(len(found))]


class Plain:
    """A fabric that plays no programs, so that SimPy has to."""

    def __init__(self, fabric: Fabric) -> None:
        object.__setattr__(self, "fabric", fabric)

    def __getattr__(self, name: str) -> Any:
        if name in ("play", "jobs_left"):
            raise AttributeError(name)
        return getattr(self.fabric, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.fabric, name, value)


def changes_of(scenario: Scenario, network: Any) -> list[Change]:
    """What the faults of a scenario do to its network, in the oracle's words."""
    planned: list[Any] = []
    found: list[Change] = []
    agenda = SimpleNamespace(add=lambda time, action, **_: planned.append((time, len(planned), action)))
    control = SimpleNamespace(network=network)
    fabric = SimpleNamespace(agenda=agenda, control=control)
    time = 0

    def note(what: str) -> Any:
        def noted(target: Any, value: Any = None) -> None:
            found.append(Change(time, what, target, value if what in ("set_rate", "set_loss") else None))

        return noted

    for what in ("cut", "mend", "set_rate", "set_loss", "stop_host", "resume_host"):
        setattr(control, what, note(what))
    faults = Faults(scenario.fault, network)
    control.reroute = lambda _: found.append(Change(time, "reroute", sorted(faults._dead(faults._noticed))))
    faults.schedule(fabric)
    for time, _, action in sorted(planned, key=lambda entry: entry[:2]):
        action(time)
    return found


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


def play(tables: dict[str, Any], folder: Path, *, seconds: float = 5.0, against_oracle: bool = True) -> str:
    """Check a scenario and run it; the answer is one of `tests.soak.ANSWERS`.

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
    answer = "ok"
    for scenario in variants:
        try:
            answer = _run(scenario, seconds, against_oracle)
        except StallError:
            answer = "stalled"
        except (ScenarioError, TraceError) as error:
            raise AssertionError(f"check accepted what run refused: {error}") from error
    return answer


def _run(scenario: Scenario, seconds: float, against_oracle: bool) -> str:
    recorder = Recorder()
    result = simulate(scenario, fabric=recorder, max_wall_s=seconds)
    fabric = recorder.made
    ended = result.summary["totals"]["ended_by"]
    if ended == "max_wall":
        return "cut"
    for threads in (2, 3):
        again = simulate(scenario, threads=threads, fabric=Recorder(threads, log=bool(scenario.output.packet_log)))
        _same(result, again, "1 thread", f"{threads} threads")
    other = simulate(scenario, fabric=Recorder(log=bool(scenario.output.packet_log), by_processes=True))
    _same(result, other, "the engine's player", "SimPy's")
    tables = fabric.finish()
    packets = int(np.sum(tables.sent_packets))
    if not against_oracle or packets > MOST_PACKETS:
        return "ok"
    letters = recorder.letters()
    case = Case(
        recorder.network, scenario.transports, letters, scenario.switch, scenario.load_balancing, scenario.seed,
        scenario.host.software_latency, changes_of(scenario, recorder.network),
    )  # fmt: skip
    difference = _difference(fabric, case, tables)
    if difference:
        raise Difference(difference)
    return "ok"


def _same(one: Any, other: Any, this: str, that: str) -> None:
    """Two Results are the same."""
    for name in TABLES:
        if not getattr(one, name).equals(getattr(other, name)):
            raise Difference(f"table {name} differs between {this} and {that}")
    if one.summary != other.summary:
        raise Difference(f"the summary differs between {this} and {that}: {one.summary} {other.summary}")


def _difference(fabric: Fabric, case: Case, tables: Any) -> str:
    """The first thing in which the engine's run and the oracle's differ, up to where the engine has got; or nothing."""
    until = fabric.now
    engine, oracle = seen(fabric, []), run_oracle(case, until=until)
    missing = missing_packets(tables)
    arrived = sorted(
        Arrival(int(end), number, int(tables.received_bytes[number]), missing.get(number, ()))
        for number, end in enumerate(tables.end_ps)
        if 0 <= end < until
    )
    parts = {
        "transmissions": (engine.transmissions, oracle.transmissions),
        "drops": ([d for d in engine.drops if d.time < until], [d for d in oracle.drops if d.time < until]),
        "arrivals": (arrived, oracle.arrivals),
        "ports": (engine.ports, oracle.ports),
        "packets sent again": (engine.again, oracle.again),
    }
    for what, (ours, theirs) in parts.items():
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"{what}[{index}]:\n  engine {one}\n  oracle {other}"
        if len(ours) != len(theirs):
            return f"{what}: engine {len(ours)}, oracle {len(theirs)}"
    return ""


def scratch() -> Path:
    """A folder for the files that scenarios name; it goes with the process."""
    kept = tempfile.TemporaryDirectory(prefix="gradwire-soak-")
    _kept.append(kept)
    return Path(kept.name)


_kept: list[Any] = []
