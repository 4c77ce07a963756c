"""`worker_spans` yields each worker's timed activities (forward and backward pass by layer, optimizer, waits with
causes) from a Result.

A simulated run is replayed (`gradwire.analysis.breakdown.program_replay`). For real sockets, or a run with repeated
iterations, only the two passes are known, from the table of iterations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradwire.analysis.breakdown.breakdown import CAUSES, DroppedPackets, MessageTimes, TrafficBreakdown, WaitWalker
from gradwire.analysis.breakdown.program_replay import ProcessActivity, ReplayedProgram
from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.scenarios.json_data import Json
from gradwire.traces.trace import Trace
from gradwire.workload.jobs import Job
from gradwire.workload.program import BACKWARD_END, END, FORWARD_END, START
from gradwire.workload.replay import Timetable
from gradwire.workload.worker_schedule import WorkerOperations


class ActivitySpan(NamedTuple):
    """A named piece of a worker's time.

    kind : "forward", "backward", "optimizer", "computing" (something else) or "waiting".
    node : of its host.
    """

    job: str
    worker: int
    node: int
    iteration: int
    kind: str
    name: str
    begin: int
    end: int
    more: Json


class _Piece(NamedTuple):
    """A part of an iteration's computing, in picoseconds of computing since its start."""

    kind: str
    name: str
    begin: int
    end: int


def worker_spans(context: ResultContext, window: tuple[int, int] | None = None) -> Iterator[ActivitySpan]:
    """Yield the non-empty spans of all workers of all jobs, in order of time for each worker. With a `window`, only
    those that overlap it."""
    for span in _spans(context, window):
        if window is None or (span.end > window[0] and span.begin < window[1]):
            yield span


def _spans(context: ResultContext, window: tuple[int, int] | None) -> Iterator[ActivitySpan]:
    """Yield these spans, and perhaps others of the same iterations."""
    if not context.simulated:
        yield from _passes(context)
        return
    traffic, lost = TrafficBreakdown(context), DroppedPackets(context)
    for played in context.replays:
        walk = WaitWalker(played, MessageTimes(played, traffic, lost), context.latency)
        for process, course in enumerate(played.courses[: len(played.workers)]):
            yield from _of_worker(played, walk, process, course, window)


def _of_worker(
    played: ReplayedProgram, walk: WaitWalker, process: int, course: ProcessActivity, window: tuple[int, int] | None
) -> Iterator[ActivitySpan]:
    begins = [(iteration, moment) for what, iteration, moment in course.notes if what == START]
    ends = {iteration: moment for what, iteration, moment in course.notes if what == END}
    for iteration, start in begins:
        end = ends.get(iteration, course.now)
        if window is not None and (end <= window[0] or start >= window[1]):
            continue
        pieces = _pieces(played.job, played.workers[process], iteration)
        spent = 0
        for index in course.pieces_between(start, end):
            identity = (played.name, played.workers[process], played.hosts[process], iteration)
            first, last, event = course.begin[index], course.end[index], course.event[index]
            if event >= 0:
                parts = walk.wait(event, first, last)
                causes = {f"{name}_us": parts[name] / 10**6 for name in CAUSES if parts[name]}
                yield ActivitySpan(*identity, "waiting", _awaited(played, event), first, last, causes)
            elif event == -1:
                work = course.work[index]
                yield from (
                    ActivitySpan(*identity, piece.kind, piece.name, begin, finish, {})
                    for piece, begin, finish in _scheduled(pieces, spent, work, first, last)
                )
                spent += work


def _pieces(job: Job, worker: int, iteration: int) -> list[_Piece]:
    """Return the computing of a worker's iteration according to its timetable."""
    pieces: list[_Piece] = []
    shares = _shares(job, worker, iteration)
    begin, plan = 0, None
    for micro in range(job.table.accumulate):
        plan = job.replay.timetable(worker, job.begin + iteration, micro)
        pieces += _passed(plan, job.trace, begin, shares)
        begin += plan.backward_end + sum(shares)
        shares = [0] * len(shares)
    assert plan is not None
    pieces.append(_Piece("optimizer", "optimizer", begin, begin + plan.optimizer))
    return [piece for piece in pieces if piece.end > piece.begin]


def _shares(job: Job, worker: int, iteration: int) -> list[int]:
    """Return the optimiser time of every layer before its forward step, of the iteration whose result it uses. Zero if
    workers run the whole optimiser step after the backward pass, or none."""
    exchange, layers = job.exchange, range(len(job.trace.layers))
    number = iteration - 1 - exchange.staleness
    if not exchange.layerwise or not exchange.worker_optimizes or number < 0:
        return [0 for _ in layers]
    spent = job.replay.timetable(worker, job.begin + number, job.table.accumulate - 1).optimizer
    courses = WorkerOperations(job.table, job.trace, exchange)
    return [courses.share(spent, layer) for layer in layers]


def _passed(plan: Timetable, trace: Trace, begin: int, shares: Sequence[int]) -> Iterator[_Piece]:
    """Yield forward and backward of a micro-batch that begins after `begin` picoseconds of computing.

    `shares` : optimiser time before every layer.
    """
    for layer, (name, share) in enumerate(zip(trace.layers, shares, strict=True)):
        edges = (begin + plan.forward[layer : layer + 2]).tolist()
        yield _Piece("optimizer", f"optimizer {name}", edges[0], edges[0] + share)
        yield _Piece("forward", f"forward {name}", edges[0] + share, edges[1] + share)
        begin += share
    before = begin + int(plan.forward[-1])
    for moment, tensors in zip((begin + plan.ready_at).tolist(), plan.ready, strict=True):
        layers = sorted({trace.tensors[tensor].layer for tensor in tensors}, reverse=True)
        name = trace.layers[layers[0]] + (f" and {len(layers) - 1} more" if len(layers) > 1 else "")
        yield _Piece("backward", f"backward {name}", before, moment)
        before = moment
    yield _Piece("backward", "backward, the rest", before, begin + plan.backward_end)


def _scheduled(pieces: list[_Piece], spent: int, work: int, first: int, last: int) -> Iterator[tuple[_Piece, int, int]]:
    """Map `work` picoseconds of consecutive pieces, after the first `spent` ones, to the time from `first` to
    `last`."""

    def at(moment: int) -> int:
        return first + (last - first) * (moment - spent) // work if work else last

    done = spent
    for index in range(bisect_right(pieces, spent, key=lambda piece: piece.end), len(pieces)):
        piece = pieces[index]
        if piece.begin >= spent + work:
            break
        begin, end = max(piece.begin, done), min(piece.end, spent + work)
        if end > begin:
            yield piece, at(begin), at(end)
            done = end
    if done < spent + work:
        yield _Piece("computing", "computing", done, spent + work), at(done), last


def _awaited(played: ReplayedProgram, event: int) -> str:
    """Describe a wait by the layers whose tensors it is for."""
    trace, layers = played.job.trace, set[int]()
    for message in played.deliveries_awaited(event).tolist():
        layers |= {trace.tensors[tensor].layer for tensor in played.tensors_of(message)}
    if len(layers) == 1:
        return f"for {trace.layers[min(layers)]}"
    return "for all layers" if len(layers) == len(trace.layers) else f"for {len(layers)} layers"


def _passes(context: ResultContext) -> Iterator[ActivitySpan]:
    """Yield the passes in the table of iterations; after the second one workers wait."""
    names = {START: "forward", FORWARD_END: "backward", BACKWARD_END: "waiting"}
    columns = {START: "start_ps", FORWARD_END: "forward_end_ps", BACKWARD_END: "backward_end_ps", END: "end_ps"}
    for row in context.result.iterations.to_pylist():
        node = context.network.cards.node(context.workers[row["job"]][row["worker"]], 0)
        for what, kind in names.items():
            begin, end = row[columns[what]], row[columns[what + 1]]
            if end > begin:
                name = "for the network, or the optimizer" if kind == "waiting" else f"{kind} pass"
                yield ActivitySpan(row["job"], row["worker"], node, row["iteration"], kind, name, begin, end, {})
