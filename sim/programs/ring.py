"""The ring all-reduce as a program; `gradwire.sim.collectives.ring` says what it does.

Per iteration, worker and bucket there is a start (all gradients ready, and the bucket before started) that posts
step 0. Steps up to N - 1 need the start and what came in the step before, later ones only that. A bucket is complete
when all 2(N - 1) messages to the worker are there.
"""

from __future__ import annotations

from itertools import pairwise

from gradwire.sim.collectives.base import ALL_LAYERS
from gradwire.sim.collectives.ring import Ring
from gradwire.sim.programs.builder import Event, Post
from gradwire.sim.programs.workers import Job


def ring(job: Job) -> None:
    """Add all events and messages of the job."""
    assert isinstance(job.exchange, Ring)
    for iteration in range(job.table.iterations):
        starts = [_starts(job, job.exchange, iteration, worker) for worker in range(len(job.nodes))]
        for number in range(len(job.exchange.buckets)):
            _bucket(job, job.exchange, iteration, number, [each[number] for each in starts])
        for mine in starts:
            for (before, _), (after, _) in pairwise(mine):
                before.then(after)  # after what the bucket before lets go


def _starts(job: Job, exchange: Ring, iteration: int, worker: int) -> list[tuple[Event, int]]:
    """Per bucket: the event that a worker starts on it, and when that could be at the earliest."""
    moments = job.ready_ps(worker, iteration)
    events = [job.builder.event(job.nodes[worker]) for _ in exchange.buckets]
    for tensor in moments:
        job.fire(worker, iteration, tensor, events[exchange.bucket_of(tensor)])
    found, earliest = [], 0
    for event, bucket in zip(events, exchange.buckets, strict=True):
        earliest = max(earliest, *(moments[tensor] for tensor in bucket.tensors))
        found.append((event, earliest))
    return found


def _bucket(job: Job, exchange: Ring, iteration: int, number: int, starts: list[tuple[Event, int]]) -> None:
    builder, workers = job.builder, len(job.nodes)
    segment = exchange.buckets[number].segment_elements
    complete = [builder.event(node) for node in job.nodes]
    into: list[Post] = []  # by worker: what comes in by the step before
    for step in range(2 * (workers - 1)):
        sent = []
        for worker in range(workers):
            start, earliest = starts[worker]
            moment = earliest if step == 0 else into[worker].turn[1]
            own = step < workers
            post = builder.message(
                job.number,
                exchange.segment(iteration, worker, number, step, 0, _nobody),
                (iteration, max(moment, earliest) if own else moment),
                captured=job.replay.captured(worker, iteration) if own else -1,
                first=(worker - step) % workers * segment,
                sums=(into[worker],) if step else (),
                own=own,
            )
            if step == 0:
                start.post(post)
            elif own:
                both = builder.event(job.nodes[worker])
                start.then(both)
                into[worker].then(both)
                both.post(post)
            else:
                into[worker].post(post)
            sent.append(post)
        for worker, post in enumerate(into):
            post.then(complete[worker])  # after what it lets go
        into = [sent[worker - 1] for worker in range(workers)]
    for worker, post in enumerate(into):
        post.then(complete[worker])
        complete[worker].then(job.gate(worker, iteration, ALL_LAYERS))


def _nobody(message: object) -> None:
    """Nobody here is told of deliveries."""
