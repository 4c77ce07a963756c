"""`SimulationRun` reports the progress of a simulation under way; `collect_result` builds its Result;
`gradwire.sim.processes.coupling` advances it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.validation.effect import keys_without_effect_in_runs
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.processes.network_interface import Track
from gradwire.sim.progress import ProgressReport
from gradwire.sim.result_rows import ResultRows
from gradwire.sim.telemetry import Samples, delay_columns, packet_columns
from gradwire.topology import Network
from gradwire.topology.routing import Routing

if TYPE_CHECKING:
    from gradwire.result_store.result import Result
    from gradwire.scenarios.schema.network.traffic import TrafficTable
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.sim.engine.fabric import Fabric
    from gradwire.traces.trace import Trace
    from gradwire.workload.jobs import Job


@dataclass
class SimulationRun:
    """A simulation under way."""

    scenario: Scenario
    network: Network
    routing: Routing
    coupling: Coupling
    jobs: Sequence[Job]
    tracks: Sequence[Track]
    """those of the jobs, then those of traffic"""
    collected: ResultRows
    samples: Samples | None = None
    ended_by: str = "interrupt"
    """done, duration, max_wall, stall or interrupt, the default until another reason is known"""

    @property
    def engine(self) -> Fabric:
        """The packet engine; callers check for the attributes that other networks lack."""
        return cast("Fabric", self.coupling.fabric)

    @property
    def done(self) -> bool:
        """True if all jobs are done or, without jobs, all flows are delivered."""
        return all(track.finished for track in (self.tracks[: len(self.jobs)] or self.tracks))

    @property
    def traffic(self) -> Sequence[Track]:
        return self.tracks[len(self.jobs) :]

    @property
    def iterations(self) -> int:
        """Iterations that all their workers have completed, of all jobs."""
        return sum(int(track.begun.min()) for track in self.tracks[: len(self.jobs)])

    @property
    def finished(self) -> bool:
        """True if the run did what was requested; the duration may cut short traffic without jobs."""
        return self.done or (self.ended_by == "duration" and not self.jobs)

    @property
    def end_ps(self) -> Ps:
        """The end of the run; after an interrupt, the time that the network had reached."""
        if self.ended_by == "duration" and self.scenario.duration is not None:
            return self.scenario.duration
        if self.ended_by == "done":
            return self.done_ps
        return max(self.coupling.now, self.coupling.fabric.now)

    @property
    def done_ps(self) -> Ps:
        """The end of the last job, or without jobs of the last flow; 0 if there was nothing to do."""
        return Ps(max(0, *(track.ended_ps for track in (self.tracks[: len(self.jobs)] or self.tracks))))

    @property
    def last_ps(self) -> Ps:
        """Time up to which an undisturbed run is simulated: a host could have reacted to its last event by then."""
        limit = self.scenario.duration
        if self.ended_by == "duration" and limit is not None:
            return limit
        last = Ps(self.done_ps + self.coupling.latency)
        return last if limit is None else min(last, limit)

    @property
    def counted_ps(self) -> Ps:
        """Time up to which the network's counters reach."""
        return max(self.end_ps, self.coupling.fabric.now)

    @property
    def progress(self) -> tuple[int, int]:
        """(done, total): completed iterations or, without jobs, delivered flows."""
        if self.jobs:
            return self.iterations, sum(job.table.iterations for job in self.jobs)
        submitted = sum(submitted_messages(track) for track in self.tracks)
        return submitted - sum(track.undelivered for track in self.tracks), submitted

    def progress_at(self, now_ps: Ps) -> ProgressReport:
        """Return the progress at a simulated time."""
        done, total = self.progress
        if self.done or self.ended_by == "duration":
            share = 1.0
        elif self.jobs:
            share = job_progress(self)
        else:
            share = flow_progress(self)
        if self.scenario.duration is not None:
            share = max(share, min(1.0, now_ps / self.scenario.duration))
        return ProgressReport(done, total, share, now_ps, getattr(self.coupling.fabric, "packet_hops", 0))


def submitted_messages(track: Track) -> int:
    """Return the number of messages in all steps of a part so far."""
    return track.handed.messages + sum(len(step.numbers) for step in track.steps)


def job_progress(run: SimulationRun) -> float:
    """Return the share of all bytes of jobs that has arrived."""
    fabric, jobs = run.engine, run.jobs
    expected = sum(job.exchange.bytes_per_iteration * job.table.iterations for job in jobs)
    if not expected or not hasattr(fabric, "settled_bytes"):
        return float(run.iterations / sum(job.table.iterations for job in jobs))
    others = sum(track.handed.nbytes for track in run.traffic)
    others += sum(_settled(fabric, step.numbers) for track in run.traffic for step in track.steps)
    return min(1.0, (fabric.settled_bytes - others) / expected)


def _settled(fabric: Fabric, numbers: Ints) -> int:
    return fabric.delivered_bytes_of(int(numbers[0]), len(numbers)) if len(numbers) else 0


def flow_progress(run: SimulationRun) -> float:
    """Return the share of the expected bytes of traffic that has arrived."""
    tables = run.scenario.traffic
    expected = sum(expected_bytes(table, track) for table, track in zip(tables, run.tracks, strict=True))
    arrived = getattr(run.coupling.fabric, "settled_bytes", 0)
    return min(1.0, arrived / expected) if expected else 0.0


def expected_bytes(table: TrafficTable, track: Track) -> float:
    """Return the bytes of all flows of a traffic table, extrapolated while more are to come."""
    steps = track.steps
    so_far = float(track.handed.nbytes + sum(int(step.step.messages.nbytes.sum()) for step in steps))
    if not steps or not track.has_more_steps:
        return so_far
    last, submitted = steps[-1].step, submitted_messages(track)
    flows, rounds = getattr(table, "flows", None), getattr(table, "rounds", None)
    ratios = []  # ratios of all flows to those so far, by each limit
    if isinstance(flows, int):
        ratios.append(flows / submitted)
    if isinstance(rounds, int):
        ratios.append(rounds / (1 + int(last.messages.iteration.max())))
    assert last.begins is not None  # it is traffic
    elapsed = int(last.begins.max()) - table.start
    if table.stop is not None and elapsed > 0:
        ratios.append((table.stop - table.start) / elapsed)
    return so_far * max(1.0, min(ratios, default=1.0))


def collect_result(state: SimulationRun, traces: Sequence[Trace], threads: int, times: dict[str, float]) -> Result:
    """Return the Result of what has been simulated so far."""
    from gradwire.result_store.provenance import scenario_text
    from gradwire.result_store.result import Result, summarise

    scenario, coupling, collected = state.scenario, state.coupling, state.collected
    tables, forward = coupling.fabric.finish(), getattr(coupling.fabric, "forward", None)
    collected.take_rest(coupling, state.tracks, tables, state.counted_ps)
    hops, messages = int(tables.packet_hops), collected.messages
    simulated = hops - (forward.hops if forward else 0)
    digests = dict.fromkeys(trace.digest() for trace in dict.fromkeys(traces))
    totals = {
        "simulated_ps": state.end_ps,
        "finished": state.finished,
        "ended_by": state.ended_by,
        "iterations": len(collected.iterations),
        "iterations_wanted": sum(job.table.workers * job.table.iterations for job in state.jobs),
        "messages": messages.count,
        "messages_under_way": messages.under_way,
        "bytes": messages.nbytes,
        "lost_bytes": messages.lost_bytes,
    }
    if sums := getattr(coupling.fabric, "sums", {}):
        totals["sums"] = sums
    summary = summarise(scenario, ",".join(digests), {"packet_hops": hops}, totals)
    if notes := keys_without_effect_in_runs(scenario):
        summary["notes"] = notes
    return Result.build(
        summary,
        {**collected.tables(state.routing), "ports": dict(tables.ports), **telemetry_tables(state)},
        {
            **times,
            "threads": threads,
            "packet_hops": hops,
            "packet_hops_simulated": simulated,
            "hops_per_s": simulated / times["run_s"] if times["run_s"] > 0 else 0.0,
            "fast_forward": forward.outcome if forward else "off",
        },
        scenario_text(scenario),
    )


def telemetry_tables(state: SimulationRun) -> dict[str, Columns]:
    """Return the further tables that the scenario requests."""
    output, engine, network = state.scenario.output, state.engine, state.network
    columns_by_table = {}
    if state.samples is not None:
        columns_by_table["samples"] = state.samples.columns()
    if output.delays:
        columns_by_table["delays"] = delay_columns(engine, network)
    if output.packet_log:
        columns_by_table["packets"] = packet_columns(engine, network)
    return columns_by_table
