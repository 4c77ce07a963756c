"""Faults of a scenario, put on the agenda of a fabric.

A directed link may be hit by several faults at once: it is cut while any of them cuts it, and of several rates or
losses the worst counts. Routes are those without the cables that routing has noticed to be cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.scenarios.schema.fault import Fault, HostFault, LinkFault, SwitchFault
from gradwire.scenarios.units import Bps, Ps, format_rate

if TYPE_CHECKING:
    from gradwire.sim.coupling import Coupling
    from gradwire.sim.fabric.fabric import Fabric
    from gradwire.sim.network_like import Track

Slowness = Callable[[int, Ps], float]
"""(number of a host, picoseconds) -> how many times longer computing takes there"""


class Faults:
    """The faults of a run.

    Raises
    ------
    ScenarioError
        With every name that the network does not have, and every rate above a cable's own.
    """

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
        """Put all of them on a fabric's agenda."""
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
        """How many times longer computing takes on a host."""
        factor = 1.0
        for table, hosts in zip(self.tables, self.hosts, strict=True):
            if host in hosts and table.at <= now and (table.until is None or now < table.until):
                factor *= table.slowness
        return factor

    def slow_down(self, coupling: Coupling, tracks: Sequence[Track]) -> None:
        """Have the hosts of jobs compute more slowly while they are to: it counts what a worker begins to compute."""
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
            track.slow(node, self.slowness(host, now))

    # --- what happens -------------------------------------------------------------------------------------------

    def _begin(self, fabric: Fabric, number: int, now: Ps) -> None:
        self._active.add(number)
        self._apply(fabric, number, now)

    def _end(self, fabric: Fabric, number: int, now: Ps) -> None:
        self._active.discard(number)
        self._apply(fabric, number, now)

    def _apply(self, fabric: Fabric, number: int, now: Ps) -> None:
        """Bring what fault `number` is about to the state that all active faults ask for."""
        control, network = fabric.control, self.network
        if self.hosts[number]:
            still = {host for other in self._active if self.tables[other].stops for host in self.hosts[other]}
            for host in self.hosts[number]:
                first, beyond = self.network.cards.first[host : host + 2].tolist()
                for card in range(first, beyond):
                    if host in still:
                        control.stop_host(card)
                    else:
                        control.resume_host(card, now)
            return
        rates: dict[int, int] = defaultdict(lambda: 1 << 62)
        losses: dict[int, float] = defaultdict(float)
        for other in self._active:
            table = self.tables[other]
            for link in self.links[other]:
                rates[link] = min(rates[link], table.most_rate or rates[link])
                losses[link] = max(losses[link], table.least_loss)
        dead = self._dead(self._active)
        for link in self.links[number]:
            control.set_rate(link, Bps(min(int(network.link_rate[link]), rates[link])))
            control.set_loss(link, max(float(network.link_loss[link]), losses[link]))
            if link in dead:
                control.cut(link, now)
            else:
                control.mend(link, now)

    def _notice(self, fabric: Fabric, change: Callable[[], None], now: Ps) -> None:
        change()
        fabric.control.reroute(build_routing(self.network, self._dead(self._noticed)))

    def _dead(self, numbers: set[int]) -> set[int]:
        return {link for number in numbers if self.tables[number].cuts for link in self.links[number]}

    # --- names --------------------------------------------------------------------------------------------------

    def _links(self, number: int, table: Fault, mistakes: list[Mistake]) -> list[int]:
        network = self.network
        if isinstance(table, SwitchFault):
            node = self._node(f"fault[{number}].switch", table.switch, mistakes)
            if node is not None and node < network.host_count:
                mistakes.append(
                    Mistake(f"fault[{number}].switch", "is a host", table.switch, "the name of a switch")
                )
            return (
                []
                if node is None
                else np.flatnonzero((network.link_src == node) | (network.link_dst == node)).tolist()
            )
        if not isinstance(table, LinkFault):
            return []
        where = f"fault[{number}].between"
        a, b = (self._node(where, name, mistakes) for name in table.between)
        if a is None or b is None:
            return []
        forward = (network.link_src == a) & (network.link_dst == b)
        backward = (network.link_src == b) & (network.link_dst == a)
        if not forward.any():
            mistakes.append(
                Mistake(where, "there is no such link", " - ".join(table.between), "two neighbours")
            )
        links: list[int] = np.flatnonzero(forward if table.one_way else forward | backward).tolist()
        most = table.most_rate
        if most is not None and any(most > network.link_rate[link] for link in links):
            own = format_rate(int(network.link_rate[links].min()))
            what = "is above that of the cable"
            mistakes.append(Mistake(f"fault[{number}].rate", what, format_rate(most), f"at most {own}"))
        return links

    def _hosts(self, number: int, table: Fault, mistakes: list[Mistake]) -> list[int]:
        """The host (its number) that a fault is about."""
        if not isinstance(table, HostFault):
            return []
        host = self.network.cards.index.get(table.host)
        if host is None:
            like = f"a name like {self.network.cards.hosts[0]}"
            mistakes.append(Mistake(f"fault[{number}].host", "there is no such host", table.host, like))
        return [] if host is None else [host]

    def _node(self, where: str, name: str, mistakes: list[Mistake]) -> int | None:
        node = self.network.index.get(name)
        if node is None:
            like = f"a name like {self.network.names[0]} or {self.network.names[-1]}"
            mistakes.append(Mistake(where, "there is no such node", name, like))
        return node
