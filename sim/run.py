"""A simulation under way: how far it is, and the Result of what has been seen so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gradwire.experiment.routing import Routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.checks.effect import keys_without_effect_in_runs
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.collected import Collected
from gradwire.sim.coupling import Coupling
from gradwire.sim.network_like import Track
from gradwire.sim.progress import Standing
from gradwire.sim.telemetry import Samples, delay_columns, packet_columns

if TYPE_CHECKING:
    from gradwire.experiment.jobs import Job
    from gradwire.scenarios.result import Result
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.scenarios.schema.traffic import Traffic
    from gradwire.sim.fabric.fabric import Fabric
    from gradwire.traces.trace import Trace


@dataclass
class Run:
    """A simulation under way."""

    scenario: Scenario
    network: Network
    routing: Routing
    coupling: Coupling
    jobs: Sequence[Job]
    tracks: Sequence[Track]
    """of the jobs, then of traffic"""
    collected: Collected
    samples: Samples | None = None
    ended_by: str = "interrupt"
    """done, duration, max_wall, stall, or interrupt, which it is unless one of the others becomes known"""

    @property
    def engine(self) -> Fabric:
        """The packet engine: what asks for it is refused on other networks, or asks whether it has what it takes."""
        return cast("Fabric", self.coupling.fabric)

    @property
    def done(self) -> bool:
        """Whether the jobs are done; without jobs: whether all flows have been delivered."""
        return all(track.finished for track in (self.tracks[: len(self.jobs)] or self.tracks))

    @property
    def traffic(self) -> Sequence[Track]:
        return self.tracks[len(self.jobs) :]

    @property
    def iterations(self) -> int:
        """Iterations that are over at all workers, of all jobs."""
        return sum(int(track.begun.min()) for track in self.tracks[: len(self.jobs)])

    @property
    def finished(self) -> bool:
        """Whether it came as far as was asked for: traffic alone may be cut by the duration."""
        return self.done or (self.ended_by == "duration" and not self.jobs)

    @property
    def end_ps(self) -> Ps:
        """When it ended; where it was ended from outside: as far as the network has come."""
        if self.ended_by == "duration" and self.scenario.duration is not None:
            return self.scenario.duration
        if self.ended_by == "done":
            return self.done_ps
        return max(self.coupling.now, self.coupling.fabric.now)

    @property
    def done_ps(self) -> Ps:
        """When the last of what it is about was done; 0 where there was nothing to do."""
        return Ps(max(0, *(track.ended_ps for track in (self.tracks[: len(self.jobs)] or self.tracks))))

    @property
    def last_ps(self) -> Ps:
        """How far the network goes in a run that nothing ends from outside: to where a host could have reacted to the
        last thing that happened."""
        limit = self.scenario.duration
        if self.ended_by == "duration" and limit is not None:
            return limit
        last = Ps(self.done_ps + self.coupling.latency)
        return last if limit is None else min(last, limit)

    @property
    def counted_ps(self) -> Ps:
        """How far all that is counted goes: what the network did before this time."""
        return max(self.end_ps, self.coupling.fabric.now)

    @property
    def progress(self) -> tuple[int, int]:
        """(done, in all): iterations that are over at all workers, or without jobs flows."""
        if self.jobs:
            return self.iterations, sum(job.table.iterations for job in self.jobs)
        submitted = sum(submitted_by(track) for track in self.tracks)
        return submitted - sum(track.left for track in self.tracks), submitted

    def standing(self, now_ps: Ps) -> Standing:
        """How far it is at a time of the network's."""
        done, total = self.progress
        if self.done or self.ended_by == "duration":
            share = 1.0
        elif self.jobs:
            share = share_of_jobs(self)
        else:
            share = share_of_flows(self)
        if self.scenario.duration is not None:
            share = max(share, min(1.0, now_ps / self.scenario.duration))
        return Standing(done, total, share, now_ps, getattr(self.coupling.fabric, "packet_hops", 0))


def submitted_by(track: Track) -> int:
    """Messages of all steps of a part so far."""
    return track.handed.messages + sum(len(step.numbers) for step in track.steps)


def share_of_jobs(run: Run) -> float:
    """How much of the messages of jobs has arrived, of the bytes that they have in all."""
    fabric, jobs = run.engine, run.jobs
    expected = sum(job.exchange.bytes_per_iteration * job.table.iterations for job in jobs)
    if not expected or not hasattr(fabric, "settled_bytes"):
        return float(run.iterations / sum(job.table.iterations for job in jobs))
    others = sum(track.handed.nbytes for track in run.traffic)
    others += sum(_settled(fabric, step.numbers) for track in run.traffic for step in track.steps)
    return min(1.0, (fabric.settled_bytes - others) / expected)


def _settled(fabric: Fabric, numbers: Ints) -> int:
    return fabric.settled_of(int(numbers[0]), len(numbers)) if len(numbers) else 0


def share_of_flows(run: Run) -> float:
    """How much of traffic has arrived, of the bytes that it will have as far as one can tell."""
    tables = run.scenario.traffic
    expected = sum(expected_bytes(table, track) for table, track in zip(tables, run.tracks, strict=True))
    arrived = getattr(run.coupling.fabric, "settled_bytes", 0)
    return min(1.0, arrived / expected) if expected else 0.0


def expected_bytes(table: Traffic, track: Track) -> float:
    """Of all flows of a traffic; while there are more to come, as many as there will be if they go on like this."""
    steps = track.steps
    so_far = float(track.handed.nbytes + sum(int(step.step.messages.nbytes.sum()) for step in steps))
    if not steps or not track.more_to_come:
        return so_far
    last, submitted = steps[-1].step, submitted_by(track)
    flows, rounds = getattr(table, "flows", None), getattr(table, "rounds", None)
    ahead = []  # how many times as many
    if isinstance(flows, int):
        ahead.append(flows / submitted)
    if isinstance(rounds, int):
        ahead.append(rounds / (1 + int(last.messages.iteration.max())))
    assert last.begins is not None  # it is traffic
    reached = int(last.begins.max()) - table.start
    if table.stop is not None and reached > 0:
        ahead.append((table.stop - table.start) / reached)
    return so_far * max(1.0, min(ahead, default=1.0))


def collect_result(
    state: Run,
    traces: Sequence[Trace],
    threads: int,
    times: dict[str, float],
) -> Result:
    """The Result of what has been simulated so far."""
    from gradwire.scenarios.record import scenario_text
    from gradwire.scenarios.result import Result, summarise

    scenario, coupling, collected = state.scenario, state.coupling, state.collected
    tables, forward = coupling.fabric.finish(), getattr(coupling.fabric, "forward", None)
    collected.rest(coupling, state.tracks, tables, state.counted_ps)
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
    if forward is not None and forward.steady is not None:
        rows = Counter(row[0] for row in collected.iterations)
        workers = {job.table.name: job.table.workers for job in state.jobs}
        summary["approximate"] = forward.steady.summary({name: many // workers[name] for name, many in rows.items()})
    return Result.build(
        summary,
        {
            **collected.kept(state.routing),
            "ports": dict(tables.ports),
            **telemetry(state),
        },
        {
            **times,
            "threads": threads,
            "packet_hops": hops,
            "packet_hops_simulated": simulated,
            "hops_per_s": simulated / times["run_s"] if times["run_s"] > 0 else 0.0,
            "fast_forward": forward.said if forward else "off",
        },
        scenario_text(scenario),
    )


def telemetry(state: Run) -> dict[str, Columns]:
    """The tables that the scenario has asked for besides."""
    output, engine, network = state.scenario.output, state.engine, state.network
    found = {}
    if state.samples is not None:
        found["samples"] = state.samples.columns()
    if output.delays:
        found["delays"] = delay_columns(engine, network)
    if output.packet_log:
        found["packets"] = packet_columns(engine, network)
    return found
