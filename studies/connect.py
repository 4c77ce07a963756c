"""Implements `simulate`, `compare`, `metrics`, `plot` and `emulate` of the Python API, which join several packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gradwire.analysis.comparison.compare import Comparison
    from gradwire.analysis.metrics import Metrics
    from gradwire.emu.testbed import Request
    from gradwire.result_store.result import Result
    from gradwire.result_store.training_result import TrainingResult
    from gradwire.scenarios.loading.load import Overrides
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.progress import Progress
    from gradwire.traces.trace import Trace

    Source = Result | Comparison | Scenario | str | Path
    Told = Callable[[float, str], object]

RUNS = "Results, Scenarios, and names of these"


def simulate(
    scenario: Scenario | str | Path,
    trace: Trace | str | Path | None = None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    max_wall_s: float | None = None,
    fast_forward: bool = True,
    compiled: bool = True,
) -> Result:
    """Run a scenario in the packet simulator; a notebook shows a progress bar.

        result = gradwire.simulate("demo")
        result.iterations                       # a pyarrow table
        result.to_pandas("messages")

    scenario : a Scenario, or the name or file of one, which runs without a policy, as in `gradwire run`.
    trace : replayed by every job instead of the traces that they name; may be a name as well.
    threads : of the simulator; the Result does not depend on it.
    progress : called now and then with the state of the run, and once at the end.
    max_wall_s : end the run after this many seconds of wall-clock time; the end then depends on the machine.
    fast_forward : skip iterations that repeat exactly; the Result is the same but for its `timing`, which says how many
        were skipped, or why none were.
    compiled : False runs the engine as plain Python, in which breakpoints and prints of your components work.

    Returns a Result with tables of iterations, messages, drops, ports, ...; `summary["totals"]["ended_by"]` says what
    ended it.

    Raises ScenarioError, TraceError if the input is invalid; raised before anything is simulated.
    Raises StallError if no events are pending although jobs are not done, and KeyboardInterrupt on Ctrl-C; both have
    the Result so far in `.result`.
    """
    from gradwire.scenarios.loading.load import as_scenario
    from gradwire.sim.simulate import simulate as run

    scenario = as_scenario(scenario, "simulate(scenario)")
    options: Any = {"threads": threads, "max_wall_s": max_wall_s, "fast_forward": fast_forward, "compiled": compiled}
    if progress is not None:
        return run(scenario, trace, progress=progress, **options)
    return _simulate_with_progress(scenario, None, trace=trace, **options)


def _simulate_with_progress(scenario: Scenario, progress: Told | None, **options: Any) -> Result:
    """Run a scenario, reporting to `progress`, or else to a notebook."""
    from gradwire.sim.simulate import simulate as run
    from gradwire.studies.eta import progress_text
    from gradwire.studies.notebook import heard

    with heard(f"{scenario.name} {scenario.policy_name}", progress) as on_progress:
        return run(scenario, progress=progress_text(on_progress, scenario), **options)


def compare(
    *sources: Source | Iterable[Source],
    set: Overrides = (),
    seeds: int = 1,
    threads: int = 1,
    jobs: int = 1,
    progress: Told | None = None,
) -> Comparison:
    """Compare several runs, as `gradwire compare` does, without its files.

        runs = gradwire.compare("demo", set=["job.workers=8"])      # all policies of a scenario
        runs.to_pandas()[["run", "iteration_mean_ps"]]
        gradwire.compare(result, "results/demo-001")                # and existing Results

    sources : Results; Comparisons; directories of Results or of comparisons; Scenarios, scenario files and names of the
        library, which are simulated under each of their policies. Lists are flattened.
    set : overrides of scenarios that are named or loaded from files, such as "job.workers=8".
    seeds : runs of each scenario, with consecutive seeds from its own on; the verdict covers all of them.
    threads : of the simulator.
    jobs : scenarios simulated at a time, each in a separate process; with 1 all in this one.
    progress : called with (fraction, message).

    Returns a `gradwire.analysis.comparison.compare.Comparison`: `to_pandas()`, `table` (pyarrow), `metrics`, `plot()`,
    `write(directory)`; a notebook shows its table.

    Raises ScenarioError, TraceError if a scenario is invalid; all are checked before the first one runs.
    Raises ResultError if a directory cannot be read, or there is nothing to compare, or nothing to run with overrides.
    Raises StallError if a simulation can make no progress.
    """
    from gradwire.analysis.comparison.compare import compare as side_by_side
    from gradwire.result_store.result import Result
    from gradwire.scenarios.errors import ResultError, ScenarioError
    from gradwire.scenarios.loading.load import as_override_list
    from gradwire.scenarios.validation.argument_checks import require_integer, wrong_type_error
    from gradwire.sim.engine.specialization import compile_ahead
    from gradwire.sim.simulate import Stalled, check_uncompiled
    from gradwire.studies.notebook import heard
    from gradwire.studies.parallel.side_by_side import simulate_in_processes

    overrides = as_override_list(set, "compare(set)")
    if progress is not None and not callable(progress):
        raise wrong_type_error(progress, "compare(progress)", "a function that is called, or None", ScenarioError)
    threads = require_integer(threads, "compare(threads)", 1, ScenarioError)
    jobs = require_integer(jobs, "compare(jobs)", 1, ScenarioError)
    seeds = require_integer(seeds, "compare(seeds)", 1, ScenarioError)
    runs = [run for source in sources for run in _runs_of(source, overrides)]
    if not runs:
        raise ResultError("nothing to compare", "compare", RUNS)
    if overrides and all(isinstance(run_source, Result) for run_source in runs):
        expected = "a scenario to be run, or no overrides"
        raise ResultError("has been run already: overrides have no effect", "compare", expected)
    scenarios = with_seeds([run_source for run_source in runs if not isinstance(run_source, Result)], seeds)
    if min(jobs, len(scenarios)) > 1:
        with heard("compare", progress) as on_progress:
            outcomes, finished = simulate_in_processes(scenarios, jobs, threads, on_progress=on_progress)
        if not finished:
            raise KeyboardInterrupt
        for outcome in outcomes:
            if outcome.stalled:
                raise Stalled(outcome.stalled, outcome.result)
        simulated = [outcome.result for outcome in outcomes]
    else:
        check_uncompiled(scenarios)
        compile_ahead(scenarios)
        parts = [_part_progress(progress, number, len(scenarios)) for number in range(len(scenarios))]
        pairs = zip(scenarios, parts, strict=True)
        simulated = [_simulate_with_progress(scenario, part, threads=threads) for scenario, part in pairs]
    results = iter(simulated)
    shown = [run_source if isinstance(run_source, Result) else next(results) for run_source in runs]
    return side_by_side(shown, other_seeds=list(results))


def with_seeds(scenarios: Sequence[Scenario], seeds: int) -> list[Scenario]:
    """Return the scenarios with their own seed, then with each of the `seeds` - 1 following ones."""
    return [
        scenario if not more else scenario.model_copy(update={"seed": scenario.seed + more})
        for more in range(seeds)
        for scenario in scenarios
    ]


def _part_progress(progress: Told | None, number: int, count: int) -> Told | None:
    """Return the progress callback of one of several pieces of work."""
    return None if progress is None else lambda share, message: progress((number + share) / count, message)


def _runs_of(source: Any, overrides: Sequence[str]) -> list[Result | Scenario]:
    """Return the Results of one source, and the scenarios still to be run."""
    from gradwire.analysis.comparison.compare import Comparison
    from gradwire.result_store.provenance import members
    from gradwire.result_store.result import Result
    from gradwire.scenarios.errors import ResultError
    from gradwire.scenarios.loading.load import list_library, load_scenario
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.scenarios.validation.argument_checks import wrong_type_error

    if isinstance(source, Result):
        return [source]
    if isinstance(source, Comparison):
        return list(source.results)
    if isinstance(source, Scenario):
        return list(source.variants())
    if isinstance(source, str | Path):
        if Path(source).is_dir() and str(source) not in list_library():
            return [Result.read(member) for member in members(str(source))]
        return list(load_scenario(source, set=overrides).variants())
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return [run for member in source for run in _runs_of(member, overrides)]
    raise wrong_type_error(source, "compare(sources)", RUNS, ResultError)


def metrics(*sources: Source | Iterable[Source]) -> list[Metrics]:
    """Return the figures of runs, one entry for each job (or traffic) of each.

    They are iteration and completion times with means and percentiles, drops, retransmissions and losses. Sources and
    errors as for `compare`.

        for entry in gradwire.metrics("results/one"):
            print(entry.job, entry.iteration.mean_ps, entry.exposed_share)
    """
    return compare(*sources).flat


def plot(*sources: Source | TrainingResult | Iterable[Source | TrainingResult]) -> dict[str, Figure]:
    """Return the plots of one or several runs, as matplotlib figures by name.

    Names are "iteration_time", "completion_time" and "packets_again" (retransmissions), if there is something to draw;
    of training runs "accuracy". Sources and errors as for `compare`; a Comparison is used as it is.

        gradwire.plot(result)["iteration_time"].savefig("iterations.pdf")
    """
    from gradwire.analysis.comparison.compare import Comparison
    from gradwire.result_store.training_result import TrainingResult

    members = [member for source in sources for member in (source if isinstance(source, list | tuple) else [source])]
    training_results = [member for member in members if isinstance(member, TrainingResult)]
    if training_results and len(training_results) == len(members):
        from gradwire.analysis.training.training_comparison import draw_training_runs

        return {"accuracy": draw_training_runs(training_results)}
    if len(sources) == 1 and isinstance(sources[0], Comparison):
        return sources[0].plot()
    return compare(*sources).plot()  # type: ignore[arg-type]  # which reports invalid sources


def emulate(
    scenario: Scenario | str | Path,
    trace: Trace | str | Path | None = None,
    request: Request | None = None,
    **more: Any,
) -> Result:
    """Run a scenario on real sockets, with `trace` in every job if given; both may be names, as for `simulate`.

    See `gradwire.emu.testbed.emulate` for the rest.
    """
    from gradwire.emu import testbed
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.scenarios.loading.load import as_scenario
    from gradwire.scenarios.validation.argument_checks import require_instance
    from gradwire.traces.trace import resolve_trace
    from gradwire.workload.resolve import resolve

    scenario = as_scenario(scenario, "emulate(scenario)")
    trace = resolve_trace(trace, "emulate(trace)")
    if request is not None:
        require_instance(request, testbed.Request, "emulate(request)", "gradwire.emu.testbed.Request", ScenarioError)
    testbed.check_scenario(scenario, programs=request is not None and request.programs is not None)
    resolved = resolve(scenario, trace)
    return testbed.emulate(scenario, resolved, request, ideal=_unloaded_times(scenario, resolved), **more)


def _unloaded_times(scenario: Scenario, resolved: Any) -> dict[int, int]:
    """Return the unloaded transfer time of traffic flows, in picoseconds, by message."""
    import numpy as np

    program = resolved.program
    traffic = [number for number, table in enumerate(program.tables) if not table.is_job]
    times_by_message: dict[int, int] = {}
    if traffic:
        from gradwire.workload.unloaded_time import unloaded_times

        rows = program.messages
        for number in traffic:
            messages = np.flatnonzero(rows.table == number)
            transport = scenario.transports[program.tables[number].transport]
            flows = rows.src[messages], rows.dst[messages], rows.nbytes[messages]
            packets = transport.payload, transport.overhead
            times = unloaded_times(resolved.network, resolved.routing, *flows, *packets, scenario.load_balancing)
            times_by_message |= dict(zip(messages.tolist(), times.tolist(), strict=True))
    return times_by_message
