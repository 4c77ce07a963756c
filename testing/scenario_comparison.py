"""Runs a scenario on the engine and its messages on the oracle, and compares both packet by packet.

A recorder creates the engine for `simulate` and keeps it. The messages of its programs, each with its start time, are
then sent through the oracle, and both outcomes are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.program.completed_step import tie_origin
from gradwire.sim.engine.scheduled_actions import Action
from gradwire.sim.engine.tables import FabricTables
from gradwire.sim.faults import Faults
from gradwire.sim.processes.network_interface import FabricLike
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, MessageSpec, NetworkChange, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.case_runs import missing_packets, outcome_of
from gradwire.testing.oracle.packets import DeliveredMessage
from gradwire.topology import Network
from gradwire.topology.routing import Routing

NEVER = 1 << 62


class Difference(AssertionError):
    """Raised if two runs that should be equal differ: engine and oracle, or two numbers of threads."""


def agree(case: Case, **how: Any) -> Outcome:
    """Send the messages of a case through engine and oracle; return their outcome. `how` as in `run_engine`.

    Raises Difference with the first packet, drop, delivery or counter in which they differ.
    """
    engine = run_engine(case, **how)
    difference = first_difference(engine, run_oracle(case))
    if difference:
        raise Difference(difference)
    return engine


def agree_on(scenario: Scenario, *, max_wall_s: float | None = None, reuse: bool = True, compiled: bool = True) -> int:
    """Run one variant of a scenario on the engine and its messages on the oracle; return the packets sent by hosts.

    The oracle takes about 0.1 ms per packet and link. `reuse`: the engine reuses records of messages as early as
    possible, which reveals state that one message leaves to the next. `compiled`: False for an engine of plain Python,
    faster for up to a few thousand packets.

    Raises
    ------
    Difference
        The first packet, drop, delivery or counter in which they differ.
    ScenarioError, TraceError, StallError
        As `gradwire.simulate`; ScenarioError too if the scenario has several policies.
    """
    if scenario.policy:
        raise ScenarioError(f"has {len(scenario.policy)} policies", expected="one of scenario.variants()")
    recorder = PacketRecorder(reuse=reuse, compiled=compiled)
    simulate(scenario, fabric=recorder, max_wall_s=max_wall_s)
    difference = recorder.difference()
    if difference:
        raise Difference(difference)
    return int(np.sum(recorder.made.finish().sent_packets))


@dataclass
class PacketRecorder:
    """Creates the packet engine for `simulate`, and keeps it with its inputs."""

    threads: int = 1
    log: bool = True
    by_processes: bool = False
    """programs are played by SimPy"""
    reuse: bool = False
    """records of messages are reused as early as possible (`TimeAdvance.reuse_records_at_once`)"""
    compiled: bool = True
    made: Any = None

    def __call__(self, scenario: Scenario, network: Network, routing: Routing, threads: int) -> FabricLike:
        fabric = self.made = Fabric(
            network,
            routing,
            switch=scenario.switch,
            transports=scenario.transports,
            balancing=scenario.load_balancing,
            seed=scenario.seed,
            host_latency_ps=scenario.host.software_latency,
            threads=self.threads,
            packet_log=self.log,
            faults=any(table.engine for table in scenario.fault),
            delays=scenario.output.delays,
            missing=True,
            folder=scenario.folder,
            compiled=self.compiled,
        )
        fabric.advance.choice.fix(alone=self.threads == 1)
        if self.reuse:
            fabric.advance.reuse_records_at_once()
        self.scenario, self.network = scenario, network
        play = fabric.play
        if self.log:
            fabric.play = lambda part, logged=True, begin=None: play(part, begin=begin)  # type: ignore[method-assign]
        return FabricWithoutPrograms(fabric) if self.by_processes else fabric

    def recorded_messages(self) -> list[MessageSpec]:
        """Return every message with its start time."""
        letters: dict[int, MessageSpec] = {}
        base = 0  # aggregation groups so far
        for track in self.made._programs.tracks:
            for number_of_step, step in enumerate(track.steps):
                rows, fans, since = step.step.messages, step.step.fans, tie_origin(step.notes, number_of_step)
                started = np.where(step.started >= 0, step.started, NEVER)
                names = ("src", "dst", "nbytes", "priority", "bound", "share", "pool", "turn")
                columns = (step.numbers, started, *(getattr(rows, name) for name in names))
                for index, (number, time, src, dst, nbytes, priority, bound, share, pool, turn) in enumerate(
                    zip(*(column.tolist() for column in columns), strict=True)
                ):
                    important: Any = rows.important[index]
                    if isinstance(important, np.ndarray):
                        important = important.tolist()
                    fan = None if fans is None or fans[index] < 0 else base + int(fans[index])
                    letters[number] = MessageSpec(
                        time, src, dst, nbytes, track.part.table.transport, priority, bound, important,
                        share=share, pool=pool, turn=turn, fan=fan, since=since,
                    )  # fmt: skip
                base += 0 if fans is None else int(fans.max(initial=-1)) + 1
        assert sorted(letters) == list(range(len(letters)))
        return [letters[number] for number in range(len(letters))]

    def recorded_case(self) -> Case:
        scenario = self.scenario
        return Case(
            self.network,
            scenario.transports,
            self.recorded_messages(),
            scenario.switch,
            scenario.load_balancing,
            scenario.seed,
            scenario.host.software_latency,
            network_changes(scenario, self.network),
            scenario.folder,
        )

    def difference(self) -> str:
        """Return the first difference of the engine's and the oracle's runs, up to the engine's current time; or ''."""
        return _difference(self.made, self.recorded_case(), self.made.finish())


class FabricWithoutPrograms:
    """A fabric that plays no programs, so that SimPy has to."""

    def __init__(self, fabric: Fabric) -> None:
        object.__setattr__(self, "fabric", fabric)

    def __getattr__(self, name: str) -> Any:
        if name in ("play", "jobs_left"):
            raise AttributeError(name)
        return getattr(self.fabric, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.fabric, name, value)


def network_changes(scenario: Scenario, network: Network) -> list[NetworkChange]:
    """Return a scenario's faults as the oracle's changes."""
    planned: list[tuple[Ps, int, Action]] = []
    changes: list[NetworkChange] = []
    agenda = SimpleNamespace(add=lambda time, action, **_: planned.append((time, len(planned), action)))
    control = SimpleNamespace(network=network)
    fabric: Any = SimpleNamespace(agenda=agenda, control=control)
    time = 0

    def note(what: str) -> Callable[..., None]:
        def noted(target: Any, value: Any = None) -> None:
            changes.append(NetworkChange(time, what, target, value if what in ("set_rate", "set_loss") else None))

        return noted

    for what in ("cut", "mend", "set_rate", "set_loss", "stop_host", "resume_host"):
        setattr(control, what, note(what))
    faults = Faults(scenario.fault, network)
    control.reroute = lambda _: changes.append(
        NetworkChange(time, "reroute", sorted(faults._dead_hosts(faults._noticed)))
    )
    faults.schedule(fabric)
    for time, _, action in sorted(planned, key=lambda entry: entry[:2]):
        action(time)
    return changes


def _difference(fabric: Fabric, case: Case, tables: FabricTables) -> str:
    """Return the first difference of the engine's and the oracle's runs, up to the engine's current time; or ''."""
    until = fabric.now
    engine, oracle = outcome_of(fabric, []), run_oracle(case, until=until)
    missing = missing_packets(tables)
    arrived = sorted(
        DeliveredMessage(int(end), number, int(tables.received_bytes[number]), missing.get(number, ()))
        for number, end in enumerate(tables.end_ps)
        if 0 <= end < until
    )
    drops = [drop for drop in engine.drops if drop.time < until]
    oracle = replace(oracle, drops=[drop for drop in oracle.drops if drop.time < until])
    # packets sent per message are not compared here; `agree` compares them
    return first_difference(replace(engine, arrivals=arrived, drops=drops, sent=oracle.sent), oracle)
