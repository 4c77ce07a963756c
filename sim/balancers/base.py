"""What every load balancer has beside its function."""

from __future__ import annotations

from typing import Any, ClassVar


class Balancer:
    """Derive from it and set what differs."""

    choose: ClassVar[Any]
    """The compiled function (see `sim.balancers`)."""
    sees_queues: ClassVar[bool] = False
    """It reads P_QUEUE or P_BUSY of the ports it chooses from: the engine then brings them up to `now` first."""
    table_words: ClassVar[int] = 0
    """Words it keeps at every switch, zero at first, from M[node + N_TABLE] on."""
