"""Collects requested telemetry (queue samples, waiting times, packet log) from a fabric as Result tables.

Samples are taken between two runs of the engine, exactly at multiples of the period. A missing sample means that no
packet waited at a sampled port and that none had sent anything since the previous multiple. Waiting times and packets
are recorded by the engine itself if it was compiled to do so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.network import Port, PortExtra
from gradwire.jit.records.packets import (
    argument_of,
    has_echo,
    is_important,
    is_marked,
    is_trimmed,
    kind_of,
    priority_of,
    sequence_of,
    size_of,
)
from gradwire.result_store.arrow import CodedTexts
from gradwire.scenarios.arrays import Columns, Ints
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.wire import PACKET_KINDS
from gradwire.topology import Network

if TYPE_CHECKING:
    from gradwire.sim.engine.fabric import Fabric


def find_ports(names: Sequence[str] | None, network: Network) -> Ints:
    """Return the directed links of ports ("leaf0->h3") or of all ports of nodes; None: all ports of switches. Raises
    ScenarioError with every name that is neither."""
    if names is None:
        return np.flatnonzero(network.link_src >= network.host_count)
    by_name: dict[str, list[int]] = {}
    for link in range(network.link_count):  # parallel cables have one name
        by_name.setdefault(network.link_name(link), []).append(link)
    links: set[int] = set()
    mistakes = []
    for number, name in enumerate(names):
        if name in by_name:
            links.update(by_name[name])
        elif name in network.index:
            links.update(np.flatnonzero(network.link_src == network.index[name]).tolist())
        else:
            expected = (
                f"a node such as {network.names[-1]} or a port such as {network.link_name(network.link_count - 1)}"
            )
            mistakes.append(Mistake(f"output.sample_ports[{number}]", "is no port and no node", name, expected))
    if mistakes:
        raise ScenarioError("the ports to be sampled are not in the network", mistakes=mistakes)
    return np.array(sorted(links), dtype=np.int64)


class Samples:
    """Samples of bytes queued and bytes sent at some ports, taken at multiples of a period. A multiple is recorded if a
    packet waits at one of the ports or one of them has sent something since the multiple before. So samples depend on
    the packets alone, not on where the engine rested."""

    def __init__(self, fabric: Fabric, network: Network, links: Ints, period: Ps) -> None:
        self.network, self.links, self.period = network, links, period
        self._state = fabric.memory.state
        self._ports = fabric.memory.port_base[links]
        self._times: list[int] = []
        self._queues: list[Ints] = []
        self._sent: list[Ints] = []
        self._seen = np.zeros(len(links), dtype=np.int64)
        fabric.agenda.add(period, self._take, observer=True)

    def _take(self, now: Ps) -> Ps:
        """Sample at a multiple of the period; the multiples between two calls have nothing to show
        (`TimeAdvance._until_observed`)."""
        ports = view(Port, self._state, self._ports)
        if now % self.period == 0:
            queues, sent = (ports.queue >> 8, ports.bytes_sent)
            if queues.any() or (sent != self._seen).any():
                self._times.append(now)
                self._queues.append(queues)
                self._sent.append(sent)
            self._seen = sent
        return Ps((now // self.period + 1) * self.period)

    def columns(self) -> Columns:
        """Return the Result's table `samples`, by time and port."""
        if not self._times:
            return {}
        names = [self.network.link_name(link) for link in self.links.tolist()]
        return {
            "time_ps": np.repeat(np.array(self._times), len(names)),
            "port": names * len(self._times),
            "queue_bytes": np.concatenate(self._queues),
            "sent_bytes": np.concatenate(self._sent),
            "rate_bps": np.tile(self.network.link_rate[self.links], len(self._times)),
        }


def bin_edges() -> Ints:
    """Return the lower edges of the bins of waiting times in picoseconds: four per octave."""
    octaves = np.arange(at.DELAY_BINS - 1) // 4 + at.DELAY_FIRST
    quarters = np.arange(at.DELAY_BINS - 1) % 4
    return np.concatenate(([0], (4 + quarters) << (octaves - 2)))


def delay_columns(fabric: Fabric, network: Network) -> Columns:
    """Return the Result's table `delays`: packets by port and waiting time, without empty bins. Only control packets
    wait at a host's NIC."""
    state, ports = fabric.memory.state, fabric.memory.port_base
    bases = view(PortExtra, state, view(Port, state, ports).extra.base).delays.base
    counts = state[bases[:, None] + np.arange(at.DELAY_BINS)]
    links, bins = np.nonzero(counts)
    edges = np.append(bin_edges(), at.FOREVER)
    return {
        "port": [network.link_name(link) for link in links.tolist()],
        "from_ps": edges[bins],
        "to_ps": edges[bins + 1],
        "packets": counts[links, bins],
    }


def packet_columns(fabric: Fabric, network: Network) -> Columns:
    """Return the Result's table `packets`: every logged transmission, by time and link."""
    start, links, A, B, lost, message = fabric.packet_log().T
    kinds = kind_of(A)
    return {
        "start_ps": start,
        "port": CodedTexts([network.link_name(link) for link in range(network.link_count)], links),
        "message": message,
        "kind": CodedTexts(PACKET_KINDS, kinds),
        "packet": np.where(kinds == at.DATA, sequence_of(B), -1),
        "bytes": size_of(A),
        "priority": priority_of(A),
        "important": is_important(A).astype(bool),
        "marked": is_marked(A).astype(bool),
        "trimmed": is_trimmed(A).astype(bool),
        "echo": has_echo(A).astype(bool),
        "argument": argument_of(B),
        "lost": lost.astype(bool),
    }
