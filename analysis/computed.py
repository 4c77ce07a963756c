"""What workers did, with names: layers forward and backward, and waits with what they were for.

A simulated run is gone through once more (`gradwire.analysis.played`). Of one on real sockets, or with iterations that
are others once more, only the two passes are known, from its table of iterations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gradwire.analysis.breakdown import CAUSES, Walk
from gradwire.analysis.messages_time import Lost, MessageTimes, Traffic
from gradwire.experiment.courses import Courses
from gradwire.experiment.program import BACKWARD_END, END, FORWARD_END, START
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from gradwire.analysis.played import Course, Played
    from gradwire.analysis.ran import Ran
    from gradwire.experiment.jobs import Job
    from gradwire.experiment.replay import Timetable
    from gradwire.traces.trace import Trace


class Span(NamedTuple):
    """A stretch of a worker's time.

    kind : "forward", "backward", "optimizer", "computing" (something else) or "waiting".
    node : its host's.
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
    """A part of an iteration's computing, from and to picoseconds of computing since its start."""

    kind: str
    name: str
    begin: int
    end: int


def computed(found: Ran, window: tuple[int, int] | None = None) -> Iterator[Span]:
    """The spans of all workers of all jobs, none empty; those of one worker follow each other. Only those that are
    under way between two times, if they are given."""
    for span in _spans(found, window):
        if window is None or (span.end > window[0] and span.begin < window[1]):
            yield span


def _spans(found: Ran, window: tuple[int, int] | None) -> Iterator[Span]:
    """The same, and perhaps others of the same iterations."""
    if not found.simulated or found.left_out:
        yield from _passes(found)
        return
    traffic, lost = Traffic(found), Lost(found)
    for played in found.played:
        walk = Walk(played, MessageTimes(played, traffic, lost), found.latency)
        for process, course in enumerate(played.courses[: len(played.workers)]):
            yield from _of_worker(played, walk, process, course, window)


def _of_worker(
    played: Played, walk: Walk, process: int, course: Course, window: tuple[int, int] | None
) -> Iterator[Span]:
    begins = [(iteration, moment) for what, iteration, moment in course.notes if what == START]
    ends = {iteration: moment for what, iteration, moment in course.notes if what == END}
    for iteration, start in begins:
        end = ends.get(iteration, course.now)
        if window is not None and (end <= window[0] or start >= window[1]):
            continue
        pieces = _pieces(played.job, played.workers[process], iteration)
        spent = 0
        for place in course.within(start, end):
            own = (played.name, played.workers[process], played.hosts[process], iteration)
            first, last, event = course.begin[place], course.end[place], course.event[place]
            if event >= 0:
                yield Span(*own, "waiting", _awaited(played, event), first, last, _causes(walk, event, first, last))
            elif event == -1:
                work = course.work[place]
                yield from (
                    Span(*own, piece.kind, piece.name, begin, over, {})
                    for piece, begin, over in _laid(pieces, spent, work, first, last)
                )
                spent += work


def _causes(walk: Walk, event: int, begin: int, end: int) -> Json:
    parts = walk.wait(event, begin, end)
    return {f"{name}_us": parts[name] / 10**6 for name in CAUSES if parts[name]}


def _pieces(job: Job, worker: int, iteration: int) -> list[_Piece]:
    """What an iteration of a worker computes, as its timetable has it."""
    found: list[_Piece] = []
    shares = _shares(job, worker, iteration)
    begin, plan = 0, None
    for micro in range(job.table.accumulate):
        plan = job.replay.timetable(worker, job.begin + iteration, micro)
        found += _passed(plan, job.trace, begin, shares)
        begin += plan.backward_end + sum(shares)
        shares = [0] * len(shares)
    assert plan is not None
    found.append(_Piece("optimizer", "optimizer", begin, begin + plan.optimizer))
    return [piece for piece in found if piece.end > piece.begin]


def _shares(job: Job, worker: int, iteration: int) -> list[int]:
    """What every layer takes of an optimiser step before its forward step, which is that of the iteration whose result
    it uses; nothing where workers run the whole step behind the backward pass, or none."""
    exchange, layers = job.exchange, range(len(job.trace.layers))
    number = iteration - 1 - exchange.staleness
    if not exchange.layerwise or not exchange.worker_optimizes or number < 0:
        return [0 for _ in layers]
    spent = job.replay.timetable(worker, job.begin + number, job.table.accumulate - 1).optimizer
    courses = Courses(job.table, job.trace, exchange)
    return [courses.share(spent, layer) for layer in layers]


def _passed(plan: Timetable, trace: Trace, begin: int, shares: Sequence[int]) -> Iterator[_Piece]:
    """Forward and backward of a micro-batch that begins after so many picoseconds of computing; `shares` of an
    optimiser step before every layer."""
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


def _end_of(piece: _Piece) -> int:
    return piece.end


def _laid(
    pieces: list[_Piece], spent: int, work: int, first: int, last: int
) -> Iterator[tuple[_Piece, int, int]]:
    """The pieces, which follow each other, of `work` picoseconds of computing behind `spent` ones, laid over the time
    from `first` to `last`."""

    def at(moment: int) -> int:
        return first + (last - first) * (moment - spent) // work if work else last

    done = spent
    for place in range(bisect_right(pieces, spent, key=_end_of), len(pieces)):
        piece = pieces[place]
        if piece.begin >= spent + work:
            break
        begin, end = max(piece.begin, done), min(piece.end, spent + work)
        if end > begin:
            yield piece, at(begin), at(end)
            done = end
    if done < spent + work:
        yield _Piece("computing", "computing", done, spent + work), at(done), last


def _awaited(played: Played, event: int) -> str:
    """What a wait was for: the layers whose tensors were to come, in words."""
    trace, layers = played.job.trace, set[int]()
    for message in played.delivered_for(event).tolist():
        layers |= {trace.tensors[tensor].layer for tensor in played.tensors_of(message)}
    if len(layers) == 1:
        return f"for {trace.layers[min(layers)]}"
    return "for all layers" if len(layers) == len(trace.layers) else f"for {len(layers)} layers"


def _passes(found: Ran) -> Iterator[Span]:
    """The passes by the table of iterations; after the second one workers wait. Where stretches of iterations that
    are others once more meet, one may begin before the other has ended: what is laid already stays."""
    names = {START: "forward", FORWARD_END: "backward", BACKWARD_END: "waiting"}
    columns = {START: "start_ps", FORWARD_END: "forward_end_ps", BACKWARD_END: "backward_end_ps", END: "end_ps"}
    over: dict[tuple[str, int], int] = {}
    for row in found.result.iterations.to_pylist():
        who = row["job"], row["worker"]
        node = found.network.cards.node(found.workers[row["job"]][row["worker"]], 0)
        for what, kind in names.items():
            begin, end = max(row[columns[what]], over.get(who, 0)), row[columns[what + 1]]
            if end > begin:
                if found.left_out:
                    over[who] = end
                name = "for the network, or the optimizer" if kind == "waiting" else f"{kind} pass"
                yield Span(row["job"], row["worker"], node, row["iteration"], kind, name, begin, end, {})
