"""`Network` holds numbered nodes and directed links in flat arrays; `assemble` checks nodes and cables, and builds it.

A `Network` is plain data, without routing or state. Generators and readers (`kinds/`) list nodes and cables and pass
them to `assemble`, which checks *everything*, reports all errors at once, and only then builds the arrays. So every
existing `Network` is connected, every host is on exactly one switch, and every rate is positive; later code does not
check that again.

A host with several network cards is several nodes, one per card, each on one switch; `Network.cards` groups them (see
`multi_nic_hosts.py`). Code that handles packets sees only cards and calls them hosts. If all hosts have equally many
cards, each rail (the cards of one number, which exchange messages) may be a separate connected network.

Hosts have node ids 0..H-1, so that testing for a host is one comparison and a host id is its row in every per-host
table. Cable *i* is the directed links 2i (a -> b) and 2i + 1 (b -> a), so that the reverse of link *l* is `l ^ 1`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gradwire.scenarios.arrays import Floats, Ints
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.lazily import np
from gradwire.topology.cables import MAX_LISTED, Cable, Override, override_cables, refuse_network
from gradwire.topology.multi_nic_hosts import HostCards, split_hosts

if TYPE_CHECKING:
    import networkx
    from numpy.typing import NDArray

HOST = "host"
SWITCH = "switch"

LARGEST_COST = 64
"""Largest cost of a cable in routing (our choice: the search keeps as many steps)."""

LONGEST_NAME, SHOWN_OF_NAME = 100, 20
"""Characters; our choice."""


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes and directed links.

    names : one per node; hosts first, then switches.
    host_count : nodes ``0 .. host_count - 1`` are hosts, or their cards if hosts have several network cards.
    link_src, link_dst : int32[links], node ids; links 2i and 2i + 1 are the two directions of cable i.
    link_rate : int64[links], bits per second.
    link_latency : int64[links], picoseconds.
    link_loss : float64[links], probability in [0, 1).
    link_cost : int32[links]; routing takes the paths with the smallest sum. None if every link costs 1.
    order : int32[nodes], all node ids, neighbours close together (pod by pod). Threads get contiguous pieces of it, so
        it affects only how much traffic crosses between threads.
    grouped : the cards of each host; None if every host has one card.
    node_hosts : int64[nodes of the file] if a topology file numbers its nodes: the host number of each in `cards`; -1
        for a switch.
    """

    names: tuple[str, ...]
    host_count: int
    link_src: NDArray[np.int32]
    link_dst: NDArray[np.int32]
    link_rate: Ints
    link_latency: Ints
    link_loss: Floats
    order: NDArray[np.int32]
    title: str = field(default="graph")
    link_cost: NDArray[np.int32] | None = None
    grouped: HostCards | None = None
    node_hosts: Ints | None = None

    @cached_property
    def cards(self) -> HostCards:
        """The hosts, by name and number, and their network cards."""
        return self.grouped or HostCards.with_one_card(self.names[: self.host_count])

    @property
    def node_count(self) -> int:
        return len(self.names)

    @property
    def switch_count(self) -> int:
        return len(self.names) - self.host_count

    @property
    def link_count(self) -> int:
        """Directed links: twice the number of cables."""
        return len(self.link_src)

    @property
    def kinds(self) -> list[str]:
        """ "host" or "switch" per node."""
        return [HOST] * self.host_count + [SWITCH] * self.switch_count

    @cached_property
    def index(self) -> dict[str, int]:
        """Node ids by name."""
        return {name: node for node, name in enumerate(self.names)}

    @cached_property
    def up_link(self) -> NDArray[np.int32]:
        """The directed link host -> switch of every host; its reverse is ``up_link ^ 1``."""
        up = np.full(self.host_count, -1, dtype=np.int32)
        links = np.flatnonzero(self.link_src < self.host_count)
        up[self.link_src[links]] = links
        return up

    @cached_property
    def edge_of(self) -> NDArray[np.int32]:
        """The edge switch (node id) of every host."""
        return self.link_dst[self.up_link]

    @cached_property
    def host_order(self) -> NDArray[np.int32]:
        """The hosts (numbers in `cards`) in locality order, by their first card: neighbours on a switch are
        adjacent."""
        position = np.empty(self.node_count, dtype=np.int64)
        position[self.order] = np.arange(self.node_count)
        return np.argsort(position[self.cards.first[:-1]]).astype(np.int32)

    def link_name(self, link: int) -> str:
        """Return the name of a directed link and of its egress port: "a->b"."""
        return f"{self.names[self.link_src[link]]}->{self.names[self.link_dst[link]]}"

    def to_networkx(self) -> networkx.Graph:
        """Return the network as a networkx graph, a MultiGraph if two nodes have several cables. Node attribute `kind`,
        and `host` of the cards of a host with several; edge attributes `rate` (bits/s), `latency` (ps), `loss`, and
        `cost` if it is not 1."""
        import networkx

        pairs = list(zip(self.link_src[::2].tolist(), self.link_dst[::2].tolist(), strict=True))
        parallel = len({frozenset(pair) for pair in pairs}) < len(pairs)
        graph = networkx.MultiGraph() if parallel else networkx.Graph()
        for name, kind in zip(self.names, self.kinds, strict=True):
            graph.add_node(name, kind=kind)
        for host, (card, count) in enumerate(zip(self.cards.first, self.cards.counts, strict=False)):
            for name in self.names[card : card + count] if count > 1 else ():
                graph.nodes[name]["host"] = self.cards.hosts[host]
        for cable, (a, b) in enumerate(pairs):
            costs = {} if self.link_cost is None else {"cost": int(self.link_cost[2 * cable])}
            graph.add_edge(
                self.names[a],
                self.names[b],
                rate=int(self.link_rate[2 * cable]),
                latency=int(self.link_latency[2 * cable]),
                loss=float(self.link_loss[2 * cable]),
                **costs,
            )
        return graph


def assemble(
    hosts: Sequence[str],
    switches: Sequence[str],
    cables: Sequence[Cable],
    *,
    title: str,
    where: str = "topology",
    order: Sequence[int] | None = None,
    overrides: Iterable[Override] = (),
    mistakes: Iterable[Mistake] = (),
    machines: Ints | None = None,
) -> Network:
    """Check the parts and build the Network.

    hosts, switches : node names; ids count through hosts, then switches.
    cables : between those ids. A host with several becomes several nodes, one per network card.
    order : locality order of all nodes, by default a breadth-first walk.
    overrides : properties of single cables.
    mistakes : errors that the caller found already, reported together with those found here.
    machines : if hosts are accelerators, the machine of each; the last cable of each is then its scale-up port, and the
        scale-up ports may be separate from the rest.

    Raises ScenarioError with all errors: duplicate names, host-host cables, hosts without links, loops, rates that are
    not positive, negative latencies, losses outside [0, 1), costs outside 1 to LARGEST_COST, parts that are not
    connected.
    """
    cables, unfit = override_cables((*hosts, *switches), len(hosts), cables, overrides)
    refuse_network([*mistakes, *unfit, *_check((*hosts, *switches), len(hosts), cables, where)])
    cards, grouped, cables, order = split_hosts(hosts, cables, order)
    if grouped is not None and machines is not None:
        for host, last in enumerate((grouped.first[1:] - 1).tolist()):
            cards[last] = f"{hosts[host]}.up"
        islands = _islands(len(cards) + len(switches), len(cards), cables)
        nics = np.delete(islands, grouped.first[1:] - 1)
        grouped = replace(grouped, machines=machines, islands=None if (nics == nics[0]).all() else islands)
    names = (*cards, *switches)
    if grouped is not None and machines is None:  # the checks of the hosts need not hold for their cards
        refuse_network([*_check_names(names, where), *_check_rails(names, grouped, cables, where)])
    if order is None:
        order = walk_order(len(names), len(cards), cables)
    ends = np.array([(cable.a, cable.b) for cable in cables], dtype=np.int32)
    rate, latency, loss, cost = zip(*(cable[2:] for cable in cables), strict=True)
    return Network(
        names=names,
        host_count=len(cards),
        link_src=ends.ravel(),
        link_dst=ends[:, ::-1].ravel(),
        link_rate=np.repeat(np.array(rate, dtype=np.int64), 2),
        link_latency=np.repeat(np.array(latency, dtype=np.int64), 2),
        link_loss=np.repeat(np.array(loss, dtype=np.float64), 2),
        order=np.array(order, dtype=np.int32),
        title=title,
        link_cost=None if set(cost) == {1} else np.repeat(np.array(cost, dtype=np.int32), 2),
        grouped=grouped,
    )


def name_list(names: Sequence[str]) -> str:
    """Return names for a message, cut after SHOWN of them."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def neighbours(node_count: int, cables: Sequence[Cable]) -> list[list[int]]:
    """Return adjacency lists, in the order of the cables."""
    near: list[list[int]] = [[] for _ in range(node_count)]
    for cable in cables:
        near[cable.a].append(cable.b)
        near[cable.b].append(cable.a)
    return near


def walk_order(node_count: int, host_count: int, cables: Sequence[Cable]) -> list[int]:
    """Return a locality order of an arbitrary network: switches breadth first, each after its hosts."""
    near = neighbours(node_count, cables)
    order: list[int] = []
    seen = [False] * node_count
    for root in (*(near[host][0] for host in range(host_count)), *range(host_count, node_count)):
        queue = [] if seen[root] else [root]
        seen[root] = True
        for switch in queue:
            order += [node for node in near[switch] if node < host_count]
            order.append(switch)
            for other in near[switch]:
                if other >= host_count and not seen[other]:
                    seen[other] = True
                    queue.append(other)
    return order


def _check(names: tuple[str, ...], host_count: int, cables: Sequence[Cable], where: str) -> list[Mistake]:
    mistakes: list[Mistake] = []
    if host_count < 1:
        mistakes.append(Mistake(where, "there is no host", expected="at least one"))
    if host_count == len(names):
        mistakes.append(Mistake(where, "there is no switch", expected="at least one"))
    mistakes += _check_names(names, where)
    links = [0] * len(names)
    for cable in cables:
        links[cable.a] += 1
        links[cable.b] += 1
        mistakes += _check_cable(names, host_count, cable, where)
    mistakes += [
        Mistake(f"{where}.{name}", "the host cannot be reached: it has no link", expected="one link")
        for name, count in zip(names[:host_count], links, strict=False)
        if count == 0
    ]
    mistakes += _check_connected(names, links, cables, where)
    return mistakes


def _check_names(names: tuple[str, ...], where: str) -> list[Mistake]:
    mistakes = [
        Mistake(where, "several nodes have the same name", name, "unique names")
        for name, count in Counter(names).items()
        if count > 1
    ]
    for name in dict.fromkeys(names):
        if not name.isprintable() or name != name.strip() or not name:
            mistakes.append(Mistake(where, "a node's name is not one line of text", name, 'such as "rack1/h0"'))
        elif len(name) > LONGEST_NAME:
            shown = f"{name[:SHOWN_OF_NAME]}... ({len(name)} characters)"
            mistakes.append(Mistake(where, "a node's name is too long", shown, f"at most {LONGEST_NAME} characters"))
        elif "->" in name:
            mistakes.append(Mistake(where, 'a node\'s name contains "->", as port names do', name, "another name"))
    return mistakes


def _check_cable(names: tuple[str, ...], host_count: int, cable: Cable, where: str) -> list[Mistake]:
    at = f"{where}.{names[cable.a]}-{names[cable.b]}"
    mistakes = []
    if cable.a == cable.b:
        mistakes.append(Mistake(at, "the link ends where it starts", expected="two different nodes"))
    elif cable.a < host_count and cable.b < host_count:
        mistakes.append(Mistake(at, "the link joins two hosts", expected="hosts on switches only"))
    if cable.rate <= 0:
        mistakes.append(Mistake(at, "rate is not positive", f"{cable.rate}bps", 'such as "100Gbps"'))
    if cable.latency < 0:
        mistakes.append(Mistake(at, "latency is negative", f"{cable.latency}ps", 'such as "1us"'))
    if not 0.0 <= cable.loss < 1.0:
        mistakes.append(Mistake(at, "loss is not a probability", cable.loss, "0 to below 1"))
    if not 1 <= cable.cost <= LARGEST_COST:
        mistakes.append(Mistake(at, "cost is out of range", cable.cost, f"1 to {LARGEST_COST}"))
    return mistakes


def _check_connected(names: tuple[str, ...], links: list[int], cables: Sequence[Cable], where: str) -> list[Mistake]:
    """Report linked nodes that the first linked node cannot reach, and switches without any link."""
    start = next((node for node, count in enumerate(links) if count), None)
    if start is None:
        return []
    near = neighbours(len(names), cables)
    seen = set(_reached(start, near))
    apart = [name for node, name in enumerate(names) if node not in seen]
    if not apart:
        return []
    what = f"the network is not connected: {names[start]} cannot reach {name_list(apart)}"
    return [Mistake(where, what, expected="a path between any two nodes")]


def _check_rails(names: tuple[str, ...], cards: HostCards, cables: Sequence[Cable], where: str) -> list[Mistake]:
    """Report nodes that cannot reach each other, unless every rail is connected. If all hosts have equally many cards,
    messages never leave their rail, so rails may be separate networks."""
    mistakes = _check_connected(names, [1] * len(names), cables, where)
    if not mistakes or len(set(cards.counts.tolist())) > 1:
        return mistakes
    near = neighbours(len(names), cables)
    for card in range(int(cards.first[1])):
        reached = set(_reached(card, near))
        if not reached.issuperset((cards.first[:-1] + card).tolist()):
            return mistakes
    return []


def _islands(node_count: int, host_count: int, cables: Sequence[Cable]) -> Ints:
    """Return a number for every host, equal for hosts that can reach each other."""
    near = neighbours(node_count, cables)
    island = np.full(node_count, -1, dtype=np.int64)
    for node in range(host_count):
        if island[node] < 0:
            island[_reached(node, near)] = node
    return island[:host_count]


def _reached(start: int, near: list[list[int]]) -> list[int]:
    seen = [False] * len(near)
    seen[start] = True
    queue = [start]
    for node in queue:
        for other in near[node]:
            if not seen[other]:
                seen[other] = True
                queue.append(other)
    return queue
