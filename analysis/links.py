"""Useful share: what of the data packets that cross a link brings its message anything.

A packet sent again, sent beyond what a bounded message needed, or dropped further on has taken its place on every link
before. Ports count packets, and not whose they are, so that is worked out from messages and drops: on the links of one
stage of a message's way it has sent as many data packets as its sender sent, less those of them that were dropped on
the way there. The stages are those that every message between two hosts crosses, whatever the network between: from the
sending host, from its edge switch, to the receiving host's edge switch, and to the receiving host. Parallel links of a
stage (every spine's to one leaf) are one bundle: which of them a packet took is not in a Result.

    useful share = packets that messages delivered with / data packets sent, per bundle

Probes count as packets. Messages that were under way when the run ended are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.scenarios.arrays import AnyInts, Ints
from gradwire.scenarios.arrow import numpy_of
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.kept import numbered
from gradwire.scenarios.result import Result

BEYOND = ("link_loss", "link_down")
"""Causes of drops on the link behind a port: the packet was sent on it."""


class Bundle(NamedTuple):
    """The links of one stage that lead from or to one place.

    name : "*->leaf3" (to it, from whatever other switch), "leaf0->*", "h0->leaf0" or "leaf3->h12".
    busiest : the port of them that sent most; bytes : what that was, on the link.
    sent, useful : data packets.
    upstream : whether there are links behind it on the way: all but those to hosts.
    """

    name: str
    busiest: str
    bytes: int
    sent: int
    useful: int
    upstream: bool

    @property
    def share(self) -> float:
        """Useful packets over packets sent; 1 if nothing was sent."""
        return self.useful / self.sent if self.sent else 1.0


def bundles(result: Result) -> list[Bundle]:
    """All bundles over which messages were delivered, the one with the busiest port first. Empty for an emulated run,
    whose drops are not all known."""
    if result.summary.get("engine", {}).get("kind") == "emulation" or not result.kept("messages").num_rows:
        return []
    ports = dict(zip(result.ports["port"].to_pylist(), result.ports["bytes"].to_pylist(), strict=True))
    delivered = Delivered.of(result)
    edge = _edges(delivered, ports)
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
        key=lambda each: (-each.bytes, each.name),
    )


@dataclass(frozen=True)
class Delivered:
    """The messages that were delivered, by pairs of hosts.

    number : int64[messages], ascending. pair : int64[messages], index into `ends`.
    ends : (source, destination) of every pair. sent, packets : int64[pairs]: sent in all, and data that there was.
    hosts : that send or receive any messages, delivered or not.
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
        done = numpy_of(table["end_ps"]) >= 0
        (src, sources), (dst, destinations) = (numbered(table[name]) for name in ("src", "dst"))
        number = numpy_of(table["message"])[done]
        both = src[done].astype(np.int64) * max(1, len(destinations)) + dst[done]
        codes, pair = np.unique(both, return_inverse=True)
        ends = [
            (sources[code // len(destinations)], destinations[code % len(destinations)]) for code in codes.tolist()
        ]
        sent, packets = (_summed(pair, len(ends), numpy_of(table[name])[done]) for name in ("sent_packets", "packets"))
        order = np.argsort(number, kind="stable")
        hosts = {sources[code] for code in np.unique(src).tolist()}
        hosts |= {destinations[code] for code in np.unique(dst).tolist()}
        return cls(number[order], pair[order], ends, sent, packets, hosts)

    def pair_of(self, messages: Ints) -> Ints:
        """The pairs of messages; -1 of those that were not delivered."""
        if not len(self.number):
            return np.full(len(messages), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.number, messages), len(self.number) - 1)
        return np.where(self.number[place] == messages, self.pair[place], -1)


def _summed(group: Ints, groups: int, values: AnyInts) -> Ints:
    """The sums of values by group."""
    found = np.zeros(groups, dtype=np.int64)
    np.add.at(found, group, values)
    return found


def busiest_upstream(result: Result) -> Bundle | None:
    """The bundle with the busiest port of those between switches; without such, of those from hosts."""
    found = [each for each in bundles(result) if each.upstream]
    between = [each for each in found if "*" in each.name]
    return next(iter(between or found), None)


def _edges(delivered: Delivered, ports: Json) -> dict[str, str]:
    """The edge switch of every host that sends or receives messages."""
    ends = (port.split("->") for port in ports)
    return {a: b for a, b in ends if a in delivered.hosts}


def _way(src: str, dst: str, edge: dict[str, str]) -> Iterator[tuple[int, str]]:
    """(stage, bundle) from one host to another."""
    yield 0, f"{src}->{edge[src]}"
    if edge[src] != edge[dst]:
        yield 1, f"{edge[src]}->*"
        yield 2, f"*->{edge[dst]}"
    yield 3, f"{edge[dst]}->{dst}"


def _lost(result: Result, delivered: Delivered, edge: dict[str, str]) -> Ints:
    """Of every pair, data packets of delivered messages that never were sent in a stage, by the first such stage:
    int64[pairs, 4]. There may be millions: what is the same of a pair, a port and a cause is looked at once."""
    found = np.zeros((len(delivered.ends), 4), dtype=np.int64)
    for part in result.parts("drops", "message", "port", "cause", "packet"):
        (port, ports), (cause, causes) = numbered(part["port"]), numbered(part["cause"])
        pair = delivered.pair_of(numpy_of(part["message"]))
        keys = (pair * len(ports) + port) * len(causes) + cause
        keys = keys[(numpy_of(part["packet"]) >= 0) & (pair >= 0)]
        for key, count in zip(*(each.tolist() for each in np.unique(keys, return_counts=True)), strict=True):
            where, place, why = key // len(causes) // len(ports), key // len(causes) % len(ports), key % len(causes)
            src, dst = delivered.ends[where]
            stage = _stage(ports[place], src, dst, edge) + (causes[why] in BEYOND)
            if stage < 4:
                found[where, stage] += count
    return found


def _stage(port: str, src: str, dst: str, edge: dict[str, str]) -> int:
    """The stage in which a port lies on a message's way; what is in between counts with the one behind it."""
    a, b = port.split("->")
    if a == src:
        return 0
    if b == dst:
        return 3
    return 1 if a == edge.get(src) else 2


def _useful(result: Result, delivered: Delivered) -> Ints:
    """Data packets that the messages of every pair were delivered with."""
    absent = np.zeros(len(delivered.ends), dtype=np.int64)
    noted = False
    for part in result.parts("missing", "message", "packets"):
        noted = True
        pair = delivered.pair_of(numpy_of(part["message"]))
        absent += _summed(pair[pair >= 0], len(absent), numpy_of(part["packets"])[pair >= 0])
    for part in () if noted else result.parts("messages", "message", "bytes", "lost_bytes", "packets"):
        # `output.missing` is off: by bytes, to the packet
        pair = delivered.pair_of(numpy_of(part["message"]))
        size, lost = (numpy_of(part[name]).astype(float) for name in ("bytes", "lost_bytes"))
        packets = np.rint(lost / np.maximum(size, 1) * numpy_of(part["packets"])).astype(np.int64)
        absent += _summed(pair[pair >= 0], len(absent), packets[pair >= 0])
    return delivered.packets - absent


def _bundle(name: str, sent: int, used: int, ports: Json, edge: dict[str, str]) -> Bundle:
    a, b = name.split("->")
    hosts = edge.keys()
    those = [
        port for port in ports
        if (ends := port.split("->")) and (ends[0] == a or (a == "*" and ends[0] not in hosts))
        and (ends[1] == b or (b == "*" and ends[1] not in hosts))
    ]  # fmt: skip
    busiest = max(those, key=lambda port: (ports[port], port), default=name)
    return Bundle(name, busiest, int(ports.get(busiest, 0)), sent, used, b not in hosts)
