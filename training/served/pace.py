"""Pace: how long workers of an asynchronous server compute, and how long what they push and pull is under way."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

SECOND_PS = 10**12


@dataclass(frozen=True)
class Pace:
    """How long things take that no network says.

    compute_ps : a turn's computing, worker by worker, and from the first again where there are more.
    rate : bits per second of each worker's link, in both directions; 0: none, what it carries takes no time.
    server_rate : of the server's, which carries one push, and one pull, after the other, in the order in which they
        begin; 0: each has it to itself.
    """

    compute_ps: tuple[int, ...] = (0,)
    rate: int = 0
    server_rate: int = 0

    def computing(self, worker: int) -> int:
        """Picoseconds that a worker computes."""
        return self.compute_ps[worker % len(self.compute_ps)]

    def moved(self, nbytes: int, now: int, free: int) -> tuple[int, int]:
        """(when bytes have been moved, when the server's link is free again), picoseconds, rounded up.

        They begin now, or when the server's link is free, and take what the slower of both links takes.
        """
        mine, server = (-(-8 * nbytes * SECOND_PS // rate) if rate else 0 for rate in (self.rate, self.server_rate))
        begin = max(now, free) if self.server_rate else now
        return begin + max(mine, server), begin + server


def marched(pace: Pace, workers: int, turns: int, pushed: int, pulled: int) -> tuple[int, list[int]]:
    """(when so many turns have been merged in picoseconds, whose they were), where each pushes and pulls as many bytes.

    As `gradwire.training.served.asynchronous.Asynchronous` has it without a bound on staleness, learning left out.
    """
    free, clock = [0, 0], 0
    order: list[int] = []
    events = [(pace.computing(worker), worker, worker, False) for worker in range(workers)]
    heapq.heapify(events)
    planned = workers
    while len(order) < turns:
        clock, _, worker, arrived = heapq.heappop(events)
        way = int(arrived)
        when, free[way] = pace.moved(pulled if arrived else pushed, clock, free[way])
        if arrived:
            order.append(worker)
            when += pace.computing(worker)
        heapq.heappush(events, (when, planned, worker, not arrived))
        planned += 1
    return clock, order
