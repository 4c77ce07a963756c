"""simulate: from a scenario and a trace to a Result.

Scenario -> Network -> Routing -> Fabric      where packets go
Scenario -> places, Trace -> Jobs -> Parts    what is sent: steps of a program
Scenario -> Flows -> Parts                    traffic besides jobs
Coupling                                      both, advanced together
Result                                        what was seen
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from gradwire.components import layout as at
from gradwire.experiment.resolve import jobs_of, traffic_of
from gradwire.experiment.routing import Routing, build_routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.errors import ScenarioError, StallError
from gradwire.scenarios.given import positive_number, unfit, whole_number
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.interrupt import CtrlC
from gradwire.scenarios.load import scenario_of
from gradwire.sim.collected import Collected
from gradwire.sim.coupling import Coupling
from gradwire.sim.explain import waiting
from gradwire.sim.network_like import FabricLike
from gradwire.sim.patience import patience_ps
from gradwire.sim.precheck import check_paths, find_all
from gradwire.sim.progress import Observer, OutOfTime, Progress
from gradwire.sim.run import Run, collect_result
from gradwire.sim.telemetry import Samples
from gradwire.traces.trace import trace_of

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.fabric.fabric import Fabric
    from gradwire.traces.trace import Trace

FabricMaker = Callable[["Scenario", Network, Routing, int], FabricLike]
"""(scenario, network, routing, threads) -> fabric"""


class Stalled(StallError):
    """Nothing can happen any more; `result` holds what had been seen by then."""

    def __init__(self, why: str, result: Result) -> None:
        super().__init__(why)
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a simulation; `result` holds what had been seen by then."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted")
        self.result = result


def simulate(
    scenario: Scenario | str | Path,
    trace: Trace | str | Path | None = None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    max_wall_s: float | None = None,
    fast_forward: bool = True,
    fabric: FabricMaker | None = None,
) -> Result:
    """Run a scenario.

    Parameters
    ----------
    scenario : as loaded, or the name or file of one, which runs without a policy, as `gradwire run` has it.
    trace : replayed by every job instead of the traces that they name; may be named as well.
    threads : of the fabric; the Result does not depend on it.
    progress : called as the run begins, now and then (about every 0.1 s) and once at the end.
    max_wall_s : ends the run after so many seconds on the wall clock, counted from the first event on: building the
        network and compiling the engine come before. Where it ends then depends on the machine.
    fast_forward : iterations that repeat themselves exactly are not simulated again; the Result is the same to the byte
        but for its `timing`, which says how many they were, or why there were none. Those that are alike on average
        only are left out where the scenario says so (`simulation.approximate`), and the summary says how many and how
        far off that may be; not without `fast_forward`.
    fabric : makes the network that the jobs use, by default the packet engine; tests put an ideal one here. One that
        is made so is not told to forget what is over (`Fabric.hand_over`), so that it can be asked for it afterwards.

    Returns
    -------
    Result
        Messages that had not arrived when `duration` or `max_wall_s` ended the run have end_ps -1; worker-iterations
        that were not over have no row. `summary["totals"]["ended_by"]` says what ended it.

    Raises
    ------
    ScenarioError, TraceError
        The input cannot be run; raised before anything is simulated.
    Stalled
        Nothing can happen any more although jobs are not done: says what waits for what, with the Result so far.
    Interrupted
        Ctrl-C, with the Result so far.
    """
    begin = time.perf_counter()
    scenario = scenario_of(scenario, "simulate(scenario)")
    trace = trace_of(trace, "simulate(trace)")
    threads = whole_number(threads, "simulate(threads)", 1, ScenarioError)
    if max_wall_s is not None:
        max_wall_s = positive_number(max_wall_s, "simulate(max_wall_s)", "seconds above zero, or None", ScenarioError)
    if progress is not None and not callable(progress):
        raise unfit(progress, "simulate(progress)", "a function that is called, or None", ScenarioError)
    check_simulated(scenario)
    if scenario.simulation.approximate is not None:
        _check_approximated(fast_forward, fabric)
    state, traces = _prepare(scenario, trace, threads, fabric or packet_fabric)
    coupling, engine = state.coupling, state.engine
    if fabric is None:
        engine.hand_over(state.collected)
        if fast_forward:
            end = Ps(at.FOREVER) if scenario.duration is None else scenario.duration
            engine.fast_forward(end, _watched(scenario), scenario.simulation.approximate)
    ready = time.perf_counter()

    def collect() -> Result:
        times = {"setup_s": ready - begin, "run_s": time.perf_counter() - ready}
        times["compile_s"] = getattr(engine, "compile_s", 0.0)
        return collect_result(state, traces, threads, times)

    result: Result | None = None
    try:
        with CtrlC() as ctrl_c:  # until the Result is there
            observer = Observer(state.standing, progress, ctrl_c, max_wall_s)
            if hasattr(engine, "on_progress"):
                engine.on_progress = observer.within
            reached = coupling.run(
                lambda: state.done,
                until=scenario.duration,
                waiting=lambda: waiting(state.tracks, state.network, engine.finish()),
                tick=observer.between,
            )
            state.ended_by = "done" if reached else "duration"
            coupling.settle(state.last_ps)
            observer.report(state.end_ps, last=True)
            result = collect()
    except OutOfTime:
        state.ended_by = "done" if state.done else "max_wall"
    except StallError as error:
        state.ended_by = "stall"
        raise Stalled(str(error), collect()) from None
    except KeyboardInterrupt:
        if result is None:
            state.ended_by = "done" if state.done else "interrupt"
        raise Interrupted(result or collect()) from None
    finally:
        close = getattr(engine, "close", None)
        if close is not None:
            close()  # its threads
    if result is None:
        observer.report(state.end_ps, last=True)
        result = collect()
    return result


def _prepare(
    scenario: Scenario, trace: Trace | None, threads: int, make: FabricMaker
) -> tuple[Run, list[Trace]]:
    """Everything up to the first event, and the traces that are replayed."""
    check_senders(scenario)
    found = find_all(scenario, trace)
    needs, faults = found.needs, found.faults
    network, traces = needs.network, needs.traces
    routing = build_routing(network)
    check_paths(scenario, routing)
    engine = cast("Fabric", make(scenario, network, routing, threads))  # or what can as much
    coupling = Coupling(
        engine, scenario.host.software_latency, network.names, scenario.output.packet_log,
        patience_ps(scenario, network, routing),
    )  # fmt: skip
    faults.schedule(engine)
    samples = None
    if scenario.output.queue_samples is not None:
        samples = Samples(engine, network, found.sampled, scenario.output.queue_samples)
    jobs = jobs_of(scenario, needs)
    parts = [job.part for job in jobs] + traffic_of(scenario, network)
    tracks = [coupling.play(part) for part in parts]
    faults.slow_down(coupling, tracks[: len(jobs)])
    return Run(scenario, network, routing, coupling, jobs, tracks, Collected(scenario, network), samples), list(traces)


def packet_fabric(scenario: Scenario, network: Network, routing: Routing, threads: int) -> FabricLike:
    """The compiled packet engine for a scenario."""
    from gradwire.sim.fabric.fabric import Fabric  # imports Numba

    made: FabricLike = Fabric(
        network,
        routing,
        switch=scenario.switch,
        transports=scenario.transports,
        balancing=scenario.load_balancing,
        seed=scenario.seed,
        host_latency_ps=scenario.host.software_latency,
        threads=threads,
        packet_log=bool(scenario.output.packet_log),
        faults=any(table.engine for table in scenario.fault),
        delays=scenario.output.delays,
        missing=scenario.output.missing,
        folder=scenario.folder,
        patience_ps=patience_ps(scenario, network, routing),
    )
    return made


def _watched(scenario: Scenario) -> str:
    """What of a run is looked at so closely that no iteration looks like another, if anything is."""
    if scenario.output.packet_log:
        return "packets are noted (output.packet_log)"
    return "queues are sampled (output.queue_samples)" if scenario.output.queue_samples is not None else ""


def _check_approximated(fast_forward: bool, fabric: FabricMaker | None) -> None:
    """Raise ScenarioError if iterations that are alike on average are to be left out where all are to be simulated."""
    where = "simulation.approximate"
    if fabric is not None:
        raise ScenarioError("leaves out iterations, as the packet engine alone can", where, "no such key")
    if not fast_forward:
        raise ScenarioError("leaves out iterations, which --no-fast-forward forbids", where, "one of the two")


def check_uncompiled(scenarios: Iterable[Scenario]) -> None:
    """Raise what `simulate` would, for scenarios whose engine is not compiled yet: before it is, and in vain."""
    from gradwire.sim.fabric.specialise import combination_of, is_compiled

    for scenario in scenarios:
        check_simulated(scenario)
        check_senders(scenario)
        if not is_compiled(combination_of(scenario)):
            found = find_all(scenario)
            check_paths(scenario, build_routing(found.needs.network))


def check_senders(scenario: Scenario) -> None:
    """Raise ScenarioError if nothing sends: it is a network for `gradwire exec`."""
    if not scenario.senders:
        what = "has neither job nor traffic: it is a network for programs of one's own"
        raise ScenarioError(what, scenario.called, "gradwire exec, or a [[job]] or [[traffic]]")


def check_simulated(scenario: Scenario) -> None:
    """Raise ScenarioError if a transport runs on the testbed only."""
    for transport in scenario.transports:
        if not transport.simulated:
            raise ScenarioError(
                f"{transport.kind} is the kernel's, and runs on the testbed only",
                where="transport",
                expected="gradwire emulate, or another transport",
            )
