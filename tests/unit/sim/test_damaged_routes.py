"""A switch without a route where no cable is cut: the run ends with an error, for the state is damaged."""

from __future__ import annotations

import pytest
from star_cases import star_tables

from gradwire.jit.records.header import State
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.preparation import prepare_inputs
from gradwire.sim.simulate import packet_fabric
from gradwire.topology.routing import build_routing


@pytest.mark.parametrize("damaged", [False, True])
def test_packet_without_route_ends_run_with_internal_error(damaged):
    tables = star_tables(transport="dctcp")
    tables["topology"] = {"kind": "fat_tree", "k": 4}
    scenario = build_scenario(tables)
    network = prepare_inputs(scenario).needs.network
    fabric = packet_fabric(scenario, network, build_routing(network), 1)
    state = fabric.memory.state
    if damaged:
        route = int(state[State.routes.offset])
        state[route : route + 400] = 0
    fabric.send(Ps(0), 0, 15, Bytes(100_000))
    if damaged:
        with pytest.raises(GradwireError, match="internal error: a switch has no route"):
            fabric.run(Ps(10**9))
    else:
        assert fabric.run(Ps(10**9))
    fabric.close()
