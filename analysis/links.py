"""Computes the useful share of links, the data packets that contribute to a delivery over the data packets sent.

A packet that is retransmitted, sent beyond what a bounded message needed, or dropped downstream has used capacity on
every link before. Ports count packets but not by message, so the share is computed from messages and drops: the links
of one stage of a message's path carried as many data packets as its sender sent, less those dropped before the stage.
The stages are those that every message between two hosts crosses in any network: from the sending host, from its edge
switch, to the receiving host's edge switch, and to the receiving host. Parallel links of a stage (every spine's to one
leaf) are one bundle, as a Result does not record which of them a packet took.

    useful share = packets that messages were delivered with / data packets sent, per bundle

Probes count as packets. Messages still under way at the end of the run are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.analysis.metrics import DROPS
from gradwire.result_store.arrow import to_numpy
from gradwire.result_store.lazy_table import dictionary_encoded
from gradwire.result_store.result import Result
from gradwire.scenarios.arrays import AnyInts, Ints
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from gradwire.topology import Network

LINK_CAUSES = ("link_loss", "link_down")
"""Causes of drops on the link behind a port: the port did send the packet."""


def busy_shares(network: Network, result: Result) -> dict[str, float]:
    """Return the share of a run in which each port of a network sends; nothing for a run of no length."""
    ends = zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True)
    names = [f"{network.names[a]}->{network.names[b]}" for a, b in ends]
    rates = dict(zip(names, network.link_rate.tolist(), strict=True))
    span = int(result.summary.get("totals", {}).get("simulated_ps", 0))
    sent = zip(result.ports["port"].to_pylist(), result.ports["bytes"].to_pylist(), strict=True)
    return {port: 8e12 * size / rates[port] / span for port, size in sent if port in rates} if span > 0 else {}


def lost_packets(result: Result) -> dict[str, int]:
    """Return the packets that each port dropped, for any cause."""
    counts = [np.maximum(to_numpy(result.ports[cause]), 0) for cause in DROPS]
    return dict(zip(result.ports["port"].to_pylist(), np.sum(counts, axis=0).tolist(), strict=True))


class Bundle(NamedTuple):
    """The links of one stage that lead from or to one node.

    name : "*->leaf3" (from any other switch), "leaf0->*", "h0->leaf0" or "leaf3->h12".
    busiest : its port that sent most; bytes : sent by that port.
    sent, useful : data packets.
    upstream : true if links follow on the path: all bundles but those to hosts.
    """

    name: str
    busiest: str
    bytes: int
    sent: int
    useful: int
    upstream: bool

    @property
    def share(self) -> float:
        """Useful packets over packets sent; 1 if none was sent."""
        return self.useful / self.sent if self.sent else 1.0


def bundles(result: Result) -> list[Bundle]:
    """Return all bundles over which messages were delivered, the one with the busiest port first. Empty for an emulated
    run, where not all drops are known."""
    if result.summary.get("engine", {}).get("kind") == "emulation" or not result.stored_rows("messages").num_rows:
        return []
    ports = dict(zip(result.ports["port"].to_pylist(), result.ports["bytes"].to_pylist(), strict=True))
    delivered = Delivered.of(result)
    edge = {a: b for a, b in (port.split("->") for port in ports) if a in delivered.hosts}  # switch of every host
    lost, useful = _lost(result, delivered, edge), _useful(result, delivered)
    counts: dict[str, list[int]] = {}
    for pair, (src, dst) in enumerate(delivered.ends):
        if src not in edge or dst not in edge:
            continue
        for stage, name in _way(src, dst, edge):
            entry = counts.setdefault(name, [0, 0])
            entry[0] += int(delivered.sent[pair] - lost[pair, : stage + 1].sum())
            entry[1] += int(useful[pair])
    return sorted(
        (_bundle(name, sent, used, ports, edge) for name, (sent, used) in counts.items()),
        key=lambda bundle: (-bundle.bytes, bundle.name),
    )


@dataclass(frozen=True)
class Delivered:
    """Delivered messages by pairs of hosts.

    number : int64[messages], ascending. pair : int64[messages], index into `ends`.
    ends : (source, destination) of every pair. sent, packets : int64[pairs]: packets sent in all, and data packets
        needed.
    hosts : all that send or receive messages, delivered or not.
    """

    number: Ints
    pair: Ints
    ends: list[tuple[str, str]]
    sent: Ints
    packets: Ints
    hosts: set[str]

    @classmethod
    def of(cls, result: Result) -> Delivered:
        table = result.select("messages", "message", "src", "dst", "end_ps", "sent_packets", "packets")
        done = to_numpy(table["end_ps"]) >= 0
        (src, sources), (dst, destinations) = (dictionary_encoded(table[name]) for name in ("src", "dst"))
        number = to_numpy(table["message"])[done]
        both = src[done].astype(np.int64) * max(1, len(destinations)) + dst[done]
        codes, pair = np.unique(both, return_inverse=True)
        ends = [(sources[code // len(destinations)], destinations[code % len(destinations)]) for code in codes.tolist()]
        sent, packets = (_summed(pair, len(ends), to_numpy(table[name])[done]) for name in ("sent_packets", "packets"))
        order = np.argsort(number, kind="stable")
        hosts = {sources[code] for code in np.unique(src).tolist()}
        hosts |= {destinations[code] for code in np.unique(dst).tolist()}
        return cls(number[order], pair[order], ends, sent, packets, hosts)

    def pair_of(self, messages: Ints) -> Ints:
        """Return the pairs of messages; -1 for those that were not delivered."""
        if not len(self.number):
            return np.full(len(messages), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self.number, messages), len(self.number) - 1)
        return np.where(self.number[index] == messages, self.pair[index], -1)


def _summed(group: Ints, groups: int, values: AnyInts) -> Ints:
    sums = np.zeros(groups, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def busiest_upstream(result: Result) -> Bundle | None:
    """Return the bundle with the busiest port between switches, or else of those from hosts."""
    upstream = [bundle for bundle in bundles(result) if bundle.upstream]
    between = [bundle for bundle in upstream if "*" in bundle.name]
    return next(iter(between or upstream), None)


def _way(src: str, dst: str, edge: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield (stage, bundle) on the path from one host to another."""
    yield 0, f"{src}->{edge[src]}"
    if edge[src] != edge[dst]:
        yield 1, f"{edge[src]}->*"
        yield 2, f"*->{edge[dst]}"
    yield 3, f"{edge[dst]}->{dst}"


def _lost(result: Result, delivered: Delivered, edge: dict[str, str]) -> Ints:
    """Count data packets of delivered messages by pair and first stage that they never reached: int64[pairs, 4]. There
    may be millions of drops, so equal (pair, port, cause) are handled once."""
    lost = np.zeros((len(delivered.ends), 4), dtype=np.int64)
    for part in result.parts("drops", "message", "port", "cause", "packet"):
        (port, ports), (cause, causes) = dictionary_encoded(part["port"]), dictionary_encoded(part["cause"])
        pair = delivered.pair_of(to_numpy(part["message"]))
        keys = (pair * len(ports) + port) * len(causes) + cause
        keys = keys[(to_numpy(part["packet"]) >= 0) & (pair >= 0)]
        for key, count in zip(*(column.tolist() for column in np.unique(keys, return_counts=True)), strict=True):
            rest, cause_index = divmod(key, len(causes))
            pair_index, port_index = divmod(rest, len(ports))
            src, dst = delivered.ends[pair_index]
            stage = _stage(ports[port_index], src, dst, edge) + (causes[cause_index] in LINK_CAUSES)
            if stage < 4:
                lost[pair_index, stage] += count
    return lost


def _stage(port: str, src: str, dst: str, edge: dict[str, str]) -> int:
    """Return the stage of a port on a message's path; ports between stages count with the later one."""
    a, b = port.split("->")
    if a == src:
        return 0
    if b == dst:
        return 3
    return 1 if a == edge.get(src) else 2


def _useful(result: Result, delivered: Delivered) -> Ints:
    """Return the data packets that the messages of every pair were delivered with."""
    absent = np.zeros(len(delivered.ends), dtype=np.int64)
    has_table = False
    for part in result.parts("missing", "message", "packets"):
        has_table = True
        pair = delivered.pair_of(to_numpy(part["message"]))
        absent += _summed(pair[pair >= 0], len(absent), to_numpy(part["packets"])[pair >= 0])
    for part in () if has_table else result.parts("messages", "message", "bytes", "lost_bytes", "packets"):
        # `output.missing` is off: estimate packets from bytes
        pair = delivered.pair_of(to_numpy(part["message"]))
        size, lost = (to_numpy(part[name]).astype(float) for name in ("bytes", "lost_bytes"))
        packets = np.rint(lost / np.maximum(size, 1) * to_numpy(part["packets"])).astype(np.int64)
        absent += _summed(pair[pair >= 0], len(absent), packets[pair >= 0])
    return delivered.packets - absent


def _bundle(name: str, sent: int, used: int, ports: Json, edge: dict[str, str]) -> Bundle:
    a, b = name.split("->")
    hosts = edge.keys()
    members = [
        port
        for port in ports
        if (ends := port.split("->"))
        and (ends[0] == a or (a == "*" and ends[0] not in hosts))
        and (ends[1] == b or (b == "*" and ends[1] not in hosts))
    ]
    busiest = max(members, key=lambda port: (ports[port], port), default=name)
    return Bundle(name, busiest, int(ports.get(busiest, 0)), sent, used, b not in hosts)
