"""Declares the exchange `halving_doubling`, Rabenseifner's all-reduce by recursive halving and doubling, and schedules
its transfers. MPI libraries use it for long messages.

Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005. Let N be a power
of two. In step k of the reduce-scatter, every worker exchanges half of the elements that it still has to reduce with
the worker at distance N / 2^(k+1): each sends the half that the other one keeps. After log2 N steps a worker has one
finished N-th. The all-gather is the same walk in reverse: every step doubles the elements.

Every worker sends 2(N - 1)/N S. On an idle network, where a message of m bytes takes a + m b, a bucket takes
2 log2(N) a + 2(N - 1)/N S b.

If N is not a power of two, let M be the largest power of two below it. Of the first 2(N - M) workers, each even one
first sends its whole bucket to its odd successor and receives the sum from it at the end; the M others do the rest.
That takes 2(a + S b) more, and up to S b on top, since workers without such a predecessor begin at once and share the
links of the first transfers.

Hosts with several NICs run one such walk per NIC, each with a share of the bucket on its own rail.
"""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.lazily import np
from gradwire.workload.collectives.common.staged_table import StagedTable
from gradwire.workload.collectives.common.transfer_schedule import TransferRows, Transfers, halving, transfers


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
        steps = workers.bit_length() - 1
        power = 1 << steps
        extra = workers - power
        idle, busy = 2 * np.arange(extra), 2 * np.arange(extra) + 1
        rows = [*halving(np.concatenate((busy, np.arange(2 * extra, workers))), stage=1)]
        if extra:
            rows.insert(0, TransferRows(0, idle, busy, 0, power, True))
            rows.append(TransferRows(2 * steps + 1, busy, idle, 0, power, False))
        return transfers(rows, power, rails)
