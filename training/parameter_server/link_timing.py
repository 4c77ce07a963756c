"""Timing of an asynchronous server's workers and links, where no network is simulated."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_PS = 10**12


@dataclass(frozen=True)
class LinkTiming:
    """Compute times and link rates where no network is simulated.

    compute_ps : a turn's compute time by worker, repeated cyclically.
    rate : bits per second of each worker's link, in both directions; 0: transfers take no time.
    server_rate : of the server's link, which carries pushes and pulls one after the other, in the order in which they
        begin; 0: no sharing.
    """

    compute_ps: tuple[int, ...] = (0,)
    rate: int = 0
    server_rate: int = 0

    def computing(self, worker: int) -> int:
        """Return the compute time of a worker, in picoseconds."""
        return self.compute_ps[worker % len(self.compute_ps)]

    def moved(self, nbytes: int, now: int, free: int) -> tuple[int, int]:
        """Return (end of the transfer, time when the server's link is free), in picoseconds, rounded up. A transfer
        begins now, or when the server's link is free, and takes the time of the slower link."""
        worker_ps, server_ps = (
            -(-8 * nbytes * SECOND_PS // rate) if rate else 0 for rate in (self.rate, self.server_rate)
        )
        begin = max(now, free) if self.server_rate else now
        return begin + max(worker_ps, server_ps), begin + server_ps
