"""Storage traffic: hosts that read from some others, or write to them, in parts, with so many operations under way.

What a training job does beside its gradients: workers read samples of a dataset all the time, and write checkpoints
from time to time. A file is cut into stripes that lie on the storage hosts in turn, as parallel file systems have them
(Lustre, BeeGFS [recalled]). A client opens a file in every round, on a storage host that is drawn for it, and goes
through its stripes in order; each is one operation of two flows:

    read     a request to the host that has the stripe, and then the stripe to the client
    write    the stripe to that host, and then an answer to the client

`window` operations of a client are under way at once; operation k begins when the client has got what ended operation
k - window. So its pace is that of the network and of the hosts' links; disks, caches and file servers take no time (our
choice), and rounds do not wait for each other.

On an idle network, where a message of m bytes takes a + m b, a file of S bytes in K stripes with a window of 1 takes
2 K a + (S + K r) b, for requests or answers of r bytes; a wide window leaves S b and one round trip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from gradwire.components.limits import MAX_FLOWS
from gradwire.experiment.traffic.base import BATCH, Flows, Setting, rounds
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.traffic import Named, Repeated, Side
from gradwire.scenarios.units import Bytes, Ps, Size, Time, format_size, format_time

if TYPE_CHECKING:
    from gradwire.experiment.program import Ints


class Storage(Repeated):
    """Every host reads a file from storage hosts, or writes one to them, stripe by stripe, in every round."""

    kind: Literal["storage"]
    operation: Literal["read", "write"]
    """Whether files go from the storage hosts to the others (samples of a dataset) or to them (checkpoints)."""
    hosts: Side = "all"
    """Who reads or writes: a list of names and ranges such as "h8..h15", or all hosts but those of `storage`."""
    storage: Named
    """Who has the files; none of those who read or write."""
    size: Size
    """Bytes that every host reads or writes in a round."""
    stripe: Size = Bytes(2**20)
    """Bytes of a file that lie together; the next ones are on the next storage host. The last stripe may be shorter."""
    window: Count = 8
    """Operations that a host has under way."""
    request: Size = Bytes(256)
    """Bytes of a request to read, or of the answer to what was written."""
    spread: Time = Ps(0)
    """Hosts begin at a random time within this from the start of a round; all at once without it."""

    @property
    def named(self) -> Mapping[str, tuple[str, ...]]:
        return {"storage": self.storage}

    @property
    def stripes(self) -> int:
        """Of a file."""
        return -(-self.size // self.stripe)

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        clients = hosts - len(self.storage) if self.hosts == "all" else hosts
        both = sorted(set(self.storage).intersection(() if self.hosts == "all" else self.hosts))
        if clients < 1:
            yield Mistake("storage", f"leaves nobody of {hosts} hosts to {self.operation}", len(self.storage), "fewer")
        if both:
            what = f"names who is one of hosts, too, and would {self.operation} at home"
            yield Mistake("storage", what, ", ".join(both[:8]), "other hosts than those of hosts")
        flows = clients * min(self.window, self.stripes)
        if flows > MAX_FLOWS:
            yield Mistake("window", f"starts {flows} flows at once", self.window, f"at most {MAX_FLOWS // clients}")
        if 2 * self.stripes > MAX_FLOWS:
            least = format_size(Bytes(-(-2 * self.size // MAX_FLOWS)))
            yield Mistake("stripe", f"cuts a file into {self.stripes}", format_size(self.stripe), f"at least {least}")
        if self.period is not None and self.spread > self.period:
            what = "lets a round begin after the next one"
            yield Mistake("spread", what, format_time(self.spread), f"at most period, {format_time(self.period)}")

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        stripe = ("size", self.size) if self.size < self.stripe else ("stripe", self.stripe)
        return max(stripe, ("request", self.request), key=lambda each: each[1])

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        """Batches of whole files, in the order in which they are opened."""
        import numpy as np

        servers = np.array([setting.index[name] for name in self.storage], dtype=np.int64)
        clients = setting.hosts[~np.isin(setting.hosts, servers)]
        n, step = len(clients), max(1, BATCH // (2 * self.stripes))
        for number, begin in rounds(setting, self):
            late = setting.rng.integers(0, self.spread + 1, n)
            first = setting.rng.integers(0, len(servers), n)
            order = np.argsort(late, kind="stable")
            order = order[[not setting.over(begin + each) for each in late[order].tolist()]]
            for place in range(0, len(order), step):
                mine = order[place : place + step]
                yield self._files(number, begin + late[mine], clients[mine], first[mine], number * n + mine, servers)

    def _files(self, number: int, begin: Ints, clients: Ints, first: Ints, file: Ints, servers: Ints) -> Flows:
        """Files of several clients, opened at `begin`, each with its `first` stripe on that server; `file`: numbers of
        them among all. The flows of a file follow each other: both of its first stripe, of its second, and so on."""
        import numpy as np

        k = np.arange(self.stripes)
        stripes = np.minimum(self.stripe, self.size - k * self.stripe)
        nbytes = np.full((self.stripes, 2), self.request)
        nbytes[:, 1 if self.operation == "read" else 0] = stripes
        client = np.repeat(clients, self.stripes)
        server = servers[(first[:, None] + k) % len(servers)].reshape(-1)
        many = len(clients)
        total = 2 * self.stripes
        place = np.arange(many)[:, None] * total + 2 * k  # of the first flow of every operation
        inside = np.stack((place, place + 1), axis=-1).reshape(-1, 2)
        turns = np.stack((place[:, : -self.window] + 1, place[:, self.window :]), axis=-1).reshape(-1, 2)
        return Flows(
            np.stack((client, server), axis=1).reshape(-1), np.stack((server, client), axis=1).reshape(-1),
            np.tile(nbytes.reshape(-1), many), np.repeat(begin, total), np.full(many * total, number),
            (file[:, None] * total + np.arange(total)).reshape(-1), np.concatenate((inside, turns)),
            rail=np.tile(np.repeat(k % self.window, 2), many),
        )  # fmt: skip
