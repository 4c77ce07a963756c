"""Finds the hosts that run a worker, a server or traffic, so that checks report ineffective faults and cable settings.

The answer is None if it depends on more than the scenario.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, zip_longest
from typing import Any


def hosts_of_jobs(scenario: Any) -> frozenset[str] | None:
    """Return the names of hosts with a worker or a server, None if they depend on more than the scenario.

    Placement by rule takes free hosts in locality order (packed) or rack by rack in turn (spread), as
    `gradwire.topology.placement` does; hosts with several accelerators, random placement, and topologies with an
    unknown number of hosts per switch give None.
    """
    if scenario.host.gpus > 1:
        return None
    used = {name for job in scenario.job if not isinstance(job.placement, str) for name in _named(job.placement)}
    for job in scenario.job:
        if not isinstance(job.placement, str):
            continue
        order = _order(scenario.topology.racks, job.placement)
        if order is None:
            return None
        free = [name for name in order if name not in used]
        used.update(free[: job.exchange.hosts_needed(job)])
    return frozenset(used)


def hosts_in_use(scenario: Any) -> frozenset[str] | None:
    """Return the names of hosts that send or receive anything, None if they depend on more than the scenario."""
    job_hosts = hosts_of_jobs(scenario)
    if job_hosts is None or not scenario.senders:
        return None
    used = set(job_hosts)
    for traffic in scenario.traffic:
        if traffic.hosts == "all":
            return None
        used.update(traffic.hosts)
        for names in traffic.named_hosts.values():
            if names == "all":
                return None
            used.update(names)
    return frozenset(used)


def is_idle(scenario: Any, ends: Iterable[str]) -> bool:
    """Return True if one of the nodes is a host that sends and receives nothing."""
    used = hosts_in_use(scenario)
    return used is not None and any(scenario.is_host(end) and end not in used for end in ends)


def are_at_one_switch(scenario: Any) -> bool:
    """Return True if all hosts that send or receive are at the same switch."""
    racks, used = scenario.topology.racks, hosts_in_use(scenario)
    if racks is None or not used:
        return False
    last_hosts = list(accumulate(racks))
    return len({bisect_right(last_hosts, int(name[1:])) for name in used if scenario.is_host(name)}) == 1


def _named(placement: Any) -> Iterator[str]:
    yield from placement.workers
    yield from placement.servers


def _order(racks: tuple[int, ...] | None, rule: str) -> list[str] | None:
    """Return all hosts in the order in which a rule assigns them; None if unknown."""
    if racks is None or rule not in ("packed", "spread"):
        return None
    names, first = [], 0
    for count in racks:
        names.append([f"h{number}" for number in range(first, first + count)])
        first += count
    if rule == "packed":
        return [name for rack in names for name in rack]
    return [name for turn in zip_longest(*names) for name in turn if name is not None]
