"""Declares the traffic `storage`, and generates flows of hosts that read or write striped files on storage hosts.

Training jobs do this beside their gradients: workers read samples of a dataset all the time, and write checkpoints from
time to time. A file is cut into stripes on consecutive storage hosts, as in parallel file systems (Lustre, BeeGFS
[recalled]). A client opens a file in every round, starting at a random storage host, and goes through its stripes in
order; each is one operation of two flows:

    read     a request to the host of the stripe, and then the stripe to the client
    write    the stripe to that host, and then an answer to the client

`window` operations of a client are in flight at once; operation k begins when the client has received the end of
operation k - window. So the network and the hosts' links set the pace; disks, caches and file servers take no time (our
choice), and rounds do not wait for each other.

On an idle network, where a message of m bytes takes a + m b, a file of S bytes in K stripes with a window of 1 takes
2 K a + (S + K r) b, for requests or answers of r bytes; a wide window leaves S b and one round trip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from gradwire.jit.limits import MAX_FLOWS
from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.scenarios.schema.base import Count
from gradwire.scenarios.schema.network.traffic import NamedHosts, RepeatedTraffic, Side
from gradwire.scenarios.units import Bytes, Ps, Size, Time, format_size, format_time
from gradwire.workload.traffic.base import BATCH_FLOWS, Flows, TrafficSetting, rounds


class Storage(RepeatedTraffic):
    """Every host reads a file from storage hosts, or writes one to them, stripe by stripe, in every round."""

    kind: Literal["storage"]
    operation: Literal["read", "write"]
    """Files are read from the storage hosts (samples of a dataset) or written to them (checkpoints)."""
    hosts: Side = "all"
    """Hosts that read or write: a list of names and ranges such as "h8..h15", or all hosts but those of `storage`."""
    storage: NamedHosts
    """Hosts with the files; different from those that read or write."""
    size: Size
    """Bytes that every host reads or writes in a round."""
    stripe: Size = Bytes(2**20)
    """Consecutive bytes of a file on one storage host; the next ones are on the next host. The last stripe may be
    shorter."""
    window: Count = 8
    """Operations of a host in flight."""
    request: Size = Bytes(256)
    """Bytes of a read request, or of the answer to a write."""
    spread: Time = Ps(0)
    """Hosts begin at a random time within this from the start of a round; all at once if 0."""

    @property
    def named_hosts(self) -> Mapping[str, tuple[str, ...]]:
        return {"storage": self.storage}

    @property
    def stripes(self) -> int:
        """Number of stripes of a file."""
        return -(-self.size // self.stripe)

    def misfits(self, hosts: int) -> Iterator[Mistake]:
        clients = hosts - len(self.storage) if self.hosts == "all" else hosts
        both = sorted(set(self.storage).intersection(() if self.hosts == "all" else self.hosts))
        if clients < 1:
            yield Mistake("storage", f"leaves none of {hosts} hosts to {self.operation}", len(self.storage), "fewer")
        if both:
            what = f"also names hosts of `hosts`, which would {self.operation} locally"
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
        return max(stripe, ("request", self.request), key=lambda item: item[1])

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        """Yield batches of whole files, in the order in which they are opened."""
        servers = np.array([setting.index[name] for name in self.storage], dtype=np.int64)
        clients = setting.hosts[~np.isin(setting.hosts, servers)]
        n, step = len(clients), max(1, BATCH_FLOWS // (2 * self.stripes))
        for number, begin in rounds(setting, self):
            late = setting.rng.integers(0, self.spread + 1, n)
            first = setting.rng.integers(0, len(servers), n)
            order = np.argsort(late, kind="stable")
            order = order[[not setting.is_over(begin + delay) for delay in late[order].tolist()]]
            for start in range(0, len(order), step):
                batch = order[start : start + step]
                opened = begin + late[batch], clients[batch], first[batch], number * n + batch
                yield self._files(number, *opened, servers)

    def _files(self, number: int, begin: Ints, clients: Ints, first: Ints, file: Ints, servers: Ints) -> Flows:
        """Return files of several clients, opened at `begin`, each with its first stripe on server `first`.

        `file`: numbers of the files among all. The flows of a file are consecutive: both of its first stripe, of its
        second, and so on.
        """
        k = np.arange(self.stripes)
        stripes = np.minimum(self.stripe, self.size - k * self.stripe)
        nbytes = np.full((self.stripes, 2), self.request)
        nbytes[:, 1 if self.operation == "read" else 0] = stripes
        client = np.repeat(clients, self.stripes)
        server = servers[(first[:, None] + k) % len(servers)].reshape(-1)
        count = len(clients)
        total = 2 * self.stripes
        position = np.arange(count)[:, None] * total + 2 * k  # of the first flow of every operation
        inside = np.stack((position, position + 1), axis=-1).reshape(-1, 2)
        turns = np.stack((position[:, : -self.window] + 1, position[:, self.window :]), axis=-1).reshape(-1, 2)
        return Flows(
            np.stack((client, server), axis=1).reshape(-1),
            np.stack((server, client), axis=1).reshape(-1),
            np.tile(nbytes.reshape(-1), count),
            np.repeat(begin, total),
            np.full(count * total, number),
            (file[:, None] * total + np.arange(total)).reshape(-1),
            np.concatenate((inside, turns)),
            rail=np.tile(np.repeat(k % self.window, 2), count),
        )
