"""Deadlocks of priority flow control (PFC): ports that wait for each other in a cycle.

A class of a port is *stuck* if the far end has paused it, and every packet that holds the far end up (it came over this
very link and still waits there) waits at a port where the same class is stuck. Nothing elsewhere can end that, so a set
of stuck ports is a proof, not a guess.
"""

from __future__ import annotations

from gradwire.jit import layout as at
from gradwire.sim.engine.memory.engine_memory import EngineMemory
from gradwire.topology import Network

INGRESS_PORT_WORD = at.POOL_WORDS  # word of a pool entry: the port opposite to the link that the packet came over

PortClass = tuple[int, int]
"""A directed link and a class."""


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
    M, ports = memory.M, memory.port_base
    paused = M[M[ports + at.P_MORE] + at.X_PAUSED] & M[ports + at.P_QUEUE] & 0xFF
    holders: dict[PortClass, set[PortClass]] = {}
    for link in paused.nonzero()[0].tolist():
        far_node = int(M[int(ports[link ^ 1]) + at.P_NODE])
        for c in range(8):
            if paused[link] >> c & 1:
                holders[link, c] = _holders(memory, far_node, int(ports[link ^ 1]), c)
    return holders


def _holders(memory: EngineMemory, node: int, back: int, c: int) -> set[PortClass]:
    """Return the ports of a switch where packets wait that came over the link opposite to port `back`, of class `c`."""
    M = memory.M
    holders = set()
    active = int(M[node + at.N_ACTIVE])
    for p in M[active : active + int(M[node + at.N_ACTIVE_COUNT])].tolist():
        if not M[p + at.P_QUEUE] >> c & 1:
            continue
        record = p + at.P_CLASSES + c * at.CLASS_WORDS
        entry, last = int(M[record + at.C_HEAD]), int(M[record + at.C_TAIL])
        while M[entry + INGRESS_PORT_WORD] != back and entry != last:
            entry = int(M[entry])
        if M[entry + INGRESS_PORT_WORD] == back:
            holders.add((int(M[p + at.P_ID]), c))
    return holders
