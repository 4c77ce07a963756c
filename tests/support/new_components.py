"""Components that gradwire does not have, one file each, as somebody would write them: `FILES`, by what is chosen, has the
name of the file and its text."""

TRANSPORT = '''
"""Half as fast."""

from __future__ import annotations

from typing import Literal

from gradwire.protocols.transports.constant_rate import ConstantRate
from gradwire.scenarios.schema.base import Count


class Halved(ConstantRate):
    """Sends at a share of the line rate that is halved some times."""

    kind: Literal["halved"]
    halvings: Count = 1
    """How many times."""

    @staticmethod
    def parameters(settings, context):
        return ConstantRate.parameters({**settings, "share": settings["share"] / 2 ** settings["halvings"]}, context)
'''
BALANCER = '''
"""Everything the first way."""

from gradwire.protocols.load_balancers.base import Balancer
from gradwire.jit.compiled import njit


@njit
def select(switch, next_hops, hop_count, header, body, draws, now):
    return 0


class FirstWay(Balancer):
    """Load balancer `first_way`."""

    kind = "first_way"
    select = staticmethod(select)
'''
TOPOLOGY = '''
"""Two switches with hosts, joined by switches in the middle."""

from __future__ import annotations

from typing import Literal

from gradwire.topology.cables import Cable, numbered
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.topology import TopologyTable


class Parallel(TopologyTable):
    """Hosts on `left` and on `right`, and m0, m1, ... between these two."""

    kind: Literal["parallel"]
    side: Count
    """Hosts on each side."""
    ways: Count = 2
    """Switches in the middle."""

    @property
    def host_count(self):
        return 2 * self.side

    @property
    def size(self):
        return 2 + self.ways, self.host_count + 2 * self.ways

    def network(self, link, overrides):
        from gradwire.topology import assemble

        hosts = self.host_count
        left, right = hosts, hosts + 1
        cables = [Cable(host, left if host < self.side else right, *link) for host in range(hosts)]
        cables += [Cable(end, hosts + 2 + way, *link) for way in range(self.ways) for end in (left, right)]
        names = ["left", "right", *numbered("m", self.ways)]
        order = range(hosts + len(names))
        return assemble(numbered("h", hosts), names, cables, title="parallel", order=order, overrides=overrides)
'''
TRAFFIC = '''
"""From the first host to the last one."""

from __future__ import annotations

from typing import Literal

from gradwire.workload.traffic.base import Flows, rounds
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.traffic import RepeatedTraffic


class EndToEnd(RepeatedTraffic):
    """The first host sends to the last one."""

    kind: Literal["end_to_end"]
    times: Count = 1
    """How many flows start at once."""

    def flows_of(self, setting):
        import numpy as np

        n = self.times
        for number, begin in rounds(setting, self):
            first, last = setting.hosts[0], setting.hosts[-1]
            yield Flows(
                np.full(n, first), np.full(n, last), np.full(n, self.size), np.full(n, begin), np.full(n, number),
                number * n + np.arange(n),
            )
'''
EXCHANGE = '''
"""Everybody sends everything to everybody."""

from __future__ import annotations

from typing import Literal

from gradwire.workload.csr import csr_lists
from gradwire.workload.collectives.common.base import (Exchange, ExchangedIteration, make_messages)
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.job.exchange import ExchangeTable


class Direct(ExchangeTable):
    """Every worker sends every gradient to every other worker, who waits for all of them."""

    kind: Literal["direct"]
    copies: Count = 1
    """How often every gradient is sent."""

    def misfits(self, job):
        yield from super().misfits(job)
        if job.workers < 2:
            yield Mistake("workers", "has nobody to send to", job.workers, "at least two workers")

    def longest(self, tensor, workers):
        return "copies", tensor

    def collective(self, context):
        return Sending(context, self.copies)


class Sending(Exchange):
    """What `Direct` does."""

    def __init__(self, context, copies):
        super().__init__(context)
        self.copies = copies

    @property
    def unit_bytes(self):
        return max(tensor.bytes for tensor in self.context.trace.tensors)

    @property
    def bytes_per_iteration(self):
        workers = len(self.context.workers)
        return workers * (workers - 1) * self.copies * sum(tensor.bytes for tensor in self.context.trace.tensors)

    def iteration(self, number, ready, last):
        import numpy as np

        from gradwire.workload.program import PacketImportance, Step

        context, (workers, tensors) = self.context, ready.shape
        nodes, infos = context.nodes, context.trace.tensors
        rows = [
            (w, v, t, copy)
            for w in range(workers) for v in range(workers) if v != w for t in range(tensors) for copy in range(self.copies)
        ]
        src, dst, tensor, copy = np.array(sorted(rows, key=lambda row: ready[row[0], row[2]])).T
        n = len(src)
        leave = n + np.arange(workers * tensors)
        gate = n + workers * tensors + np.arange(workers)
        count = n + workers * tensors + workers
        needs = np.ones(count, dtype=np.int64)
        needs[gate] = n // workers
        host = np.concatenate((nodes[dst], np.repeat(nodes, tensors), nodes))
        gates = np.full((workers, len(context.trace.layers) + 1), -1, dtype=np.int64)
        gates[:, -1] = gate
        layers = [(layer,) for layer in range(len(context.trace.layers))]
        layer = np.array([infos[t].layer for t in tensor])
        loss = context.bounds.of(number, np.zeros(n, dtype=np.bool_), src, layers, layer)
        sent = make_messages(
            context, np.full(n, "push"), PacketImportance((), np.full(n, PacketImportance.AS_SENT)), loss, iteration=number,
            tensor=tensor, layer=layer, part=copy, src=nodes[src], dst=nodes[dst],
            nbytes=np.array([infos[t].bytes for t in tensor]), priority=np.array(context.priorities)[tensor],
            rank=np.array([infos[t].layer for t in tensor]), first=0,
            captured=np.array([context.captured(w, number) for w in src]),
        )
        nothing = (np.zeros(n + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))
        step = Step(
            messages=sent, needs=needs, host=host, station=np.full(count, -1), effort=np.zeros(count, dtype=np.int64),
            after=csr_lists([(np.arange(n), gate[dst])], count),
            posts=csr_lists([(leave[src * tensors + tensor], np.arange(n))], count),
            contents=lambda: (nothing, np.ones(n, dtype=np.bool_)),
        )
        return ExchangedIteration(step, (np.arange(workers * tensors + 1), leave), gates)
'''
FILES = {
    "transport": ("halved", TRANSPORT),
    "load_balancing": ("first_way", BALANCER),
    "topology": ("parallel", TOPOLOGY),
    "traffic": ("end_to_end", TRAFFIC),
    "exchange": ("direct", EXCHANGE),
}
