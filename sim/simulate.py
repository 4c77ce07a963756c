"""simulate: from a scenario and a trace to a Result.

Scenario -> Network -> Routing -> Fabric      where packets go
Scenario -> places, Trace -> TrainingJobs     what is sent
Scenario -> Flows -> Feeds                    traffic besides jobs
Coupling                                      both, advanced together
Result                                        what was seen
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scenarios.errors import Mistake, ScenarioError
from scenarios.units import format_time
from scenarios.wire import MIN_FRAME, serialisation_ps
from sim.coupling import Coupling, FabricLike
from sim.faults import Faults
from sim.interrupt import CtrlC
from sim.job import IterationRecord, TrainingJob, captured_iterations
from sim.message_table import message_columns
from sim.placement import place
from sim.precheck import check_paths
from sim.progress import Lookout, OutOfTime, Progress, Standing, share_of_flows
from sim.routing import Routing, build_routing
from sim.telemetry import Samples, delay_columns, packet_columns, ports_of
from sim.topology import Network, build_network
from sim.traffic import check_files, flows_of
from sim.traffic.feed import Feed

if TYPE_CHECKING:
    from scenarios.result import Result
    from scenarios.schema import Scenario
    from traces.trace import Trace

FabricMaker = Callable[["Scenario", Network, Routing, int], FabricLike]
"""(scenario, network, routing, threads) -> fabric"""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a simulation; `result` holds what had been seen by then."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted")
        self.result = result


def simulate(
    scenario: Scenario,
    trace: Trace | None = None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    max_wall_s: float | None = None,
    fabric: FabricMaker | None = None,
) -> Result:
    """Run a scenario.

    Parameters
    ----------
    trace : replayed by every job instead of the traces that they name.
    threads : of the fabric; the Result does not depend on it.
    progress : called now and then (about every 0.1 s) and once at the end.
    max_wall_s : ends the run after so many seconds on the wall clock, counted from the first event on: building the
        network and compiling the engine come before. Where it ends then depends on the machine.
    fabric : makes the network that the jobs use, by default the packet engine; tests put an ideal one here.

    Returns
    -------
    Result
        Messages that had not arrived when `duration` or `max_wall_s` ended the run have end_ps -1; worker-iterations
        that were not over have no row. `summary["totals"]["ended_by"]` says what ended it.

    Raises
    ------
    ScenarioError, TraceError
        The input cannot be run; raised before anything is simulated.
    StallError
        Nothing can happen any more although jobs are not done: says what waits for what.
    Interrupted
        Ctrl-C, with the Result so far.
    """
    begin = time.perf_counter()
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    check_lookahead(scenario, network)
    places = place(scenario.job, network, scenario.seed)
    traces = load_traces(scenario, trace)
    routing = build_routing(network)
    check_paths(scenario, routing)
    faults = Faults(scenario.fault, network)
    sampled = ports_of(scenario.output.sample_ports, network)
    engine = (fabric or packet_fabric)(scenario, network, routing, threads)
    coupling = Coupling(engine, scenario.host.software_latency, network.names, scenario.output.packet_log)
    faults.schedule(engine)
    samples = None
    if scenario.output.queue_samples is not None:
        samples = Samples(engine, network, sampled, scenario.output.queue_samples)
    jobs = [
        TrainingJob(
            job,
            traces[number],
            coupling,
            places[number],
            network.cards,
            seed=scenario.seed,
            payload=(job.transport or scenario.transport).payload,
            transport=scenario.transport_of(job),
            where=f"job[{number}]",
            slowness=faults.slowness,
        )
        for number, job in enumerate(scenario.job)
    ]
    feeds = make_feeds(scenario, network, coupling)
    for job in jobs:
        job.start()
    for feed in feeds:
        feed.start()
    state = Run(scenario, network, routing, coupling, jobs, feeds, samples)
    ready = time.perf_counter()

    def collect() -> Result:
        times = {"setup_s": ready - begin, "run_s": time.perf_counter() - ready}
        times["compile_s"] = getattr(engine, "compile_s", 0.0)  # part of the set-up
        return collect_result(state, list(traces), threads, times)

    try:
        with CtrlC() as ctrl_c:
            lookout = Lookout(state.standing, progress, ctrl_c, max_wall_s)
            if hasattr(engine, "on_progress"):
                engine.on_progress = lookout.within
            reached = coupling.run(
                lambda: state.done,
                until=scenario.duration,
                waiting=lambda: [line for job in jobs for line in job.waiting()],
                tick=lookout.between,
            )
            state.ended_by = "done" if reached else "duration"
            coupling.settle(state.last_ps)
    except OutOfTime:
        state.ended_by = "done" if state.done else "max_wall"
    except KeyboardInterrupt:
        raise Interrupted(collect()) from None
    finally:
        close = getattr(engine, "close", None)
        if close is not None:
            close()  # its threads
    lookout.report(state.end_ps, last=True)
    return collect()


def packet_fabric(scenario: Scenario, network: Network, routing: Routing, threads: int) -> FabricLike:
    """The compiled packet engine for a scenario."""
    from sim.fabric.fabric import Fabric  # imports Numba

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
        folder=scenario.folder,
    )
    return made


def load_traces(scenario: Scenario, trace: Trace | None) -> list[Trace]:
    """The trace of every job; a trace that several jobs name is loaded once.

    Raises
    ------
    TraceError
        A trace is missing or damaged.
    ScenarioError
        A job wants a phase that its trace does not have; all such jobs are named.
    """
    from traces.trace import load_trace

    loaded: dict[str, Trace] = {}
    traces = []
    for job in scenario.job:
        if trace is None and job.trace not in loaded:
            loaded[job.trace] = load_trace(job.trace)
        traces.append(trace if trace is not None else loaded[job.trace])
    mistakes = []
    for number, (job, its) in enumerate(zip(scenario.job, traces, strict=True)):
        try:
            captured_iterations(its, job.phase, f"job[{number}]")
        except ScenarioError as error:
            mistakes.append(Mistake(error.where, error.what, expected=error.expected))
    if mistakes:
        raise ScenarioError("the trace does not have what the scenario asks for", mistakes=mistakes)
    return traces


def check_lookahead(scenario: Scenario, network: Network) -> None:
    """Raise ScenarioError if hosts react faster than the network can: see `sim.coupling`.

    The scenario's own checks say this earlier for all topologies but graph files.
    """
    lookahead = min(
        int(latency) + serialisation_ps(MIN_FRAME, int(rate))
        for rate, latency in {*zip(network.link_rate.tolist(), network.link_latency.tolist(), strict=True)}
    )
    latency = scenario.host.software_latency
    if latency < lookahead:
        raise ScenarioError(
            f"{format_time(latency)} is below the time of the smallest packet on the fastest link",
            where="host.software_latency",
            expected=f"at least {format_time(lookahead)}",
        )


@dataclass
class Run:
    """A simulation under way."""

    scenario: Scenario
    network: Network
    routing: Routing
    coupling: Coupling
    jobs: Sequence[TrainingJob]
    feeds: Sequence[Feed]
    samples: Samples | None = None
    ended_by: str = "interrupt"
    """done, duration, max_wall, or interrupt, which it is unless one of the others becomes known"""

    @property
    def done(self) -> bool:
        """Whether the jobs are done; without jobs: whether all flows have been delivered."""
        return all(part.done for part in (self.jobs or self.feeds))

    @property
    def finished(self) -> bool:
        """Whether it came as far as was asked for: traffic alone may be cut by the duration."""
        return self.done or (self.ended_by == "duration" and not self.jobs)

    @property
    def end_ps(self) -> int:
        """When it ended; where it was ended from outside: as far as the network has come."""
        if self.ended_by == "duration" and not self.jobs and self.scenario.duration is not None:
            return self.scenario.duration
        if self.ended_by in ("done", "duration"):
            return self.coupling.now
        return max(self.coupling.now, self.coupling.fabric.now)

    @property
    def last_ps(self) -> int:
        """How far the network goes in a run that nothing ends from outside: to where a host could have reacted to the
        last thing that happened."""
        limit = self.scenario.duration
        if self.ended_by == "duration" and limit is not None:
            return limit
        last = self.coupling.now + self.coupling.latency
        return last if limit is None else min(last, limit)

    @property
    def progress(self) -> tuple[int, int]:
        """(done, in all): worker-iterations, or without jobs flows."""
        if self.jobs:
            return sum(len(job.records) for job in self.jobs), sum(job.total for job in self.jobs)
        submitted = sum(feed.submitted for feed in self.feeds)
        return submitted - getattr(self.coupling.fabric, "undelivered", 0), submitted

    def standing(self, now_ps: int) -> Standing:
        """How far it is at a time of the network's."""
        done, total = self.progress
        if self.done or self.ended_by == "duration":
            share = 1.0
        elif self.jobs:
            share = sum(job.share * job.total for job in self.jobs) / total
        else:
            share = share_of_flows(self.feeds, self.coupling.fabric)
        if self.scenario.duration is not None:
            share = max(share, min(1.0, now_ps / self.scenario.duration))
        return Standing(done, total, share, now_ps, getattr(self.coupling.fabric, "packet_hops", 0))


def make_feeds(scenario: Scenario, network: Network, coupling: Coupling) -> list[Feed]:
    """One process per `[[traffic]]` table.

    Raises
    ------
    ScenarioError
        Hosts that the network does not have, or a file that cannot be used.
    """
    if not scenario.traffic:
        return []
    check_files(scenario)
    return [
        Feed(
            table, flows_of(scenario, number, network), coupling, scenario.transport_of(table), network.cards
        )
        for number, table in enumerate(scenario.traffic)
    ]


def collect_result(
    state: Run,
    traces: Sequence[Trace],
    threads: int,
    times: dict[str, float],
) -> Result:
    """The Result of what has been simulated so far."""
    from scenarios.result import Result, summarise

    scenario, coupling, jobs = state.scenario, state.coupling, state.jobs
    tables = coupling.fabric.finish()
    records = sorted(
        (record for job in jobs for record in job.records),
        key=lambda record: (record.job, record.worker, record.iteration),
    )
    hops = int(tables.packet_hops)
    digests = dict.fromkeys(trace.digest() for trace in dict.fromkeys(traces))
    messages = message_columns(
        coupling.messages,
        coupling.blocks,
        state.network.names,
        [transport.payload for transport in scenario.transports],
        tables,
        coupling.latency,
        state.end_ps,
    )
    messages["layer"] = layers_of(messages, jobs)
    ends = np.asarray(messages["end_ps"])
    totals = {
        "simulated_ps": state.end_ps,
        "finished": state.finished,
        "ended_by": state.ended_by,
        "iterations": len(records),
        "iterations_wanted": sum(job.total for job in jobs),
        "messages": len(ends),
        "messages_under_way": int((ends < 0).sum()),
        "bytes": int(np.sum(messages["bytes"])),
        "lost_bytes": int(np.sum(messages["lost_bytes"])),
    }
    return Result.build(
        summarise(scenario, ",".join(digests), {"packet_hops": hops}, totals),
        {
            "iterations": {
                name: [getattr(record, name) for record in records] for name in IterationRecord._fields
            },
            "messages": messages,
            "flows": flow_columns(state, messages),
            "drops": dict(tables.drops),
            "ports": dict(tables.ports),
            **telemetry(state),
        },
        {
            **times,
            "threads": threads,
            "packet_hops": hops,
            "hops_per_s": hops / times["run_s"] if times["run_s"] > 0 else 0.0,
        },
    )


def layers_of(messages: Mapping[str, Any], jobs: Sequence[TrainingJob]) -> NDArray[np.int64]:
    """The layer of the tensor that every message carries, -1 for those that carry none."""
    names = np.asarray(messages["job"], dtype=object)
    tensors = np.asarray(messages["tensor"], dtype=np.int64)
    layers = np.full(len(tensors), -1, dtype=np.int64)
    for job in jobs:
        own = np.flatnonzero((names == job.name) & (tensors >= 0))
        of_tensor = np.array([tensor.layer for tensor in job.trace.tensors], dtype=np.int64)
        layers[own] = of_tensor[tensors[own]]
    return layers


def telemetry(state: Run) -> dict[str, dict[str, Any]]:
    """The tables that the scenario has asked for besides."""
    output, engine, network = state.scenario.output, state.coupling.fabric, state.network
    found = {}
    if state.samples is not None:
        found["samples"] = state.samples.columns()
    if output.delays:
        found["delays"] = delay_columns(engine, network)
    if output.packet_log:
        found["packets"] = packet_columns(engine, network)
    return found


def flow_columns(state: Run, messages: Mapping[str, Any]) -> dict[str, Any]:
    """The table of flows: how long each would have taken on an empty network, by number of the message."""
    from sim.traffic.ideal import ideal_times

    known = np.asarray(messages["message"])
    numbers, ideal = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for block in (block for feed in state.feeds for block in feed.blocks):
        rows = np.flatnonzero(np.isin(block.first + np.arange(len(block.sends)), known, assume_unique=True))
        if len(rows):
            sends, transport = block.sends, state.scenario.transports[block.transport]
            numbers.append(block.first + rows)
            ideal.append(
                ideal_times(
                    state.network, state.routing, sends.src[rows], sends.dst[rows], sends.nbytes[rows],
                    transport.payload, transport.overhead,
                )
            )  # fmt: skip
    message = np.concatenate(numbers)
    order = np.argsort(message)
    return {"message": message[order], "ideal_ps": np.concatenate(ideal)[order]}
