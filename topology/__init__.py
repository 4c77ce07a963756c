"""Networks: checked arrays of nodes and links, built from a scenario's topology tables.

Simulator and testbed call `network_of`. The generators and readers behind the tables in `kinds` are public as well, for
people who build networks in Python. Every name is imported on first use, so reading a scenario and its tables needs no
NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.lazily import lazy_getattr
from gradwire.scenarios.loading.user_code_errors import asked

if TYPE_CHECKING:
    from gradwire.topology.cables import Cable as Cable
    from gradwire.topology.cables import LinkSpec as LinkSpec
    from gradwire.topology.cables import Override as Override
    from gradwire.topology.kinds.dragonfly import dragonfly as dragonfly
    from gradwire.topology.kinds.dumbbell import dumbbell as dumbbell
    from gradwire.topology.kinds.fat_tree import fat_tree as fat_tree
    from gradwire.topology.kinds.graph import from_networkx as from_networkx
    from gradwire.topology.kinds.graph import read_graph as read_graph
    from gradwire.topology.kinds.hpcc import read_hpcc as read_hpcc
    from gradwire.topology.kinds.leaf_spine import leaf_spine as leaf_spine
    from gradwire.topology.kinds.rail import rail as rail
    from gradwire.topology.kinds.star import star as star
    from gradwire.topology.kinds.torus import torus as torus
    from gradwire.topology.multi_nic_hosts import HostCards as HostCards
    from gradwire.topology.network import HOST as HOST
    from gradwire.topology.network import SWITCH as SWITCH
    from gradwire.topology.network import Network as Network
    from gradwire.topology.network import assemble as assemble

__getattr__ = lazy_getattr(
    __name__,
    {
        "cables": ("Cable", "LinkSpec", "Override"),
        "multi_nic_hosts": ("HostCards",),
        "kinds.graph": ("from_networkx", "read_graph"),
        "kinds.hpcc": ("read_hpcc",),
        "network": ("HOST", "SWITCH", "Network", "assemble"),
        **{f"kinds.{kind}": (kind,) for kind in "dragonfly dumbbell fat_tree leaf_spine rail star torus".split()},
    },
)


def network_of(scenario: Any) -> Network:
    """Return the network of a scenario, with the accelerators of its machines. Errors as in `build_network`."""
    from gradwire.topology.port_settings import port_settings

    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    port_settings(network, scenario.switch)  # refuses overrides of no port
    inside = scenario.host.inside
    if inside is None:
        return network
    from gradwire.topology.accelerators import MachineSpec, with_accelerators

    return with_accelerators(network, MachineSpec(*inside))


def build_network(topology: Any, link: Any, overrides: Iterable[Any] = ()) -> Network:
    """Build the network of a scenario's topology.

    topology : the scenario's [topology] table, or a networkx graph.
    link : its [link] table: rate (bits/s), latency (ps), loss.
    overrides : its [[link_override]] tables: between, rate, latency, loss.

    Raises ScenarioError with all errors of the network.
    """
    from gradwire.topology.cables import LinkSpec, Override

    spec = LinkSpec(link.rate, link.latency, link.loss)
    changes = [
        Override((entry.between[0], entry.between[1]), entry.rate, entry.latency, entry.loss) for entry in overrides
    ]
    if hasattr(topology, "is_directed"):  # a networkx graph, recognised without importing networkx
        from gradwire.topology.kinds.graph import from_networkx

        return from_networkx(topology, spec, overrides=changes)
    with asked(topology, "network", "topology"):
        network: Network = topology.network(spec, changes)
    return network
