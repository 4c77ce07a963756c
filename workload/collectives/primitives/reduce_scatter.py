"""Declares the exchange `reduce_scatter`, after which every worker has an N-th of the sum; `half_collectives` schedules
it.

It is the first half of an all-reduce. Sharded training (ZeRO, FSDP) uses it for gradients, and Lee et al. use it, as an
all-to-all, for the gradients of convolutions (MLHPC '18 [code]).

Every worker sends (N - 1)/N S. On an idle network, where a message of m bytes takes a + m b, a bucket takes
(N - 1)(a + S b / N) by a ring, a + (N - 1)/N S b by an all-to-all, and log2(N) a + (N - 1)/N S b by halving, for N a
power of two.
"""

from __future__ import annotations

from typing import Literal

from gradwire.workload.collectives.common.half_collectives import HalfTable


class ReduceScatter(HalfTable):
    """Every worker gets the sum of an N-th of a bucket, as sharded training does with gradients."""

    kind: Literal["reduce_scatter"]
    adds = True
