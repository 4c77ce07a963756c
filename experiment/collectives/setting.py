"""Who exchanges what in a job: what can be known of an exchange before anything of it is made.

NumPy is imported where it is used, so that this can be imported beside tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.experiment.scheduling import Scheduling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradwire.experiment.program import Ints
    from gradwire.experiment.topology import Cards
    from gradwire.traces.trace import TensorInfo, Trace


@dataclass(frozen=True, eq=False, kw_only=True)
class JobSetting:
    """Who exchanges what.

    Attributes
    ----------
    table : the scenario's [[job]] table.
    workers, servers : numbers of their hosts.
    cards : the hosts, and which nodes are their network cards; a message goes from card to card.
    ready_order : tensors in the order in which their gradients become ready.
    scheduling : what the job's scheduler decides.
    groups : int64[groups, members], numbers of workers: those that exchange with each other. None: all of them.
    tensors : whose gradients are exchanged. None: all.
    """

    table: Any
    trace: Trace
    workers: Sequence[int]
    servers: Sequence[int]
    cards: Cards
    ready_order: Sequence[int]
    scheduling: Scheduling
    groups: Ints | None = None
    tensors: Sequence[int] | None = None

    @property
    def orders(self) -> list[list[int]]:
        """Tensors in the order in which they go into buckets: in the first iteration, and where another follows, in
        later ones."""
        mine = frozenset(range(len(self.trace.tensors)) if self.tensors is None else self.tensors)
        orders = {"ready": self.ready_order, "model": range(len(self.trace.tensors) - 1, -1, -1)}
        return [[tensor for tensor in orders[fill] if tensor in mine] for fill in self.scheduling.fills]

    @property
    def exchanged(self) -> list[TensorInfo]:
        """The tensors whose gradients are exchanged."""
        all_ = self.trace.tensors
        return list(all_) if self.tensors is None else [all_[each] for each in self.tensors]

    @property
    def members(self) -> int:
        """How many workers exchange with each other."""
        return len(self.workers) if self.groups is None else int(self.groups.shape[1])

    @property
    def copies(self) -> int:
        """How many groups of workers exchange, each by itself."""
        return 1 if self.groups is None else int(self.groups.shape[0])

    @property
    def rails(self) -> int:
        """Network cards of the host of the job that has the most: into so many shares an exchange is divided."""
        hosts = [*self.workers, *self.servers]
        return int(self.cards.network[hosts].max())

    @property
    def inside(self) -> int:
        """How many workers of a group, one after the other, are in one machine each time, where all of them are; 1
        where hosts are no accelerators, or workers are placed otherwise."""
        import numpy as np

        if self.cards.machines is None:
            return 1
        machines = self.cards.machines[list(self.workers)]
        found = {
            _run(each)
            for each in (machines[None] if self.groups is None else machines[np.asarray(self.groups)])
        }
        return found.pop() if len(found) == 1 else 1

    @property
    def nodes(self) -> Ints:
        """The nodes at which workers compute: their first network cards."""
        import numpy as np

        return np.array([self.cards.node(host, 0) for host in self.workers], dtype=np.int64)


def _run(machines: NDArray[Any]) -> int:
    """How many in a row are in one machine, where all of them are so, and no machine has two such rows; else 1."""
    import numpy as np

    run = int(np.argmax(machines != machines[0])) or len(machines)
    if len(machines) % run:
        return 1
    blocks = machines.reshape(-1, run)
    alike = (blocks == blocks[:, :1]).all() and len(np.unique(blocks[:, 0])) == len(blocks)
    return run if alike else 1
