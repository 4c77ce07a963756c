"""`NetworkControl` cuts, slows or impairs links, stops hosts and replaces routes of a fabric between two engine calls.

Call these functions between two runs of the engine. A packet that is on a link at the time of a change still arrives;
later transmissions meet the new state (our choice).

A pause of flow control holds while it is renewed, and our frames stand for those that renew it (see `core.pause`). So
when a link is cut, what its frames have requested ends, a frame still on it has no effect, and when the link works
again its node repeats its request.
"""

from __future__ import annotations

from math import ceil

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.flows import Receiver, Sender
from gradwire.jit.records.network import Host, Node, Port, PortExtra
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
        view(Port, self.memory.state, self._port(link)).ps_per_byte = ps_per_byte(rate)

    def set_loss(self, link: int, loss: float) -> None:
        """Set the loss probability of a directed link."""
        state, p = self.memory.state, self._port(link)
        odds = ceil(loss * 2**32)
        view(Port, state, p).loss = odds
        self._flag(p, at.SHAPE_LOSSY, odds > 0)

    def cut(self, link: int, now: Ps) -> None:
        """Cut a directed link: it loses everything from now on."""
        p = self._port(link)
        if self._has(p, at.SHAPE_DOWN):
            return
        self._flag(p, at.SHAPE_DOWN, True)
        state, listener = self.memory.state, self._port(link ^ 1)
        port = view(Port, state, listener)
        more = int(port.extra.base)
        port_extra = view(PortExtra, state, more)
        port_extra.ignores_pauses = 1
        if port_extra.paused:
            port_extra.paused = 0
            port.busy_until = max(int(port.busy_until), now)
            self._wake(int(port.node.base), now)

    def mend(self, link: int, now: Ps) -> None:
        """Restore a directed link."""
        state, p = self.memory.state, self._port(link)
        if not self._has(p, at.SHAPE_DOWN):
            return
        self._flag(p, at.SHAPE_DOWN, False)
        view(PortExtra, state, int(view(Port, state, self._port(link ^ 1)).extra.base)).ignores_pauses = 0
        port = view(Port, state, p)
        more, node = int(port.extra.base), int(port.node.base)
        port_extra = view(PortExtra, state, more)
        node_record = view(Node, state, node)
        controls = port_extra.pause_limit and node_record.kind != at.HOST
        if controls and not port_extra.pause_due:
            port_extra.pause_due = max(now, 1)
            if not port.flags & at.PORT_FLAG_ACTIVE:
                port.flags |= at.PORT_FLAG_ACTIVE
                state[int(node_record.active_ports.base) + int(node_record.active_count)] = p
                node_record.active_count += 1
            self._wake(node, now)

    def stop_host(self, host: int) -> None:
        """Stop a host until `resume_host`: it neither sends nor receives, and its timers do not fire. The packet that
        it is sending still leaves."""
        view(Host, self.memory.state, int(self.memory.node_base[host])).is_paused = 1

    def resume_host(self, host: int, now: Ps) -> None:
        """Resume a host: first its expired timers, then the packets that have arrived, in order."""
        state, node = self.memory.state, int(self.memory.node_base[host])
        host_record = view(Host, state, node)
        host_record.is_paused = 0
        heap, count = int(host_record.timer_heap), int(host_record.timer_count)
        entries = []
        for time, key in state[heap : heap + 2 * count].reshape(-1, 2).tolist():
            if time >= now:
                entries.append((time, key))
            elif key & 3 != at.WHAT_TIMER:
                entries.append((now, key))
            else:  # drop a stale entry: moved, it could be taken for a live one
                f, armed, timer = self._watched(key)
                if state[armed] == time and view(Sender, state, f).order == key >> at.KEY_ORDER << at.KEY_ORDER:
                    state[armed] = now
                    if 0 < state[timer] < now:  # else its flow, if served before it fires, arms it in the past
                        state[timer] = now
                    entries.append((now, key))
        entries.sort()  # a sorted list is a heap
        state[heap : heap + 2 * len(entries)] = [word for entry in entries for word in entry]
        host_record.timer_count = len(entries)
        p = int(view(Node, state, node).port.base)
        port = view(Port, state, p)
        port.busy_until = max(int(port.busy_until), now)
        self._wake(node, now)

    def reroute(self, routing: Routing) -> None:
        """Replace the routes of all switches at once. Packets without a route are dropped."""
        write_routes(self.memory, routing, REROUTED_ENTRIES)

    def _watched(self, key: int) -> tuple[int, int, int]:
        """Return the sender's record of the flow whose timer a heap entry is, and the words that hold entry and time.
        The words are the sender's or the receiver's."""
        record = (key & at.MASK_KEY_SENDER) >> 2
        flow, offset = divmod(record - self.memory.receivers, Receiver.WORDS)
        if flow < 0 or offset:
            return record, record + Sender.armed.offset, record + Sender.timer.offset
        return self.memory.senders + flow * Sender.WORDS, record + Receiver.armed.offset, record + Receiver.timer.offset

    def _port(self, link: int) -> int:
        return int(self.memory.port_base[link])

    def _has(self, p: int, flag: int) -> bool:
        return bool(int(view(Port, self.memory.state, p).shape) & flag)

    def _flag(self, p: int, flag: int, on: bool) -> None:
        port = view(Port, self.memory.state, p)
        shape = int(port.shape)
        port.shape = shape | flag if on else shape & ~flag

    def _wake(self, node: int, now: Ps) -> None:
        due = self.memory.next + int(view(Node, self.memory.state, node).position)
        self.memory.state[due] = min(int(self.memory.state[due]), now)
