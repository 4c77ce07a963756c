"""Recursive halving and doubling (Rabenseifner's all-reduce, as MPI libraries do it for long messages).

Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005. With N a power
of two: in step k of the reduce-scatter every worker exchanges with the one at distance N / 2^(k+1) the half of what
it still has to reduce that is not its own; after log2 N steps it has one finished N-th. The all-gather is the same
walk back: in every step twice as much.

Every worker sends 2(N - 1)/N S. On an idle network, where a message of m bytes takes a + m b, a bucket takes
2 log2(N) a + 2(N - 1)/N S b.

Where N is no power of two, of the first 2(N - M) workers, M being the largest power of two below, each even one first
sends its whole bucket to the odd one behind it and gets the sum from there in the end; the M others do the rest. That
takes 2(a + S b) more, and up to S b besides, since the workers that have nobody to wait for begin at once and share the
lines of the first transfers.

Where hosts have several network cards, there are as many such walks side by side, each with a share of the bucket on a
rail of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gradwire.experiment.collectives.staged_table import StagedTable

if TYPE_CHECKING:
    from gradwire.experiment.collectives.schedule import Transfers


class HalvingDoubling(StagedTable):
    """All-reduce by recursive halving and doubling: 2 log2 N steps between workers at halving distances."""

    kind: Literal["halving_doubling"]

    def parts(self, workers: int) -> int:
        return 1 if workers & (workers - 1) else 2

    def sent(self, workers: int, rails: int, inside: int) -> int:
        steps = workers.bit_length() - 1
        power = 1 << steps
        return (2 * power * steps + 2 * (workers - power)) * rails

    def transfers(self, workers: int, rails: int) -> Transfers:
        import numpy as np

        from gradwire.experiment.collectives.schedule import Rows, transfers
        from gradwire.experiment.collectives.walks import halving

        steps = workers.bit_length() - 1
        power = 1 << steps
        extra = workers - power
        idle, busy = 2 * np.arange(extra), 2 * np.arange(extra) + 1
        rows = [*halving(np.concatenate((busy, np.arange(2 * extra, workers))), stage=1)]
        if extra:
            rows = [Rows(0, idle, busy, 0, power, True), *rows, Rows(2 * steps + 1, busy, idle, 0, power, False)]
        return transfers(rows, power, rails)
