"""Times of a collective by algorithm and protocol: NCCL's latencies, the scale-up links, and the wire.

    time = launch + base + steps inside hosts + steps between hosts + fill + max(time inside, time on the wire)

Base and step latencies, bandwidth limits per channel and the share of data in a protocol are NCCL's (`nccl_tuning`).
The wire is simulated or ideal; `Constants` are fitted. `choose` takes the algorithm and protocol with the smallest time
by NCCL's own prediction, which knows no congestion, and takes the bandwidth inside a host for that between two hosts.

Differences of our times from NCCL's prediction (ours): the bandwidth between hosts is that of the wire, also with two
hosts; the fill of a tree's pipeline is a time of its own rather than part of a latency; an alltoall has a time for
each peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.studies.busbw import nccl_tuning as tuning
from gradwire.studies.busbw.machine import Constants, HostSpec, Wire
from gradwire.studies.busbw.nccl_tuning import LL, LL128, NVLS, NVLS_TREE, PEERS, RING, SIMPLE, TREE
from gradwire.studies.busbw.traffic_patterns import pattern_of

REFERENCE_LATENCY_US = 2.0
"""One-way time of a packet that NCCL's network latencies contain (our choice: two switches and their cables)."""
PEER_CHUNK_BYTES = 65536
"""Message of an alltoall from which on a peer takes twice the time of a short one (our choice)."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Times of every size by one algorithm and protocol, float64[sizes], in microseconds.

    time_us : ours. nccl_us : NCCL's own prediction, by which it chooses.
    """

    algorithm: str
    protocol: int
    time_us: Floats
    nccl_us: Floats

    @property
    def name(self) -> str:
        """Algorithm and protocol, as "ring/Simple"."""
        return f"{self.algorithm}/{tuning.PROTOCOLS[self.protocol]}"


class TimeModel:
    """The collectives of `hosts` equal hosts."""

    def __init__(self, host: HostSpec, hosts: int, constants: Constants, wire: Wire) -> None:
        self.host, self.hosts, self.constants, self.wire = host, hosts, constants, wire
        self.ranks = host.gpus * hosts
        self.nics = max(1, host.nics)
        self.column = min(hosts, 3) - 1  # of constants for 1, 2 and more hosts
        self.nvlink = host.nvlink_gbytes * constants.nvlink_efficiency if host.gpus > 1 else np.inf
        network = self.nics * host.nic_gbytes
        inside = host.nvlink_gbytes if host.gpus > 1 else network
        self.nccl_limit = inside if hosts <= 2 else min(inside, network)

    def estimates(self, collective: str, sizes: Sequence[int] | Floats) -> list[Estimate]:
        """Return the estimates of all algorithms and protocols that NCCL has for a collective."""
        size = np.asarray(sizes, dtype=float)
        kinds = {"all_reduce": self._all_reduce, "alltoall": self._alltoall, "sendrecv": self._send_receive}
        return list(kinds.get(collective, lambda size: self._rings(collective, size))(size))

    def _all_reduce(self, size: Floats) -> Iterator[Estimate]:
        yield from self._rings("all_reduce", size)
        for protocol in self._protocols():
            yield self._tree(size, protocol)
        if self.host.nvls and self.host.gpus > 1 and self.host.generation in tuning.NVLS_EFFICIENCY:
            yield self._nvls(size)

    def _rings(self, collective: str, size: Floats) -> Iterator[Estimate]:
        """Rings through all ranks; broadcast and reduce are chains, through which chunks follow each other."""
        is_chain = collective in ("broadcast", "reduce")
        rounds = 2 if collective == "all_reduce" else 1
        steps, outer = rounds * (self.ranks - 1), rounds * (self.hosts - 1)
        crossing = 1.0 if is_chain else rounds * (self.ranks - 1) / self.ranks  # of every link of a ring, per byte
        for protocol in self._protocols():
            inside = max(self._step_inside(RING, protocol), self._overhead(protocol))
            latency = (steps - outer) * inside + outer * self._step_between(RING, protocol)
            base = tuning.BASE_LATENCY[RING][protocol]
            nbytes = size * crossing / tuning.PROTOCOL_SHARE[protocol] / self.nics
            wire = self._on_wire("chain" if is_chain else "ring", nbytes)
            inner = size * crossing / (1000 * self._ring_limit(self.nvlink, protocol))
            time = base + latency + self.constants.launch_us + np.maximum(inner, wire)
            nccl: Floats = base + latency + size * crossing / (1000 * self._ring_limit(self.nccl_limit, protocol))
            if protocol == SIMPLE and collective == "all_reduce" and self.hosts > 1:
                plateau = tuning.RING_PLATEAU_VOLTA if self.host.generation == "volta" else tuning.RING_PLATEAU
                nccl = nccl + np.where(size / (self.host.channel_count * self.ranks) >= 64, (plateau - 1) * latency, 0)
            yield Estimate(RING, protocol, time, nccl)

    def _ring_limit(self, gbytes: float, protocol: int) -> float:
        """Return the bus bandwidth of a ring over links of `gbytes` GB/s."""
        if protocol == LL:
            return min(gbytes * 0.5, self._ll_most())
        if protocol == LL128:
            return min(gbytes * 0.92, self.host.channel_count * tuning.RING_LL128_PER_CHANNEL[self.host.generation])
        return gbytes

    def _tree(self, size: Floats, protocol: int) -> Estimate:
        """A chain inside every host, two trees between them."""
        stages = self.host.gpus - 1 + int(log2(self.hosts))
        depth = (self.host.gpus - 1) * self._step_inside(TREE, protocol)
        depth += int(log2(self.hosts)) * self._step_between(TREE, protocol)
        base = tuning.BASE_LATENCY[TREE][protocol] + 2 * depth
        limit = self._tree_limit(self.nvlink, protocol) * 0.5
        wire = self._on_wire("double_tree", size / 2 / tuning.PROTOCOL_SHARE[protocol] / self.nics)
        fill = self._fill(size, limit, stages) if protocol != LL else 0.0
        power = np.clip(np.floor(np.log2(np.maximum(size, 64) / 64)), 0, 23).astype(int)
        corrected = np.array(tuning.TREE_CORRECTION[protocol])[power]
        time = base + self.constants.launch_us + fill + np.maximum(size / (1000 * limit), wire)
        nccl_limit = self._tree_limit(self.nccl_limit, protocol) * 0.5
        return Estimate(TREE, protocol, time, base + size / (1000 * nccl_limit * corrected))

    def _tree_limit(self, gbytes: float, protocol: int) -> float:
        """Return the bus bandwidth of a tree over links of `gbytes` GB/s."""
        generation, channels = self.host.generation, self.host.channel_count
        limit = min(gbytes * 0.92, channels * tuning.TREE_PER_CHANNEL[generation][self.column])
        if protocol == LL:
            return min(limit / 3.8, self._ll_most())
        if protocol == LL128:
            share = 7 / 9 if self.hosts == 1 else 120 / 128
            return min(limit * share, channels * tuning.TREE_LL128_PER_CHANNEL[generation][self.column])
        return limit

    def _nvls(self, size: Floats) -> Estimate:
        """Sums in the scale-up switch, and two trees between hosts."""
        generation, channels = self.host.generation, self.host.channel_count
        share = 2 * tuning.NVLS_EFFICIENCY[generation] * (channels - 1) / channels
        crossing = 2 * (self.ranks - 1) / self.ranks
        base = tuning.NVLINK_LATENCY[NVLS][SIMPLE]
        switch = self.host.nvlink_gbytes * self.constants.nvls_efficiency
        if self.hosts == 1:
            share *= self.host.gpus / (self.host.gpus + 1)  # what a GPU sends, beside its share of the sum
            limit = switch * share
            time = base + self.constants.launch_us + self._fill(size, limit / crossing, 1)
            nccl = base + size * crossing / (1000 * self.nccl_limit * share)
            return Estimate(NVLS, SIMPLE, time + size * crossing / (1000 * limit), nccl)
        most = channels * tuning.NVLS_TREE_PER_CHANNEL[generation][self.column]
        limit = min(switch * share, most)
        base += 2 * int(log2(self.hosts)) * self._step_between(NVLS_TREE, SIMPLE)
        wire = self._on_wire("double_tree", size / 2 / self.nics)
        fill = self._fill(size, limit / crossing, 1 + int(log2(self.hosts)))
        time = base + self.constants.launch_us + fill + np.maximum(size * crossing / (1000 * limit), wire)
        network = self.nics * self.host.nic_gbytes * (2 if self.hosts == 2 else 1)
        nccl_limit = min(self.host.nvlink_gbytes * share, most, network)
        return Estimate(NVLS_TREE, SIMPLE, time, base + size * crossing / (1000 * nccl_limit))

    def _alltoall(self, size: Floats) -> Iterator[Estimate]:
        """Every rank sends an equal part to each other one; messages to other hosts share the NICs."""
        gpus, others = self.host.gpus, self.ranks - self.host.gpus
        part = size / self.ranks
        for protocol in (LL, SIMPLE):
            share = tuning.PROTOCOL_SHARE[protocol]
            inside = part * (gpus - 1) / (1000 * self.nvlink * share)
            wire = self._on_wire("all_pairs", part * gpus * gpus / share / self.nics, peers=True)
            weight = 1 + np.minimum(1, part / PEER_CHUNK_BYTES) if protocol == SIMPLE else 1
            peers = self.constants.peer_us * weight * (others + (gpus - 1) * 0.25)
            yield self._peer_estimate(protocol, part, peers + np.maximum(inside, wire))

    def _send_receive(self, size: Floats) -> Iterator[Estimate]:
        """Every rank sends to the next; the last of a host to another host, by its own NICs."""
        nics = max(1.0, self.nics / self.host.gpus)
        for protocol in (LL, SIMPLE):
            share = tuning.PROTOCOL_SHARE[protocol]
            wire = self._on_wire("ring", size / share / nics)
            yield self._peer_estimate(protocol, size, np.maximum(size / (1000 * self.nvlink * share), wire))

    def _peer_estimate(self, protocol: int, message: Floats, time: Floats) -> Estimate:
        """Return the estimate of sends and receives; LL is for short messages."""
        step = self._step_between(RING, protocol) if self.hosts > 1 else self._step_inside(RING, protocol)
        time = time + tuning.BASE_LATENCY[PEERS][protocol] + self.constants.launch_us + step
        is_short = message <= tuning.P2P_LL_BYTES
        return Estimate(PEERS, protocol, time, np.where(is_short == (protocol == LL), time, np.inf))

    def _fill(self, size: Floats, gbytes: float, stages: int) -> Floats:
        """Return the time until the first chunk has passed the pipeline, up and down."""
        channels = self.host.channel_count
        chunk = np.minimum(tuning.CHUNK_BYTES, size / channels / 8)
        return self.constants.fill * 2 * stages * chunk * channels / (1000 * gbytes)

    def _protocols(self) -> tuple[int, ...]:
        """Return the protocols that NCCL allows. LL128 reaches other hosts from Hopper on: on older accelerators the
        path through a neighbour's NIC (PXN) excludes it."""
        if self.hosts > 1 and self.host.generation in ("volta", "ampere"):
            return (LL, SIMPLE)
        return (LL, LL128, SIMPLE)

    def _ll_most(self) -> float:
        if self.hosts == 1:
            return tuning.LL_MOST[self.host.generation][0]
        return tuning.LL_MOST["ampere" if self.host.cpu == "amd" else "volta"][self.column]

    def _overhead(self, protocol: int) -> float:
        """Return the least time of a step if operations are posted to the network."""
        if self.hosts == 1:
            return 0.0
        return tuning.NETWORK_OVERHEAD * (3 if protocol == SIMPLE else 1)

    def _step_inside(self, algorithm: str, protocol: int) -> float:
        table = tuning.NVLINK_LATENCY if self.host.nvlink_gbytes >= 100 else tuning.PCI_LATENCY
        return table[algorithm][protocol]

    def _step_between(self, algorithm: str, protocol: int) -> float:
        """Return the latency of a step between hosts; with one accelerator per host NCCL takes that of a tree."""
        table = tuning.NETWORK_LATENCY[TREE if algorithm == RING and self.host.gpus == 1 else algorithm]
        extra = self.constants.flush_us if protocol == SIMPLE else self.constants.step_us
        return max(0.5, table[protocol] + extra + self.wire.latency_us - REFERENCE_LATENCY_US)

    def _on_wire(self, pattern: str, nbytes: Floats, peers: bool = False) -> Floats:
        """Return the time on the wire of a pattern whose flows carry `nbytes` each."""
        if self.hosts == 1:
            return np.zeros_like(nbytes)
        efficiency = self.constants.p2p_efficiency if peers else self.constants.efficiency
        flows = pattern_of(pattern, self.hosts)
        by_host = nbytes * self.nics * flows.load / (1000 * self.constants.host_gbytes)
        return np.maximum(self.wire.busy_us(flows, nbytes) / efficiency, by_host)


def choose(estimates: Sequence[Estimate], tuner: bool = False) -> tuple[Floats, list[str]]:
    """Return the time of every size by the algorithm and protocol that NCCL chooses, and its name.

    tuner : True if a plugin takes the fastest instead.
    """
    times = np.stack([each.time_us for each in estimates])
    judged = np.stack([each.time_us if tuner and each.algorithm != PEERS else each.nccl_us for each in estimates])
    best = judged.argmin(axis=0)
    return times[best, np.arange(len(best))], [estimates[index].name for index in best.tolist()]
