"""Looks for a cycle of ports that pause each other for good (a PFC deadlock) in the engine's state, at intervals.

A class of a port is *stuck* if the far end has paused it, and every packet that holds the far end up (it came over this
very link and still waits there) waits at a port where the same class is stuck. Nothing elsewhere can end that, so a set
of stuck ports is a proof, not a guess.
"""

from __future__ import annotations

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.network import Node, Port, PortExtra, QueueClass
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.units import format_time
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.sim.engine.scheduled_actions import Schedule
from gradwire.topology import Network

PortClass = tuple[int, int]
"""A directed link and a class."""
CHECK_INTERVAL = Ps(1_000_000_000)


class DeadlockWatch:
    """Checks of one fabric for deadlocks.

    Attributes
    ----------
    description : the deadlock that stopped ports for good; empty if there is none.
    """

    def __init__(self, memory: EngineMemory, network: Network, agenda: Schedule) -> None:
        self._memory, self._network, self._agenda = memory, network, agenda
        self.description = ""

    def start(self) -> None:
        """Check at every interval from now on."""
        self._agenda.add(CHECK_INTERVAL, self._check, observer=True)

    def _check(self, now: Ps) -> Ps | None:
        """Describe the deadlock if flow control has stopped ports for good; return the time of the next check. Checks
        stop at the first deadlock, and pause while a scheduled action could set the ports going again."""
        if self._agenda.next_action < at.FOREVER:
            return Ps(now + CHECK_INTERVAL)
        cycle = find_deadlock(self._memory, self._network)
        if not cycle:
            return Ps(now + CHECK_INTERVAL)
        ports = " waits for ".join([*cycle, cycle[0]])
        self.description = f"flow-control deadlock at {format_time(now)} or earlier: {ports}"
        return None


def find_deadlock(memory: EngineMemory, network: Network) -> list[str]:
    """Return the ports of a cycle that waits for itself, in order; empty if there is none."""
    stopped = _stopped(memory)
    while True:
        free = [
            port_class for port_class, blockers in stopped.items() if not blockers or not blockers <= stopped.keys()
        ]
        if not free:
            break
        for port_class in free:
            del stopped[port_class]
    if not stopped:
        return []
    port_class = min(stopped)
    chain: list[PortClass] = []
    while port_class not in chain:
        chain.append(port_class)
        port_class = min(stopped[port_class])
    return [network.link_name(link) for link, _ in chain[chain.index(port_class) :]]


def _stopped(memory: EngineMemory) -> dict[PortClass, set[PortClass]]:
    """Return the paused classes of ports that have packets, each with the places that hold the far end's packets of the
    link."""
    state, ports = memory.state, memory.port_base
    port_records = view(Port, state, ports)
    paused = view(PortExtra, state, port_records.extra.base).paused & port_records.queue & 0xFF
    holders: dict[PortClass, set[PortClass]] = {}
    for link in paused.nonzero()[0].tolist():
        far_node = int(view(Port, state, int(ports[link ^ 1])).node.base)
        for c in range(8):
            if paused[link] >> c & 1:
                holders[link, c] = _holders(memory, far_node, int(ports[link ^ 1]), c)
    return holders


def _holders(memory: EngineMemory, node: int, back: int, c: int) -> set[PortClass]:
    """Return the ports of a switch where packets wait that came over the link opposite to port `back`, of class `c`."""
    state = memory.state
    holders = set()
    node_record = view(Node, state, node)
    active = int(node_record.active_ports.base)
    for p in state[active : active + int(node_record.active_count)].tolist():
        port = view(Port, state, p)
        if not port.queue >> c & 1:
            continue
        waiting = QueueClass(state, p + Port.classes.offset + c * QueueClass.WORDS)
        entry, last = waiting.head, waiting.tail
        while entry.back.base != back and entry != last:
            entry = entry.next
        if entry.back.base == back:
            holders.add((int(port.link), c))
    return holders
