"""Finds the hop of a ring that best explains which members of a collective finish late.

Behind a slow or interrupted link, members finish one after the other: first the one right behind it finishes last (see
`gradwire.traces.collective_logs.ring_times`). A group of several ranks per host has a ring per rail, whose ranks follow
each other from the rail's on (our choice, as NCCL's rings on hosts with a NIC per accelerator).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwire.scenarios.arrays import Flags, Floats, Ints
from gradwire.scenarios.lazily import np
from gradwire.traces.collective_logs.ring_times import BUFFERED_CHUNKS, RingChannel, ring_ends

_SLOW = 4.0
"""Time of a step over the slow link, in those of a healthy one; the shape of a profile depends little on it."""
_LOCAL_RATE = 20.0


class RingHop(NamedTuple):
    """A hop between hosts: sending and receiving rank, and the ring order of the members from the receiver on."""

    sender: int
    receiver: int
    order: tuple[int, ...]


def ring_hops(members: Sequence[int], host_of: Ints) -> list[RingHop]:
    """Return the hops between hosts of all rings of a group, by positions in `members`; none in a single host."""
    hosts = list(dict.fromkeys(host_of[list(members)].tolist()))
    by_host = [[position for position, rank in enumerate(members) if host_of[rank] == host] for host in hosts]
    if len(hosts) < 2:
        return []
    hops = []
    for rail in range(max(map(len, by_host))):
        turned = [ranks[rail % len(ranks) :] + ranks[: rail % len(ranks)] for ranks in by_host]
        for first in range(len(hosts)):
            order = [position for ranks in turned[first:] + turned[:first] for position in ranks]
            sender = turned[first - 1][0]  # the rail's NIC there, wherever the ring leaves the host
            hops.append(RingHop(members[sender], members[order[0]], tuple(order)))
    return hops


def lateness_profile(kind: str, hop: RingHop, host_of: Ints, members: Sequence[int]) -> Floats:
    """Return how late each member finishes if a hop is slow: float64 by position in `members`, with mean 0 and norm
    1."""
    ends = _ends(kind, hop, host_of, members, _SLOW)
    centred = ends - ends.mean()
    return centred / (float(np.linalg.norm(centred)) or 1.0)


def _ends(kind: str, hop: RingHop, host_of: Ints, members: Sequence[int], slow: float) -> Floats:
    rates = []
    for index, position in enumerate(hop.order):
        is_local = host_of[members[position]] == host_of[members[hop.order[index - 1]]]
        rates.append(_LOCAL_RATE if is_local else 1 / (slow if index == 0 else 1.0))
    n = len(members)
    return ring_ends(kind, n, [RingChannel(hop.order, rates, [0.0] * n, [()] * n)], 0.0)


def stalled_members(hop: RingHop, count: int) -> Flags:
    """Return which members finish late after an interruption that `count` of them still wait for."""
    late = np.zeros(len(hop.order), dtype=np.bool_)
    late[list(hop.order[:count])] = True
    late[hop.order[-1]] |= count > BUFFERED_CHUNKS
    return late
