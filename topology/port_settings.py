"""`port_settings` finds the settings of every egress port, which [[switch.override]] may change."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from gradwire.scenarios.arrays import Ints
from gradwire.scenarios.errors import Mistake, ScenarioError

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.network import Switch
    from gradwire.topology.network import Network


def port_settings(network: Network, switch: Switch) -> tuple[Sequence[Switch], Ints]:
    """Return the different settings of ports, and the index of the one of every directed link, shape (links,).

    Index 0 is `switch` itself, which the hosts' ports have.

    Raises
    ------
    ScenarioError
        If an override names no port of a switch.
    """
    which = np.zeros(network.link_count, dtype=np.int64)
    if not switch.override:
        return [switch], which
    names, hosts = network.names, network.host_count
    ends = zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True)
    ports = ["" if source < hosts else f"{names[source]}->{names[target]}" for source, target in ends]
    matched = [
        np.array([fnmatchcase(port, _literal(override.ports)) for port in ports], dtype=bool)
        for override in switch.override
    ]
    mistakes = [
        Mistake(
            f"switch.override[{index}].ports", "names no port of a switch", switch.override[index].ports, _like(ports)
        )
        for index, found in enumerate(matched)
        if not found.any()
    ]
    if mistakes:
        raise ScenarioError("the ports cannot be set", mistakes=mistakes)
    settings = [switch]
    seen: dict[tuple[int, ...], int] = {(): 0}
    for link, row in enumerate(np.array(matched).T):
        chosen = tuple(np.flatnonzero(row).tolist())
        if chosen not in seen:
            seen[chosen] = len(settings)
            settings.append(switch.at_ports(chosen))
        which[link] = seen[chosen]
    return settings, which


def _literal(pattern: str) -> str:
    """Return a pattern in which only `*` stands for other characters."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _like(ports: Sequence[str]) -> str:
    """Return an example of a port's name."""
    return f"a name like {next(filter(None, ports))}, with * for any characters"
