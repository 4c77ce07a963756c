"""Pace: how long workers of an asynchronous server compute, and how long what they push and pull is under way."""

from __future__ import annotations

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
