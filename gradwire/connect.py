"""What takes more than one room: simulating with progress in notebooks, comparing and drawing whatever the runs come
from, and runs on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gradwire.analysis.compare import Comparison
    from gradwire.analysis.metrics import Metrics
    from gradwire.emu.testbed import Request
    from gradwire.scenarios.learned import Learned
    from gradwire.scenarios.load import Overrides
    from gradwire.scenarios.result import Result
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
) -> Result:
    """Run a scenario in the packet simulator; in a notebook a bar shows how far it is.

        result = gradwire.simulate("demo")
        result.iterations                       # a pyarrow table
        result.to_pandas("messages")

    Parameters
    ----------
    scenario : as loaded, or the name or file of one, which runs without a policy, as `gradwire run` has it.
    trace : replayed by every job instead of the traces that they name; may be named as well.
    threads : of the simulator; the Result does not depend on it.
    progress : called now and then, with how far the run is, and once at the end.
    max_wall_s : ends the run after so many seconds on the wall clock; where it ends then depends on the machine.
    fast_forward : iterations that repeat themselves exactly are not simulated again; the Result is the same but for its
        `timing`, which says how many they were, or why there were none.

    Returns
    -------
    Result : tables of iterations, messages, drops, ports, ...; `summary["totals"]["ended_by"]` says what ended it.

    Raises
    ------
    ScenarioError, TraceError
        The input cannot be run; before anything is simulated.
    StallError, KeyboardInterrupt
        Nothing can happen any more although jobs are not done; Ctrl-C. Both have the Result so far in `.result`.
    """
    from gradwire.scenarios.load import scenario_of
    from gradwire.sim.simulate import simulate as run

    scenario = scenario_of(scenario, "simulate(scenario)")
    how: Any = {"threads": threads, "max_wall_s": max_wall_s, "fast_forward": fast_forward}
    if progress is not None:
        return run(scenario, trace, progress=progress, **how)
    return _simulated(scenario, None, trace=trace, **how)


def _simulated(scenario: Scenario, progress: Told | None, **how: Any) -> Result:
    """One run, of which `progress`, else a notebook, hears the share and words."""
    from gradwire.notebook import heard
    from gradwire.pace import in_words
    from gradwire.sim.simulate import simulate as run

    with heard(f"{scenario.name} {scenario.policy_name}", progress) as told:
        return run(scenario, progress=in_words(told, scenario), **how)


def compare(
    *sources: Source | Iterable[Source], set: Overrides = (), threads: int = 1, jobs: int = 1,
    progress: Told | None = None,
) -> Comparison:  # fmt: skip
    """Several runs side by side: what `gradwire compare` does, without its files.

        runs = gradwire.compare("demo", set=["job.workers=8"])      # all policies of a scenario
        runs.to_pandas()[["run", "iteration_mean_ps"]]
        gradwire.compare(result, "results/demo-001")                # and whatever there is

    Parameters
    ----------
    sources : Results; Comparisons; directories of Results or of comparisons; Scenarios, scenario files and names of the
        library, which are simulated under each of their policies. Lists of these count as their members.
    set : overrides of scenarios that are named or loaded from files, such as "job.workers=8".
    threads : of the simulator.
    jobs : scenarios at a time, each in a process of its own; with 1 all in this one.
    progress : called with the share that is done, and words.

    Returns
    -------
    `gradwire.analysis.compare.Comparison`: `to_pandas()`, `table` (pyarrow), `metrics`, `plot()`, `write(directory)`;
    in a notebook it shows its table.

    Raises
    ------
    ScenarioError, TraceError
        A scenario cannot be run; all are looked at before the first one is.
    ResultError
        A directory cannot be read, there is nothing to compare, or there are overrides and nothing to run.
    StallError
        A simulation can make no progress.
    """
    from gradwire.analysis.compare import compare as side_by_side
    from gradwire.apart import simulate_apart
    from gradwire.notebook import heard
    from gradwire.scenarios.errors import ResultError, ScenarioError
    from gradwire.scenarios.given import unfit, whole_number
    from gradwire.scenarios.load import overrides_of
    from gradwire.scenarios.result import Result
    from gradwire.sim.fabric.specialise import compile_ahead
    from gradwire.sim.simulate import Stalled, check_uncompiled

    overrides = overrides_of(set, "compare(set)")
    if progress is not None and not callable(progress):
        raise unfit(progress, "compare(progress)", "a function that is called, or None", ScenarioError)
    threads = whole_number(threads, "compare(threads)", 1, ScenarioError)
    jobs = whole_number(jobs, "compare(jobs)", 1, ScenarioError)
    found = [each for source in sources for each in _runs_of(source, overrides)]
    if not found:
        raise ResultError("there is nothing to compare", "compare", RUNS)
    if overrides and all(isinstance(each, Result) for each in found):
        expected = "a scenario to be run, or no overrides"
        raise ResultError("has been run already: overrides change nothing in it", "compare", expected)
    scenarios = [each for each in found if not isinstance(each, Result)]
    if min(jobs, len(scenarios)) > 1:
        with heard("compare", progress) as told:
            outcomes, finished = simulate_apart(scenarios, jobs, threads, told=told)
        if not finished:
            raise KeyboardInterrupt
        for outcome in outcomes:
            if outcome.stalled:
                raise Stalled(outcome.stalled, outcome.result)
        made = iter([outcome.result for outcome in outcomes])
        return side_by_side([each if isinstance(each, Result) else next(made) for each in found])
    check_uncompiled(scenarios)
    compile_ahead(scenarios)
    parts = [_part(progress, number, len(scenarios)) for number in range(len(scenarios))]
    ran = iter([_simulated(each, part, threads=threads) for each, part in zip(scenarios, parts, strict=True)])
    return side_by_side([each if isinstance(each, Result) else next(ran) for each in found])


def _part(progress: Told | None, number: int, count: int) -> Told | None:
    """Progress of one of several pieces of work."""
    return None if progress is None else lambda share, words: progress((number + share) / count, words)


def _runs_of(source: Any, overrides: Sequence[str]) -> list[Result | Scenario]:
    """What is to be compared of one source: Results, and scenarios that are still to be run."""
    from gradwire.analysis.compare import Comparison
    from gradwire.scenarios.errors import ResultError
    from gradwire.scenarios.given import unfit
    from gradwire.scenarios.load import list_library, load_scenario
    from gradwire.scenarios.record import members
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario

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
        return [each for member in source for each in _runs_of(member, overrides)]
    raise unfit(source, "compare(sources)", RUNS, ResultError)


def metrics(*sources: Source | Iterable[Source]) -> list[Metrics]:
    """The figures of runs, one entry for each job (or traffic) of each: iteration and completion times with means and
    percentiles, drops, packets sent again, losses. Sources and errors as for `compare`.

        for entry in gradwire.metrics("results/one"):
            print(entry.job, entry.iteration.mean_ps, entry.exposed_share)
    """
    return compare(*sources).flat


def plot(*sources: Source | Learned | Iterable[Source | Learned]) -> dict[str, Figure]:
    """The pictures of one run or of several, as matplotlib figures by name: "iteration_time", "completion_time",
    "packets_again", as far as there is something to draw; of trainings "accuracy". Sources and errors as for `compare`;
    a Comparison is taken as it is.

        gradwire.plot(result)["iteration_time"].savefig("iterations.pdf")
    """
    from gradwire.analysis.compare import Comparison
    from gradwire.scenarios.learned import Learned

    given = [each for one in sources for each in (one if isinstance(one, list | tuple) else [one])]
    learned = [each for each in given if isinstance(each, Learned)]
    if learned and len(learned) == len(given):
        from gradwire.analysis.learning import draw_learned

        return {"accuracy": draw_learned(learned)}
    if len(sources) == 1 and isinstance(sources[0], Comparison):
        return sources[0].plot()
    return compare(*sources).plot()  # type: ignore[arg-type]  # which says what it cannot take


def emulate(
    scenario: Scenario | str | Path,
    trace: Trace | str | Path | None = None,
    request: Request | None = None,
    **more: Any,
) -> Result:
    """Run a scenario on real sockets, with `trace` in every job if one is given; both may be named, as for `simulate`.
    See `gradwire.emu.testbed.emulate` for the rest."""
    from gradwire.emu import testbed
    from gradwire.experiment.resolve import resolve
    from gradwire.scenarios.errors import ScenarioError
    from gradwire.scenarios.given import instance_of
    from gradwire.scenarios.load import scenario_of
    from gradwire.traces.trace import trace_of

    scenario = scenario_of(scenario, "emulate(scenario)")
    trace = trace_of(trace, "emulate(trace)")
    if request is not None:
        instance_of(request, testbed.Request, "emulate(request)", "gradwire.emu.testbed.Request", ScenarioError)
    testbed.check_scenario(scenario, programs=request is not None and request.programs is not None)
    resolved = resolve(scenario, trace)
    return testbed.emulate(scenario, resolved, request, ideal=_ideal(scenario, resolved), **more)


def _ideal(scenario: Scenario, resolved: Any) -> dict[int, int]:
    """Picoseconds that flows of traffic would take on the empty network, by message."""
    import numpy as np

    program = resolved.program
    traffic = [number for number, table in enumerate(program.tables) if not table.is_job]
    found: dict[int, int] = {}
    if traffic:
        from gradwire.experiment.ideal import ideal_times

        rows = program.messages
        for number in traffic:
            those = np.flatnonzero(rows.table == number)
            used = scenario.transports[program.tables[number].transport]
            times = ideal_times(
                resolved.network, resolved.routing, rows.src[those], rows.dst[those], rows.nbytes[those],
                used.payload, used.overhead, scenario.load_balancing,
            )  # fmt: skip
            found |= dict(zip(those.tolist(), times.tolist(), strict=True))
    return found
