"""One scenario through everything: what `check` says of it, the engine on several threads, the oracle packet by packet.

The engine is given to `simulate` by a maker that notes down what jobs and traffic hand to it. The same messages, each
with the time at which it started, are then sent through the oracle, and what both saw is compared. When a message
starts that waits for others is worked out from the times of their deliveries, by the rule of `gradwire.sim.fabric.sends`.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradwire.scenarios.errors import ScenarioError, StallError, TraceError
from gradwire.scenarios.load import build_scenario
from gradwire.scenarios.result import TABLES
from gradwire.scenarios.schema import Scenario
from gradwire.sim.fabric.fabric import Fabric
from gradwire.sim.faults import Faults
from gradwire.sim.precheck import check_variants
from gradwire.sim.simulate import simulate
from tests.oracle import Case, Change, Letter, run_oracle
from tests.oracle.cases import missing_packets, seen
from tests.oracle.packets import Arrival

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
    sends: list[Any] = field(default_factory=list)
    """per message sent by itself: (number, Letter)"""
    programs: list[Any] = field(default_factory=list)
    """(first message, Sends, time of submission, {message: time of release})"""
    made: Any = None

    def __call__(self, scenario: Scenario, network: Any, routing: Any, threads: int) -> Fabric:
        fabric = self.made = Fabric(
            network, routing, switch=scenario.switch, transports=scenario.transports,
            balancing=scenario.load_balancing, seed=scenario.seed, host_latency_ps=scenario.host.software_latency,
            threads=self.threads, packet_log=self.log, faults=any(table.engine for table in scenario.fault),
            delays=scenario.output.delays, missing=True, folder=scenario.folder,
        )  # fmt: skip
        fabric._alone = self.threads == 1
        self.network = network
        send, submit, release = fabric.send, fabric.submit, fabric.release

        def noted_send(at_ps: int, src: int, dst: int, nbytes: int, **more: Any) -> int:
            number = send(at_ps, src, dst, nbytes, **more | {"logged": True})
            told = {name: more[name] for name in ("transport", "priority", "bound", "important") if name in more}
            self.sends.append((number, Letter(at_ps, src, dst, nbytes, **told)))
            return number

        def noted_submit(sends: Any) -> tuple[int, int]:
            now = fabric.now
            program, first = submit(replace(sends, logged=True))
            self.programs.append((first, sends, now, {}))
            return program, first

        def noted_release(program: int, messages: Any, at_ps: int) -> None:
            release(program, messages, at_ps)
            for message in np.asarray(messages).tolist():
                released = self.programs[program][3]
                released.setdefault(message, []).append(at_ps)

        fabric.send, fabric.submit, fabric.release = noted_send, noted_submit, noted_release  # type: ignore[method-assign]
        return fabric

    def letters(self, ends: Any, latency: int) -> list[Letter]:
        """Every message with the time at which it started; `ends`: when messages were delivered, -1 for not."""
        found = dict(self.sends)
        for first, sends, now, released in self.programs:
            count = len(sends)
            column = {
                name: np.broadcast_to(getattr(sends, name), count).tolist()
                for name in ("src", "dst", "nbytes", "transport", "priority", "bound", "start_ps", "gates")
            }
            starts = [max(start, now) for start in column["start_ps"]]
            for n in range(count):
                times = released.get(n, [])
                starts[n] = max([starts[n], *times]) if len(times) >= column["gates"][n] else NEVER
            for before, after in sends.edges.tolist():
                end = int(ends[first + before])
                starts[after] = max(starts[after], end + latency) if end >= 0 else NEVER
            for n in range(count):
                important: Any = sends.important
                if sends.pattern is not None and sends.pattern[n] >= 0:
                    important = sends.patterns[sends.pattern[n]].tolist()
                found[first + n] = Letter(
                    starts[n], column["src"][n], column["dst"][n], column["nbytes"][n], column["transport"][n],
                    column["priority"][n], column["bound"][n], important,
                )  # fmt: skip
        assert sorted(found) == list(range(len(found)))
        return [found[number] for number in range(len(found))]


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
        _same(result, again, threads)
    tables = fabric.finish()
    packets = int(np.sum(tables.sent_packets))
    if not against_oracle or packets > MOST_PACKETS:
        return "ok"
    letters = recorder.letters(tables.end_ps, scenario.host.software_latency)
    case = Case(
        recorder.network, scenario.transports, letters, scenario.switch, scenario.load_balancing, scenario.seed,
        scenario.host.software_latency, changes_of(scenario, recorder.network),
    )  # fmt: skip
    difference = _difference(fabric, case, tables)
    if difference:
        raise Difference(difference)
    return "ok"


def _same(one: Any, other: Any, threads: int) -> None:
    """Results of 1 and of more threads are the same."""
    for name in TABLES:
        if not getattr(one, name).equals(getattr(other, name)):
            raise Difference(f"table {name} differs between 1 and {threads} threads")
    if one.summary != other.summary:
        raise Difference(f"the summary differs between 1 and {threads} threads: {one.summary} {other.summary}")


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
