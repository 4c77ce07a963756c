"""`Clock` orders the oracle's SimPy events by time and phase; `Link` transmits, delays and loses its packets. Ports are
in `port`, hosts in `host`.

Simultaneous events at one node happen in this order, the *phase* of the event:

0. `CHANGE`   a change of the network (see `changes`), in the order of registration;
1. `FREE`     a transmission ends, and the port starts the next one that waits;
2. `TIMER`    a message starts, a paced flow is released, a transport's timer expires; by message, then in this order;
3. `HELD`     a paused host takes what arrived meanwhile, in order;
4. `ARRIVAL`  packets arrive, by a hash of the time and the link;
5. `SENT_ON`  reactions of jobs to deliveries, by message.

After each of these an idle port starts what it can. Nodes cannot affect one another at the same instant, since every
packet takes time, so the order between nodes does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from gradwire.jit.counter_rng import draw, key_of
from gradwire.testing.oracle.packets import PAUSE, DeliveredMessage, Drop, Packet, Transmission

CHANGE, FREE, TIMER, HELD, ARRIVAL, SENT_ON = range(6)
LINK_DRAWS, TIE_DRAWS = 2, 5  # kinds of random keys


class Clock:
    """SimPy's event queue, with the phases as priorities."""

    def __init__(self) -> None:
        self.env = simpy.Environment(initial_time=0)

    @property
    def now(self) -> int:
        return int(self.env.now)

    def at(self, time: int, phase: int, key: int, action: Callable[[], None]) -> None:
        """Schedule `action` at `time`; lower keys first within a phase."""
        assert time >= self.now
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        assert event.callbacks is not None
        event.callbacks.append(lambda _: action())
        rank: Any = (phase << 64) + key  # keys may be negative; SimPy accepts any integer as priority
        self.env.schedule(event, priority=rank, delay=time - self.now)


class Link:
    """A directed link: it takes one packet at a time, and loses some of them."""

    def __init__(
        self,
        clock: Clock,
        log: OracleLog,
        index: int,
        rate: int,
        latency: int,
        loss: float,
        seed: int,
        since: Callable[[Packet], int],
    ) -> None:
        """`since`: start of a packet's relative time, which breaks ties between simultaneous arrivals."""
        self.clock, self.log, self.index, self.latency, self.since = clock, log, index, latency, since
        self.set_rate(rate)
        self.set_loss(loss)
        self.down = False
        self.loss_key = key_of(seed, LINK_DRAWS, index)
        self.tie_key = key_of(seed, TIE_DRAWS, index)
        self.receive: Callable[[Packet, int], None]  # the node at the far end
        self.freed: Callable[[], None]  # the port at the near end
        self.busy = False
        self.free_at = 0
        self.packets = 0
        self.bytes = 0
        self.lost = 0
        self.cut_off = 0

    def set_rate(self, rate: int) -> None:
        """Set the rate of transmissions that start from now on."""
        self.speed = -(-(8 * 10**12 << 16) // rate)  # picoseconds per byte << 16, rounded up

    def set_loss(self, loss: float) -> None:
        """Set the loss probability of transmissions that start from now on."""
        self.loss_odds = -int(-loss * 2**32 // 1)  # of 2**32, rounded up

    def duration(self, size: int) -> int:
        """Return the picoseconds from the first to the last bit of a packet, rounded up."""
        return -(-size * self.speed // 65536)

    def send(self, packet: Packet) -> None:
        assert not self.busy
        self.busy = True
        end = self.clock.now + self.duration(packet.size)
        self.free_at = end
        lost = draw.py_func(self.loss_key, self.packets) < self.loss_odds if self.loss_odds else False
        lost = self.down or (lost and packet.kind != PAUSE)  # its sender would repeat it
        self.packets += 1
        self.bytes += packet.size
        self.log.transmissions.append(Transmission(self.clock.now, self.index, packet, lost))
        self.clock.at(end, FREE, self.index, self._end)
        if lost:
            self.cut_off += self.down
            self.lost += not self.down
            if packet.kind != PAUSE:
                cause = "link_down" if self.down else "link_loss"
                self.log.drops.append(Drop(end, self.index, cause, packet))
        else:
            arrive, arrival = self.receive, end + self.latency
            # 20 bits of a hash, then the link: the same chance for every link in every tie
            time = arrival - self.since(packet)
            tie = draw.py_func(self.tie_key, time ^ time >> 31) >> 12
            self.clock.at(arrival, ARRIVAL, tie << 32 | self.index, lambda: arrive(packet, self.index))

    def _end(self) -> None:
        self.busy = False
        self.freed()


class OracleLog:
    """Records that are compared with the engine."""

    def __init__(self) -> None:
        self.transmissions: list[Transmission] = []
        self.drops: list[Drop] = []
        self.arrivals: list[DeliveredMessage] = []
