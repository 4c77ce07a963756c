"""Members and tensors of a job's exchange: everything known before the exchange is created.

NumPy is imported inside functions, so that this module can be imported beside tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.workload.scheduling import Scheduling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradwire.topology import HostCards
    from gradwire.traces.trace import TensorInfo, Trace
    from gradwire.workload.program import Ints


@dataclass(frozen=True, eq=False, kw_only=True)
class JobSetting:
    """The members of a job's exchange, and the tensors that they exchange.

    table : the scenario's [[job]] table.
    workers, servers : numbers of their hosts.
    cards : the hosts, and the nodes that are their NICs; a message goes from NIC to NIC.
    ready_order : tensors in the order in which their gradients become ready.
    scheduling : decisions of the job's scheduler.
    groups : int64[groups, members], numbers of workers: those that exchange with each other. None: all of them.
    tensors : whose gradients are exchanged. None: all.
    """

    table: Any
    trace: Trace
    workers: Sequence[int]
    servers: Sequence[int]
    cards: HostCards
    ready_order: Sequence[int]
    scheduling: Scheduling
    groups: Ints | None = None
    tensors: Sequence[int] | None = None

    @property
    def orders(self) -> list[list[int]]:
        """Tensors in bucket order: in the first iteration, and, if others follow, in later ones."""
        selected = frozenset(range(len(self.trace.tensors)) if self.tensors is None else self.tensors)
        orders = {"ready": self.ready_order, "model": range(len(self.trace.tensors) - 1, -1, -1)}
        return [[tensor for tensor in orders[fill] if tensor in selected] for fill in self.scheduling.fills]

    @property
    def exchanged(self) -> list[TensorInfo]:
        """The tensors whose gradients are exchanged."""
        all_ = self.trace.tensors
        return list(all_) if self.tensors is None else [all_[tensor] for tensor in self.tensors]

    @property
    def members(self) -> int:
        """Number of workers that exchange with each other."""
        return len(self.workers) if self.groups is None else int(self.groups.shape[1])

    @property
    def copies(self) -> int:
        """Number of groups of workers that exchange separately."""
        return 1 if self.groups is None else int(self.groups.shape[0])

    @property
    def rails(self) -> int:
        """NICs of the job's host that has the most; an exchange is divided into this many shares."""
        hosts = [*self.workers, *self.servers]
        return int(self.cards.network[hosts].max())

    @property
    def inside(self) -> int:
        """Number of consecutive workers of a group in one machine, if it is the same for all groups and machines; else
        1.

        1 if hosts have no accelerators.
        """
        import numpy as np

        if self.cards.machines is None:
            return 1
        machines = self.cards.machines[list(self.workers)]
        runs = {_run(row) for row in (machines[None] if self.groups is None else machines[np.asarray(self.groups)])}
        return runs.pop() if len(runs) == 1 else 1

    @property
    def nodes(self) -> Ints:
        """The nodes at which workers compute: their first NICs."""
        import numpy as np

        return np.array([self.cards.node(host, 0) for host in self.workers], dtype=np.int64)


def _run(machines: NDArray[Any]) -> int:
    """Return the length of the runs in one machine, if all runs are equally long and of different machines; else 1."""
    import numpy as np

    run = int(np.argmax(machines != machines[0])) or len(machines)
    if len(machines) % run:
        return 1
    blocks = machines.reshape(-1, run)
    regular = (blocks == blocks[:, :1]).all() and len(np.unique(blocks[:, 0])) == len(blocks)
    return run if regular else 1
