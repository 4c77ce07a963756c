"""Declares the exchange `all_gather`, in which each worker's N-th of a bucket reaches all others; `half_collectives`
schedules it.

It is the second half of an all-reduce. Sharded training (ZeRO, FSDP) uses it for parameters, which have the sizes of
gradients.

Every worker sends (N - 1)/N S. On an idle network, where a message of m bytes takes a + m b, a bucket takes
(N - 1)(a + S b / N) by a ring, a + (N - 1)/N S b by an all-to-all, and log2(N) a + (N - 1)/N S b by recursive doubling,
for N a power of two.
"""

from __future__ import annotations

from typing import Literal

from gradwire.workload.collectives.common.half_collectives import HalfTable


class AllGather(HalfTable):
    """Every worker sends its own N-th of a bucket to all others, as sharded training does with parameters."""

    kind: Literal["all_gather"]
    adds = False
