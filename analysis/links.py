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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.scenarios.arrays import AnyArray
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.result import Result

if TYPE_CHECKING:
    import pyarrow

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
    if result.summary.get("engine", {}).get("kind") == "emulation" or not result.messages.num_rows:
        return []
    ports = dict(zip(result.ports["port"].to_pylist(), result.ports["bytes"].to_pylist(), strict=True))
    edge = _edges(result, ports)
    dropped, useful = _drops(result, edge), _useful(result)
    table = result.messages
    columns = (table[name].to_pylist() for name in ("message", "src", "dst", "sent_packets", "end_ps"))
    counts: dict[str, list[int]] = {}
    for number, src, dst, sent, end in zip(*columns, strict=True):
        if end < 0 or src not in edge or dst not in edge:
            continue
        lost = dropped.get(number, [0, 0, 0, 0])
        for stage, name in _way(src, dst, edge):
            entry = counts.setdefault(name, [0, 0])
            entry[0] += sent - sum(lost[: stage + 1])
            entry[1] += useful[number]
    return sorted(
        (_bundle(name, sent, used, ports, edge) for name, (sent, used) in counts.items()),
        key=lambda each: (-each.bytes, each.name),
    )


def busiest_upstream(result: Result) -> Bundle | None:
    """The bundle with the busiest port of those between switches; without such, of those from hosts."""
    found = [each for each in bundles(result) if each.upstream]
    between = [each for each in found if "*" in each.name]
    return next(iter(between or found), None)


def _edges(result: Result, ports: Json) -> dict[str, str]:
    """The edge switch of every host that sends or receives messages."""
    hosts = {*result.messages["src"].to_pylist(), *result.messages["dst"].to_pylist()}
    ends = (port.split("->") for port in ports)
    return {a: b for a, b in ends if a in hosts}


def _way(src: str, dst: str, edge: dict[str, str]) -> Iterator[tuple[int, str]]:
    """(stage, bundle) from one host to another."""
    yield 0, f"{src}->{edge[src]}"
    if edge[src] != edge[dst]:
        yield 1, f"{edge[src]}->*"
        yield 2, f"*->{edge[dst]}"
    yield 3, f"{edge[dst]}->{dst}"


def _drops(result: Result, edge: dict[str, str]) -> dict[int, list[int]]:
    """Per message, its data packets that never were sent in a stage, by the first such stage. There may be millions:
    what is the same of a message, a port and a cause is looked at once."""
    table = result.drops
    ends = {
        number: (src, dst)
        for number, src, dst in zip(
            *(result.messages[name].to_pylist() for name in ("message", "src", "dst")), strict=True
        )
    }
    port, ports = _numbered(table["port"])
    cause, causes = _numbered(table["cause"])
    data = table["packet"].to_numpy() >= 0
    keys = ((table["message"].to_numpy() * len(ports) + port) * len(causes) + cause)[data]
    found: dict[int, list[int]] = {}
    for key, count in zip(*(each.tolist() for each in np.unique(keys, return_counts=True)), strict=True):
        number, place, why = key // len(causes) // len(ports), key // len(causes) % len(ports), key % len(causes)
        if number in ends:
            stage = _stage(ports[place], *ends[number], edge) + (causes[why] in BEYOND)
            if stage < 4:
                found.setdefault(number, [0, 0, 0, 0])[stage] += count
    return found


def _numbered(column: pyarrow.ChunkedArray) -> tuple[AnyArray, list[str]]:
    """A column of texts as numbers, and the texts that they stand for."""
    encoded = column.combine_chunks().dictionary_encode()
    if not len(encoded):
        return np.zeros(0, dtype=np.int64), []
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def _stage(port: str, src: str, dst: str, edge: dict[str, str]) -> int:
    """The stage in which a port lies on a message's way; what is in between counts with the one behind it."""
    a, b = port.split("->")
    if a == src:
        return 0
    if b == dst:
        return 3
    return 1 if a == edge.get(src) else 2


def _useful(result: Result) -> dict[int, int]:
    """Data packets that every message was delivered with."""
    table = result.messages
    kept = dict(zip(table["message"].to_pylist(), table["packets"].to_pylist(), strict=True))
    missing = result.missing
    for number, packets in zip(missing["message"].to_pylist(), missing["packets"].to_pylist(), strict=True):
        kept[number] -= packets
    if not missing.num_rows:  # `output.missing` is off: by bytes, to the packet
        size, lost = (table[name].to_numpy().astype(float) for name in ("bytes", "lost_bytes"))
        absent: AnyArray = np.rint(lost / np.maximum(size, 1) * table["packets"].to_numpy()).astype(int)
        kept = {n: k - int(a) for (n, k), a in zip(kept.items(), absent, strict=True)}
    return kept


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
