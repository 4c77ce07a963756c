"""Places the workers and servers of jobs on hosts, by a rule (packed, spread, random, rails) or by name.

* packed: hosts in locality order, workers first, so that a job fills switch after switch;
* spread: dealt over the edge switches in turn, workers first;
* random: any hosts, drawn from the scenario's seed and the job's name;
* rails: in locality order, the first accelerator of every machine, then the second of every one, and so on;
* by name.

Hosts are counted as in `Network.cards`: a host with several network cards is one host. If machines hold accelerators,
these are the hosts: packed, spread and random assign all accelerators of a machine consecutively, and a dedicated
server takes a whole machine.

The rules never assign a host that a job names, and no host twice. Jobs placed by name may share hosts, as may a worker
and a server of one job (they then exchange through memory). Co-located servers sit on evenly chosen hosts of the
workers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from gradwire.scenarios.errors import Mistake, ScenarioError
from gradwire.topology import Network
from gradwire.topology.network import name_list


class HostAssignment(NamedTuple):
    """Hosts of one job (numbers in `Network.cards`), by worker and by server."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]


def place_jobs(jobs: Sequence[Any], network: Network, seed: int = 1) -> list[HostAssignment]:
    """Assign a host to every worker and server of every job. `seed` is the scenario's. Raises ScenarioError with all
    errors: names that are not hosts, more workers and servers than hosts."""
    mistakes: list[Mistake] = []
    taken: set[int] = set()
    for number, job in enumerate(jobs):
        if not isinstance(job.placement, str):
            taken.update(_by_name(job, number, network, mistakes).workers)
            taken.update(_by_name(job, number, network, []).servers)
    places = []
    for number, job in enumerate(jobs):
        if isinstance(job.placement, str):
            places.append(_by_rule(job, number, network, taken, mistakes, seed))
            taken.update(places[-1].workers)
            hosts_per_server = 1 if job.exchange.shares_hosts else network.cards.per_machine
            taken.update(host + g for host in places[-1].servers for g in range(hosts_per_server))
        else:
            places.append(_by_name(job, number, network, []))
    if mistakes:
        raise ScenarioError("the jobs cannot be placed", mistakes=mistakes)
    return places


def host_sequence(network: Network, rule: str, key: Sequence[int] = (1,)) -> list[int]:
    """Return all hosts in the order in which a rule assigns them; `key` seeds the rule "random"."""
    gpus, ordered = network.cards.per_machine, network.host_order.tolist()
    if rule == "rails":
        return [host + g for g in range(gpus) for host in ordered[::gpus]]
    return [host + g for host in _machines(network, ordered[::gpus], rule, key) for g in range(gpus)]


def _machines(network: Network, hosts: list[int], rule: str, key: Sequence[int]) -> list[int]:
    """Return the first hosts of all machines, passed in locality order, in the order of a rule."""
    if rule == "packed":
        return hosts
    if rule == "random":
        rng = np.random.default_rng(np.random.SeedSequence(tuple(key)))
        return [hosts[index] for index in rng.permutation(len(hosts)).tolist()]
    if rule != "spread":
        raise ScenarioError(f"unknown rule {rule!r}", where="placement", expected="packed, spread, random or rails")
    racks: dict[int, list[int]] = {}
    for host in hosts:
        racks.setdefault(int(network.edge_of[network.cards.first[host]]), []).append(host)
    return [host for turn in zip_longest(*racks.values()) for host in turn if host is not None]


def _by_rule(
    job: Any, number: int, network: Network, taken: set[int], mistakes: list[Mistake], seed: int
) -> HostAssignment:
    key = (seed, zlib.crc32(b"placement"), zlib.crc32(job.name.encode()))
    free = [host for host in host_sequence(network, job.placement, key) if host not in taken]
    colocated = job.exchange.shares_hosts
    dedicated = 0 if colocated else job.servers
    if colocated and job.servers > job.workers:
        what = "more co-located servers than workers"
        mistakes.append(Mistake(f"job[{number}].servers", what, job.servers, f"{job.workers}"))
    workers = tuple(free[: job.workers])
    servers = _servers(network, free[job.workers :], dedicated)
    if len(workers) < job.workers or len(servers) < dedicated:
        roles = f"{job.workers} workers" + (f" and {dedicated} servers" if dedicated else "")
        others = f" ({len(taken)} taken by other jobs)" if taken else ""
        what = f"too few free hosts: {roles} need {job.exchange.hosts_needed(job, network.cards.per_machine)} hosts"
        mistakes.append(Mistake(f"job[{number}].workers", what, expected=f"at most {len(free)} free hosts{others}"))
        return HostAssignment((), ())
    if colocated:
        return HostAssignment(workers, tuple(workers[s * job.workers // job.servers] for s in range(job.servers)))
    return HostAssignment(workers, servers)


def _servers(network: Network, free: list[int], count: int) -> tuple[int, ...]:
    """Return hosts for servers: the first host of each machine that is entirely free."""
    gpus = network.cards.per_machine
    if gpus == 1:
        return tuple(free[:count])
    free_hosts = set(free)
    machines = [host for host in free if host % gpus == 0 and free_hosts.issuperset(range(host, host + gpus))]
    return tuple(machines[:count])


def _by_name(job: Any, number: int, network: Network, mistakes: list[Mistake]) -> HostAssignment:
    places = []
    for role in ("workers", "servers"):
        hosts = []
        for position, name in enumerate(getattr(job.placement, role)):
            host = network.cards.index.get(name, -1)
            if host >= 0:
                hosts.append(host)
                continue
            node = network.index.get(name, -1)
            what = "is not a node of the network"
            if node >= 0:
                what = "is a switch" if node >= network.host_count else "is one network card of a host"
            expected = "a host: " + name_list(network.cards.hosts)
            mistakes.append(Mistake(f"job[{number}].placement.{role}[{position}]", what, name, expected))
        places.append(tuple(hosts))
    return HostAssignment(places[0], places[1])
