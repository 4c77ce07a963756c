"""Declares the traffic `all_to_all`, as in expert parallelism and matrix transposition, and generates its flows between
all hosts.

In order "at_once" all n (n - 1) flows start together. In "shifts", host i sends to i + 1, then to i + 2 and so on; a
flow starts when the previous flow to this host has been delivered: one flow out and one in per host, if all keep pace.

If hosts have several NICs, flows at once use them in turn by shift, so that every host sends and receives equally on
each. In shifts, flows follow each other along a chain, and a chain stays on its NIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt
from typing import Literal

from gradwire.jit.limits import MAX_FLOWS
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.network.traffic import RepeatedTraffic
from gradwire.workload.limits import max_loaded_messages
from gradwire.workload.traffic.base import BATCH_FLOWS, Flows, TrafficSetting, in_batches, rounds, simultaneous


class AllToAll(RepeatedTraffic):
    """Every host sends a flow to every other one."""

    kind: Literal["all_to_all"]
    order: Literal["at_once", "shifts"] = "at_once"
    """All flows at once; or in shifts: each host sends to the next one, then, when it has received a flow, to the next
    but one, and so on."""

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        yield from super().misfits(hosts)
        flows = hosts * (hosts - 1)
        if self.order == "at_once" and flows > MAX_FLOWS:
            expected = f'at most {MAX_FLOWS}: order = "shifts", or fewer hosts'
            yield Mistake("order", f"starts {flows} flows at once", self.order, expected)
        if self.order == "shifts" and flows > max_loaded_messages():
            most = (1 + isqrt(1 + 4 * max_loaded_messages())) // 2
            yield Mistake("hosts", f"creates {flows:,} flows that are loaded at once", hosts, f"at most {most} hosts")

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        return in_batches(_at_once(setting, self)) if self.order == "at_once" else _in_shifts(setting, self)


def _at_once(setting: TrafficSetting, table: AllToAll) -> Iterator[Flows]:
    """Yield a few shifts at a time."""
    n = len(setting.hosts)
    step = max(1, BATCH_FLOWS // n)
    for number, begin in rounds(setting, table):
        for first in range(1, n, step):
            yield _shifts(setting, table.size, number, begin, first, min(n, first + step))


def _in_shifts(setting: TrafficSetting, table: AllToAll) -> Iterator[Flows]:
    n = len(setting.hosts)
    for number, begin in rounds(setting, table):
        flows = _shifts(setting, table.size, number, begin, 1, n)
        shift, src = np.divmod(np.arange(n * (n - 2)), n)  # all flows but those of the last shift
        before = shift * n + src
        after = (shift + 1) * n + (src + shift + 1) % n  # sent by the receiver of `before`
        edges = np.stack((before, after), axis=1)
        yield replace(flows, edges=edges, rail=None)


def _shifts(setting: TrafficSetting, nbytes: int, number: int, begin: int, first: int, end: int) -> Flows:
    """Return the flows of shifts `first` to below `end`: host i to host i + shift."""
    hosts = setting.hosts
    n = len(hosts)
    shift, src = np.divmod(np.arange((end - first) * n), n)
    shift += first
    flow = number * n * (n - 1) + (first - 1) * n + np.arange(len(src))
    return simultaneous(hosts[src], hosts[(src + shift) % n], nbytes, begin, number, flow, rail=shift)
