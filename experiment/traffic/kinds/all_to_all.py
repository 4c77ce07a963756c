"""All-to-all: what expert parallelism and matrix transposition send.

In order "at_once" all n (n - 1) flows start together. In "shifts", host i sends to i + 1, then to i + 2 and so on, a
flow starting when the one before to this host has been delivered: one flow out and one in per host, as long as all keep
pace.

Where hosts have several network cards, flows at once take turns by shift, so that every host sends and receives as much
by each card. In shifts, flows follow each other along a chain, and a chain stays on its card.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Literal

from gradwire.components.limits import MAX_FLOWS
from gradwire.experiment.room import most_laid
from gradwire.experiment.traffic.base import BATCH, Flows, Setting, in_batches, rounds
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.traffic import Repeated


class AllToAll(Repeated):
    """Every host sends a flow to every other one."""

    kind: Literal["all_to_all"]
    order: Literal["at_once", "shifts"] = "at_once"
    """All flows at once; or one after the other: each host sends to the next, when it has received to the next but one,
    and so on."""

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        yield from super().misfits(hosts)
        flows = hosts * (hosts - 1)
        if self.order == "at_once" and flows > MAX_FLOWS:
            yield Mistake(
                "order", f"starts {flows} flows at once", self.order,
                f'at most {MAX_FLOWS}: order = "shifts", or fewer hosts',
            )  # fmt: skip

        if self.order == "shifts" and flows > most_laid():
            most = (1 + isqrt(1 + 4 * most_laid())) // 2
            yield Mistake("hosts", f"makes {flows:,} flows, which are laid out at once", hosts, f"at most {most} hosts")

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        return in_batches(_at_once(setting, self)) if self.order == "at_once" else _in_shifts(setting, self)


def _at_once(setting: Setting, table: AllToAll) -> Iterator[Flows]:
    """Part by part, a few shifts in each."""
    n = len(setting.hosts)
    step = max(1, BATCH // n)
    for number, begin in rounds(setting, table):
        for first in range(1, n, step):
            yield _shifts(setting, table.size, number, begin, first, min(n, first + step))


def _in_shifts(setting: Setting, table: AllToAll) -> Iterator[Flows]:
    import numpy as np

    n = len(setting.hosts)
    for number, begin in rounds(setting, table):
        flows = _shifts(setting, table.size, number, begin, 1, n)
        shift, src = np.divmod(np.arange(n * (n - 2)), n)  # all flows but those of the last shift
        before = shift * n + src
        after = (shift + 1) * n + (src + shift + 1) % n  # sent by who receives `before`
        edges = np.stack((before, after), axis=1)
        yield Flows(flows.src, flows.dst, flows.nbytes, flows.start_ps, flows.round, flows.flow, edges)


def _shifts(setting: Setting, nbytes: int, number: int, begin: int, first: int, end: int) -> Flows:
    """The flows of shifts `first` to below `end`: host i to host i + shift."""
    import numpy as np

    hosts = setting.hosts
    n = len(hosts)
    shift, src = np.divmod(np.arange((end - first) * n), n)
    shift += first
    many = len(src)
    return Flows(
        hosts[src], hosts[(src + shift) % n], np.full(many, nbytes), np.full(many, begin),
        np.full(many, number), number * n * (n - 1) + (first - 1) * n + np.arange(many), rail=shift,
    )  # fmt: skip
