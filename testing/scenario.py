"""A scenario through the engine and through the oracle, packet by packet.

The engine is given to `simulate` by a maker that keeps it. The messages of its programs, each with the time at which it
started, are then sent through the oracle, and what both saw is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradwire.experiment.routing import Routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.fabric.agenda import Action
from gradwire.sim.fabric.fabric import Fabric
from gradwire.sim.fabric.over import since_of
from gradwire.sim.fabric.tables import Tables
from gradwire.sim.faults import Faults
from gradwire.sim.network_like import FabricLike
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, Change, Letter, Outcome, first_difference, run_engine, run_oracle
from gradwire.testing.oracle.cases import missing_packets, seen
from gradwire.testing.oracle.packets import Arrival

NEVER = 1 << 62


class Difference(AssertionError):
    """Two that should do the same do not: engine and oracle, or two numbers of threads."""


def agree(case: Case, **how: Any) -> Outcome:
    """Send the messages of a case through engine and oracle; `how` as in `run_engine`. Returns what both saw.

    Raises
    ------
    Difference
        The first packet, drop, delivery or counter in which they differ.
    """
    engine = run_engine(case, **how)
    difference = first_difference(engine, run_oracle(case))
    if difference:
        raise Difference(difference)
    return engine


def agree_on(scenario: Scenario, *, max_wall_s: float | None = None, reuse: bool = True) -> int:
    """Run one variant of a scenario on the engine and the messages that it started through the oracle as well, which takes
    about 0.1 ms for each link that a packet crosses. Returns the packets sent by hosts. `reuse`: the engine uses records
    of messages again as early as it can, which finds what one message leaves behind for the next.

    Raises
    ------
    Difference
        The first packet, drop, delivery or counter in which they differ.
    ScenarioError, TraceError, StallError
        As `gradwire.simulate`; ScenarioError too if the scenario has several policies.
    """
    if scenario.policy:
        raise ScenarioError(f"has {len(scenario.policy)} policies", expected="one of scenario.variants()")
    recorder = Recorder(reuse=reuse)
    simulate(scenario, fabric=recorder, max_wall_s=max_wall_s)
    difference = recorder.difference()
    if difference:
        raise Difference(difference)
    return int(np.sum(recorder.made.finish().sent_packets))


@dataclass
class Recorder:
    """Makes the packet engine for `simulate`, and keeps it with all that is handed to it."""

    threads: int = 1
    log: bool = True
    by_processes: bool = False
    """programs are played by SimPy"""
    reuse: bool = False
    """records of messages are used again as early as possible (`Fabric.reuse_records_at_once`)"""
    made: Any = None

    def __call__(self, scenario: Scenario, network: Network, routing: Routing, threads: int) -> FabricLike:
        fabric = self.made = Fabric(
            network, routing, switch=scenario.switch, transports=scenario.transports,
            balancing=scenario.load_balancing, seed=scenario.seed, host_latency_ps=scenario.host.software_latency,
            threads=self.threads, packet_log=self.log, faults=any(table.engine for table in scenario.fault),
            delays=scenario.output.delays, missing=True, folder=scenario.folder,
        )  # fmt: skip
        fabric.choice.fix(alone=self.threads == 1)
        if self.reuse:
            fabric.reuse_records_at_once()
        self.scenario, self.network = scenario, network
        play = fabric.play
        if self.log:
            fabric.play = lambda part, logged=True, begin=None: play(part, begin=begin)  # type: ignore[method-assign]
        return Plain(fabric) if self.by_processes else fabric

    def letters(self) -> list[Letter]:
        """Every message with the time at which it started."""
        found: dict[int, Letter] = {}
        base = 0  # fans so far
        for track in self.made._programs.tracks:
            for number_of_step, step in enumerate(track.steps):
                rows, fans, since = step.step.messages, step.step.fans, since_of(step.notes, number_of_step)
                started = np.where(step.started >= 0, step.started, NEVER)
                columns = (
                    step.numbers, started, rows.src, rows.dst, rows.nbytes, rows.priority, rows.bound, rows.share,
                    rows.pool, rows.turn,
                )  # fmt: skip
                for place, (number, time, src, dst, nbytes, priority, bound, share, pool, turn) in enumerate(
                    zip(*(column.tolist() for column in columns), strict=True)
                ):
                    important: Any = rows.important[place]
                    if isinstance(important, np.ndarray):
                        important = important.tolist()
                    fan = None if fans is None or fans[place] < 0 else base + int(fans[place])
                    found[number] = Letter(
                        time, src, dst, nbytes, track.part.table.transport, priority, bound, important,
                        share=share, pool=pool, turn=turn, fan=fan, since=since,
                    )  # fmt: skip
                base += 0 if fans is None else int(fans.max(initial=-1)) + 1
        assert sorted(found) == list(range(len(found)))
        return [found[number] for number in range(len(found))]

    def case(self) -> Case:
        """What ran, for the oracle."""
        scenario = self.scenario
        return Case(
            self.network, scenario.transports, self.letters(), scenario.switch, scenario.load_balancing, scenario.seed,
            scenario.host.software_latency, changes_of(scenario, self.network), scenario.folder,
        )  # fmt: skip

    def difference(self) -> str:
        """The first thing in which the engine's run and the oracle's differ, up to where the engine has got; or nothing."""
        return _difference(self.made, self.case(), self.made.finish())


class Plain:
    """A fabric that plays no programs, so that SimPy has to."""

    def __init__(self, fabric: Fabric) -> None:
        object.__setattr__(self, "fabric", fabric)

    def __getattr__(self, name: str) -> Any:
        if name in ("play", "jobs_left"):
            raise AttributeError(name)
        return getattr(self.fabric, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.fabric, name, value)


def changes_of(scenario: Scenario, network: Network) -> list[Change]:
    """What the faults of a scenario do to its network, in the oracle's words."""
    planned: list[tuple[Ps, int, Action]] = []
    found: list[Change] = []
    agenda = SimpleNamespace(add=lambda time, action, **_: planned.append((time, len(planned), action)))
    control = SimpleNamespace(network=network)
    fabric: Any = SimpleNamespace(agenda=agenda, control=control)
    time = 0

    def note(what: str) -> Callable[..., None]:
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


def _difference(fabric: Fabric, case: Case, tables: Tables) -> str:
    """The first thing in which the engine's run and the oracle's differ, up to where the engine has got; or nothing."""
    until = fabric.now
    engine, oracle = seen(fabric, []), run_oracle(case, until=until)
    missing = missing_packets(tables)
    arrived = sorted(
        Arrival(int(end), number, int(tables.received_bytes[number]), missing.get(number, ()))
        for number, end in enumerate(tables.end_ps)
        if 0 <= end < until
    )
    drops = [drop for drop in engine.drops if drop.time < until]
    oracle = replace(oracle, drops=[drop for drop in oracle.drops if drop.time < until])
    # packets sent per message are not compared here; `agree` compares them
    return first_difference(replace(engine, arrivals=arrived, drops=drops, sent=oracle.sent), oracle)
