"""Deadlocks: priority flow control (PFC) can stop a network for good, by ports that wait for each other in a cycle.

A class of a port is *stuck* if the far end has stopped it, and every packet that holds the far end up - those that
came by this very link and still wait there - waits at a port where the same class is stuck. Nothing that happens
elsewhere can end that, so a set of stuck ports is a proof, not a guess.
"""

from __future__ import annotations

from gradwire.components import layout as at
from gradwire.experiment.topology import Network
from gradwire.sim.fabric.memory import Memory

BACK = at.POOL_WORDS  # of an entry of the pool: the port opposite to the link that the packet came by

Place = tuple[int, int]
"""A directed link and a class."""


def find_deadlock(memory: Memory, network: Network) -> list[str]:
    """The ports of a cycle that waits for itself, in order; empty if there is none."""
    stopped = _stopped(memory)
    while True:
        free = [
            place for place, blockers in stopped.items() if not blockers or not blockers <= stopped.keys()
        ]
        if not free:
            break
        for place in free:
            del stopped[place]
    if not stopped:
        return []
    place = min(stopped)
    seen: list[Place] = []
    while place not in seen:
        seen.append(place)
        place = min(stopped[place])
    return [network.link_name(link) for link, _ in seen[seen.index(place) :]]


def _stopped(memory: Memory) -> dict[Place, set[Place]]:
    """The classes of ports that have packets and may not send them; for each the places of the packets that the far
    end still holds of this link."""
    M, ports = memory.M, memory.port_base
    paused = M[M[ports + at.P_MORE] + at.X_PAUSED] & M[ports + at.P_QUEUE] & 0xFF
    found: dict[Place, set[Place]] = {}
    for link in paused.nonzero()[0].tolist():
        far = int(M[int(ports[link ^ 1]) + at.P_NODE])
        for c in range(8):
            if paused[link] >> c & 1:
                found[link, c] = _holders(memory, far, int(ports[link ^ 1]), c)
    return found


def _holders(memory: Memory, node: int, back: int, c: int) -> set[Place]:
    """The ports of a switch where packets of a class wait that came by the link opposite to port `back`."""
    M = memory.M
    holders = set()
    active = int(M[node + at.N_ACTIVE])
    for p in M[active : active + int(M[node + at.N_ACTIVE_COUNT])].tolist():
        if not M[p + at.P_QUEUE] >> c & 1:
            continue
        record = p + at.P_CLASSES + c * at.CLASS_WORDS
        entry, last = int(M[record + at.C_HEAD]), int(M[record + at.C_TAIL])
        while M[entry + BACK] != back and entry != last:
            entry = int(M[entry])
        if M[entry + BACK] == back:
            holders.add((int(M[p + at.P_ID]), c))
    return holders
