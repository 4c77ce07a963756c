"""`Faults` checks a scenario's faults against the network, and schedules and applies them on a fabric.

Several faults may hit a directed link at once: it is down while any of them cuts it, and of several rates or losses the
worst counts. Routes avoid the cables that routing has noticed to be cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.network.fault import Fault, HostFault, LinkFault, SwitchFault
from gradwire.scenarios.units import Bps, Ps, format_rate
from gradwire.topology import Network
from gradwire.topology.routing import build_routing

if TYPE_CHECKING:
    from gradwire.sim.engine.fabric import Fabric
    from gradwire.sim.processes.coupling import Coupling
    from gradwire.sim.processes.network_interface import Track


class Faults:
    """The faults of a run. Raises ScenarioError with every name that the network does not have, and every rate above a
    cable's own."""

    def __init__(self, tables: Sequence[Fault], network: Network) -> None:
        self.network = network
        self.tables = tables
        mistakes: list[Mistake] = []
        self.links = [self._links(number, table, mistakes) for number, table in enumerate(tables)]
        self.hosts = [self._hosts(number, table, mistakes) for number, table in enumerate(tables)]
        if mistakes:
            raise ScenarioError("the faults do not fit the network", mistakes=mistakes)
        self._active: set[int] = set()
        self._noticed: set[int] = set()

    def schedule(self, fabric: Fabric) -> None:
        """Schedule all faults on a fabric."""
        for number, table in enumerate(self.tables):
            if isinstance(table, HostFault) and not table.stops:
                continue
            delay = getattr(table, "noticed_after", None)
            for time, change in ((table.at, self._begin), (table.until, self._end)):
                if time is None:
                    continue
                fabric.agenda.add(time, partial(change, fabric, number))
                if delay is not None:
                    notice = self._noticed.add if change == self._begin else self._noticed.discard
                    fabric.agenda.add(Ps(time + delay), partial(self._notice, fabric, partial(notice, number)))

    def slowness(self, host: int, now: Ps) -> float:
        """Return the factor by which computing takes longer on a host."""
        factor = 1.0
        for table, hosts in zip(self.tables, self.hosts, strict=True):
            if host in hosts and table.at <= now and (table.until is None or now < table.until):
                factor *= table.slowness
        return factor

    def slow_down(self, coupling: Coupling, tracks: Sequence[Track]) -> None:
        """Schedule the slowdowns of hosts; each affects what a worker begins to compute while it lasts."""
        cards = self.network.cards
        for table, hosts in zip(self.tables, self.hosts, strict=True):
            if table.slowness == 1.0:
                continue
            for time in (table.at, table.until):
                if time is None:
                    continue
                for host in hosts:
                    coupling.at(time, partial(self._slow, tracks, host, cards.node(host, 0)))

    def _slow(self, tracks: Sequence[Track], host: int, node: int, now: Ps) -> None:
        for track in tracks:
            track.slow_host(node, self.slowness(host, now))

    # --- applying faults ----------------------------------------------------------------------------------------

    def _begin(self, fabric: Fabric, number: int, now: Ps) -> None:
        self._active.add(number)
        self._apply(fabric, number, now)

    def _end(self, fabric: Fabric, number: int, now: Ps) -> None:
        self._active.discard(number)
        self._apply(fabric, number, now)

    def _apply(self, fabric: Fabric, number: int, now: Ps) -> None:
        """Bring the links or hosts of fault `number` to the state that all active faults require."""
        control, network = fabric.control, self.network
        if self.hosts[number]:
            stopped_hosts = {host for fault in self._active if self.tables[fault].stops for host in self.hosts[fault]}
            for host in self.hosts[number]:
                first, beyond = self.network.cards.first[host : host + 2].tolist()
                for card in range(first, beyond):
                    if host in stopped_hosts:
                        control.stop_host(card)
                    else:
                        control.resume_host(card, now)
            return
        rates: dict[int, int] = defaultdict(lambda: 1 << 62)
        losses: dict[int, float] = defaultdict(float)
        for fault in self._active:
            table = self.tables[fault]
            for link in self.links[fault]:
                rates[link] = min(rates[link], table.most_rate or rates[link])
                losses[link] = max(losses[link], table.least_loss)
        dead = self._dead_hosts(self._active)
        for link in self.links[number]:
            control.set_rate(link, Bps(min(int(network.link_rate[link]), rates[link])))
            control.set_loss(link, max(float(network.link_loss[link]), losses[link]))
            if link in dead:
                control.cut(link, now)
            else:
                control.mend(link, now)

    def _notice(self, fabric: Fabric, change: Callable[[], None], now: Ps) -> None:
        change()
        fabric.control.reroute(build_routing(self.network, self._dead_hosts(self._noticed)))

    def _dead_hosts(self, faults: set[int]) -> set[int]:
        return {link for number in faults if self.tables[number].cuts for link in self.links[number]}

    # --- names --------------------------------------------------------------------------------------------------

    def _links(self, number: int, table: Fault, mistakes: list[Mistake]) -> list[int]:
        network = self.network
        if isinstance(table, SwitchFault):
            node = self._node(f"fault[{number}].switch", table.switch, mistakes)
            if node is not None and node < network.host_count:
                mistakes.append(Mistake(f"fault[{number}].switch", "is a host", table.switch, "the name of a switch"))
            return (
                [] if node is None else np.flatnonzero((network.link_src == node) | (network.link_dst == node)).tolist()
            )
        if not isinstance(table, LinkFault):
            return []
        path = f"fault[{number}].between"
        a, b = (self._node(path, name, mistakes) for name in table.between)
        if a is None or b is None:
            return []
        forward = (network.link_src == a) & (network.link_dst == b)
        backward = (network.link_src == b) & (network.link_dst == a)
        if not forward.any():
            mistakes.append(Mistake(path, "there is no such link", " - ".join(table.between), "two neighbours"))
        links: list[int] = np.flatnonzero(forward if table.one_way else forward | backward).tolist()
        max_rate = table.most_rate
        if max_rate is not None and any(max_rate > network.link_rate[link] for link in links):
            cable_rate = format_rate(int(network.link_rate[links].min()))
            problem = "is above that of the cable"
            mistakes.append(Mistake(f"fault[{number}].rate", problem, format_rate(max_rate), f"at most {cable_rate}"))
        return links

    def _hosts(self, number: int, table: Fault, mistakes: list[Mistake]) -> list[int]:
        """Return the number of the host that a fault names."""
        if not isinstance(table, HostFault):
            return []
        host = self.network.cards.index.get(table.host)
        if host is None:
            expected = f"a name like {self.network.cards.hosts[0]}"
            mistakes.append(Mistake(f"fault[{number}].host", "there is no such host", table.host, expected))
        return [] if host is None else [host]

    def _node(self, path: str, name: str, mistakes: list[Mistake]) -> int | None:
        node = self.network.index.get(name)
        if node is None:
            expected = f"a name like {self.network.names[0]} or {self.network.names[-1]}"
            mistakes.append(Mistake(path, "there is no such node", name, expected))
        return node
