"""Changes to a running network: cut, slowed or lossy cables, stopped hosts, new routes.

Call these functions between two runs of the engine. A packet that is on a link at the time of a change still arrives;
later transmissions meet the new state (our choice).

A pause of flow control holds while it is renewed, and our frames stand for those that renew it (see `core.pause`). So
when a link is cut, what its frames have requested ends, a frame still on it has no effect, and when the link works
again its node repeats its request.
"""

from __future__ import annotations

from math import ceil

from gradwire.jit import layout as at
from gradwire.scenarios.inner_units import Bps, Ps
from gradwire.scenarios.wire import ps_per_byte
from gradwire.sim.engine.memory.engine_memory import EngineMemory, write_routes
from gradwire.sim.engine.memory.regions import REROUTED_ENTRIES
from gradwire.topology import Network
from gradwire.topology.routing import Routing


class NetworkControl:
    """Control of one fabric's network."""

    def __init__(self, memory: EngineMemory, network: Network) -> None:
        self.memory, self.network = memory, network

    def set_rate(self, link: int, rate: Bps) -> None:
        """Set the rate of a directed link, at most the one it was built with. Raises ValueError if the rate is higher:
        the lookahead of the run depends on the rates."""
        if rate > self.network.link_rate[link]:
            raise ValueError(f"link {self.network.link_name(link)} was built with {self.network.link_rate[link]} bit/s")
        self.memory.M[self._port(link) + at.P_SPEED] = ps_per_byte(rate)

    def set_loss(self, link: int, loss: float) -> None:
        """Set the loss probability of a directed link."""
        M, p = self.memory.M, self._port(link)
        odds = ceil(loss * 2**32)
        M[p + at.P_LOSS] = odds
        self._flag(p, at.SHAPE_LOSSY, odds > 0)

    def cut(self, link: int, now: Ps) -> None:
        """Cut a directed link: it loses everything from now on."""
        p = self._port(link)
        if self._has(p, at.SHAPE_DOWN):
            return
        self._flag(p, at.SHAPE_DOWN, True)
        M, listener = self.memory.M, self._port(link ^ 1)
        more = int(M[listener + at.P_MORE])
        M[more + at.X_DEAF] = 1
        if M[more + at.X_PAUSED]:
            M[more + at.X_PAUSED] = 0
            M[listener + at.P_BUSY] = max(int(M[listener + at.P_BUSY]), now)
            self._wake(int(M[listener + at.P_NODE]), now)

    def mend(self, link: int, now: Ps) -> None:
        """Restore a directed link."""
        M, p = self.memory.M, self._port(link)
        if not self._has(p, at.SHAPE_DOWN):
            return
        self._flag(p, at.SHAPE_DOWN, False)
        M[int(M[self._port(link ^ 1) + at.P_MORE]) + at.X_DEAF] = 0
        more, node = int(M[p + at.P_MORE]), int(M[p + at.P_NODE])
        controls = M[more + at.X_LIMIT] and M[node + at.N_KIND] != at.HOST
        if controls and not M[more + at.X_SIGNAL]:
            M[more + at.X_SIGNAL] = max(now, 1)
            if not M[p + at.P_FLAGS] & at.PORT_FLAG_ACTIVE:
                M[p + at.P_FLAGS] |= at.PORT_FLAG_ACTIVE
                M[int(M[node + at.N_ACTIVE]) + int(M[node + at.N_ACTIVE_COUNT])] = p
                M[node + at.N_ACTIVE_COUNT] += 1
            self._wake(node, now)

    def stop_host(self, host: int) -> None:
        """Stop a host until `resume_host`: it neither sends nor receives, and its timers do not fire. The packet that
        it is sending still leaves."""
        self.memory.M[int(self.memory.node_base[host]) + at.N_STILL] = 1

    def resume_host(self, host: int, now: Ps) -> None:
        """Resume a host: first its expired timers, then the packets that have arrived, in order."""
        M, node = self.memory.M, int(self.memory.node_base[host])
        M[node + at.N_STILL] = 0
        heap, count = int(M[node + at.N_HEAP]), int(M[node + at.N_HEAP_COUNT])
        entries = []
        for time, key in M[heap : heap + 2 * count].reshape(-1, 2).tolist():
            if time >= now:
                entries.append((time, key))
            elif key & 3 != at.WHAT_TIMER:
                entries.append((now, key))
            else:  # drop a stale entry: moved, it could be taken for a live one
                f, armed, timer = self._watched(key)
                if M[armed] == time and M[f + at.S_ORDER] == key >> at.KEY_ORDER << at.KEY_ORDER:
                    M[armed] = now
                    if 0 < M[timer] < now:  # else its flow, if served before it fires, arms it in the past
                        M[timer] = now
                    entries.append((now, key))
        entries.sort()  # a sorted list is a heap
        M[heap : heap + 2 * len(entries)] = [word for entry in entries for word in entry]
        M[node + at.N_HEAP_COUNT] = len(entries)
        p = int(M[node + at.N_PORT])
        M[p + at.P_BUSY] = max(int(M[p + at.P_BUSY]), now)
        self._wake(node, now)

    def reroute(self, routing: Routing) -> None:
        """Replace the routes of all switches at once. Packets without a route are dropped."""
        write_routes(self.memory, routing, REROUTED_ENTRIES)

    def _watched(self, key: int) -> tuple[int, int, int]:
        """Return the sender's record of the flow whose timer a heap entry is, and the words that hold entry and time.
        The words are the sender's or the receiver's."""
        record = (key & at.MASK_KEY_SENDER) >> 2
        flow, offset = divmod(record - self.memory.receivers, at.RECEIVER_WORDS)
        if flow < 0 or offset:
            return record, record + at.S_ARMED, record + at.S_TIMER
        return self.memory.senders + flow * at.SENDER_WORDS, record + at.R_ARMED, record + at.R_TIMER

    def _port(self, link: int) -> int:
        return int(self.memory.port_base[link])

    def _has(self, p: int, flag: int) -> bool:
        return bool(int(self.memory.M[p + at.P_SHAPE]) & flag)

    def _flag(self, p: int, flag: int, on: bool) -> None:
        shape = int(self.memory.M[p + at.P_SHAPE])
        self.memory.M[p + at.P_SHAPE] = shape | flag if on else shape & ~flag

    def _wake(self, node: int, now: Ps) -> None:
        due = self.memory.next + int(self.memory.M[node + at.N_POSITION])
        self.memory.M[due] = min(int(self.memory.M[due]), now)
