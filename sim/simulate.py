"""`simulate` runs a scenario with its traces in the packet simulator, and returns a Result.

Scenario -> Network -> Routing -> Fabric       the paths of packets
Scenario -> Places, Trace -> Jobs -> Parts     messages of jobs, as steps of a program
Scenario -> Flows -> Parts                     traffic beside jobs
Coupling                                       advances both together
Result                                         the outcome
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

from gradwire.jit.records import constants as at
from gradwire.scenarios.errors import ScenarioError, StallError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.scenarios.loading.load import as_scenario
from gradwire.scenarios.validation.argument_checks import require_integer, require_positive, wrong_type_error
from gradwire.sim.preparation import check_paths, prepare_inputs
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.processes.network_interface import FabricLike
from gradwire.sim.progress import Observer, Progress, WallClockLimit
from gradwire.sim.result_rows import ResultRows
from gradwire.sim.run import SimulationRun, collect_result
from gradwire.sim.stall_timeout import stall_timeout_ps
from gradwire.sim.telemetry import Samples
from gradwire.sim.wait_reasons import describe_waiting_workers
from gradwire.topology import Network
from gradwire.topology.routing import Routing, build_routing
from gradwire.traces.trace import resolve_trace
from gradwire.workload.prerequisites import make_jobs
from gradwire.workload.resolve import make_traffic

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.engine.fabric import Fabric
    from gradwire.traces.trace import Trace

FabricMaker = Callable[["Scenario", Network, Routing, int], FabricLike]
"""(scenario, network, routing, threads) -> fabric"""


class Stalled(StallError):
    """The run is deadlocked: there are no pending events; `result` holds the outcome so far."""

    def __init__(self, why: str, result: Result) -> None:
        super().__init__(why)
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a simulation; `result` holds the outcome so far."""

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
    compiled: bool = True,
    fabric: FabricMaker | None = None,
) -> Result:
    """Run a scenario.

    Parameters
    ----------
    scenario : a loaded scenario, or the name or file of one, which then runs without a policy, as in `gradwire run`.
    trace : a trace, or the name of one, that every job replays instead of its own.
    threads : threads of the fabric; the Result does not depend on it.
    progress : called when the run begins, about every 0.1 s, and once at the end.
    max_wall_s : seconds on the wall clock after which the run ends, counted from the first event; building the network
        and compiling the engine come before. The end then depends on the machine.
    fast_forward : skip iterations that repeat exactly; the Result stays the same to the byte except `timing`, which
        says how many were skipped, or why none.
    compiled : False runs the engine as plain Python in one thread, in which breakpoints and prints of your components
        work; the Result stays the same, and the run takes hundreds of times as long.
    fabric : makes the network that the jobs use, by default the packet engine; tests pass an ideal one. Such a network
        keeps completed steps (no `Fabric.hand_over`), so they can be inspected afterwards.

    Returns
    -------
    Result
        Messages that had not arrived when `duration` or `max_wall_s` ended the run have end_ps -1; unfinished
        iterations
        of workers have no row. `summary["totals"]["ended_by"]` gives the reason for the end.

    Raises
    ------
    ScenarioError, TraceError
        The input is invalid; raised before anything is simulated.
    Stalled
        Deadlock: no pending events although jobs are not done. Lists what waits for what; holds the Result so far.
    Interrupted
        Ctrl-C; holds the Result so far.
    """
    begin = time.perf_counter()
    scenario = as_scenario(scenario, "simulate(scenario)")
    trace = resolve_trace(trace, "simulate(trace)")
    threads = require_integer(threads, "simulate(threads)", 1, ScenarioError)
    if max_wall_s is not None:
        max_wall_s = require_positive(max_wall_s, "simulate(max_wall_s)", "seconds above zero, or None", ScenarioError)
    if progress is not None and not callable(progress):
        raise wrong_type_error(progress, "simulate(progress)", "a function that is called, or None", ScenarioError)
    check_simulated(scenario)
    state, traces = _prepare(scenario, trace, threads, fabric or partial(packet_fabric, compiled=compiled))
    coupling, engine = state.coupling, state.engine
    if fabric is None:
        engine.hand_over(state.collected)
        if fast_forward:
            end = Ps(at.FOREVER) if scenario.duration is None else scenario.duration
            engine.fast_forward(end, _recording_reason(scenario))
    ready = time.perf_counter()

    def collect() -> Result:
        times = {"setup_s": ready - begin, "run_s": time.perf_counter() - ready}
        times["compile_s"] = getattr(engine, "compile_s", 0.0)
        return collect_result(state, traces, threads, times)

    result: Result | None = None
    try:
        with DeferredInterrupt() as ctrl_c:  # until the Result exists
            observer = Observer(state.progress_at, progress, ctrl_c, max_wall_s)
            if hasattr(engine, "advance"):
                engine.advance.on_progress = observer.report_within_call
            reached = coupling.run(
                lambda: state.done,
                until=scenario.duration,
                waiting=lambda: describe_waiting_workers(state.tracks, state.network, engine.finish()),
                tick=observer.report_progress,
            )
            state.ended_by = "done" if reached else "duration"
            coupling.settle(state.last_ps)
            observer.report(state.end_ps, last=True)
            result = collect()
    except WallClockLimit:
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
            close()
    if result is None:
        observer.report(state.end_ps, last=True)
        result = collect()
    return result


def _prepare(
    scenario: Scenario, trace: Trace | None, threads: int, make: FabricMaker
) -> tuple[SimulationRun, list[Trace]]:
    """Return the run before its first event, and the traces that it replays."""
    check_senders(scenario)
    inputs = prepare_inputs(scenario, trace)
    needs, faults = inputs.needs, inputs.faults
    network, traces = needs.network, needs.traces
    routing = build_routing(network)
    check_paths(scenario, routing)
    engine = cast("Fabric", make(scenario, network, routing, threads))
    coupling = Coupling(
        engine,
        scenario.host.software_latency,
        network.names,
        scenario.output.packet_log,
        stall_timeout_ps(scenario, network, routing),
    )
    faults.schedule(engine)
    samples = None
    if scenario.output.queue_samples is not None:
        samples = Samples(engine, network, inputs.sampled, scenario.output.queue_samples)
    jobs = make_jobs(scenario, needs)
    parts = [job.part for job in jobs] + make_traffic(scenario, network)
    tracks = [coupling.play(part) for part in parts]
    faults.slow_down(coupling, tracks[: len(jobs)])
    return SimulationRun(
        scenario, network, routing, coupling, jobs, tracks, ResultRows(scenario, network), samples
    ), list(traces)


def packet_fabric(
    scenario: Scenario, network: Network, routing: Routing, threads: int, compiled: bool = True
) -> FabricLike:
    """Return the packet engine for a scenario."""
    from gradwire.sim.engine.fabric import Fabric  # imports Numba

    engine: FabricLike = Fabric(
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
        patience_ps=stall_timeout_ps(scenario, network, routing),
        compiled=compiled,
    )
    return engine


def _recording_reason(scenario: Scenario) -> str:
    """Return why no two iterations of the run can be equal because of what it records; empty if they can."""
    if scenario.output.packet_log:
        return "packets are logged (output.packet_log)"
    return "queues are sampled (output.queue_samples)" if scenario.output.queue_samples is not None else ""


def check_uncompiled(scenarios: Iterable[Scenario]) -> None:
    """Raise what `simulate` would raise for scenarios whose engine is not compiled yet, before compiling it in vain."""
    from gradwire.sim.engine.specialization import combination_of, is_compiled

    for scenario in scenarios:
        check_simulated(scenario)
        check_senders(scenario)
        if not is_compiled(combination_of(scenario)):
            inputs = prepare_inputs(scenario)
            check_paths(scenario, build_routing(inputs.needs.network))


def check_senders(scenario: Scenario) -> None:
    """Raise ScenarioError if a scenario has no senders, as one for `gradwire exec`."""
    if not scenario.senders:
        problem = "has neither job nor traffic: it describes only a network"
        raise ScenarioError(
            problem, scenario.display_name, "a [[job]] or [[traffic]]; use gradwire exec to run your own program"
        )


def check_simulated(scenario: Scenario) -> None:
    """Raise ScenarioError if a transport runs only on the testbed."""
    for transport in scenario.transports:
        if not transport.simulated:
            raise ScenarioError(
                f"{transport.kind} is the kernel's transport and runs only on the testbed",
                where="transport",
                expected="gradwire emulate, or another transport",
            )
